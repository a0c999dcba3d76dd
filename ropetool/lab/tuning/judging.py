"""Evaluate the winner of a search against the default, once, on text that the search did not use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ropetool.lab.tuning.figures import AllowedLoss, Documents, PointLosses
from ropetool.rope.tables import Array
from ropetool.verification.results import Estimate
from ropetool.verification.statistics import chance_of_less, chance_of_more, paired_difference, rejected

ERROR = 0.025  # chance to report a gain that does not exist, over all parts, in the first evaluation on some documents
LEAST = 0.001  # nats, or 0.1 % of perplexity: a smaller difference, for example from rounding, is not a gain
TEXT, COPIES, ANSWERS = "text", "key tokens", "answers"
GAIN, NO_GAIN = "better", "no gain"


@dataclass(frozen=True)
class JudgedPart:
    """One part of the judgement.

    default, tuned: mean losses in nats per token.
    difference: tuned minus default in nats per token; below 0 if the tuned plan is better.
    better: significantly better over all parts, by Holm's rule, by more than LEAST, at the error of the judgement.
    worse: significantly worse over all parts, by Holm's rule, at ERROR.
    """

    name: str
    default: float
    tuned: float
    difference: Estimate
    better: bool
    worse: bool


@dataclass(frozen=True)
class AtLength:
    """The mean losses of text at one length, in nats per token. A single length has no verdict.

    length: the length in tokens.
    default, tuned: the losses.
    difference: tuned minus default.
    cut: the source's loss on the same tokens, with the text before them cut to the trained length.
    """

    length: int
    default: float
    tuned: float
    difference: Estimate
    cut: float


@dataclass(frozen=True)
class Judgement:
    """The result of a plan on text that the search did not use.

    parts, lengths: the results by part, and of the text by length.
    regression, default_regression: losses within the trained length compared with the source, in nats per token.
    retrieved: shares of correct answers of default and tuned; None without trials.
    reason: why the tuned plan is not better.
    error: the chance to report a gain that does not exist.
    """

    parts: tuple[JudgedPart, ...]
    lengths: tuple[AtLength, ...]
    regression: Estimate
    default_regression: Estimate
    limit: float
    retrieved: tuple[float, float] | None
    verdict: str
    reason: str
    error: float = ERROR


def judge(
    default: PointLosses,
    tuned: PointLosses,
    source: Array,
    documents: Documents,
    bounds: AllowedLoss,
    error: float = ERROR,
) -> Judgement:
    """Return the judgement. source: its losses within the trained length.

    It reports a gain if a part is significantly better, no part is significantly worse, and the bounds hold.
    """
    pairs = [
        (TEXT, default.beyond, tuned.beyond, documents.text[: len(default.beyond)]),
        (COPIES, default.copies, tuned.copies, documents.copies),
        (ANSWERS, default.answers, tuned.answers, documents.answers),
    ]
    parts = _parts([pair for pair in pairs if pair[1].size], error)
    costs, own = (paired_difference(each.within, source, documents.within) for each in (tuned, default))
    limit = bounds.limit(own.mean)
    shares = None if default.retrieved is None or tuned.retrieved is None else (default.retrieved, tuned.retrieved)
    reason = _reason(parts, costs, limit, shares, bounds.lost)
    lengths = tuple(_at(length, default, tuned, source, documents.text) for length in default.text)
    return Judgement(parts, lengths, costs, own, limit, shares, NO_GAIN if reason else GAIN, reason, error)


def _at(length: int, default: PointLosses, tuned: PointLosses, source: Array, documents: Sequence[int]) -> AtLength:
    ours, theirs = tuned.text[length], default.text[length]
    difference = paired_difference(ours, theirs, documents[: len(ours)])
    # The segments of a length are the first ones of the trained length, so these are the same tokens.
    return AtLength(length, float(theirs.mean()), float(ours.mean()), difference, float(source[: len(ours)].mean()))


def _parts(pairs: Sequence[tuple[str, Array, Array, Sequence[int]]], error: float) -> tuple[JudgedPart, ...]:
    differences = [paired_difference(tuned, default, documents) for _, default, tuned, documents in pairs]
    # A loss is tested as in a first evaluation, because a smaller error for gains must not hide it.
    better = rejected([chance_of_more(difference, -LEAST) for difference in differences], error)
    worse = rejected([chance_of_less(difference, 0.0) for difference in differences], ERROR)
    return tuple(
        JudgedPart(name, float(default.mean()), float(tuned.mean()), difference, gained, lost)
        for (name, default, tuned, _), difference, gained, lost in zip(pairs, differences, better, worse, strict=True)
    )


def _reason(
    parts: Sequence[JudgedPart], costs: Estimate, limit: float, shares: tuple[float, float] | None, lost: float
) -> str:
    """Return why there is no gain, or an empty string if there is one."""
    worse = [part.name for part in parts if part.worse]
    if worse:
        return f"it is worse on unseen {', '.join(worse)}"
    if not any(part.better for part in parts):
        return f"the difference on unseen text is not significant, or below {LEAST:g} nats"
    if not costs.mean <= limit:  # also true for NaN
        return "on unseen text, its cost within the trained length is above the limit"
    if shares is not None and shares[1] < shares[0] - lost:
        return "on unseen text, it finds fewer answers"
    return ""
