"""The search: generations of points around the best point so far. Each stage reads more text and keeps fewer points.

It knows only vectors and scores, so tests can replace the model by noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ropetool.rope.tables import Array

DRAWS = 12  # points per generation
KEPT = 3  # one of this many points goes on to the next stage
STAGES = (1 / 6, 1 / 2, 1.0)  # the share of the text that each stage reads
# The standard deviation of a move in the first generation, and the ratio from one generation to the next.
STEP, SHRINK = 0.25, 0.75
TRIES = 20  # draws before giving up, if no file can store the points
SOME = 0.4  # chance of a coordinate to move


@dataclass(frozen=True)
class Score:
    """The result of a point.

    objective: nats per token; less is better.
    excess: how much it exceeds the bounds. 0 within all bounds.
    """

    objective: float
    excess: float = 0.0

    @property
    def key(self) -> tuple[float, float]:
        """Return the sort key: any point within the bounds is before any point that exceeds them."""
        return self.excess, self.objective


Vector = Array | None
"""A point of the space. None is the default, which takes part in every generation."""
Evaluate = Callable[[Sequence[Vector], int], list[Score]]
"""Returns the scores of some points at a stage, all on the same text."""


@dataclass(frozen=True)
class Generation:
    """The state after a generation.

    points: the number of points so far.
    gain: the default's objective minus the objective of the best point, on all text of the search.
    """

    points: int
    gain: float


@dataclass(frozen=True)
class SearchState:
    """The result of a search so far.

    best: the best point. None for the default.
    points: the number of points that were tried, without the default.
    steps: the generations.
    """

    best: Vector
    points: int
    steps: tuple[Generation, ...]


def work(draws: int = DRAWS) -> float:
    """Return the cost of a generation, as a number of evaluations on all text.

    Text is not read twice for the same point.
    """
    total, left, read = 0.0, draws, 0.0
    for share in STAGES:
        total += left * (share - read)
        left, read = max(1, left // KEPT), share
    return total


def search(
    size: int,
    starts: Sequence[Array],
    smooth: bool,
    evaluate: Evaluate,
    generations: int,
    seed: int,
    possible: Callable[[Array], bool] = lambda vector: True,
    progress: Callable[[int, SearchState], None] = lambda generation, state: None,
) -> SearchState:
    """Return the best point.

    size: the number of coordinates.
    starts: the first points.
    smooth: whether neighbouring coordinates move together.
    evaluate: returns the scores of points at a stage.
    generations: the number of generations.
    seed: the random seed.
    possible: whether a file can store a point.
    progress: called after each generation with its number and the state.
    """
    best: Vector = None
    points, steps = 0, []
    for generation in range(generations):
        rng = np.random.default_rng([seed, generation])
        drawn = _drawn(rng, size, starts, smooth, best, generation, possible)
        field: list[Vector] = [None, *([] if best is None else [best]), *drawn]
        always = len(field) - len(drawn)
        points += len(drawn)
        left = list(range(len(field)))
        for stage in range(len(STAGES)):
            scores = dict(zip(left, evaluate([field[i] for i in left], stage), strict=True))
            ranked = sorted(left, key=lambda i: scores[i].key)  # the sort is stable: the default wins a tie
            if stage < len(STAGES) - 1:
                going_on = [i for i in ranked if i >= always][: max(1, (len(left) - always) // KEPT)]
                left = [*range(always), *going_on]
        best = field[ranked[0]]
        steps.append(Generation(points, scores[0].objective - scores[ranked[0]].objective))
        progress(generation, SearchState(best, points, tuple(steps)))
    return SearchState(best, points, tuple(steps))


def _drawn(
    rng: np.random.Generator,
    size: int,
    starts: Sequence[Array],
    smooth: bool,
    best: Vector,
    generation: int,
    possible: Callable[[Array], bool],
) -> list[Array]:
    """Return the points of a generation: first the starts and points around them, later mostly points near the best."""
    step = STEP * SHRINK**generation
    points = [start for start in starts if possible(start)][:DRAWS] if not generation else []
    centres = [*starts] if best is None else [best, best, best, *starts[:1]]
    while len(points) < DRAWS:
        for _ in range(TRIES):
            one = moved(rng, centres[int(rng.integers(len(centres)))], step, smooth)
            if possible(one):
                points.append(one)
                break
        else:
            break
    return points


def moved(rng: np.random.Generator, centre: Array, step: float, smooth: bool) -> Array:
    """Return a point near another one. In a smooth space, neighbouring coordinates move together. Shapes: (size,)."""
    places = np.arange(centre.size)
    if smooth:
        middle, width = rng.uniform(0, centre.size - 1), _width(rng, centre.size)
        change = rng.normal(0, step) * np.exp(-(((places - middle) / width) ** 2))
    else:
        some = rng.random(centre.size) < SOME
        some[int(rng.integers(centre.size))] = True
        change = rng.normal(0, step, centre.size) * some
    there = centre + change
    return np.asarray(np.clip(there, 0, 1), dtype=np.float64)


def _width(rng: np.random.Generator, size: int) -> float:
    return float(np.exp(rng.uniform(np.log(0.5), np.log(max(1.0, size / 3)))))
