#!/usr/bin/env python3
"""Count how often `tune` claims a gain where there is none, and write it to tests/choosing/tune_noise.json.

The whole search and the judgement, on losses that are drawn: documents, segments and tokens differ as real ones do, and
  each point
differs from the default by document, at random and by nothing on the whole. No model, no network; a minute of one core.

    scripts/tune/tune_noise.py              2,000 seeds of each design, written
    scripts/tune/tune_noise.py --seeds 50   a look, nothing written
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ropetool.lab.tuning.figures import AllowedLoss, Documents, PointLosses
from ropetool.lab.tuning.judging import ERROR, GAIN, judge
from ropetool.lab.tuning.searching import STAGES, Score, Vector, search
from ropetool.verification.statistics import wilson

RESULT = ROOT / "tests" / "choosing" / "tune_noise.json"
SEEDS, GENERATIONS, SIZE = 2000, 4, 4
Array = npt.NDArray[np.float64]
# Nats, by which a point differs from the default: a little more than tables do.
DOCUMENT, SEGMENT, TOKEN = 0.05, 0.05, 0.3
ANSWER, AROUND = 1.0, 8.0  # nats of an answer, and by how much more than text it feels what document stands around it
SCORED, PASSAGE = 8, 8  # tokens; more would only make the same noise smaller
SEARCHED, UNSEEN = (7, 24, 20), (8, 32, 40)  # documents, segments and answers


def normal(rng: np.random.Generator, count: int) -> Array:
    return rng.normal(0, DOCUMENT, count)


def skewed(rng: np.random.Generator, count: int) -> Array:
    """A lognormal of sigma 1, of mean 0 and the same spread, either way round."""
    spread = math.sqrt((math.e - 1) * math.e)
    return rng.choice([-1, 1]) * (rng.lognormal(0, 1, count) - math.exp(0.5)) / spread * DOCUMENT


Effects = Callable[[np.random.Generator, int], Array]
DESIGNS: dict[str, tuple[Effects, tuple[int, int, int], bool]] = {
    "8 documents, all parts": (normal, UNSEEN, True),
    "8 documents, text alone": (normal, UNSEEN, False),
    "4 documents": (normal, (4, 16, 40), True),
    "8 documents, skewed": (skewed, UNSEEN, True),
}


def around(count: int, trials: int) -> npt.NDArray[np.int64]:
    """Return the document that stands around each answer, which is drawn and the same for all points.

    Shapes: (trials,).
    """
    return np.random.default_rng(count).integers(count, size=trials)


def drawn(rng: np.random.Generator, effects: Effects, size: tuple[int, int, int], aside: bool) -> PointLosses:
    """Return the losses of a point, of which the mean over all documents there are is 0."""
    count, segments, trials = size
    documents = np.arange(segments) % count
    shift = effects(rng, count)

    def rows(scored: int) -> Array:
        own = shift[documents] + rng.normal(0, SEGMENT, segments)
        return own[:, None] + rng.normal(0, TOKEN, (segments, scored))

    answers = AROUND * shift[around(count, trials)] + rng.normal(0, ANSWER, trials)
    asked = trials if aside else 0
    return PointLosses(
        rows(SCORED), {512: rows(SCORED), 1024: rows(SCORED)}, rows(PASSAGE)[: segments if aside else 0],
        answers[:asked], rng.random(asked) < 0.5,
    )  # fmt: skip


def claims(design: str, seed: int, *, leak: bool = False) -> bool:
    """Return whether the whole pipeline claims a gain where no point is better than another.

    leak: judge on the text of the search, which a test does to see the claims that it would make.
    """
    effects, unseen, aside = DESIGNS[design]
    # Of the means, for no bound is to decide.
    bounds, source = AllowedLoss(math.inf, True, 1.0), np.zeros((SEARCHED[1], SCORED))
    made: dict[bytes, PointLosses] = {}

    def figures(vector: Vector) -> PointLosses:
        key = b"" if vector is None else vector.tobytes()
        if key not in made:
            made[key] = drawn(np.random.default_rng([seed, len(made)]), effects, SEARCHED, aside)
        return made[key]

    def cut(found: PointLosses, share: float) -> PointLosses:
        rows = round(share * SEARCHED[1])
        trials = round(share * len(found.answers))
        return PointLosses(
            found.within[:rows], {length: losses[:rows] for length, losses in found.text.items()}, found.copies[:rows],
            found.answers[:trials], found.correct[:trials],
        )  # fmt: skip

    def evaluate(vectors: Sequence[Vector], stage: int) -> list[Score]:
        default = cut(figures(None), STAGES[stage])
        each = [cut(figures(vector), STAGES[stage]) for vector in vectors]
        return [bounds.score(found, default, source, whole=True) for found in each]

    found = search(SIZE, [np.full(SIZE, 0.5)], False, evaluate, GENERATIONS, seed)
    if found.best is None:
        return False
    rng = np.random.default_rng([seed, 1 << 20])
    default, tuned = (drawn(rng, effects, unseen, aside) for _ in range(2))
    if leak:
        (default, tuned), unseen = (figures(None), figures(found.best)), SEARCHED
    count, segments, trials = unseen
    documents = (np.arange(segments) % count).tolist()
    of = Documents(documents, documents, documents, around(count, trials).tolist()[: len(tuned.answers)])
    return judge(default, tuned, np.zeros((segments, SCORED)), of, bounds).verdict == GAIN


def counted(design: str, seeds: int) -> dict[str, Any]:
    """Return how many of so many seeds end in a claim, with the upper end of Wilson's interval, and which they are."""
    which = [seed for seed in range(seeds) if claims(design, seed)]
    upper = round(wilson(len(which), seeds)[1], 5)
    return {"seeds": seeds, "claims": len(which), "share": len(which) / seeds, "upper": upper, "which": which}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    seeds = parser.parse_args().seeds
    found = {design: counted(design, seeds) for design in DESIGNS}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in found.items())
    text = f'{{"error": {ERROR}, "generations": {GENERATIONS}, "designs": {{\n{lines}\n}}}}\n'
    sys.stdout.write(text)
    if seeds == SEEDS:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
