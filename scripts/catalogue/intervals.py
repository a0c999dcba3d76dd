#!/usr/bin/env python3
"""Count how often intervals cover the truth and verdicts are wrong. Writes tests/verification/intervals.json and two pages.

Five counts: made-up documents of known spread; documents drawn from the catalogue, whose mean over all is the truth
(tests/verification/catalogue_losses.json); verdicts on such draws; runs that read text after text; and effective lengths that
are too long. About two minutes of one core, no model, no network.

    scripts/catalogue/intervals.py            count, write both files
    scripts/catalogue/intervals.py --docs     write the page from the counts as they are
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ropetool.lab.measures.effective_length import KEPT
from ropetool.verification.gate import GRADES
from ropetool.verification.measures.loss import verdicts
from ropetool.verification.measures.segments import lacking
from ropetool.verification.results import UNDECIDED, WORSE
from ropetool.verification.shares import PairedTrials, ratio_bounds
from ropetool.verification.statistics import ERROR, clustered, lower_bound, t_quantile, upper_bound
from ropetool.verification.verdict import bounds

LOSSES = ROOT / "tests" / "verification" / "catalogue_losses.json"
RESULT = ROOT / "tests" / "verification" / "intervals.json"
PAGE = ROOT / "docs" / "judging.md"
DRAWS, SEEDS = 3000, 1000
Array = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator], tuple[Array, list[int]]]
"""A sample of mean 0, or whatever the truth is: a difference for each segment, and the document of each."""


# --- made-up documents

DOCUMENT, SEGMENT = 0.15, 0.3  # nats, by which documents differ, and segments of one: about what the catalogue's do


def normal(rng: np.random.Generator, count: int) -> Array:
    return rng.normal(0, DOCUMENT, count)


def skewed(rng: np.random.Generator, count: int) -> Array:
    """A lognormal of sigma 1, of mean 0 and the same spread."""
    spread = math.sqrt((math.e - 1) * math.e)
    return (rng.lognormal(0, 1, count) - math.exp(0.5)) / spread * DOCUMENT


def broken(rng: np.random.Generator, count: int) -> Array:
    """One document in ten is worse by a nat; of mean 0."""
    return normal(rng, count) + (rng.random(count) < 0.1) - 0.1


def kinds_drawn(rng: np.random.Generator, count: int) -> Array:
    """Two kinds of text stand for all that there are, whose means differ by 0.2 nats."""
    return normal(rng, count) + rng.normal(0, 0.2, 2)[np.arange(count) % 2]


def kinds_given(rng: np.random.Generator, count: int) -> Array:
    """The claim is of just these two kinds in equal parts."""
    return normal(rng, count) + np.where(np.arange(count) % 2, 0.2, -0.2)


EQUAL = (4,) * 8
DESIGNS: dict[str, tuple[tuple[int, ...], Callable[[np.random.Generator, int], Array]]] = {
    "8 documents of 4": (EQUAL, normal),
    "4 of 8": ((8,) * 4, normal),
    "16 of 2": ((2,) * 16, normal),
    "32 of 1": ((1,) * 32, normal),
    "8 and 12 of 1": ((8, *[1] * 12), normal),
    "12, 6, 5, 5, 4": ((12, 6, 5, 5, 4), normal),
    "16, 8, 4, 4": ((16, 8, 4, 4), normal),
    "29, 1, 1, 1": ((29, 1, 1, 1), normal),
    "27 and 5 of 1": ((27, 1, 1, 1, 1, 1), normal),
    "8 of 4, skewed": (EQUAL, skewed),
    "16 of 2, skewed": ((2,) * 16, skewed),
    "16 of 2, one in ten broken": ((2,) * 16, broken),
    "16 of 2, two kinds as a sample of kinds": ((2,) * 16, kinds_drawn),
    "16 of 2, just these two kinds": ((2,) * 16, kinds_given),
}


def made_up(name: str) -> Draw:
    """Return what draws documents of a design, with a difference for each segment."""
    sizes, effects = DESIGNS[name]
    documents = np.repeat(np.arange(len(sizes)), sizes)

    def draw(rng: np.random.Generator) -> tuple[Array, list[int]]:
        return effects(rng, len(sizes))[documents] + rng.normal(0, SEGMENT, len(documents)), documents.tolist()

    return draw


# --- documents of the catalogue

REAL = {
    "8 documents of 4": (4,) * 8,
    "16 of 2": (2,) * 16,
    "24 of 1": (1,) * 24,
    "4, 4, 2, 2, 1, 1, 1, 1": (4, 4, 2, 2, 1, 1, 1, 1),
}
Differences = dict[str, dict[str, Array]]


def differences() -> Differences:
    """Return by extension and length the target's loss minus the truncated baseline's. Shapes: (documents, places)."""
    documents = json.loads(LOSSES.read_text(encoding="utf-8"))
    trained = str(documents["trained"])
    entries = [document["losses"] for document in documents["documents"]]
    return {
        name: {
            length: np.array([np.subtract(e[name][length], e[""][trained]) for e in entries])
            for length in entries[0][name]
        }
        for name in entries[0]
        if name
    }


def drawn(
    rng: np.random.Generator, sizes: Sequence[int], count: int, places: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the document of each segment, and the segments: documents without putting back, and places of each."""
    chosen = rng.choice(count, len(sizes), replace=False)
    segments = [(int(d), int(p)) for d, size in zip(chosen, sizes, strict=True) for p in rng.permutation(places)[:size]]
    return [document for document, _ in segments], segments


