"""Who is better than whom: Holm's rule by a textbook example, and the pairs by Student's formula written out."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from ropetool.choosing.ranking import ranked
from ropetool.verification.statistics import rejected

DOCUMENTS = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]  # of equal size, for which the interval is the textbook's
LEVELS = {"a": 0.0, "b": 0.02, "c": 0.5, "d": 0.52}


def losses(seed: int = 3) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    hardness = draw.normal(3, 1, size=(12, 1)) + draw.normal(0, 1, size=(12, 16))
    noise = {name: draw.normal(0, 0.03, size=6)[DOCUMENTS][:, None] for name in LEVELS}
    return {name: hardness + level + noise[name] for name, level in LEVELS.items()}


def p_value(one: np.ndarray, other: np.ndarray) -> float:
    """Return the two-sided p value of Student's paired test on the means of documents, the density summed up by trapezes."""
    means = (one - other).mean(axis=1).reshape(6, 2).mean(axis=1)
    t = abs(means.mean()) / (means.std(ddof=1) / math.sqrt(6))
    grid = np.linspace(0, t, 400_001)
    scale = math.gamma(3) / (math.sqrt(5 * math.pi) * math.gamma(2.5))
    density = scale * (1 + grid**2 / 5) ** -3
    return float(1 - 2 * ((density[:-1] + density[1:]) / 2).sum() * (grid[1] - grid[0]))


def test_holm_rejects_what_the_textbook_does() -> None:
    # The levels are .05/4, .05/3, .05/2 and .05: .005 and .01 fall, .03 is above .025, and .04 stays with it.
    assert rejected([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]


def test_pairs_are_those_of_students_test_and_holms_rule() -> None:
    made = losses()
    found = ranked(512, made, DOCUMENTS)
    assert found.order == ("a", "b", "c", "d")
    expected = {pair: p_value(made[pair[0]], made[pair[1]]) for pair in combinations(found.order, 2)}
    assert {(pair.first, pair.second): pair.chance for pair in found.pairs} == pytest.approx(expected, abs=1e-7)
    falls, left = set(), sorted(expected, key=lambda pair: expected[pair])
    while left and expected[left[0]] <= 0.05 / len(left):
        falls.add(left.pop(0))
    assert {(pair.first, pair.second) for pair in found.pairs if pair.better} == falls
    assert ("a", "c") in falls  # the example decides both ways
    assert ("a", "b") not in falls
    assert found.best == "a"
    assert found.tied == ("b",)
    assert found.better_than("a") == ("c", "d")


def test_the_correction_is_over_all_pairs() -> None:
    """A difference that alone is sure is not so among many: .05 is divided by the number of pairs."""
    draw = np.random.default_rng(11)
    hardness = draw.normal(3, 1, size=(12, 16))
    same = {f"n{i}": hardness + draw.normal(0, 0.03, size=6)[DOCUMENTS][:, None] for i in range(12)}
    pairs = ranked(512, same, DOCUMENTS).pairs
    assert sum(pair.chance < 0.05 for pair in pairs) >= 3  # of 66 pairs that are all alike
    assert not any(pair.better for pair in pairs)


def test_equal_candidates_and_a_single_document_are_not_told_apart() -> None:
    made = losses()
    twins = ranked(512, {"a": made["a"], "again": made["a"].copy()}, DOCUMENTS)
    assert twins.tied == ("again",)
    assert twins.pairs[0].chance == 1.0
    alone = ranked(512, made, [0] * 12)
    assert not any(pair.better for pair in alone.pairs)
