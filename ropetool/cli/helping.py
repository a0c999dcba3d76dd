"""Help of commands with many options: everyday ones in groups, the rest with --help-all, and the page of the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

ALL = "--help-all"
ALL_SHOWN = "ropetool.help_all"  # in the context: every option is shown


class Grouped(click.Command):
    """A command whose help shows some options in groups.

    groups: names of parameters by the title of their group.
    """

    def __init__(self, *arguments: Any, groups: Mapping[str, Sequence[str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.groups = groups

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters with --help-all before --help."""
        *params, last = super().get_params(ctx)
        shown = click.Option(
            [ALL], is_flag=True, is_eager=True, expose_value=False, callback=show_all, help="Show all options and exit."
        )
        return [*params, shown, last]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups; behind them all other options, or how many there are."""
        *params, show_rest, show_help = self.get_params(ctx)
        records = {param.name: param.get_help_record(ctx) for param in params}
        about_help = [record for param in (show_rest, show_help) if (record := param.get_help_record(ctx))]
        grouped = {name for names in self.groups.values() for name in names}
        rest = [record for name, record in records.items() if record and name not in grouped]
        for title, names in self.groups.items():
            with formatter.section(title):
                formatter.write_dl([record for name in names if (record := records[name])])
        if ctx.meta.get(ALL_SHOWN):
            with formatter.section("Other options"):
                formatter.write_dl([*rest, *about_help])
            return
        with formatter.section("Help"):
            formatter.write_dl(about_help)
        formatter.write_paragraph()
        formatter.write_text(f"{len(rest)} more options: {ctx.command_path} {ALL}")


def show_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Print the help with every option, and exit."""
    if value and not ctx.resilient_parsing:
        ctx.meta[ALL_SHOWN] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
