"""What docs/measurements.md says, from the record of scripts/lab/train: measured beside published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ropetool.sections import half_width
from ropetool.verification.statistics import clustered

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "lab" / "record.json"
PAGE = ROOT / "docs" / "measurements.md"
MARKS = "<!-- lab -->", "<!-- /lab -->"
Record = dict[str, dict[str, Any]]
Methods = Mapping[str, Sequence[str]]
"""The methods of each design."""

# Token accuracy in percent of a model of 100M parameters trained at 512: at 512, at 4096 repeated, at 4096 not repeated. By the
# number of the article on kexue.fm.
PUBLISHED = {
    ("plain", "none"): (49.41, 24.17, 23.16, 9731),
    ("plain", "linear"): (49.41, 15.04, 13.54, 9675),
    ("plain", "ntk"): (49.41, 51.28, 39.27, 9675),
    ("plain", "ntk, log-n"): (49.41, 55.94, 41.11, 9706),
    ("plain", "mixed-ntk"): (49.41, 53.09, 40.12, 9706),
    ("plain", "yarn"): (49.41, 80.10, 47.45, 9859),
    ("plain", "rerope"): (49.41, 77.90, 48.48, 9708),
    ("plain", "rerope, log-n"): (49.41, 82.40, 48.85, 9708),
    ("log-n", "none"): (49.40, 24.60, 24.02, 9731),
    ("log-n", "linear"): (49.40, 14.99, 16.51, 9675),
    ("log-n", "ntk"): (49.40, 61.71, 43.75, 9675),
    ("log-n", "mixed-ntk"): (49.40, 68.91, 45.41, 9706),
    ("log-n", "leaky-rerope"): (49.40, 83.59, 48.87, 9708),
    ("log-n", "yarn"): (49.40, 82.57, 46.52, 9859),
    ("log-n", "rerope"): (49.40, 85.12, 49.07, 9708),
    ("hwfa", "none"): (48.70, 80.84, 48.15, 9603),
    ("key-norm", "none"): (49.60, 61.08, 47.69, 9859),
    ("key-norm", "ntk"): (49.60, 64.44, 43.02, 9859),
    ("key-norm", "yarn"): (49.60, 84.19, 47.44, 9859),
    ("key-norm", "rerope"): (49.60, 77.76, 47.73, 9859),
    ("hwfa2", "rerope"): (49.32, 82.41, 49.37, 9731),
}
HEAD = (
    "| design | at test | 64 | 512 repeated | 512 | repeated - not | 512 - 64 | even pairs | published |\n"
    f"{'| --- ' * 2}{'| --: ' * 6}| --- |\n"
)


def known() -> Record:
    """Return the committed record, a design under its name; empty where there is none."""
    found: Record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return found


def keep(record: Record) -> None:
    """Write the record."""
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def on_page() -> str:
    """Return what stands between the marks of the page."""
    return PAGE.read_text(encoding="utf-8").split(MARKS[0])[1].split(MARKS[1])[0].strip()


def write(record: Record, methods: Methods) -> None:
    """Put what was measured between the marks of the page."""
    before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    PAGE.write_text(
        f"{before}{MARKS[0]}\n\n{text(record, methods)}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}", encoding="utf-8"
    )


def text(record: Record, methods: Methods) -> str:
    """Return the table: a row for each design and each method that fits it."""
    rows = (
        f"| {name} | {method} | {_measured(record.get(name), method)} | {_published(name, method)} |\n"
        for name, every in methods.items()
        for method in every
    )
    return (HEAD + "".join(rows)).strip()


def _measured(run: dict[str, Any] | None, method: str) -> str:
    if run is None or method not in run["scores"]:
        return " | ".join(["not run"] + 5 * [""])
    by_text = {kind: 100 * np.array(found["accuracy"]) for kind, found in run["scores"][method].items()}
    means = [f"{by_text[kind].mean():.1f}" for kind in ("trained", "repeated", "longer")]
    differences = by_text["repeated"] - by_text["longer"], by_text["longer"] - by_text["trained"]
    pairs = f"{100 * run['pairs'][method]['longer']:.0f}" if method in run["pairs"] else ""
    return " | ".join([*means, *map(_difference, differences), pairs])


def _difference(by_text: np.ndarray) -> str:
    found = clustered(by_text, range(len(by_text)))
    return f"{found.mean:+.1f} ± {half_width(found):.1f}"


def _published(name: str, method: str) -> str:
    if (name, method) not in PUBLISHED:
        return ""
    *figures, article = PUBLISHED[name, method]
    return " / ".join(f"{figure:.2f}" for figure in figures) + f" [{article}](https://kexue.fm/archives/{article})"
