"""A made-up tuning, for what shows one: a search of two generations and a judgement of three parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import ropetool
from ropetool.lab.tuning.figures import AllowedLoss, Documents, PointLosses
from ropetool.lab.tuning.judging import judge
from ropetool.lab.tuning.results import TuneResult
from ropetool.lab.tuning.searching import Generation

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
ROWS, DOCUMENTS = 8, [0, 1, 2, 3] * 2


def figures(shift: float, cost: float, right: int) -> PointLosses:
    """Return losses that are lower by `shift`, and higher by `cost` within the trained length."""
    rng = np.random.default_rng(0)
    text = {length: rng.normal(2.0, 0.3, (ROWS, 4)) - shift - 0.001 * rng.random((ROWS, 4)) for length in (512, 1024)}
    return PointLosses(
        rng.normal(2.0, 0.3, (ROWS, 4)) + cost, text, rng.normal(1.5, 0.2, (ROWS, 4)) - shift, rng.normal(1, 0.1, 10),
        np.arange(10) < right,
    )  # fmt: skip


def sample(
    shift: float = 0.1, *, cost: float = 0.02, right: int = 7, stated: bool = False, limit: float = 1.1
) -> TuneResult:
    """Return a result whose winner is better by `shift` nats a token."""
    default, tuned, source = figures(0.0, 0.05, 6), figures(shift, cost, right), figures(0.0, 0.0, 0).within
    documents = Documents(DOCUMENTS, DOCUMENTS, DOCUMENTS, range(10))
    judgement = judge(default, tuned, source, documents, AllowedLoss(float(np.log(limit)), stated, 0.1))
    plans = [ropetool.plan(DEMO, "yarn", target_length=1024, params=params) for params in ({}, {"beta_fast": 8.0})]
    return TuneResult(
        source="model", space="yarn", trained_length=256, target_length=1024, lengths=(512, 1024),
        runtimes=("transformers",), seed=0, minutes=10.0, points=24, steps=(Generation(12, 0.04), Generation(24, 0.0612)),
        searched=("a.txt", "b.txt"), unseen=("c.txt", "d.txt", "e.txt", "f.txt"), segments=(24, 8),
        winner="yarn, factor 4, beta_fast 8, beta_slow 1, ramp dims", judgement=judgement, default=plans[0],
        tuned=replace(plans[1], suffix="tuned-1024"), inv_freq=10000.0 ** (-np.arange(32) / 32),
        max_regression=None, text_fingerprint="d9c8", runtime="torch", notes=("a note",),
    )  # fmt: skip
