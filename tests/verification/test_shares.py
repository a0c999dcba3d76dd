"""Bounds of the difference of two shares: against likelihoods maximised by search, and exact chances of every outcome."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from ropetool.verification.shares import ONE_SIDED, POWERFUL, attainable_loss, chance_of_so_few, paired_bounds

OUTCOMES = [(0, 1, 20), (3, 3, 20), (0, 5, 25), (7, 2, 40), (2, 19, 50), (1, 0, 100), (20, 35, 100)]


def searched_score(gained: int, lost: int, trials: int, difference: float) -> float:
    """The score statistic with the lost share that a fine search finds the likeliest beside the difference."""
    low, high = max(0.0, -difference), (1 - difference) / 2
    for _ in range(8):
        shares = np.linspace(low, high, 2001)
        logs = np.zeros(2001)
        for count, part in (
            (gained, shares + difference),
            (lost, shares),
            (trials - gained - lost, 1 - 2 * shares - difference),
        ):
            logs += count * np.log(np.maximum(part, 1e-300))
        best = int(np.argmax(logs))
        low, high = shares[max(0, best - 1)], shares[min(2000, best + 1)]
    share = (low + high) / 2
    spread = math.sqrt(trials * (2 * share + difference - difference**2))
    return (gained - lost - trials * difference) / spread


@pytest.mark.parametrize(("gained", "lost", "trials"), OUTCOMES)
def test_at_each_bound_the_likeliest_shares_just_do_not_reject(gained: int, lost: int, trials: int) -> None:
    lower, upper = paired_bounds(gained, lost, trials)
    assert lower < (gained - lost) / trials < upper
    assert searched_score(gained, lost, trials, lower) == pytest.approx(1.6449, abs=2e-3)
    assert searched_score(gained, lost, trials, upper) == pytest.approx(-1.6449, abs=2e-3)
    assert chance_of_so_few(gained, lost, trials, upper) == pytest.approx(0.05, abs=1e-6)
    assert chance_of_so_few(gained, lost, trials, lower) == pytest.approx(0.95, abs=1e-6)


@pytest.mark.parametrize("trials", [1, 20, 52, 100])
def test_pairs_that_all_agree_exclude_no_more_than_their_number_does(trials: int) -> None:
    z = 1.6448536269514722
    reach = z * z / (trials + z * z)
    assert paired_bounds(0, 0, trials) == pytest.approx((-reach, reach), abs=1e-9)


def test_without_a_difference_it_is_mcnemars_test() -> None:
    for gained, lost, trials in OUTCOMES:
        z = (gained - lost) / math.sqrt(gained + lost)
        normal = (1 + math.erf(z / math.sqrt(2))) / 2
        assert chance_of_so_few(gained, lost, trials, 0.0) == pytest.approx(normal, abs=1e-9)


def test_sides_are_mirrored_and_without_trials_nothing_is_known() -> None:
    for gained, lost, trials in OUTCOMES:
        lower, upper = paired_bounds(gained, lost, trials)
        assert paired_bounds(lost, gained, trials) == pytest.approx((-upper, -lower), abs=1e-9)
    assert paired_bounds(0, 0, 0) == (-1.0, 1.0)
    assert chance_of_so_few(0, 0, 0, -0.1) == 1.0
    assert attainable_loss(0, 0.1) == 1.0
    assert paired_bounds(0, 20, 20)[0] == pytest.approx(-1, abs=1e-9)


@cache
def lower_bounds(trials: int) -> dict[tuple[int, int], float]:
    return {
        (gained, lost): paired_bounds(gained, lost, trials)[0]
        for gained in range(trials + 1) for lost in range(trials + 1 - gained)
    }  # fmt: skip


def exact_error(trials: int, gains: float, losses: float) -> float:
    """The chance that the lower bound is above the true difference, summed over every outcome."""
    rest = 1 - gains - losses
    chance = 0.0
    for (gained, lost), bound in lower_bounds(trials).items():
        if bound > gains - losses + 1e-12:
            same = trials - gained - lost
            ways = math.lgamma(trials + 1) - math.lgamma(gained + 1) - math.lgamma(lost + 1) - math.lgamma(same + 1)
            parts = [(gained, gains), (lost, losses), (same, rest)]
            if all(share > 0 or not count for count, share in parts):
                chance += math.exp(ways + sum(count * math.log(share) for count, share in parts if count))
    return chance


@pytest.mark.parametrize("trials", [25, 60])
def test_the_bound_is_wrong_in_about_one_of_twenty(trials: int) -> None:
    """Also where pairs hardly ever disagree, where an interval by their own spread is wrong far more often."""
    shares = [(0.0, 0.1), (0.0, 0.05), (0.01, 0.11), (0.05, 0.15), (0.1, 0.1), (0.1, 0.2), (0.2, 0.2), (0.3, 0.1)]
    errors = [exact_error(trials, gains, losses) for gains, losses in shares]
    assert max(errors) < 0.075
    assert 0.03 < float(np.mean(errors)) < 0.06


def test_what_is_attainable_is_attained_in_four_of_five() -> None:
    trials, disagreeing = 100, 0.16
    margin = attainable_loss(trials, disagreeing)
    assert margin == pytest.approx((ONE_SIDED + POWERFUL) * 0.04)
    rng = np.random.default_rng(0)
    found = rng.multinomial(trials, [disagreeing / 2, disagreeing / 2, 1 - disagreeing], size=2000)
    shown = [paired_bounds(int(gained), int(lost), trials)[0] >= -margin for gained, lost, _ in found]
    assert 0.75 < np.mean(shown) < 0.87
    assert attainable_loss(25, 0.001) == pytest.approx(0.0977, abs=1e-3)  # never below what full agreement shows
