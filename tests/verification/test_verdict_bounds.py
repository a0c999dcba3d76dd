"""Bounds that hold at every look: simulated coverage, false verdicts, exact chances of the count, and planted mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from ropetool.verification.verdict import bounds
from ropetool.verification.verdict.bounds import BROKEN, COSTS, KEEP, MEASURED, WORKS, Bounds

SEEDS = 1000
OWN = 0.02  # nats: the error of a text's gap from its own tokens


def ever(
    mean: float, spread: float, wrong: Callable[[list[Bounds]], bool], texts: int = 64, seeds: int = SEEDS
) -> float:
    """Return how often a run of so many texts has a look at which something is wrong. Texts are normal around the mean."""
    generator, found = np.random.default_rng(7), 0
    for _ in range(seeds):
        gaps = generator.normal(mean, spread, texts).tolist()
        looks = [look for look in bounds.LOOKS if look <= texts]
        found += wrong([bounds.bounds(gaps[:look], range(look)) for look in looks])
    return found / seeds


def ran(mean: float, spread: float, texts: int, seed: int) -> tuple[str, int]:
    """Return the verdict of one run, and the texts that it took."""
    generator = np.random.default_rng(seed)
    gaps: list[float] = []
    while True:
        gaps.append(float(generator.normal(mean, spread)))
        found = bounds.verdict([bounds.bounds(gaps, range(len(gaps)))], [bounds.is_broken(gap, OWN) for gap in gaps])
        if bounds.is_final(found) or len(gaps) == texts:
            return found, len(gaps)


@pytest.mark.parametrize("spread", [0.02, 0.25])
def test_all_looks_together_are_wrong_in_one_run_of_twenty(spread: float) -> None:
    above = ever(0.0, spread, lambda looks: any(each.lower > 0 for each in looks))
    below = ever(0.0, spread, lambda looks: any(each.upper < 0 for each in looks))
    assert 0.03 <= above <= 0.07
    assert 0.03 <= below <= 0.07


def test_the_same_bounds_without_their_schedule_would_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "chance", lambda texts: 0.05)  # what one look may take
    assert ever(0.0, 0.1, lambda looks: any(each.lower > 0 for each in looks), seeds=400) > 0.12


def test_a_run_that_stops_anywhere_has_bounds_of_the_last_look() -> None:
    gaps = np.random.default_rng(1).normal(0, 0.1, 11).tolist()
    found = bounds.bounds(gaps, range(11))
    of_ten = bounds.bounds(gaps[:10], range(10))
    assert (found.lower, found.upper) == (of_ten.lower, of_ten.upper)
    assert found.mean == pytest.approx(np.mean(gaps))
    assert bounds.bounds(gaps[:2], range(2)).upper == math.inf


def test_half_widths_are_those_of_the_normal_table() -> None:
    # In standard deviations of a text, from 400,000 simulated paths.
    published = {3: 3.43, 4: 2.14, 5: 1.65, 6: 1.39, 8: 1.11, 12: 0.85, 16: 0.72, 24: 0.58, 32: 0.50, 64: 0.36}
    for texts, width in published.items():
        gaps = np.random.default_rng(texts).normal(0, 1, texts)
        gaps = (gaps - gaps.mean()) / gaps.std(ddof=1)
        assert bounds.bounds(gaps.tolist(), range(texts)).upper == pytest.approx(width, abs=0.03)


def test_places_of_one_book_count_as_one() -> None:
    gaps = [0.0, 0.01, 0.3, 0.31, 0.0, 0.02]
    apart, together = bounds.bounds(gaps, range(6)), bounds.bounds(gaps, [0, 0, 1, 1, 2, 2])
    assert together.upper > apart.upper
    assert bounds.bounds(gaps, [0] * 6).upper == math.inf


@pytest.mark.parametrize(
    ("ratio", "texts", "expected", "share"),
    [(1.0, 6, KEEP, 0.99), (1.03, 12, KEEP, 0.97), (1.3, 24, COSTS, 0.9), (3.0, 6, BROKEN, 0.95)],
)
def test_a_real_model_is_judged_rightly(ratio: float, texts: int, expected: str, share: float) -> None:
    """Gaps spread as those of published models do: by 0.015 nats, and more where an extension costs more."""
    spread = 0.015 + 0.4 * math.log(ratio)
    found = [ran(math.log(ratio), spread, texts, seed)[0] for seed in range(300)]
    assert found.count(expected) / 300 >= share


def test_a_false_keep_is_rare_at_the_limit_and_a_false_broken_never_seen() -> None:
    at_limit = [ran(math.log(1.1), 0.15, 24, seed)[0] for seed in range(600)]
    assert at_limit.count(KEEP) / 600 <= 0.06
    assert BROKEN not in at_limit


def test_the_count_is_wrong_in_two_and_a_half_per_cent() -> None:
    """Exact: by all ways in which each text is broken with a chance of one in ten."""
    alive = {0: 1.0}
    reached = 0.0
    for number in range(1, 25):
        after: dict[int, float] = {}
        for count, share in alive.items():
            for broken, part in ((0, 0.9), (1, 0.1)):
                after[count + broken] = after.get(count + broken, 0.0) + share * part
        needed = next(least for most, least in bounds.BROKEN_OF if number <= most)
        reached += sum(share for count, share in after.items() if count >= needed)
        alive = {count: share for count, share in after.items() if count < needed}
    assert 0.024 <= reached <= 0.026
    assert bounds.broken_by_count([True, True])
    assert not bounds.broken_by_count([True, False])
    assert bounds.broken_by_count([True, False, True, True])
    assert not bounds.broken_by_count([False] * 24 + [True] * 40)


def test_both_questions_have_to_show_it() -> None:
    small, large = Bounds(0.01, 0.0, 0.03), Bounds(0.2, 0.15, 0.3)
    assert bounds.verdict([small, small], []) == KEEP
    assert bounds.verdict([small, large], []) == COSTS
    assert bounds.verdict([small, Bounds(0.05, 0.0, 0.2)], []) == WORKS
    assert bounds.verdict([small, Bounds(0.05, -math.inf, math.inf)], []) == MEASURED
    assert bounds.verdict([small, Bounds(0.6, 0.5, 0.9)], []) == BROKEN
    assert bounds.verdict([small, small], [True, True]) == BROKEN
    assert bounds.verdict([], []) == MEASURED
    assert bounds.verdict([small, Bounds(math.nan, math.nan, math.nan)], []) == MEASURED


def test_texts_needed_are_about_those_that_it_takes() -> None:
    gaps = [0.03, 0.05, 0.04, 0.06]
    needed = bounds.texts_needed(gaps, range(4), 0.05)
    assert needed is not None
    assert 4 < needed <= 8
    assert bounds.texts_needed([], [], 0.05) == 5  # nothing is known: texts differ as usual
    assert bounds.texts_needed([math.log(1.1) + 0.2, math.log(1.1) - 0.2], range(2), 0.05) is None


def test_the_own_error_of_a_text_is_that_of_blocks() -> None:
    tokens = np.random.default_rng(3).normal(0.1, 0.4, 2048)
    blocks = tokens.reshape(8, 256).mean(axis=1)
    assert bounds.own_error(tokens) == pytest.approx(blocks.std(ddof=1) / math.sqrt(8))
    assert bounds.is_broken(0.5, 0.04)
    assert not bounds.is_broken(0.45, 0.04)
