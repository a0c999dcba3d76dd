"""What docs/choosing.md shows of searches on the demo checkpoint, from the record of scripts/tune/tune_demo.py."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

RESULT = Path(__file__).resolve().parents[2] / "tests" / "choosing" / "tune_demo.json"
# Target, space, generations of 12 points: more where one has only begun, in pairs with the published ramps.
ROWS = (
    (1024, "yarn", 2),
    (512, "yarn", 2),
    (1024, "pairs", 3),
    (1024, "head-gain", 2),
    (1024, "ramp", 1),
    (1024, "pair-gain", 1),
    (1024, "head-band-gain", 1),
)
EXAMPLE = "1024 yarn"
PLAN = "model-tuned-{length}-{space}.json"
HEAD = ("target, space", "points", "text", "key tokens", "answers", "within 256 tokens, default and tuned", "said")


def named(length: int, space: str) -> str:
    """Return the name of a row."""
    return f"{length} {space}"


def known() -> dict[str, Any]:
    """Return the committed record, by the names of rows."""
    if not RESULT.exists():
        return {}
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    return found


def table() -> list[tuple[str, ...]]:
    """Return the cells of the table, line by line, the shorter target first."""
    rows = known()
    return [
        (
            f"{length}, {space}",
            *(_cells(rows[name]) if (name := named(length, space)) in rows else ("not run", *[""] * 5)),
        )
        for length, space, _ in sorted(ROWS, key=lambda row: row[0])
    ]


def example() -> str:
    """Return what the search of the example printed."""
    return f"```text\n{known()[EXAMPLE]['text']}```\n"


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    judgement = entry["judgement"]
    if judgement is None:
        return str(entry["points"]), "", "", "", "", "none better than the default"
    parts = (_part(part["difference"]) for part in judgement["parts"])
    costs = (f"{math.exp(judgement[key]['mean']):.3f}" for key in ("default_regression", "regression"))
    return str(entry["points"]), *parts, ", ".join(costs), _said(judgement)


def _part(difference: dict[str, float]) -> str:
    return f"{difference['mean']:+.3f} ({difference['low']:+.3f} to {difference['high']:+.3f})"


def _said(judgement: dict[str, Any]) -> str:
    if judgement["reason"]:
        return f"no gain: {judgement['reason']}"
    return f"better: {', '.join(part['name'] for part in judgement['parts'] if part['better'])}"