def real(table: Array, sizes: Sequence[int]) -> Draw:
    """Return what draws documents of the catalogue, differences from the mean over all of them."""
    centred = table - table.mean()

    def draw(rng: np.random.Generator) -> tuple[Array, list[int]]:
        documents, segments = drawn(rng, sizes, *table.shape)
        return np.array([centred[at] for at in segments]), documents

    return draw


# --- counting


def coverage(draw: Draw, draws: int, seed: str) -> dict[str, float]:
    """Return how often the truth, 0, is inside the interval, below the upper bound and above the lower one."""
    rng = np.random.default_rng(list(seed.encode()))
    inside = below = above = former = 0
    for _ in range(draws):
        values, documents = draw(rng)
        found = clustered(values, documents)
        inside += found.low <= 0 <= found.high
        below += upper_bound(found) >= 0
        above += lower_bound(found) <= 0
        former += abs(found.mean) <= _former(values, documents, found.mean)
    return {
        "effective": round(found.effective, 1), "degrees": round(found.degrees, 1), "judged": not lacking(documents),
        "interval": inside / draws, "upper": below / draws, "lower": above / draws, "former": former / draws,
    }  # fmt: skip


def _former(values: Array, documents: Sequence[int], mean: float) -> float:
    """Return the reach of the interval before CR2: Cochran's ratio estimator, t with a degree less than documents."""
    totals = np.bincount(np.unique(documents, return_inverse=True)[1], weights=values - mean)
    count = len(totals)
    error = math.sqrt(count / (count - 1) * float(totals @ totals)) / len(values)
    return t_quantile(0.95, count - 1) * error


def judgements(
    tables: dict[str, Array], sizes: Sequence[int], margin: float, seeds: int, seed: str, error: float = ERROR
) -> dict[str, float]:
    """Return how often a run over these lengths fails, is left undecided, and passes, as the gate says it."""
    rng = np.random.default_rng(list(seed.encode()))
    ends: list[str] = []
    first = next(iter(tables.values()))
    for _ in range(seeds):
        _, segments = drawn(rng, sizes, *first.shape)
        documents = [document for document, _ in segments]
        found = [clustered(np.array([table[at] for at in segments]), documents) for table in tables.values()]
        said = verdicts(found, margin, error)
        ends.append("fail" if WORSE in said else "undecided" if UNDECIDED in said else "pass")
    return {end: ends.count(end) / seeds for end in ("fail", "undecided", "pass")}


