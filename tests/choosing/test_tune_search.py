"""The search over vectors: on functions whose minimum is known, and on noise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from loading import script

from ropetool.lab.tuning.searching import DRAWS, STAGES, Score, Vector, search, work
from ropetool.rope.tables import Array

NOISE = json.loads((Path(__file__).parent / "tune_noise.json").read_text(encoding="utf-8"))
Found = list[tuple[int, int]]


def of(objective: Callable[[Array], float], default: float, asked: Found | None = None) -> Callable[..., list[Score]]:
    def evaluate(vectors: Sequence[Vector], stage: int) -> list[Score]:
        if asked is not None:
            asked.append((stage, len(vectors)))
        return [Score(default if vector is None else objective(vector)) for vector in vectors]

    return evaluate


def bowl(centre: Array) -> Callable[[Array], float]:
    return lambda vector: float(((vector - centre) ** 2).sum())


@pytest.mark.parametrize("smooth", [False, True])
def test_it_comes_near_the_lowest_place(smooth: bool) -> None:
    centre = np.linspace(0.2, 0.9, 6)
    found = search(6, [np.full(6, 0.5)], smooth, of(bowl(centre), 9.0), 12, 0)
    assert found.best is not None
    assert bowl(centre)(found.best) < bowl(centre)(np.full(6, 0.5)) / 4
    assert found.points == 12 * DRAWS
    gains = [step.gain for step in found.steps]
    assert gains == sorted(gains)  # the best one stays in the field


def test_nothing_comes_before_a_default_that_is_as_good() -> None:
    found = search(3, [np.full(3, 0.5)], False, of(lambda vector: 1.0, 1.0), 3, 0)
    assert found.best is None
    assert [step.gain for step in found.steps] == [0.0] * 3


def test_a_point_that_breaks_a_bound_comes_after_any_that_does_not() -> None:
    def evaluate(vectors: Sequence[Vector], stage: int) -> list[Score]:
        return [Score(1.0) if vector is None else Score(-vector[0], max(0.0, vector[0] - 0.6)) for vector in vectors]

    found = search(1, [np.array([0.5])], False, evaluate, 10, 1)
    assert found.best is not None
    assert 0.55 < found.best[0] <= 0.6


def test_the_same_seed_asks_the_same_and_another_does_not() -> None:
    runs = [search(4, [np.full(4, 0.5)], False, of(bowl(np.full(4, 0.3)), 9.0), 3, seed) for seed in (5, 5, 6)]
    bests = [run.best for run in runs]
    assert all(best is not None for best in bests)
    assert np.array_equal(bests[0], bests[1])  # type: ignore[arg-type]
    assert not np.array_equal(bests[0], bests[2])  # type: ignore[arg-type]


def test_each_stage_asks_a_third_of_the_points_on_more_text() -> None:
    asked: Found = []
    search(2, [np.full(2, 0.5)], False, of(bowl(np.zeros(2)), 9.0, asked), 1, 0)
    assert asked == [(0, 1 + 12), (1, 1 + 4), (2, 1 + 1)]  # with the default
    assert work() == pytest.approx(12 / 6 + 4 / 3 + 1 / 2)
    assert STAGES[-1] == 1


def test_points_that_no_file_holds_are_not_asked() -> None:
    seen: list[float] = []

    def evaluate(vectors: Sequence[Vector], stage: int) -> list[Score]:
        seen.extend(vector[0] for vector in vectors if vector is not None)
        return [Score(0.0 if vector is None else -1.0) for vector in vectors]

    search(1, [np.array([0.9]), np.array([0.4])], False, evaluate, 3, 0, lambda vector: vector[0] <= 0.5)
    assert seen
    assert max(seen) <= 0.5


# --- pure noise


def test_noise_is_called_a_gain_in_less_than_one_of_twenty_runs() -> None:
    for found in NOISE["designs"].values():
        assert found["seeds"] == 2000
        assert found["upper"] < 0.05


def test_the_record_is_of_this_code() -> None:
    noise = script("tune/tune_noise.py")
    some = [seed for seed in range(120) if noise.claims("8 documents, all parts", seed)]
    assert some == [seed for seed in NOISE["designs"]["8 documents, all parts"]["which"] if seed < 120]


def test_text_of_the_search_in_the_judgement_makes_claims_of_noise() -> None:
    noise = script("tune/tune_noise.py")
    claims = sum(noise.claims("8 documents, all parts", seed, leak=True) for seed in range(60))
    assert claims > 6
