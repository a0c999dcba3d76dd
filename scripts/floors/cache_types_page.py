"""What docs/judging.md says of quantised caches, from the record of scripts/floors/cache_types.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULT = Path(__file__).resolve().parents[2] / "tests" / "verification" / "cache_types.json"
WAYS = (("f16", True), ("q8_0", True), ("q8_0", False), ("q4_0", True), ("q4_0", False))  # type, and whether rotated


def known() -> list[dict[str, Any]]:
    """Return the committed record: of each file the KL by way, within the trained length and in the last span of positions."""
    found: list[dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8"))
    return found


def table() -> str:
    """Return the table of the record."""
    return f"{head()}\n" + "".join(f"| {' | '.join((row['file'], *map(cell, row['kl'])))} |\n" for row in known())


def head() -> str:
    """Return the first two lines of a table."""
    names = (f"{cache_type}{'' if rotated else ', not rotated'}" for cache_type, rotated in WAYS)
    return f"| file | {' | '.join(names)} |\n{'| --- ' * (1 + len(WAYS))}|"


def cell(pair: tuple[float, float]) -> str:
    """Return two figures with two digits each."""
    return ", ".join(f"{kl:#.2g}" if kl >= 1e-3 else f"{kl:.1e}".replace("e-0", "e-") for kl in pair)
