"""ropetool doctor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropetool.cli import local_source, print_result, terminal_width
from ropetool.cli.options import check_in_place, check_output_path, for_runtimes, gathered, in_place, output

if TYPE_CHECKING:
    from ropetool.doctor.fixing import Destination


@dataclass(frozen=True)
class RepairOptions:
    """The options of a repair.

    fix: write a corrected copy of each checkpoint.
    output: the path of the copy; None chooses a name next to the checkpoint.
    in_place: correct the GGUF file itself.
    copy_if_needed: with in_place, rewrite the whole file if the edit does not fit.
    """

    fix: bool
    output: str | None
    in_place: bool
    copy_if_needed: bool

    def check(self, sources: tuple[str, ...]) -> None:
        """Check the options, before a source is read. Works only in a click command.

        Raises: click.UsageError for options that exclude each other, or need exactly one source; OutputError for an
        output that cannot be written.
        """
        if self.output is not None and (not self.fix or len(sources) != 1):
            raise click.UsageError("--output requires --fix and exactly one SOURCE")
        if self.in_place and not self.fix:
            raise click.UsageError("--in-place requires --fix")
        check_in_place("output")
        if self.output is not None:
            check_output_path(self.output, sources[0])

    def destination(self) -> Destination:
        """Return the place of the corrected files."""
        from ropetool.doctor.fixing import Destination

        return Destination(None if self.output is None else Path(self.output), self.in_place, self.copy_if_needed)


@click.command("doctor")
@click.argument("sources", nargs=-1, type=click.Path(), metavar="SOURCE...")
@click.option(
    "--source", "origin", type=click.Path(), metavar="ORIGIN",
    help="The checkpoint that SOURCE was converted from. Reports positions that differ from it.",
)  # fmt: skip
@for_runtimes("A runtime that you use (repeatable). Treats warnings about it as errors, and skips other runtimes.")
@click.option("--only", multiple=True, metavar="RULE", help="Apply only this rule (repeatable).")
@click.option("--rules", "list_rules", is_flag=True, help="List the rules.")
@click.option(
    "--fix", is_flag=True,
    help="Write a corrected copy next to the checkpoint, if its own runtime computes the same table from it. Run doctor on the copy again.",
)  # fmt: skip
@output("With --fix of one checkpoint: the output path. Default: SOURCE-fixed.")
@in_place
@click.option(
    "--sarif", "sarif_file", type=click.Path(), metavar="FILE", help="Also write the findings as SARIF 2.1.0."
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings, or the rules, as JSON.")
@gathered(repair=RepairOptions)
def doctor_command(
    sources: tuple[str, ...],
    origin: str | None,
    for_runtimes: tuple[str, ...],
    only: tuple[str, ...],
    list_rules: bool,
    repair: RepairOptions,
    sarif_file: str | None,
    as_json: bool,
) -> int:
    """Find and fix RoPE settings that runtimes misread.

    SOURCE is a model as in the other commands, or a folder of models, searched at any depth. Does not read weights. An
    unreadable checkpoint is a finding, and doctor continues with the others.

    --fix writes copies with the same table in a form that more runtimes read: both styles of config.json, numbers instead of
    strings, and GGUF keys with the types that llama.cpp requires. The format's own runtime reads the same values from the
    copy. With --in-place, --fix edits the GGUF file itself.

    Exit code 3 if there is an error, 1 if all errors are unreadable files or a copy could not be written. With --fix, only the
    remaining errors count. ropetool plans each command that it prints as a fix, so the command works.

    \b
    ropetool doctor model
    ropetool doctor ~/models --sarif findings.sarif
    ropetool doctor model.gguf --source model
    ropetool doctor model --for vllm --for transformers-v4
    ropetool doctor model --fix
    ropetool doctor --rules
    """
    from ropetool.cli.progress import bar
    from ropetool.doctor import examine
    from ropetool.doctor.fixing import exit_code, repaired
    from ropetool.report import sarif
    from ropetool.report.diagnosed import diagnosis_json, diagnosis_parts

    if list_rules:
        _show_rules(only, as_json)
        return 0
    if not sources:
        raise click.UsageError("Missing argument 'SOURCE...'.")
    repair.check(sources)
    if sarif_file is not None:
        sarif.check_place(Path(sarif_file))
    origin = None if origin is None else str(local_source(origin))
    with bar("checkpoints") as progress:
        diagnosis = examine(sources, source=origin, only=only, for_runtimes=for_runtimes, progress=progress)
    if repair.output is not None and len(diagnosis.examined) != 1:
        raise click.UsageError("--output writes one copy, but SOURCE contains several checkpoints")
    repairs = repaired(diagnosis, repair.destination()) if repair.fix else ()
    if sarif_file is not None:
        sarif.write_sarif(diagnosis, Path(sarif_file))
    print_result(
        as_json, lambda: diagnosis_json(diagnosis, repairs), lambda: diagnosis_parts(diagnosis, repairs),
        width=terminal_width(),
    )  # fmt: skip
    return exit_code(diagnosis, repairs)


def _show_rules(only: tuple[str, ...], as_json: bool) -> None:
    from ropetool.doctor.rules import chosen
    from ropetool.report.diagnosed import rules_json, rules_parts

    rules = chosen(only)
    print_result(as_json, lambda: rules_json(rules), lambda: rules_parts(rules), width=terminal_width())
