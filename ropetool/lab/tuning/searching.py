"""The search: generations of points around the best one so far, each thinned out on ever more text.

Knows vectors and scores; neither tables nor models, so that noise can be put in place of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ropetool.rope.tables import Array

DRAWS = 12  # points of a generation
KEPT = 3  # of so many points one goes on to the next stage
STAGES = (1 / 6, 1 / 2, 1.0)  # the share of the text that each stage reads
STEP, SHRINK = 0.25, 0.75  # how far a generation reaches at first, and each later one of that
TRIES = 20  # of a draw that no file can hold
SOME = 0.4  # chance of a coordinate to move


@dataclass(frozen=True)
class Score:
    """How a point did. objective: nats a token, less is better. excess: by how much it breaks a bound, 0 within all."""

    objective: float
    excess: float = 0.0

    @property
    def key(self) -> tuple[float, float]:
        """What points are ordered by: none that breaks a bound comes before one that does not."""
        return self.excess, self.objective


Vector = Array | None
"""A point of the space; None is the default, which is always in the field."""
Evaluate = Callable[[Sequence[Vector], int], list[Score]]
"""Returns the scores of some points at a stage, all on the same text."""


@dataclass(frozen=True)
class Step:
    """A generation: how far below the default's the objective of the best one is, on all the text of the search."""

    points: int
    gain: float


@dataclass(frozen=True)
class Searched:
    """best: the winner, None for the default itself. points: how many were tried, the default aside."""

    best: Vector
    points: int
    steps: tuple[Step, ...]


def work(draws: int = DRAWS) -> float:
    """Return what a generation costs, as so many evaluations on all the text; what is kept from before costs nothing."""
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
    told: Callable[[int, Searched], None] = lambda generation, found: None,
) -> Searched:
    """Return the best point that was found. possible: whether a point can be written for those who are to read it."""
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
            ranked = sorted(left, key=lambda i: scores[i].key)  # of equal ones the default comes first
            if stage < len(STAGES) - 1:
                going_on = [i for i in ranked if i >= always][: max(1, (len(left) - always) // KEPT)]
                left = [*range(always), *going_on]
        best = field[ranked[0]]
        steps.append(Step(points, scores[0].objective - scores[ranked[0]].objective))
        told(generation, Searched(best, points, tuple(steps)))
    return Searched(best, points, tuple(steps))


def _drawn(
    rng: np.random.Generator,
    size: int,
    starts: Sequence[Array],
    smooth: bool,
    best: Vector,
    generation: int,
    possible: Callable[[Array], bool],
) -> list[Array]:
    """Return the points of a generation: the starts and points around them at first, then some around the best."""
    step = STEP * SHRINK**generation
    found = [start for start in starts if possible(start)][:DRAWS] if not generation else []
    centres = [*starts] if best is None else [best, best, best, *starts[:1]]
    while len(found) < DRAWS:
        for _ in range(TRIES):
            one = moved(rng, centres[int(rng.integers(len(centres)))], step, smooth)
            if possible(one):
                found.append(one)
                break
        else:
            break
    return found


def moved(rng: np.random.Generator, centre: Array, step: float, smooth: bool) -> Array:
    """Return a point near another one; of a smooth space a stretch of coordinates moves together. Shapes: (size,)."""
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
