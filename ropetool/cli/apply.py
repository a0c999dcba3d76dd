"""ropetool apply."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, local_source, notes, print_json, show
from ropetool.cli.options import check_in_place, in_place

if TYPE_CHECKING:
    from ropetool.plans.applying import Applied
    from ropetool.plans.plan import Plan


@click.command("apply")
@click.argument("source", type=click.Path())
@click.argument("plan_file", metavar="PLAN.json", type=click.Path())
@click.option(
    "--output", "-o", type=click.Path(), help="The output path. Default: next to the source, with a name from the plan."
)
@in_place
@click.option("--copy", is_flag=True, help="Copy the weight files instead of linking them.")
@click.option(
    "--no-sidecars", "sidecars", is_flag=True, default=True, flag_value=False,
    help="Do not change the model card. For a GGUF file, do not write a card or a Modelfile.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an earlier output of ropetool.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def apply_command(
    source: str, plan_file: str, output: str | None, in_place: bool, copy_if_needed: bool, copy: bool, sidecars: bool,
    force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Apply a plan written by extend, bake or tune.

    extend and bake write a plan with --plan-out. ropetool refuses a source that differs from the source of the plan.

    \b
    ropetool extend model --method yarn --factor 8 --dry-run --plan-out plan.json
    ropetool apply model plan.json
    ropetool apply model.gguf plan.json --in-place
    """
    from ropetool.plans.plan import Plan
    from ropetool.report.planned import applied_json, applied_text

    check_in_place(in_place, copy_if_needed, {"--output": output, "--copy": copy, "--force": force})
    plan, path = Plan.read(plan_file), local_source(source)
    target = Path(output) if output is not None else plan.output_beside(path)
    if in_place:
        written = applied_in_place(plan, path, copy_if_needed=copy_if_needed)
    else:
        written = applied(plan, path, target, force=force, copy=copy, sidecars=sidecars)
    if as_json:
        print_json(applied_json(plan, written))
    else:
        show(applied_text(plan, written))
        notes((*plan.notes, *written.notes))


def applied(plan: Plan, source: Path, target: Path, *, force: bool, copy: bool, sidecars: bool = True) -> Applied:
    """Write the planned output, and show how far it is."""
    from ropetool.cli.progress import BYTES, bar
    from ropetool.plans.applying import apply

    with bar(BYTES) as shown:
        return apply(
            plan, source, target, force=force, copy=copy, sidecars=sidecars, command=command_line(), progress=shown
        )


def applied_in_place(plan: Plan, source: Path, *, copy_if_needed: bool) -> Applied:
    """Carry out a plan in the file itself."""
    from ropetool.plans.in_place import apply_in_place

    return apply_in_place(plan, source, copy_if_needed=copy_if_needed, command=command_line())


def way_in_place(plan: Plan, source: Path, *, copy_if_needed: bool) -> tuple[str, dict[str, Any]]:
    """Return what --dry-run says in place of an output, the file itself and the way, and what --json adds for it."""
    from ropetool.plans.in_place import way_of
    from ropetool.report.planned import in_place_json, in_place_text

    way = way_of(plan, source, copy_if_needed=copy_if_needed)
    return f"{source} itself: {in_place_text(way)}", {"in_place": in_place_json(way)}
