"""ropetool apply."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropetool.cli import command_line, local_source, notes, print_json, show

if TYPE_CHECKING:
    from ropetool.plans.applying import Applied
    from ropetool.plans.plan import Plan


@click.command("apply")
@click.argument("source", type=click.Path())
@click.argument("plan_file", metavar="PLAN.json", type=click.Path())
@click.option("--output", "-o", type=click.Path(), help="Default: beside the source, as extend would name it.")
@click.option("--copy", is_flag=True, help="Copy the weight files instead of linking them.")
@click.option(
    "--no-sidecars", "sidecars", is_flag=True, default=True, flag_value=False,
    help="Leave the model card as it is; beside a GGUF file write neither card nor Modelfile.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an output that ropetool wrote.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def apply_command(
    source: str, plan_file: str, output: str | None, copy: bool, sidecars: bool, force: bool, as_json: bool
) -> None:
    """Carry out a plan made by extend or bake --plan-out.

    A source whose values are no longer those of the plan is refused.

    \b
    ropetool extend model --method yarn --factor 8 --dry-run --plan-out plan.json
    ropetool apply model plan.json
    """
    from ropetool.plans.plan import Plan
    from ropetool.report.planned import applied_json, applied_text

    plan, path = Plan.read(plan_file), local_source(source)
    target = Path(output) if output is not None else plan.output_beside(path)
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
