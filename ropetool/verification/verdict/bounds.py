"""Bounds that are valid at every look together, and the verdict that follows from them.

Each text has one gap for each question: the loss of the target minus the loss of the source on the same tokens, in nats
per token. A look calculates the bounds of the mean gap, and a run may stop there. The schedule of looks depends only on
the number of texts, so a run that is resumed, interrupted or ended by the clock keeps its probability of error.
docs/judging.md has the reasons and the simulations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropetool.rope.tables import Array
from ropetool.verification.results import Estimate
from ropetool.verification.statistics import clustered, t_quantile

KEEP, WORKS, COSTS, BROKEN, MEASURED = "keep", "works", "costs", "broken", "right as far as measured"
KEPT, WORKING = 1.10, 1.50  # the largest ratios of perplexities for `keep` and for `works`
LOOKS = (3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64)
FEWEST_TEXTS = f"a verdict needs {LOOKS[0]} texts"
CHANCE = 0.0232  # the probability of a wrong bound after one text; over all looks together it is 5 % on each side
BLOCKS = 8  # parts of the scored tokens of one text, from which its standard error is calculated
# Enough broken texts: 2 of the first 2, 3 of 4, and so on. If one text in ten is broken, this happens in 2.5 % of runs.
BROKEN_OF = ((2, 2), (4, 3), (8, 4), (13, 5), (18, 6), (24, 7))


@dataclass(frozen=True)
class Bounds:
    """The mean gap in nats per token, and the bounds of the true mean, which are infinite before the first look."""

    mean: float
    lower: float
    upper: float


def chance(texts: int) -> float:
    """Return the probability of a wrong bound at a look after this number of texts."""
    return CHANCE / math.sqrt(texts)


def last_look(texts: int) -> int:
    """Return the number of texts at the last look of a run with this number of texts; 0 before the first look."""
    return max((look for look in LOOKS if look <= texts), default=0)


def bounds(gaps: Sequence[float], authors: Sequence[int]) -> Bounds:
    """Return the mean of all gaps, and the bounds of the last look.

    authors: the number of each text's author. All places of one author count as one cluster. Shapes: both (texts,).
    """
    look = last_look(len(gaps))
    mean = float(np.mean(gaps)) if gaps else math.nan
    if not look:
        return Bounds(mean, -math.inf, math.inf)
    estimate = clustered(np.array(gaps[:look]), authors[:look])
    reach = half_width(estimate, look)
    return Bounds(mean, estimate.mean - reach, estimate.mean + reach)


def half_width(estimate: Estimate, texts: int) -> float:
    """Return the distance of the bounds from the mean at a look; infinite for a single author."""
    if not estimate.degrees:
        return math.inf
    return t_quantile(1 - 2 * chance(texts), estimate.degrees) * estimate.standard_error


def own_error(gaps: Array) -> float:
    """Return the standard error of one text's gap, from blocks of its tokens. gaps: the gap of each token, in nats."""
    blocks = [float(np.mean(block)) for block in np.array_split(gaps, min(BLOCKS, len(gaps)))]
    return float(np.std(blocks, ddof=1) / math.sqrt(len(blocks))) if len(blocks) > 1 else math.inf


def is_broken(gap: float, error: float) -> bool:
    """Return whether the gap of one text is above the limit by two of its standard errors."""
    return gap - 2 * error > math.log(WORKING)


def broken_by_count(broken: Sequence[bool]) -> bool:
    """Return whether the number of broken texts is significantly more than one text in ten. broken: in reading order."""
    count = 0
    for texts, one in enumerate(broken, start=1):
        count += one
        needed = next((least for most, least in BROKEN_OF if texts <= most), math.inf)
        if count >= needed:
            return True
    return False


def verdict(questions: Sequence[Bounds], broken: Sequence[bool]) -> str:
    """Return the verdict on all questions together, or `MEASURED` if the bounds do not decide.

    questions: the bounds of the short and of the long gap, if both are measured.
    broken: whether each text is broken.
    """
    kept, working = math.log(KEPT), math.log(WORKING)
    if broken_by_count(broken) or any(question.lower > working for question in questions):
        return BROKEN
    if not questions or not all(question.upper <= working for question in questions):  # NaN too
        return MEASURED
    if all(question.upper <= kept for question in questions):
        return KEEP
    return COSTS if any(question.lower > kept for question in questions) else WORKS


def is_final(verdict: str) -> bool:
    """Return whether a run may stop at this verdict. After WORKS it goes on: that may still become KEEP or COSTS."""
    return verdict in (KEEP, COSTS, BROKEN)


def texts_needed(gaps: Sequence[float], authors: Sequence[int], usual: float) -> int | None:
    """Return the number of texts that decide this question if further texts are similar; None if 64 do not decide.

    usual: the standard deviation between texts, which is used if fewer than two authors were read.
    """
    estimate = clustered(np.array(gaps), authors) if gaps else None
    mean = estimate.mean if estimate is not None else 0.0
    count = len({*authors})
    spread = estimate.standard_error * math.sqrt(count) if estimate is not None and count > 1 else usual
    for look in (look for look in LOOKS if look > len(gaps)):
        reach = t_quantile(1 - 2 * chance(look), look - 1) * spread / math.sqrt(look)
        inside = mean + reach <= math.log(KEPT)
        beyond = mean - reach > math.log(KEPT) and mean + reach <= math.log(WORKING)
        if inside or beyond or mean - reach > math.log(WORKING):
            return look
    return None
