"""Two shares of right answers on the same trials: the bounds of their difference. Knows nothing of what was asked.

An interval by the differences' own spread would be a point where all pairs agree, however few they are. These bounds take
the spread that the difference in question would have, so that twenty pairs that agree exclude a loss of 0.12 and no less.
Source: T. Tango, Statistics in Medicine 17 (1998) 891.
"""

from __future__ import annotations

import math

ONE_SIDED = 1.6448536269514722  # of a normal variable, with 5 % above
POWERFUL = 0.8416212335729143  # the same with 20 % above
STEPS = 60  # of a bisection of 2: to a float's last digit


def paired_bounds(gained: int, lost: int, trials: int) -> tuple[float, float]:
    """Return what the difference of two shares is above, and below, with 95 % confidence each; -1 and 1 without trials.

    gained: trials that the first one alone has right. lost: that the other one alone has. Of all `trials`.
    """
    if not trials:
        return -1.0, 1.0
    mean = (gained - lost) / trials
    return _crossing(gained, lost, trials, -1.0, mean, ONE_SIDED), _crossing(
        gained, lost, trials, mean, 1.0, -ONE_SIDED
    )


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


def _crossing(gained: int, lost: int, trials: int, low: float, high: float, wanted: float) -> float:
    """Return the difference between the two at which the score, which falls, is the one wanted."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        if _score(gained, lost, trials, middle) > wanted:
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
