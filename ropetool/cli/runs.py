"""Runs that measure, as `verify`, `compare`, `tune` and `extend` start them, and what `verify` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropetool.cli import command_line, in_colour, notes, print_json, show, terminal_width, typed_words
from ropetool.cli.options import refuse
from ropetool.cli.progress import Update, bar, unfinished
from ropetool.errors import ConfigError
from ropetool.escaping import command, with_options

if TYPE_CHECKING:
    from ropetool.verification.gate import Limits
    from ropetool.verification.options import VerifyArguments, VerifyOptions
    from ropetool.verification.readback.terms import Terms
    from ropetool.verification.results import VerifyResult
    from ropetool.verification.runners.vllm_engine import Engine
    from ropetool.verification.served import Served

AGAIN = "the same command with --resume"
OF_FILES = ("stated", "finetuned", "strict")  # options of readback
SIZES = ("tensor_parallel_size", "pipeline_parallel_size")


@dataclass(frozen=True)
class ResultOptions:
    """How a measured result is printed.

    as_json: as JSON, and no notes on the work ahead.
    explain: with descriptions of the columns.
    report: the folder of an HTML report, None for no report.
    force: replace the folder of an earlier report.
    """

    as_json: bool = False
    explain: bool = False
    report: str | None = None
    force: bool = False

    @property
    def say(self) -> Callable[[str], None] | None:
        """Prints a sentence about the work ahead; None for --json."""
        return None if self.as_json else say

    def check_report(self) -> None:
        """Refuse the folder of the report if it cannot be written, before long work."""
        if self.report is not None:
            from ropetool.report.page import check_folder

            check_folder(Path(self.report), force=self.force)


def say(line: str) -> None:
    """Print a sentence about the work ahead as a note."""
    notes([line])


@contextmanager
def measuring(again: str = AGAIN) -> Iterator[Update]:
    """Yield the callback of a progress bar. After an interruption, print what was saved and how to continue.

    again: the command that continues.
    """
    try:
        with bar() as progress:
            yield progress
    except KeyboardInterrupt as error:
        notes([unfinished(error, again)])
        raise


@contextmanager
def naming_a_smaller_run(
    line: Sequence[str] | None = None, instead: Mapping[str, str | None] | None = None
) -> Iterator[None]:
    """If a run takes too long, add the command line of a shorter run to the error.

    line: the words of the refused command; None for the running click command.
    instead: the options to change, if the command cannot run on a smaller scale.
    """
    try:
        yield
    except ConfigError as error:
        changes = getattr(error, "changes", None)
        if changes is None:
            raise
        if instead is not None:
            changes, error.notes = instead, ()
        smaller = with_options(line or typed_words(), changes or {"--budget": error.try_.split()[-1]})
        error.try_ = command("ropetool", *smaller)
        raise


# --- verify


@dataclass(frozen=True)
class GateOptions:
    """The limits of a verification: `Limits` explains the fields."""

    grade: str | None
    max_kl: float | None
    require_useful: bool

    def limits(self) -> Limits | None:
        """Return the limits, or None if no option sets one. Raises: ConfigError."""
        from ropetool.verification.gate import Limits

        values = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        return Limits(**values) if values else None


@dataclass(frozen=True)
class RunnerOptions:
    """What runs the model.

    server: the URL of a server.
    model, tokenizer: the model on the server, and a directory with its tokenizer; None for the defaults.
    runner: `vllm` for vLLM in this process; None for transformers or llama.cpp.
    tensor_parallel_size, pipeline_parallel_size: numbers of devices and stages for vLLM.
    score_prompts: a server or vLLM scores whole prompts.
    exact_numbers: llama.cpp computes in float32.
    """

    server: str | None
    model: str | None
    tokenizer: str | None
    runner: str | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    score_prompts: bool
    exact_numbers: bool

    def options(self, arguments: VerifyArguments, terms: Terms, gate: GateOptions) -> VerifyOptions:
        """Return the options of the verification. Works only in a click command.

        Raises: click.UsageError for an option that does not apply to this runner; ConfigError for a wrong value.
        """
        from ropetool.verification.options import VerifyOptions

        dtype = "float32" if self.exact_numbers and arguments["dtype"] == "auto" else arguments["dtype"]
        complete: VerifyArguments = {
            **arguments, "dtype": dtype, "terms": terms, "limits": gate.limits(), "engine": self._engine(),
            "command": command_line(),
        }  # fmt: skip
        return VerifyOptions(**complete)

    def served(self) -> Served | None:
        """Return the server, or None without --server. Works only in a click command.

        Raises: click.UsageError for an option that does not apply to a server, or that requires one.
        """
        if self.server is None:
            refuse(dict.fromkeys(("model", "tokenizer"), "{} requires --server URL"))
            return None
        from ropetool.verification.options import UNSERVED
        from ropetool.verification.served import Served

        reasons = {**UNSERVED, "max_kl": UNSERVED["against"], **dict.fromkeys(OF_FILES, "it applies only to files")}
        refuse({name: f"{{}} does not apply to a served model: {reason}" for name, reason in reasons.items()})
        return Served(self.server, self.model, self.tokenizer, self.score_prompts)

    def _engine(self) -> Engine | None:
        """Return the engine of vLLM, or None without --runner vllm. Works only in a click command."""
        if self.runner is None:
            scoring = {} if self.server else {"score_prompts": "{} requires --server URL or --runner vllm"}
            refuse({**dict.fromkeys(SIZES, "{} requires --runner vllm"), **scoring})
            return None
        if self.server is not None:
            raise click.UsageError("--runner does not apply to a served model: the server runs it")
        refuse(dict.fromkeys(("against", "judge", "compare_with", "device"), "--runner vllm does not accept {}"))
        from ropetool.verification.runners.vllm_engine import Engine

        sizes = {name: size for name in SIZES if (size := getattr(self, name)) is not None}
        return Engine(score_prompts=self.score_prompts, **sizes)


def lacks_logs(target: Path, options: VerifyOptions) -> bool:
    """Return whether --lm-eval names a folder without logs. Then print the commands that make them."""
    if options.lm_eval is None:
        return False
    from ropetool.registry import addition

    trained_length = options.terms.trained_length if options.terms else None
    lines = addition("lm_eval_lines")(
        target, Path(options.lm_eval), baseline=options.baseline, trained_length=trained_length
    )
    if lines:
        show("".join(f"{line}\n" for line in lines))
        notes([f"{options.lm_eval} does not contain logs yet: run these commands, then verify again"])
    return bool(lines)


def run_verify(
    target: Path, options: VerifyOptions, served: Served | None = None, printing: ResultOptions | None = None,
    *, again: str = AGAIN, line: Sequence[str] | None = None,
) -> VerifyResult:  # fmt: skip
    """Verify, print the result and its notes, write the requested report, and return the result.

    again, line: as for `measured`.
    """
    printing = printing or ResultOptions()
    result = measured(target, options, served, printing, again=again, line=line)
    if printing.as_json:
        from ropetool.report.verdict import verify_json

        print_json(verify_json(result))
    else:
        from ropetool.report.verified import verify_text

        colour = in_colour()
        text = verify_text(result, width=terminal_width(), colour=colour, explained=printing.explain)
        show(text, colour=colour)
    notes(list(result.notes))
    return result


def measured(
    target: Path, options: VerifyOptions, served: Served | None, printing: ResultOptions,
    *, again: str = AGAIN, line: Sequence[str] | None = None,
) -> VerifyResult:  # fmt: skip
    """Run a verification; show the progress and the estimated duration, and write the requested report.

    served: the server of the model, None for files.
    again: the command that continues after an interruption.
    line: the words of the command line of this verification; None for the running command.
    """
    from ropetool.verification.checkpoints import verify_target

    with measuring(again) as progress, naming_a_smaller_run(line):
        if served is not None:
            from ropetool.verification.served import verify_served

            result = verify_served(target, served, options, progress=progress, say=printing.say)
        else:
            result = verify_target(target, options, progress=progress, say=printing.say)
    if printing.report is not None:
        _write_report(result, target, Path(printing.report), force=printing.force)
    return result


def _write_report(result: VerifyResult, target: Path, folder: Path, *, force: bool) -> None:
    from ropetool.plans.serving import serving_lines
    from ropetool.report.page import write_page
    from ropetool.report.verified import verify_page
    from ropetool.runtimes.inspection import inspect

    inspection = inspect(target)
    page = verify_page(result, command_line(), serving_lines(inspection, str(target)), inspection)
    write_page(page, folder, force=force)
