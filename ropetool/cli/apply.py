"""ropetool apply, and the options of every command that writes a plan's output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, local_source, print_result
from ropetool.cli.options import (
    COPY,
    FORCE,
    JSON,
    NO_SIDECARS,
    SOURCE,
    check_in_place,
    check_output_path,
    gathered,
    in_place,
    output,
)

if TYPE_CHECKING:
    from ropetool.plans.applied import Applied
    from ropetool.plans.plan import Plan


@dataclass(frozen=True)
class OutputOptions:
    """The options of an output.

    output: the path; None chooses a name next to the source.
    in_place: edit the source itself, a GGUF file.
    copy_if_needed: with in_place, rewrite the whole file if the edit does not fit.
    copy: copy the weight files, and do not link them.
    sidecars: also write the model card, and the Modelfile of a GGUF file.
    force: replace an earlier output of ropetool.
    """

    output: str | None
    in_place: bool
    copy_if_needed: bool
    copy: bool
    sidecars: bool
    force: bool

    def check(self, *others: str) -> None:
        """Raise click.UsageError for options that exclude each other. Works only in a click command.

        others: the names of more parameters for a separate output.
        """
        check_in_place("output", "copy", "force", *others)

    def check_path(self, source: str) -> None:
        """Raise OutputError for an output that cannot be written. source: as the user wrote it; it is not read."""
        check_output_path(self.output, source, force=self.force)

    def target(self, plan: Plan, source: Path) -> Path:
        """Return the path that the plan changes or writes."""
        if self.output is not None:
            return Path(self.output)
        return source if self.in_place else plan.output_beside(source)


@dataclass(frozen=True)
class PlanOptions(OutputOptions):
    """The options of an output, and of its plan.

    dry_run: print the plan, and do not write the output.
    plan_out: the file for the plan, None for no file.
    """

    dry_run: bool
    plan_out: str | None

    def check(self, *others: str) -> None:
        """Check as `OutputOptions`, only in a click command. Raises: ConfigError for a plan file that cannot be written."""
        super().check(*others)
        if self.plan_out is not None:
            from ropetool.cli.named_files import check_new

            check_new("--plan-out", Path(self.plan_out))

    def check_path(self, source: str) -> None:
        """Check as `OutputOptions`. --dry-run accepts every output, because it does not write it."""
        if not self.dry_run:
            super().check_path(source)

    @contextmanager
    def saved(self, plan: Plan) -> Iterator[None]:
        """Write the plan file, and remove it again if the body fails."""
        if self.plan_out is None:
            yield
            return
        from ropetool.cli.named_files import write_new

        write_new("--plan-out", Path(self.plan_out), json.dumps(plan.to_json(), indent=2) + "\n")
        try:
            yield
        except BaseException:
            Path(self.plan_out).unlink()
            raise


@click.command("apply")
@SOURCE
@click.argument("plan_file", metavar="PLAN.json", type=click.Path())
@output("The output path. Default: next to the source, with a name from the plan.")
@in_place
@COPY
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

    options.check()
    options.check_path(source)
    plan, path = Plan.read(plan_file), local_source(source)
    written = applied(plan, path, options.target(plan, path), options)
    print_result(
        as_json, lambda: applied_json(plan, written), lambda: applied_parts(plan, written),
        (*plan.notes, *written.notes),
    )  # fmt: skip


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