# --- texts one by one

RATIOS = (1.0, 1.05, bounds.KEPT, 1.3, bounds.WORKING, 2.0)
ENDS = (bounds.KEEP, bounds.WORKS, bounds.COSTS, bounds.BROKEN, bounds.MEASURED)


def looked(table: Array, ratio: float, seeds: int, seed: str) -> dict[str, float]:
    """Return how runs end that read one document of the catalogue after the other, up to the last look.

    The gaps are the table's, put on a true ratio. wrong: how often any bound of a run is on the wrong side of it. texts: how
    many a run reads, the mean.
    """
    rng = np.random.default_rng(list(seed.encode()))
    truth = math.log(ratio)
    parts = table - table.mean() + truth
    gaps, errors = parts.mean(axis=1), parts.std(axis=1, ddof=1) / math.sqrt(parts.shape[1])
    ends: list[str] = []
    wrong = texts = 0
    for _ in range(seeds):
        order = rng.permutation(len(gaps))[: bounds.LOOKS[-1]]
        read, broken = gaps[order].tolist(), [bounds.is_broken(gaps[at], errors[at]) for at in order]
        steps = [bounds.bounds(read[:look], range(look)) for look in bounds.LOOKS]
        wrong += any(step.lower > truth or step.upper < truth for step in steps)
        for count in range(1, len(read) + 1):
            end = bounds.verdict([bounds.bounds(read[:count], range(count))], broken[:count])
            if bounds.is_final(end):
                break
        ends.append(end)
        texts += count
    return {**{end: ends.count(end) / seeds for end in ENDS}, "wrong": wrong / seeds, "texts": texts / seeds}


# --- effective lengths

TRIALS = {"40 of one task": 40, "40 of each of 7": 280, "80 of each of 7": 560}
OWN = (0.3, 0.5, 0.7, 0.9, 0.97)  # shares of right answers at the trained length
GUESS = 0.12  # about what a blind guesser has right, over the seven tasks


def too_long(trials: int, own: float, nested: bool, draws: int, seed: str) -> float:
    """Return how often a length whose true ratio is on the limit is called no worse, by its lower bound.

    nested: the longer context only loses answers; otherwise both have answers right independently of each other.
    """
    rng = np.random.default_rng(list(seed.encode()))
    right = GUESS + KEPT * (own - GUESS)
    both = right if nested else own * right
    drawn = rng.multinomial(trials, [both, right - both, own - both, 1 - right - own + both], draws)
    found, times = np.unique(drawn, axis=0, return_counts=True)
    said = [ratio_bounds(PairedTrials(*map(int, counts)), GUESS)[0] >= KEPT for counts in found]
    return float(times[said].sum()) / draws


def lengths_counted(draws: int) -> dict[str, dict[str, float]]:
    """Return these shares by the number of trials and the right answers at the trained length."""
    return {
        f"{name}, {own:g} right": {
            key: too_long(trials, own, nested, draws, f"{name} {own} {key}")
            for key, nested in (("nested", True), ("independent", False))
        }
        for name, trials in TRIALS.items()
        for own in OWN
    }


