"""Two shares of right answers on the same trials: the bounds of their difference. Knows nothing of what was asked.

An interval by the differences' own spread would be a point where all pairs agree, however few they are. These bounds take
the spread that the difference in question would have, so that twenty pairs that agree exclude a loss of 0.12 and no less.
Source: T. Tango, Statistics in Medicine 17 (1998) 891.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

ONE_SIDED = 1.6448536269514722  # of a normal variable, with 5 % above
POWERFUL = 0.8416212335729143  # the same with 20 % above
ADDED = 0.5  # trials, to each of four numbers
MOST_RATIO = 10.0
STEPS = 60  # of a bisection of 2: to a float's last digit


def paired_bounds(gained: int, lost: int, trials: int) -> tuple[float, float]:
    """Return what the difference of two shares is above, and below, with 95 % confidence each; -1 and 1 without trials.

    gained: trials that the first one alone has right. lost: that the other one alone has. Of all `trials`.
    """
    if not trials:
        return -1.0, 1.0
    mean = (gained - lost) / trials

    def score(difference: float) -> float:
        return _score(gained, lost, trials, difference)

    return _crossing(score, -1.0, mean, ONE_SIDED), _crossing(score, mean, 1.0, -ONE_SIDED)


def chance_of_so_few(gained: int, lost: int, trials: int, difference: float) -> float:
    """Return the one-sided p value of the hypothesis that the true difference is at least this one."""
    return (1 + math.erf(_score(gained, lost, trials, difference) / math.sqrt(2))) / 2 if trials else 1.0


def attainable_loss(trials: int, disagreeing: float) -> float:
    """Return the loss that is excluded with a power of 80 % where there is none.

    disagreeing: the share of the pairs of which one alone is right.
    """
    if not trials:
        return 1.0
    least = -paired_bounds(0, 0, trials)[0]
    return min(1.0, max(least, (ONE_SIDED + POWERFUL) * math.sqrt(disagreeing / trials)))


def _crossing(score: Callable[[float], float], low: float, high: float, wanted: float) -> float:
    """Return the value between the two at which the score, which falls, is the one wanted."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        if score(middle) > wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _score(gained: int, lost: int, trials: int, difference: float) -> float:
    """Return by how many of its standard errors the difference found exceeds this one, were this one true.

    The share of lost trials that is likeliest beside this difference decides the standard error.
    """
    a = 2 * trials
    b = difference * (2 * trials - gained + lost) - gained - lost
    c = -lost * difference * (1 - difference)
    share = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = trials * (2 * share + difference * (1 - difference))
    excess = gained - lost - trials * difference
    if variance <= 0:
        return math.copysign(math.inf, excess) if excess else 0.0
    return excess / math.sqrt(variance)


@dataclass(frozen=True)
class PairedTrials:
    """Trials by who has them right: both, the first one alone, the other one alone, neither."""

    both: int
    gained: int
    lost: int
    neither: int

    @property
    def trials(self) -> int:
        """All of them."""
        return self.both + self.gained + self.lost + self.neither


def paired_ratio(pairs: PairedTrials, chance: float) -> float:
    """Return the first one's share of right answers over the other one's, both above what a guesser gets."""
    first, other = pairs.both + pairs.gained, pairs.both + pairs.lost
    return (first - chance * pairs.trials) / (other - chance * pairs.trials)


def ratio_bounds(pairs: PairedTrials, chance: float) -> tuple[float, float]:
    """Return what the true ratio is above, and below, with 95 % confidence each; 0 and MOST_RATIO at the ends.

    By Fieller's rule: the ratios at which (first - chance) - ratio (other - chance) is 1.645 of its standard errors from 0.
    Half a trial is added to each of the four numbers, so that pairs that all agree do not make a point of the interval.
    Source: E. C. Fieller, J. R. Stat. Soc. B 16 (1954) 175; Agresti and Min, Statistics in Medicine 24 (2005) 729.
    """
    found = paired_ratio(pairs, chance)

    def score(ratio: float) -> float:
        return _ratio_score(pairs, chance, ratio)

    middle = min(max(found, 0.0), MOST_RATIO)
    return _crossing(score, 0.0, middle, ONE_SIDED), _crossing(score, middle, MOST_RATIO, -ONE_SIDED)


def chance_of_so_low(pairs: PairedTrials, chance: float, ratio: float) -> float:
    """Return the one-sided p value of the hypothesis that the true ratio is at least this one."""
    return (1 + math.erf(_ratio_score(pairs, chance, ratio) / math.sqrt(2))) / 2


def _ratio_score(pairs: PairedTrials, chance: float, ratio: float) -> float:
    """Return (first - chance) - ratio (other - chance), in standard errors of what it would be here."""
    counts = [count + ADDED for count in (pairs.both, pairs.gained, pairs.lost, pairs.neither)]
    values = [value - (1 - ratio) * chance for value in (1 - ratio, 1.0, -ratio, 0.0)]
    total = sum(counts)
    mean = sum(count * value for count, value in zip(counts, values, strict=True)) / total
    square = sum(count * value * value for count, value in zip(counts, values, strict=True)) / total
    return mean / math.sqrt((square - mean * mean) / total)
