"""ropetool tune."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropetool.cli import command_line, local_source, notes, print_json, show, terminal_width
from ropetool.cli import options as shared
from ropetool.cli.named_files import check_new, write_new
from ropetool.cli.next_steps import in_own_words

if TYPE_CHECKING:
    from ropetool.cli.runs import ResultOptions
    from ropetool.lab.tuning.options import TuneOptions

PLAN_OUT = "--plan-out"


@click.command("tune")
@shared.SOURCE
@shared.target_length("The target context length in tokens: 131072, 128k or 1M.", required=True)
@click.option(
    "--space", type=shared.SPACE, default="yarn", show_default=True, metavar="NAME",
    help="The search space: yarn, ramp or pairs for the table, and pair-gain, head-gain or head-band-gain for the weights.",
)  # fmt: skip
@click.option(
    "--budget", type=shared.NUMBER, metavar="MINUTES",
    help="Approximate time of search and evaluation, in minutes. Default: 10.",
)  # fmt: skip
@click.option(
    "--max-regression", type=shared.NUMBER, metavar="X",
    help="The largest perplexity ratio to the source within the trained length. Default: 1.1, or the ratio of YaRN if that is "
    "higher.",
)  # fmt: skip
@shared.READING
@shared.for_runtimes("A runtime that must read the output correctly (repeatable). Default: transformers.")
@shared.TEXTS
@shared.plan_out("The plan file. Default: SOURCE-tuned-N-SPACE.json, next to SOURCE.")
@shared.seed("documents and points")
@shared.DEVICE
@shared.DTYPE
@shared.report("an HTML report")
@shared.FORCE_REPORT
@shared.RESUME
@shared.JSON
@shared.gathered(options="ropetool.lab.tuning.options.TuneOptions", printing="ropetool.cli.runs.ResultOptions")
def tune_command(
    source: str, target_length: int, options: TuneOptions, plan_out: str | None, printing: ResultOptions
) -> None:
    """Search for the best RoPE settings of one model.

    Loads the model once, and tries points of a search space on part of the documents. It minimises the loss of text beyond the
    trained length, of copied passages and of answers, within --max-regression on short texts.

    Then it compares the best point once with the default, YaRN as in `extend`, on documents that the search did not read. If
    the gain is not significant, tune recommends the default. It writes the recommended plan for `ropetool apply`.

    \b
    ropetool tune model --target-length 32k
    ropetool tune model --target-length 32k --space pairs --budget 60 --max-regression 1.03
    ropetool tune model --target-length 128k --space head-gain --for vllm --text documents/
    """
    from ropetool.cli.progress import bar
    from ropetool.lab.tuning.report import tune_json, tune_page, tune_parts
    from ropetool.lab.tuning.tuning import tune_source
    from ropetool.report.page import write_page
    from ropetool.report.terminal import terminal_text

    if plan_out is not None:
        check_new(PLAN_OUT, Path(plan_out))
    printing.check_report()
    path = local_source(source)
    place = Path(plan_out) if plan_out is not None else _beside(path, target_length, options.space)
    check_new(PLAN_OUT, place)
    try:
        with bar() as progress, in_own_words("another --for"):
            result = tune_source(path, target_length, options, progress=progress, say=printing.say)
    except KeyboardInterrupt as error:
        rows, unkept = getattr(error, "rows", 0), getattr(error, "unkept", "")
        again = f"{rows} rows are saved; repeat the command with --resume to continue"
        notes([f"the results are not saved: {unkept}" if unkept else again if rows else "no results to save yet"])
        raise
    write_new(PLAN_OUT, place, json.dumps(result.plan.to_json(), indent=2) + "\n")
    if printing.report is not None:
        write_page(tune_page(result, place, command_line()), Path(printing.report), force=printing.force)
    if printing.as_json:
        print_json(tune_json(result, place))
    else:
        show(terminal_text(tune_parts(result, source, place), terminal_width()))
        notes(result.notes)


def _beside(path: Path, target_length: int, space: str) -> Path:
    """Return the default place of the plan: next to the source under the user's name for it, or in the current folder."""
    from ropetool.files import hub

    place = Path(os.path.abspath(hub.beside(path)))
    place = place.with_name(f"{place.name}-tuned-{target_length}-{space}.json")
    return place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place
