"""ropetool use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropetool.cli import command_line, local_source, print_json, show, terminal_width
from ropetool.cli import options as shared

if TYPE_CHECKING:
    from ropetool.cli.runs import ResultOptions
    from ropetool.lab.usage.measuring import UsageOptions


@click.command("use")
@shared.SOURCE
@click.option("--text", type=click.Path(), metavar="FILE", help="The text that is read. Default: a bundled text.")
@click.option(
    "--length", type=shared.Length(None), metavar="TOKENS",
    help="The tokens that are read, at most the trained length. Default: the trained length, at most 2048.",
)  # fmt: skip
@shared.DEVICE
@shared.DTYPE
@shared.REPORT
@shared.FORCE_REPORT
@click.option("--explain", is_flag=True, help="Describe the columns below each table.")
@shared.JSON
@shared.gathered(options="ropetool.lab.usage.measuring.UsageOptions", printing="ropetool.cli.runs.ResultOptions")
def use_command(source: str, options: UsageOptions, printing: ResultOptions) -> None:
    """Show which heads and rotary pairs of a model read far.

    Reads one text in two forward passes. For each head of the layers that see the whole text, it measures the attention on far
    tokens, on the first tokens, and on the earlier copy of a repeated text. For each rotary pair, it measures how much the pair
    varies the scores of the keys.

    \b
    ropetool use model
    ropetool use model --text book.txt --length 4096 --report use-report
    """
    from ropetool.lab.usage.measuring import measure_usage
    from ropetool.lab.usage.report import usage_json, usage_page, usage_parts
    from ropetool.report.page import write_page
    from ropetool.report.terminal import terminal_text

    printing.check_report()
    usage = measure_usage(local_source(source), options)
    if printing.report is not None:
        write_page(usage_page(usage, command_line()), Path(printing.report), force=printing.force)
    if printing.as_json:
        print_json(usage_json(usage))
    else:
        show(terminal_text(usage_parts(usage), terminal_width(), explained=printing.explain))