def counted() -> dict[str, Any]:
    """Return all counts."""
    known = differences()
    simulated = {name: coverage(made_up(name), DRAWS, name) for name in DESIGNS}
    measured = {
        f"{name} at {length}, {design}": coverage(real(table, sizes), DRAWS, f"{name} {length} {design}")
        for name, lengths in known.items()
        for length, table in lengths.items()
        for design, sizes in REAL.items()
    }
    said = {}
    for name, lengths in known.items():
        worst = max(float(table.mean()) for table in lengths.values())
        for grade in GRADES.values():
            for shift, where in ((0.0, "as it is"), (grade.margin - worst, "put on the limit")):
                tables = {length: table + shift for length, table in lengths.items()}
                key = f"{name}, {grade.name}, {where}"
                found = judgements(tables, REAL["16 of 2"], grade.margin, SEEDS, key)
                said[key] = {"ratio": round(math.exp(worst + shift), 4), "limit": grade.max_ratio, **found}
    return {
        "simulated": simulated, "real": measured, "verdicts": said,
        "looks": {
            f"{name} at {length}, {ratio:g}": looked(table, ratio, SEEDS, f"{name} {length} {ratio}")
            for name, lengths in known.items()
            for length, table in lengths.items()
            for ratio in RATIOS
        },
        "effective lengths": lengths_counted(DRAWS),
    }  # fmt: skip


# --- the page


def tables(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page."""
    head = "| documents | effective | degrees | 95 % interval | upper bound | lower bound | without CR2 | verdict |"
    rule = "| --- | --: | --: | --: | --: | --: | --: | --- |"
    for title, part in (
        (
            f"Made-up documents, {DRAWS} draws, {DOCUMENT} nats between documents and {SEGMENT} between segments",
            "simulated",
        ),
        (
            f"Documents of the catalogue, {DRAWS} draws out of 195, the demo's extensions; a whole drawn without putting back",
            "real",
        ),
    ):
        yield f"{title}:\n\n{head}\n{rule}"
        for name, cell in found[part].items():
            shares = " | ".join(f"{cell[key]:.3f}" for key in ("interval", "upper", "lower", "former"))
            given = "given" if cell["judged"] else "none: too few"
            yield f"| {name} | {cell['effective']:g} | {cell['degrees']:g} | {shares} | {given} |"
        yield ""
    yield f"Verdicts on {SEEDS} draws of 16 documents, 2 segments of each, over both lengths together:\n"
    yield "| extension, grade | true ratio, the larger | limit | fail | undecided | pass |\n| --- | --: | --: | --: | --: | --: |"
    for name, cell in found["verdicts"].items():
        yield f"| {_said(name, cell)} |"
    yield (
        f"\nEffective lengths that are too long: {DRAWS} draws of trials whose true ratio is {KEPT:g}, and the share that is called "
        "no worse. The target loses right answers only, or has them independently of the trained length:\n"
    )
    yield "| trials, own answers | loses only | independent |\n| --- | --: | --: |"
    for name, cell in found["effective lengths"].items():
        yield f"| {name} | {cell['nested']:.3f} | {cell['independent']:.3f} |"


def _said(name: str, cell: dict[str, float]) -> str:
    ends = " | ".join(f"{cell[end]:.3f}" for end in ("fail", "undecided", "pass"))
    return f"{name} | {cell['ratio']:.3f} | {cell['limit']:g} | {ends}"


def looks_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines on texts that are read one by one."""
    yield f"| extension, length, true ratio | {' | '.join(ENDS)} | texts | a bound ever wrong |"
    yield f"| --- |{' --: |' * (len(ENDS) + 2)}"
    for name, cell in found["looks"].items():
        shares = " | ".join(f"{cell[end]:.3f}" for end in ENDS)
        yield f"| {name} | {shares} | {cell['texts']:.1f} | {cell['wrong']:.3f} |"


def page(found: dict[str, Any]) -> str:
    """Return the text of docs/judging.md with these counts."""
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in (("intervals", tables(found)), ("looks", looks_table(found))):
        table = "\n".join(lines)
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text, count = re.subn(pattern, lambda at, table=table: f"{at[1]}\n{table}\n\n{at[2]}", text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{PAGE}: {count} places between <!-- {name} --> and <!-- /{name} -->; there must be one")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--docs", action="store_true", help="count nothing; write the page")
    if not parser.parse_args().docs:
        RESULT.write_text(json.dumps(counted(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
