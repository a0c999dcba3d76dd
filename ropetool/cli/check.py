"""ropetool check."""

from __future__ import annotations

import click

from ropetool.cli import local_source, notes, print_json, show, terminal_width
from ropetool.cli.options import JSON, WHOLE


@click.command("check")
@click.argument("target", type=click.Path())
@click.option(
    "--baseline", type=click.Path(), help="The model before the extension. Default: from the record of TARGET."
)
@click.option(
    "--trained-length",
    type=WHOLE,
    metavar="N",
    help="The trained length in tokens, before any extension. Default: from the record, else from the baseline.",
)
@JSON
def check_command(target: str, baseline: str | None, trained_length: int | None, as_json: bool) -> int:
    """Compare a checkpoint with its record and its source.

    Runs the first part of `ropetool verify`: compares tables, weights and files with the source, and the rotation of the runtime
    with the table. Does not read texts, so it takes seconds. The last line shows the certificate.

    Exit code 3 if a check fails, 1 if the result is unknown.

    \b
    ropetool check model-yarn-8x
    ropetool check downloaded.gguf --baseline original.gguf
    """
    from ropetool.report.checked import checked_parts
    from ropetool.report.terminal import terminal_text
    from ropetool.verification.readback.terms import Terms
    from ropetool.verification.verdict.checking import check

    result = check(local_source(target), baseline, Terms(trained_length=trained_length))
    if as_json:
        print_json(result.to_json())
    else:
        show(terminal_text(checked_parts(result), terminal_width()))
        notes(list(result.notes))
    return result.exit_code
