"""ropetool check."""

from __future__ import annotations

import click

from ropetool.cli import local_source, print_result, terminal_width
from ropetool.cli.options import BASELINE, JSON, TRAINED_LENGTH


@click.command("check")
@click.argument("target", type=click.Path())
@BASELINE
@TRAINED_LENGTH
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
    from ropetool.verification.readback.terms import Terms
    from ropetool.verification.verdict.checking import check

    result = check(local_source(target), baseline, Terms(trained_length=trained_length))
    print_result(as_json, result.to_json, lambda: checked_parts(result), result.notes, width=terminal_width())
    return result.exit_code
