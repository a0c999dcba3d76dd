"""Bounds of the difference, and of the ratio, of two shares of correct answers on the same trials.

If all pairs agree, an interval from their observed spread would be a single point, even for few pairs. These bounds use
the spread that the tested difference would have. Twenty agreeing pairs then exclude a loss above 0.12.
Source: T. Tango, Statistics in Medicine 17 (1998) 891.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

ONE_SIDED = 1.6448536269514722  # a normal variable exceeds it with a probability of 5 %
POWERFUL = 0.8416212335729143  # a normal variable exceeds it with a probability of 20 %
ADDED = 0.5  # trials that are added to each of the four counts
MOST_RATIO = 10.0
STEPS = 60  # of a bisection, which reach the last digit of a float for intervals up to 2


def paired_bounds(gained: int, lost: int, trials: int) -> tuple[float, float]:
    """Return the lower and the upper bound of the difference of two shares, with 95 % confidence each.

    Without trials, the bounds are -1 and 1.
    gained: the number of trials that only the first model answers correctly.
    lost: the number of trials that only the second model answers correctly.
    trials: the number of all trials.
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
    """Return the smallest loss that the trials exclude with a power of 80 % if there is no loss.

    disagreeing: the share of the pairs with exactly one correct answer.
    """
    if not trials:
        return 1.0
    least = -paired_bounds(0, 0, trials)[0]
    return min(1.0, max(least, (ONE_SIDED + POWERFUL) * math.sqrt(disagreeing / trials)))


def _crossing(score: Callable[[float], float], low: float, high: float, level: float) -> float:
    """Return the value between `low` and `high` at which the score, which must decrease, crosses the level."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        if score(middle) > level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _score(gained: int, lost: int, trials: int, difference: float) -> float:
    """Return the observed difference minus this one, in standard errors under the hypothesis that this one is true.

    The standard error uses the most likely share of lost trials under this hypothesis.
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
    """The number of trials by the models that answer them correctly.

    both, neither: both models, or neither of them.
    gained, lost: only the first model, or only the second one.
    """

    both: int
    gained: int
    lost: int
    neither: int

    @property
    def trials(self) -> int:
        """The number of all trials."""
        return self.both + self.gained + self.lost + self.neither


def paired_ratio(pairs: PairedTrials, chance: float) -> float:
    """Return the ratio of the two shares of correct answers, after subtracting the share of a guesser from both."""
    first, other = pairs.both + pairs.gained, pairs.both + pairs.lost
    return (first - chance * pairs.trials) / (other - chance * pairs.trials)


def ratio_bounds(pairs: PairedTrials, chance: float) -> tuple[float, float]:
    """Return the lower and the upper bound of the true ratio, with 95 % confidence each, between 0 and MOST_RATIO.

    Fieller's rule: at a bound, (first - chance) - ratio (other - chance) is 1.645 of its standard errors from 0. Half a
    trial is added to each of the four counts, so that the interval has a width even if all pairs agree.
    chance: the share of correct answers of a guesser.
    Source: E. C. Fieller, J. R. Stat. Soc. B 16 (1954) 175; Agresti and Min, Statistics in Medicine 24 (2005) 729.
    """

    def score(ratio: float) -> float:
        return _ratio_score(pairs, chance, ratio)

    middle = min(max(paired_ratio(pairs, chance), 0.0), MOST_RATIO)
    return _crossing(score, 0.0, middle, ONE_SIDED), _crossing(score, middle, MOST_RATIO, -ONE_SIDED)


def chance_of_so_low(pairs: PairedTrials, chance: float, ratio: float) -> float:
    """Return the one-sided p value of the hypothesis that the true ratio is at least this one."""
    return (1 + math.erf(_ratio_score(pairs, chance, ratio) / math.sqrt(2))) / 2


def _ratio_score(pairs: PairedTrials, chance: float, ratio: float) -> float:
    """Return (first - chance) - ratio (other - chance), divided by its standard error."""
    counts = [count + ADDED for count in (pairs.both, pairs.gained, pairs.lost, pairs.neither)]
    values = [value - (1 - ratio) * chance for value in (1 - ratio, 1.0, -ratio, 0.0)]
    total = sum(counts)
    mean = sum(count * value for count, value in zip(counts, values, strict=True)) / total
    square = sum(count * value * value for count, value in zip(counts, values, strict=True)) / total
    return mean / math.sqrt((square - mean * mean) / total)
