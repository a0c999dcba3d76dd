"""ropetool verify."""

from __future__ import annotations

from typing import Any

import click

from ropetool.cli import notes, print_json


def lengths_option(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    """Return the lengths of a list like 256,512."""
    if value is None:
        return None
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of lengths; write 256,512,1024") from None


@click.command("verify")
@click.argument("target", type=click.Path())
@click.option("--baseline", type=click.Path(), help="What to compare with. Default: the unchanged source of TARGET.")
@click.option(
    "--text", "texts", type=click.Path(), multiple=True, help="A document, or a folder of them; repeat for several."
)
@click.option(
    "--lengths", callback=lengths_option, metavar="N,N,...", help="Default: doubling up to the context stated."
)
@click.option(
    "--max-ratio", type=float, default=1.5, show_default=True, help="Perplexity allowed, over the baseline's."
)
@click.option(
    "--segments", type=int, default=32, show_default=True, help="How many passages are scored at each length."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Which passages.")
@click.option("--device", default="auto", show_default=True, metavar="auto|cpu|cuda|mps")
@click.option("--dtype", default="auto", show_default=True, metavar="auto|float32|bfloat16|float16|float64")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify_command(
    target: str, baseline: str | None, texts: tuple[str, ...], lengths: list[int] | None, as_json: bool, **options: Any
) -> int:
    """Measure perplexity as the context grows.

    The same last tokens are scored behind ever longer contexts. A length holds when its perplexity is at most
    --max-ratio times the baseline's; it is useful when it beats cutting the text to the trained length.
    Exit code 3 when a length does not hold, 1 when the texts were too few for some length.

    \b
    ropetool verify model-yarn-8x --baseline model --lengths 4096,8192,32768
    """
    from ropetool.cli.progress import bar
    from ropetool.report.text import verify_table
    from ropetool.verification.checkpoints import verify_checkpoint

    with bar() as progress:
        result = verify_checkpoint(
            target, baseline=baseline, texts=texts, lengths=lengths, progress=progress, **options
        )
    if as_json:
        print_json(result.to_json())
    else:
        click.echo(verify_table(result), nl=False)
    notes(list(result.notes))
    return result.exit_code
