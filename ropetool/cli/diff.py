"""ropetool diff."""

from __future__ import annotations

import click

from ropetool.cli import local_source, print_result

DIFFERENT = 3


@click.command("diff")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, with every tensor that is not identical."
)
def diff_command(a: str, b: str, as_json: bool) -> int:
    """Compare RoPE tables, settings and weights of two models.

    A and B are directories with a config.json, or GGUF files. ropetool compares tables, context length and factors as runtimes
    compute them. For each tensor it reports one relation: identical, stored in a different type, scaled by a constant (all
    or some rows), rows in a different order, or changed.

    Exit code 3 if the two models compute something different.

    \b
    ropetool diff model model-yarn-8x
    ropetool diff model model-BF16.gguf
    """
    from ropetool.cli.progress import BYTES, bar
    from ropetool.comparison import compare
    from ropetool.report.differing import diff_parts

    first, second = local_source(a), local_source(b)
    with bar(BYTES) as progress:
        diff = compare(first, second, progress=progress)
    print_result(as_json, diff.to_json, lambda: diff_parts(diff), diff.notes)
    return 0 if diff.same else DIFFERENT
