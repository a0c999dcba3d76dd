"""ropetool diff."""

from __future__ import annotations

import click

from ropetool.cli import local_source, notes, print_json, show

DIFFERENT = 3


@click.command("diff")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, with every tensor that is not identical."
)
def diff_command(a: str, b: str, as_json: bool) -> int:
    """Say how two checkpoints differ, tensor by tensor.

    A and B are directories with a config.json, or GGUF files. Tables, context and factors are compared as runtimes
    compute them, weights by their numbers: identical, stored in another type, scaled by a constant, whole or in some
    rows, with rows in another order, or changed. Exit code 3 where the two differ in meaning.

    \b
    ropetool diff model model-yarn-8x
    ropetool diff model model-BF16.gguf
    """
    from ropetool.cli.progress import BYTES, bar
    from ropetool.comparison import compare
    from ropetool.report.differing import diff_text

    first, second = local_source(a), local_source(b)
    with bar(BYTES) as shown:
        found = compare(first, second, progress=shown)
    if as_json:
        print_json(found.to_json())
    else:
        show(diff_text(found))
        notes(found.notes)
    return 0 if found.same else DIFFERENT
