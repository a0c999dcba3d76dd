"""ropetool apply."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, local_source, notes, print_json, show
from ropetool.cli.options import FORCE, JSON, NO_SIDECARS, OutputOptions, check_in_place, gathered, in_place

if TYPE_CHECKING:
    from ropetool.plans.applied import Applied
    from ropetool.plans.plan import Plan


@click.command("apply")
@click.argument("source", type=click.Path())
@click.argument("plan_file", metavar="PLAN.json", type=click.Path())
@click.option(
    "--output", "-o", type=click.Path(), help="The output path. Default: next to the source, with a name from the plan."
)
@in_place
@click.option("--copy", is_flag=True, help="Copy the weight files instead of linking them.")
@NO_SIDECARS
@FORCE
@JSON
@gathered(options=OutputOptions)
def apply_command(source: str, plan_file: str, options: OutputOptions, as_json: bool) -> None:
    """Apply a plan written by extend, bake or tune.

    extend and bake write a plan with --plan-out. ropetool refuses a source that differs from the source of the plan.

    \b
    ropetool extend model --method yarn --factor 8 --dry-run --plan-out plan.json
    ropetool apply model plan.json
    ropetool apply model.gguf plan.json --in-place
    """
    from ropetool.plans.plan import Plan
    from ropetool.report.planned import applied_json, applied_parts
    from ropetool.report.terminal import terminal_text

    excluded = {"--output": options.output, "--copy": options.copy, "--force": options.force}
    check_in_place(options.in_place, options.copy_if_needed, excluded)
    plan, path = Plan.read(plan_file), local_source(source)
    written = applied(plan, path, options.target(plan, path), options)
    if as_json:
        print_json(applied_json(plan, written))
    else:
        show(terminal_text(applied_parts(plan, written)))
        notes((*plan.notes, *written.notes))


def applied(plan: Plan, source: Path, target: Path, options: OutputOptions) -> Applied:
    """Carry out a plan: edit the source itself, or write the target and show the progress."""
    from ropetool.cli.progress import BYTES, bar

    if options.in_place:
        from ropetool.plans.in_place import apply_in_place

        return apply_in_place(plan, source, copy_if_needed=options.copy_if_needed, command=command_line())
    from ropetool.plans.applying import apply

    with bar(BYTES) as progress:
        return apply(
            plan, source, target, force=options.force, copy=options.copy, sidecars=options.sidecars,
            command=command_line(), progress=progress,
        )  # fmt: skip


def place_of(plan: Plan, source: Path, target: Path, options: OutputOptions) -> tuple[str, dict[str, Any]]:
    """Return the place of the output for --dry-run, and the keys that --json adds for an edit in place."""
    if not options.in_place:
        return str(target), {}
    from ropetool.plans.in_place import way_of
    from ropetool.report.planned import in_place_json, in_place_text

    way = way_of(plan, source, copy_if_needed=options.copy_if_needed)
    return f"{source} itself: {in_place_text(way)}", {"in_place": in_place_json(way)}
