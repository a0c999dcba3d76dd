"""The records of scripts/lab: a file of tests/lab each, with what was measured under its name; and names of weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "lab"
Record = dict[str, dict[str, Any]]


def known(name: str) -> Record:
    """Return a committed record; empty where there is none."""
    file = FOLDER / f"{name}.json"
    record: Record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return record


def keep(name: str, key: str, figures: dict[str, Any]) -> None:
    """Put figures under a key of a record. Read only now, so that what another process measured meanwhile stays."""
    _write(name, {**known(name), key: figures})


def forget(name: str, keys: Collection[str]) -> None:
    """Drop the figures under these keys of a record."""
    _write(name, {key: figures for key, figures in known(name).items() if key not in keys})


def digest(made: Any) -> str:
    """Return a short name for weights, from all that they follow from besides texts and code."""
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]


def _write(name: str, record: Record) -> None:
    (FOLDER / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
