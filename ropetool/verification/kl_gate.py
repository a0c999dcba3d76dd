"""The checks of the divergence of two files: the mean of KL, its tail, its worst window, and rare tokens.

The limits follow from the divergence of sound files of these types (floors.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ropetool.verification import floors
from ropetool.verification.floors import Floor, KlFigures
from ropetool.verification.measures.divergence import WINDOW
from ropetool.verification.results import (
    BEYOND,
    FAIL,
    KL,
    NOT_RUN,
    PASS,
    RARE,
    TAIL,
    UNDECIDED,
    WORST,
    Check,
    DivergenceResult,
    DivergenceSpan,
    Noise,
)  # fmt: skip

# The limit of the mean divergence after an extension, as a multiple of the mean before it. Beyond the trained length,
# the limit is this multiple of the mean within it.
EXTENDING_TIMES = 2.0
GELU = "ggml's GELU table, which rounds to float16,"
SUMS = "rounding in sums"
TAIL_TIMES = 4.0  # the same for the 99th percentile and the worst window, whose limits are wider


def kl_checks(
    result: DivergenceResult,
    own: DivergenceResult | None,
    allowed: Floor | None,
    max_kl: float | None = None,
    noise: Noise | None = None,
) -> list[Check]:
    """Return the checks of one file against a reference.

    own: the divergence of the same pair of types before the extension, which is more precise than `allowed`; None if
      unknown.
    allowed: the typical divergence of sound files of these types; None if unknown.
    max_kl: replaces the limit on the mean, in nats per token, and scales the other limits in proportion.
    noise: the reference's own noise, which may raise the limits.
    """
    if max_kl is not None:
        return _against(result, None if allowed is None else _times(allowed, max_kl / allowed.text.mean), max_kl)
    if own is not None:
        return _against_own(result, own)
    if allowed is None:
        detail = (
            "ropetool has no limit for these types and caches; pass the unextended GGUF file of the same type "
            "as --baseline, or pass --max-kl"
        )
        return [Check(KL, result.within.mean.mean, None, NOT_RUN, detail)]
    if noise is None:
        return _against(result, allowed, allowed.text.mean)
    runs = [_floor_of(run) for run in noise.runs]
    allowed = floors.with_noise(allowed, runs)
    mean, *others = _against(result, allowed, allowed.text.mean)
    causes = _causes(noise, max(run.text.mean for run in runs))
    return [replace(mean, detail=f"{mean.detail}; {causes}"), *others]


def passes(result: DivergenceResult, allowed: Floor | None) -> bool:
    """Return whether no check fails."""
    return all(check.verdict != FAIL for check in kl_checks(result, None, allowed))


def _floor_of(run: DivergenceResult) -> Floor:
    spans = _spans(run)
    text = KlFigures(
        max(span.mean.mean for span in spans), max(span.p99 for span in spans), max(span.window for span in spans)
    )
    rare = text if run.rare is None else KlFigures(run.rare.mean.mean, run.rare.p99, run.rare.window)
    return Floor(text, rare)


def _causes(noise: Noise, own: float) -> str:
    """Return a sentence that names the size of the noise and its causes."""
    text = f"{GELU if noise.gelu else SUMS} changes the checkpoint itself by {own:.2g} nats per token"
    if not noise.tied:
        return text
    left_out = "which are left out" if noise.left_out else "too many to leave out"
    return f"{text}; rounding selects other experts for {noise.tied} of {noise.tokens} tokens, {left_out}"


def with_inexact_tables(checks: Sequence[Check]) -> list[Check]:
    """Return the checks with `UNDECIDED` instead of `FAIL`, because the tables of the two files are known to differ."""
    detail = "the tables differ, which can be the cause"
    return [
        replace(check, verdict=UNDECIDED, detail=f"{check.detail}; {detail}") if check.verdict == FAIL else check
        for check in checks
    ]


def _against(result: DivergenceResult, allowed: Floor | None, mean: float) -> list[Check]:
    spans = _spans(result)
    figure = max(span.mean.mean for span in spans)
    parts = (
        "the larger mean within or beyond the trained length"
        if result.beyond is not None
        else "all within the trained length"
    )
    checks = [_check(KL, figure, mean, f"nats per token, {parts}")]
    if allowed is None:
        return checks
    checks += _concentrated(spans, allowed.text)
    if result.rare is not None:
        checks.append(_rare(result.rare, allowed.rare.mean))
    return checks


def _against_own(result: DivergenceResult, own: DivergenceResult) -> list[Check]:
    """Return the checks if the unextended pair was compared too.

    Within the trained length, the limit is twice the KL of the unextended pair. Beyond it, the limit is twice the KL
    within.
    """
    before, within = own.within, result.within.mean.mean
    limit = EXTENDING_TIMES * before.mean.mean
    detail = "nats per token within the trained length; the limit is twice the KL of the unextended pair"
    checks = [_check(KL, within, limit, detail)]
    if result.beyond is not None:
        detail = "nats per token beyond the trained length; the limit is twice the KL within it"
        checks.append(_check(BEYOND, result.beyond.mean.mean, EXTENDING_TIMES * within, detail))
    tail = KlFigures(before.mean.mean, TAIL_TIMES * before.p99, TAIL_TIMES * before.window)
    checks += _concentrated(_spans(result), tail)
    if result.rare is not None and own.rare is not None:
        checks.append(_rare(result.rare, EXTENDING_TIMES * own.rare.mean.mean))
    return checks


def _concentrated(spans: list[DivergenceSpan], allowed: KlFigures) -> list[Check]:
    """Return the checks of the 99th percentile and of the worst window, which a mean over all tokens would hide."""
    worst = max(spans, key=lambda span: span.window)
    place = f"nats per token in the worst window of {WINDOW} positions, from position {worst.window_start}"
    return [
        _check(TAIL, max(span.p99 for span in spans), allowed.p99, "nats; one token in a hundred has more"),
        _check(WORST, worst.window, allowed.window, place),
    ]


def _rare(span: DivergenceSpan, limit: float) -> Check:
    return _check(
        RARE, span.mean.mean, limit, f"nats per token, over {span.tokens} tokens that do not occur in the texts"
    )


def _spans(result: DivergenceResult) -> list[DivergenceSpan]:
    return [span for span in (result.within, result.beyond) if span is not None]


def _times(floor: Floor, factor: float) -> Floor:
    def scaled(figures: KlFigures) -> KlFigures:
        return KlFigures(factor * figures.mean, factor * figures.p99, factor * figures.window)

    return Floor(scaled(floor.text), scaled(floor.rare))


def _check(name: str, figure: float, limit: float, detail: str) -> Check:
    return Check(name, figure, limit, PASS if figure <= limit else FAIL, detail)
