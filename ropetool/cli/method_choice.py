"""The method of `ropetool extend`: named by the user, recommended, or measured with --method auto."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ropetool.cli.extension import AUTO, ExtensionOptions

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


def choose(source: Checkpoint, extension: ExtensionOptions, grade: str | None, *, quiet: bool) -> MethodChoice:
    """Choose the method of an extension whose options were checked.

    grade: the limit of the cost on short texts, for --method auto.
    quiet: print no notes while methods are measured.

    Raises: ConfigError if no method works; TooFar; as `compare`.
    """
    if extension.method is None:
        return _recommended(source, extension)
    if extension.method != AUTO:
        return MethodChoice(extension)
    from ropetool.cli.runs import say

    _check_reach(source, extension)
    shown = None if quiet else say
    best = _measured(source, extension, grade, shown)
    return best if extension.tune_minutes is None else _tuned(source, best, extension.tune_minutes, shown)


def _recommended(source: Checkpoint, extension: ExtensionOptions) -> MethodChoice:
    """Return the method that `ropetool advise` recommends. Raises: ConfigError if no method works."""
    from ropetool.plans.advice import advised_method

    method, attention_factor, reason = advised_method(
        source, extension.factor, extension.target_length, extension.reading, extension.original_length,
        extension.as_type, extension.for_runtimes, extension.force_factor,
    )  # fmt: skip
    shown = "" if attention_factor == "auto" else f", --attention-factor {attention_factor}"
    if extension.attention_factor != "auto":
        attention_factor = extension.attention_factor
    chosen = replace(extension, method=method, attention_factor=attention_factor)
    return MethodChoice(chosen, f"method {method}{shown}: {reason}")


def _check_reach(source: Checkpoint, extension: ExtensionOptions) -> None:
    """Raise TooFar for a context that has to be forced."""
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
    source: Checkpoint, extension: ExtensionOptions, grade: str | None, shown: Callable[[str], None] | None
) -> MethodChoice:
    """Return the best of the recommended methods, all measured in one loaded model."""
    from ropetool.choosing.choice import choose as best_of
    from ropetool.choosing.options import CandidateOptions
    from ropetool.cli.compare import compared
    from ropetool.cli.next_steps import in_own_words
    from ropetool.cli.runs import naming_a_smaller_run
    from ropetool.plans.advice import CLOSED_FORMS
    from ropetool.verification.gate import Limits
    from ropetool.verification.options import VerifyOptions

    unmeasured = {"--method": None, "--tune-minutes": None}
    with naming_a_smaller_run(instead=unmeasured), in_own_words(renamed={"--budget": "--tune-minutes"}):
        candidates = CandidateOptions(
            methods=CLOSED_FORMS,
            factors=[] if extension.factor is None else [extension.factor],
            target_lengths=[] if extension.target_length is None else [extension.target_length],
            reading=extension.reading,
            original_length=extension.original_length,
            for_runtimes=extension.for_runtimes,
        )
        options = VerifyOptions(measures=["last-segment"], limits=Limits.at_grade(grade), budget=extension.tune_minutes)
        comparison = compared(source, candidates, options, shown)
    best = best_of(comparison)
    return MethodChoice(replace(extension, method=best.plan.method), f"{best.candidate.name}: {best.why}", best.plan)


def _tuned(source: Checkpoint, best: MethodChoice, minutes: float, shown: Callable[[str], None] | None) -> MethodChoice:
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
            for_runtimes=best.extension.for_runtimes, progress=progress, say=shown,
        )  # fmt: skip
    if not result.is_better:
        return replace(best, why=f"{best.why}; tuning found nothing significantly better than the default")
    return MethodChoice(
        replace(best.extension, method=result.plan.method),
        f"tuned, {result.winner}: significantly better than the default on unseen text",
        result.plan,
        tuned=True,
    )
