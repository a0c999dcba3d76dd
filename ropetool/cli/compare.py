"""ropetool compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, in_colour, local_source, notes, print_json, show, terminal_width
from ropetool.cli.options import (
    DEVICE,
    DTYPE,
    GRADE,
    READING,
    TEXTS,
    WHOLE,
    Factor,
    Grouped,
    Length,
    Lengths,
    Minutes,
    check_new,
    for_runtimes,
    naming_a_smaller_run,
    write_new,
)
from ropetool.cli.wording import in_own_words

if TYPE_CHECKING:
    from ropetool.checkpoint.opening import Checkpoint
    from ropetool.choosing.results import Comparison


AS_PLAN = "{} --dry-run --plan-out FILE, then --plan FILE"


def separated(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    """Return the names between commas."""
    return [part.strip() for part in (value or "").split(",") if part.strip()]


class Factors(Factor):
    """Factors between commas."""

    name = "factors"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the numbers."""
        if not isinstance(value, str):
            return value
        return [Factor.convert(self, part, param, ctx) for part in value.split(",")]


GROUPS = {
    "What to compare": ("methods", "factors", "target_lengths", "texts"),
    "How much": ("suite", "grade", "budget", "resume"),
    "Output": ("report", "as_json"),
}


@click.command("compare", cls=Grouped, groups=GROUPS)
@click.argument("source", type=click.Path())
@click.option(
    "--methods", callback=separated, metavar="METHOD,METHOD,...",
    help="The methods to compare (`ropetool methods` lists them). Default with --factors or --target-length: yarn, llama3, "
    "ntk-by-parts, mixed-ntk and ntk.",
)  # fmt: skip
@click.option(
    "--factors",
    type=Factors(),
    default=(),
    metavar="S,S,...",
    help="The context lengths as multiples of the trained length, or with --from current of the current context length: 2,4,8.",
)
@click.option(
    "--target-length",
    "target_lengths",
    type=Length(),
    multiple=True,
    help="A context length in tokens, such as 32k (repeatable).",
)
@click.option(
    "--plan", "plans", type=click.Path(), multiple=True, metavar="FILE",
    help="A plan of `extend --plan-out` or `tune` to measure, with or without methods (repeatable).",
)  # fmt: skip
@READING
@click.option(
    "--original-length", type=Length(None), help="The context length before any scaling, in tokens. Overrides the file."
)
@for_runtimes("A runtime that must read the outputs correctly (repeatable). Default: transformers.")
@TEXTS
@click.option(
    "--lengths", type=Lengths(), metavar="N,N,...",
    help="Measure all candidates at these lengths, in tokens. Default: doubling up to the context length of each candidate.",
)  # fmt: skip
@click.option("--baseline-beyond", is_flag=True, help="Also measure the unchanged source beyond its trained length.")
@click.option(
    "--compare-with", default="", metavar="NAME,...",
    help="Also run these attention variants, which a file cannot contain: rerope, 'leaky-rerope(128,16)', self-extend, ...",
)  # fmt: skip
@click.option(
    "--suite",
    metavar="quick|standard|full",
    help="The measures. Default: quick, and the measures that the grade requires.",
)
@click.option(
    "--measure",
    "measures",
    multiple=True,
    metavar="NAME",
    help="A single measure, as in `ropetool verify` (repeatable).",
)
@GRADE
@click.option("--segments", type=WHOLE, help="Number of passages per length, 8 or more. Default: from the suite.")
@click.option("--trials", type=WHOLE, help="Number of retrieval trials per depth. Default: from the suite.")
@click.option(
    "--budget", type=Minutes(), metavar="MINUTES|none", help="The time limit of the run in minutes. Default: 60."
)  # fmt: skip
@click.option("--seed", type=WHOLE, default=0, show_default=True, help="Random seed for the choice of passages.")
@DEVICE
@DTYPE
@click.option(
    "--csv", "csv_file", type=click.Path(), metavar="FILE", help="Also write a row for each candidate and length."
)
@click.option("--report", type=click.Path(), help="Write an HTML report with plots into this new folder.")
@click.option("--force", is_flag=True, help="Replace the folder of an earlier report.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@click.option("--explain", is_flag=True, help="Describe the columns below each table.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def compare_command(
    source: str, as_json: bool, explain: bool, csv_file: str | None, report: str | None, force: bool, **options: Any
) -> int:
    """Measure and rank several methods on one model.

    Loads the model once and changes its RoPE table in memory. Does not write a model. All candidates read the same tokens, and
    the unchanged source is the baseline. "Better" means significantly better, paired by document and corrected for the number
    of pairs.

    \b
    ropetool compare model --factors 2,4,8
    ropetool compare model --methods yarn,llama3,ntk --target-length 32k --grade publishable
    ropetool compare model --methods yarn --factors 4 --plan tuned.json
    """
    from ropetool.report.compared import compare_text
    from ropetool.report.compared_page import write_report
    from ropetool.report.page import check_folder

    if report is not None:
        check_folder(Path(report), force=force)
    if csv_file is not None:
        check_new("--csv", Path(csv_file))
    line = click.get_current_context().find_root().obj
    with naming_a_smaller_run(line), in_own_words(AS_PLAN, {"--method": "--methods", "--factor": "--factors"}):
        found = compared(local_source(source), quiet=as_json, **options)
    if csv_file is not None:
        write_new("--csv", Path(csv_file), found.to_csv())
    if report is not None:
        write_report(found, Path(report), force=force, command=command_line())
    if as_json:
        print_json(found.to_json())
    else:
        colour = in_colour()
        show(compare_text(found, width=terminal_width(), colour=colour, explained=explain), colour=colour)
    notes(list(found.notes))
    return 0


def compared(source: Path | Checkpoint, *, quiet: bool = False, **options: Any) -> Comparison:
    """Return the comparison with these options of the command; show progress and the duration ahead."""
    from ropetool.choosing.comparing import compare
    from ropetool.cli.progress import bar, unfinished
    from ropetool.plans.advice import CLOSED_FORMS
    from ropetool.verification.gate import Limits

    if options["factors"] and options["target_lengths"]:
        raise click.UsageError("pass only one of --factors and --target-length")
    if not options["methods"] and (options["factors"] or options["target_lengths"]):
        options["methods"] = CLOSED_FORMS
    grade = options.pop("grade")
    limits = None if grade is None else Limits(grade=grade)
    try:
        with bar() as progress:
            return compare(
                source, limits=limits, progress=progress, say=None if quiet else lambda line: notes([line]), **options
            )
    except KeyboardInterrupt as error:
        notes([unfinished(error)])
        raise
