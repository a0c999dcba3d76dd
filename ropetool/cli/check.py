"""ropetool check."""

from __future__ import annotations

import click

from ropetool.cli import local_source, notes, print_json, show, terminal_width
from ropetool.cli.options import WHOLE


@click.command("check")
@click.argument("target", type=click.Path())
@click.option("--baseline", type=click.Path(), help="What to compare with. Default: the unchanged source of TARGET.")
@click.option("--trained-length", type=WHOLE, metavar="N", help="The context length before any extension, in tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check_command(target: str, baseline: str | None, trained_length: int | None, as_json: bool) -> int:
    """Say what a checkpoint is, and whether that is true.

    This is the first question of `ropetool verify`. Tables, weights and files are compared with the source, and the runtime
    is asked for its rotation. No text is read, so it takes seconds. The last line says what was measured.

    Exit code 3 if it is not what it says, 1 if that is not known.

    \b
    ropetool check model-yarn-8x
    ropetool check downloaded.gguf --baseline original.gguf
    """
    from ropetool.report.checked import checked_text
    from ropetool.verification.readback.terms import Terms
    from ropetool.verification.verdict.checking import check

    found = check(local_source(target), baseline, Terms(trained_length=trained_length))
    if as_json:
        print_json(found.to_json())
    else:
        show(checked_text(found, terminal_width()))
        notes(list(found.notes))
    return found.exit_code
