"""ropetool compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, in_colour, local_source, notes, print_json, show, terminal_width
from ropetool.cli.options import (
    DEVICE,
    DTYPE,
    GRADE,
    JSON,
    READING,
    REPORT,
    TEXTS,
    WHOLE,
    Factor,
    Grouped,
    Length,
    LengthList,
    Minutes,
    ResultOptions,
    check_new,
    for_runtimes,
    gathered,
    naming_a_smaller_run,
    write_new,
)
from ropetool.cli.wording import in_own_words

if TYPE_CHECKING:
    from ropetool.checkpoint.opening import Checkpoint
    from ropetool.choosing.options import CandidateOptions
    from ropetool.choosing.results import Comparison
    from ropetool.verification.options import VerifyOptions


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
    "--lengths", type=LengthList(), metavar="N,N,...",
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
@REPORT
@click.option("--force", is_flag=True, help="Replace the folder of an earlier report.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@click.option("--explain", is_flag=True, help="Describe the columns below each table.")
@JSON
@gathered(
    candidates="ropetool.choosing.options.CandidateOptions",
    options="ropetool.verification.options.VerifyOptions",
    printing=ResultOptions,
)
def compare_command(
    source: str,
    candidates: CandidateOptions,
    options: VerifyOptions,
    printing: ResultOptions,
    grade: str | None,
    csv_file: str | None,
) -> int:  # fmt: skip
    """Measure and rank several methods on one model.

    Loads the model once and changes its RoPE table in memory. Does not write a model. All candidates read the same tokens, and
    the unchanged source is the baseline. "Better" means significantly better, paired by document and corrected for the number
    of pairs.

    \b
    ropetool compare model --factors 2,4,8
    ropetool compare model --methods yarn,llama3,ntk --target-length 32k --grade publishable
    ropetool compare model --methods yarn --factors 4 --plan tuned.json
    """
    from ropetool.report.compared import compare_page, compare_parts
    from ropetool.report.page import write_page
    from ropetool.report.terminal import terminal_text
    from ropetool.verification.gate import Limits

    printing.check_report()
    if csv_file is not None:
        check_new("--csv", Path(csv_file))
    if candidates.factors and candidates.target_lengths:
        raise click.UsageError("pass only one of --factors and --target-length")
    line = click.get_current_context().find_root().obj
    with naming_a_smaller_run(line), in_own_words(AS_PLAN, {"--method": "--methods", "--factor": "--factors"}):
        path = local_source(source)
        options = replace(options, limits=Limits.at_grade(grade))
        comparison = compared(path, candidates, options, quiet=printing.as_json)
    if csv_file is not None:
        write_new("--csv", Path(csv_file), comparison.to_csv())
    if printing.report is not None:
        write_page(compare_page(comparison, command_line()), Path(printing.report), force=printing.force)
    if printing.as_json:
        print_json(comparison.to_json())
    else:
        colour = in_colour()
        parts = compare_parts(comparison)
        text = terminal_text(parts, terminal_width(), colour=colour, explained=printing.explain)
        show(text, colour=colour)
    notes(list(comparison.notes))
    return 0


def compared(
    source: Path | Checkpoint, candidates: CandidateOptions, options: VerifyOptions, *, quiet: bool
) -> Comparison:
    """Return the comparison; show its progress, and its estimated duration unless quiet."""
    from ropetool.choosing.comparing import compare_candidates
    from ropetool.cli.progress import bar, unfinished
    from ropetool.plans.advice import CLOSED_FORMS

    if not candidates.methods and (candidates.factors or candidates.target_lengths):
        candidates = replace(candidates, methods=CLOSED_FORMS)
    say = None if quiet else lambda line: notes([line])
    try:
        with bar() as progress:
            return compare_candidates(source, candidates, options, progress=progress, say=say)
    except KeyboardInterrupt as error:
        notes([unfinished(error)])
        raise
