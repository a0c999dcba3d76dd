#!/usr/bin/env python3
"""Simulate how often losses of retrieval are found, and write the table of docs/judging.md. A minute of one core, no model.

scripts/floors/retrieval_power.py            simulate, write the page
scripts/floors/retrieval_power.py --check    exit with 1 where the page has another table
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ropetool.verification.gate import GRADES
from ropetool.verification.measures.retrieval import DEPTHS, RetrievalPair, RetrievalResult, retrieval_checks
from ropetool.verification.results import FAIL, PASS
from ropetool.verification.shares import paired_bounds
from ropetool.verification.statistics import wilson
from ropetool.verification.suites import SUITES

PAGE = ROOT / "docs" / "judging.md"
RUNS = 2000
CHANCE, TRAINED, LONGEST = 1 / 8, 256, 1024
HARD = 0.5  # share of the trials that are as hard for one twin as for the other; the rest are drawn anew
EARLIER_TRIALS, EARLIER_SHARE = 4, 0.8
Booleans = npt.NDArray[np.bool_]
CASES: list[tuple[str, Callable[[float], list[float]]]] = [
    ("as the baseline", lambda own: [own] * 5),
    ("the front dead", lambda own: [CHANCE, *[own] * 4]),
    ("0.1 fewer", lambda own: [own - 0.1] * 5),
    ("0.6 of it", lambda own: [0.6 * own] * 5),
    ("a blind guess", lambda own: [CHANCE] * 5),
]


def drawn(
    own: float, alive: Sequence[float], trials: int, rng: np.random.Generator
) -> tuple[list[Booleans], list[Booleans]]:
    """Return which trials are right at the longest length, and of their twins, by depth."""
    here, there = [], []
    for chance in alive:
        hard = rng.random(trials)
        there.append(hard < own)
        here.append(np.where(rng.random(trials) < HARD, hard, rng.random(trials)) < chance)
    return here, there


def result(here: Sequence[Booleans], there: Sequence[Booleans]) -> RetrievalResult:
    """Return them as the measurement does."""
    pairs = []
    groups = [(None, np.concatenate(here), np.concatenate(there)), *zip(DEPTHS, here, there, strict=True)]
    for depth, ours, twins in groups:
        gained, lost = int((ours & ~twins).sum()), int((twins & ~ours).sum())
        hits, own, trials = int(ours.sum()), int(twins.sum()), len(ours)
        bounds = paired_bounds(gained, lost, trials)
        pairs.append(
            RetrievalPair(LONGEST, depth, False, trials, hits, own, gained, lost, (hits - own) / trials, *bounds)
        )
    return RetrievalResult("keys", 8, CHANCE, (), (), "", tuple(pairs))


def earlier_fails(own: float, alive: Sequence[float], rng: np.random.Generator) -> bool:
    """Return what the rule of earlier versions says, its baseline measured by trials of its own."""
    baseline = rng.binomial(EARLIER_TRIALS * 5, own)
    hits = sum(int(rng.binomial(EARLIER_TRIALS, chance)) for chance in alive)
    trials = EARLIER_TRIALS * 5
    return wilson(hits, trials)[1] < EARLIER_SHARE * baseline / trials


def table(runs: int = RUNS) -> str:
    """Return the table as Markdown."""
    trials = SUITES["standard"].trials
    lines = [
        "| baseline | target | publishable passes | usable passes | usable fails | research fails | before fails |"
    ]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for own in (1.0, 0.9, 0.8, 0.6, 0.35):
        for name, alive in CASES:
            rng = np.random.default_rng(0)
            found = [result(*drawn(own, alive(own), trials, rng)) for _ in range(runs)]
            said = {
                grade: [retrieval_checks(grid, GRADES[grade], TRAINED, True)[0].verdict for grid in found]
                for grade in GRADES
            }
            before = sum(earlier_fails(own, alive(own), rng) for _ in range(runs))
            counts = [
                said["publishable"].count(PASS), said["usable"].count(PASS), said["usable"].count(FAIL),
                said["research"].count(FAIL), before,
            ]  # fmt: skip
            lines.append(f"| {own:g} | {name} | {' | '.join(f'{count / runs:.2f}' for count in counts)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    page = PAGE.read_text(encoding="utf-8")
    made = f"<!-- retrieval-power -->\n\n{table()}\n\n<!-- /retrieval-power -->"
    again = re.sub(r"<!-- retrieval-power -->.*?<!-- /retrieval-power -->", lambda _: made, page, flags=re.DOTALL)
    if parser.parse_args().check:
        return int(again != page)
    PAGE.write_text(again, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
