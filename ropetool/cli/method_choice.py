"""The method of `ropetool extend`: named by the user, recommended, or measured with --method auto."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from ropetool.cli import notes
from ropetool.cli.extension import AUTO, ExtensionOptions
from ropetool.cli.options import naming_a_smaller_run

if TYPE_CHECKING:
    from ropetool.checkpoint.opening import Checkpoint
    from ropetool.plans.plan import Plan


@dataclass(frozen=True)
class MethodChoice:
    """The chosen method of an extension.

    extension: the options, with the method and its attention factor.
    why: a sentence with the reason; empty if the user named the method.
    plan: the plan that was measured, None if nothing was measured.
    tuned: `tune` found the plan.
    """

    extension: ExtensionOptions
    why: str = ""
    plan: Plan | None = None
    tuned: bool = False


def choose(
    source: Checkpoint, extension: ExtensionOptions, grade: str | None, tune_minutes: float | None, *, quiet: bool
) -> MethodChoice:
    """Choose the method of an extension.

    grade: the limit of the cost on short texts, for --method auto.
    tune_minutes: with --method auto, the minutes of a search for a better YaRN table.
    quiet: print no notes while methods are measured.

    Raises: click.UsageError for options that need a named method; ConfigError if no method works; TooFar; as `compare`.
    """
    if extension.method is None:
        return _recommended(source, extension)
    if extension.method != AUTO:
        return MethodChoice(extension)
    _check_measurable(source, extension, tune_minutes)
    best = _measured(source, extension, grade, tune_minutes, quiet=quiet)
    return best if tune_minutes is None else _tuned(source, best, tune_minutes, quiet=quiet)


def _recommended(source: Checkpoint, extension: ExtensionOptions) -> MethodChoice:
    """Return the method that `ropetool advise` recommends. Raises: ConfigError if no method works."""
    from ropetool.plans.advice import advised_method

    of_a_method = {"-p": extension.params, **_as_options(extension.own_parameters)}
    for option in (name for name, value in of_a_method.items() if value):
        raise click.UsageError(f"{option} is a parameter of a method: name the method with --method")
    method, attention_factor, reason = advised_method(
        source, extension.factor, extension.target_length, extension.reading, extension.original_length,
        extension.as_type, extension.for_runtimes, extension.force_factor,
    )  # fmt: skip
    shown = "" if attention_factor == "auto" else f", --attention-factor {attention_factor}"
    if extension.attention_factor != "auto":
        attention_factor = extension.attention_factor
    chosen = replace(extension, method=method, attention_factor=attention_factor)
    return MethodChoice(chosen, f"method {method}{shown}: {reason}")


def _check_measurable(source: Checkpoint, extension: ExtensionOptions, tune_minutes: float | None) -> None:
    """Raise click.UsageError for options that a measurement cannot take, TooFar for a context that has to be forced."""
    if (extension.factor is None) == (extension.target_length is None):
        raise click.UsageError("--method auto requires either --factor or --target-length")
    of_a_method = {
        "-p": extension.params,
        "--attention-factor": extension.attention_factor != "auto",
        **_as_options(extension.own_parameters),
        "--temperature-scope": extension.temperature_scope,
        "--as": extension.as_type,
        "--config-style": extension.config_style,
    }
    for option in (name for name, value in of_a_method.items() if value):
        raise click.UsageError(f"--method auto does not accept {option}: name the method with --method")
    if tune_minutes is not None and extension.original_length is not None:
        raise click.UsageError("--tune-minutes requires the original length in the file: leave out --original-length")
    from ropetool.plans.advice import CLOSED_FORMS, requested_context
    from ropetool.plans.proposals import extent_of
    from ropetool.runtimes.inspection import inspect

    inspection = inspect(source)
    if inspection.rope is not None:
        target = requested_context(
            inspection, extension.factor, extension.target_length, extension.reading, extension.original_length
        )
        extent_of(inspection, CLOSED_FORMS[0], target).check(extension.force_factor)


def _measured(
    source: Checkpoint, extension: ExtensionOptions, grade: str | None, minutes: float | None, *, quiet: bool
) -> MethodChoice:
    """Return the best of the recommended methods, all measured in one loaded model."""
    from ropetool.choosing.choice import choose as best_of
    from ropetool.choosing.options import CandidateOptions
    from ropetool.cli.compare import compared
    from ropetool.cli.wording import in_own_words
    from ropetool.plans.advice import CLOSED_FORMS
    from ropetool.verification.gate import Limits
    from ropetool.verification.options import VerifyOptions

    unmeasured = {"--method": None, "--tune-minutes": None}
    line = click.get_current_context().find_root().obj
    with naming_a_smaller_run(line, unmeasured), in_own_words():
        candidates = CandidateOptions(
            methods=CLOSED_FORMS,
            factors=[] if extension.factor is None else [extension.factor],
            target_lengths=[] if extension.target_length is None else [extension.target_length],
            reading=extension.reading,
            original_length=extension.original_length,
            for_runtimes=extension.for_runtimes,
        )
        options = VerifyOptions(measures=["last-segment"], limits=Limits.at_grade(grade), budget=minutes)
        comparison = compared(source, candidates, options, quiet=quiet)
    best = best_of(comparison)
    return MethodChoice(replace(extension, method=best.plan.method), f"{best.candidate.name}: {best.why}", best.plan)


def _tuned(source: Checkpoint, best: MethodChoice, minutes: float, *, quiet: bool) -> MethodChoice:
    """Return what a search of this many minutes finds if it is significantly better, else the best method."""
    from ropetool.choosing.choice import DEFAULT
    from ropetool.cli.progress import bar
    from ropetool.registry import addition

    assert best.plan is not None
    if best.plan.method != DEFAULT:
        return replace(best, why=f"{best.why}; not tuned, because tuning supports only {DEFAULT}")
    with bar() as progress:
        result = addition("tune")(
            source, best.plan.max_position_embeddings, budget=minutes, reading=best.extension.reading,
            for_runtimes=best.extension.for_runtimes, progress=progress,
            say=None if quiet else lambda line: notes([line]),
        )  # fmt: skip
    if not result.is_better:
        return replace(best, why=f"{best.why}; tuning found nothing significantly better than the default")
    return MethodChoice(
        replace(best.extension, method=result.plan.method),
        f"tuned, {result.winner}: significantly better than the default on unseen text",
        result.plan,
        tuned=True,
    )


def _as_options(parameters: dict[str, float | None]) -> dict[str, float | None]:
    """Return parameters by the names of their options."""
    return {f"--{name.replace('_', '-')}": value for name, value in parameters.items()}
