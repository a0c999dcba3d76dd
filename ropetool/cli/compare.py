"""ropetool compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, in_colour, local_source, notes, print_json, show, terminal_width
from ropetool.cli import options as shared

if TYPE_CHECKING:
    from ropetool.checkpoint.opening import Checkpoint
    from ropetool.choosing.options import CandidateOptions
    from ropetool.choosing.results import Comparison
    from ropetool.cli.runs import ResultOptions
    from ropetool.verification.options import VerifyArguments, VerifyOptions


AS_PLAN = "{} --dry-run --plan-out FILE, then --plan FILE"
OWN_OPTIONS = {"--method": "--methods", "--factor": "--factors"}


def known_methods(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    """Return the names between commas. Raises: UnknownMethod."""
    names = [part.strip() for part in (value or "").split(",") if part.strip()]
    if names and not context.resilient_parsing:
        from ropetool.cli.next_steps import in_own_words
        from ropetool.rope import methods

        with in_own_words(AS_PLAN, OWN_OPTIONS):
            for name in names:
                methods.get(name)
    return names


class Factors(shared.Factor):
    """Factors between commas."""

    name = "factors"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the numbers."""
        if not isinstance(value, str):
            return value
        return [shared.Factor.convert(self, part, param, ctx) for part in value.split(",")]


GROUPS = {
    "What to compare": ("methods", "factors", "target_lengths", "texts"),
    "How much": ("suite", "grade", "budget", "resume"),
    "Output": ("report", "as_json"),
}


@click.command("compare", cls=shared.Grouped, groups=GROUPS)
@shared.SOURCE
@click.option(
    "--methods", callback=known_methods, metavar="METHOD,METHOD,...",
    help="The methods to compare (`ropetool methods` lists them). Default with --factors or --target-length: yarn, llama3, "
    "ntk-by-parts, mixed-ntk and ntk.",
)  # fmt: skip
@click.option(
    "--factors", type=Factors(), default=(), metavar="S,S,...",
    help="The context lengths as multiples of the trained length, or with --from current of the current context length: 2,4,8.",
)  # fmt: skip
@click.option(
    "--target-length", "target_lengths", type=shared.Length(), multiple=True,
    help="A context length in tokens, such as 32k (repeatable).",
)  # fmt: skip
@click.option(
    "--plan", "plans", type=click.Path(), multiple=True, metavar="FILE",
    help="A plan of `extend --plan-out` or `tune` to measure, with or without methods (repeatable).",
)  # fmt: skip
@shared.READING
@shared.ORIGINAL_LENGTH
@shared.for_runtimes("A runtime that must read the outputs correctly (repeatable). Default: transformers.")
@shared.TEXTS
@click.option(
    "--lengths", type=shared.LengthList(), metavar="N,N,...", callback=shared.checked("ropetool.verification.preparing.check_lengths"),
    help="Measure all candidates at these lengths, in tokens. Default: doubling up to the context length of each candidate.",
)  # fmt: skip
@click.option("--baseline-beyond", is_flag=True, help="Also measure the unchanged source beyond its trained length.")
@click.option(
    "--compare-with", default="", metavar="NAME,...",
    help="Also run these attention variants, which a file cannot contain: rerope, 'leaky-rerope(128,16)', self-extend, ...",
)  # fmt: skip
@click.option(
    "--suite", metavar="quick|standard|full", callback=shared.checked("ropetool.verification.suites.check_suite"),
    help="The measures. Default: quick, and the measures that the grade requires.",
)  # fmt: skip
@click.option(
    "--measure", "measures", multiple=True, metavar="NAME",
    callback=shared.checked("ropetool.verification.suites.check_measure"),
    help="A single measure, as in `ropetool verify` (repeatable).",
)  # fmt: skip
@shared.GRADE
@shared.SEGMENTS
@shared.TRIALS
@click.option(
    "--budget", type=shared.Minutes(), metavar="MINUTES|none", callback=shared.checked("ropetool.verification.options.check_budget"),
    help="The time limit of the run in minutes. Default: 60.",
)  # fmt: skip
@shared.SEED
@shared.DEVICE
@shared.DTYPE
@click.option(
    "--csv", "csv_file", type=click.Path(), metavar="FILE", help="Also write a row for each candidate and length."
)
@shared.REPORT
@shared.FORCE_REPORT
@shared.RESUME
@click.option("--explain", is_flag=True, help="Describe the columns below each table.")
@shared.JSON
@shared.gathered(
    candidates="ropetool.choosing.options.CandidateOptions",
    arguments="ropetool.verification.options.VerifyArguments",
    printing="ropetool.cli.runs.ResultOptions",
)
def compare_command(
    source: str,
    candidates: CandidateOptions,
    arguments: VerifyArguments,
    printing: ResultOptions,
    grade: str | None,
    csv_file: str | None,
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
    from ropetool.choosing.candidates import requested
    from ropetool.cli.named_files import check_new, write_new
    from ropetool.cli.next_steps import in_own_words
    from ropetool.cli.runs import naming_a_smaller_run
    from ropetool.plans.advice import CLOSED_FORMS
    from ropetool.report.compared import compare_page, compare_parts
    from ropetool.report.page import write_page
    from ropetool.report.terminal import terminal_text
    from ropetool.verification.gate import Limits
    from ropetool.verification.options import VerifyOptions

    if candidates.factors and candidates.target_lengths:
        raise click.UsageError("pass only one of --factors and --target-length")
    if not candidates.methods and (candidates.factors or candidates.target_lengths):
        candidates = replace(candidates, methods=CLOSED_FORMS)
    complete: VerifyArguments = {**arguments, "limits": Limits.at_grade(grade)}
    options = VerifyOptions(**complete)
    with naming_a_smaller_run(), in_own_words(AS_PLAN, OWN_OPTIONS):
        requested(candidates)  # refuses wrong ones before the source is opened
        printing.check_report()
        if csv_file is not None:
            check_new("--csv", Path(csv_file))
        comparison = compared(local_source(source), candidates, options, printing.say)
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
    notes(comparison.notes)
    return 0


def compared(
    source: Path | Checkpoint, candidates: CandidateOptions, options: VerifyOptions, say: Callable[[str], None] | None
) -> Comparison:
    """Return the comparison, and show its progress. say: prints notes about the work ahead; None prints nothing."""
    from ropetool.choosing.comparing import compare_candidates
    from ropetool.cli.runs import measuring

    with measuring() as progress:
        return compare_candidates(source, candidates, options, progress=progress, say=say)
