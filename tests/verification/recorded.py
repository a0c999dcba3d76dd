"""Losses of the demo checkpoint and its extensions, row by row, as they were measured: computing them takes two minutes.

A row is found by what it was computed from: config, weights, tokens. A missing row makes the tests fail until
`scripts/catalogue/demo_losses.py` has measured all rows again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Done, Scores, ignore

RESULT = Path(__file__).with_name("demo_losses.json")
AGAIN = "run scripts/catalogue/demo_losses.py"
MEASURING = "ROPETOOL_MEASURE_LOSSES" in os.environ  # set by that script
Compute = Callable[[Sequence[Sequence[int]]], Scores]


@cache
def known() -> dict[str, str]:
    """Return what was measured, by row; empty while it is measured anew."""
    if MEASURING:
        return {}
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    rows: dict[str, str] = found["rows"]
    return rows


@cache
def identity(model: Path) -> bytes:
    """Return a hash of what a checkpoint computes: the content of its config and its weights."""
    config = json.dumps(json.loads((model / "config.json").read_text()), sort_keys=True)
    return hashlib.sha256(config.encode() + (model / "model.safetensors").read_bytes()).digest()


def key(model: Path, row: Sequence[int], scored: int) -> str:
    """Return the name of a row of a checkpoint, of which the last tokens are scored."""
    tokens = np.array(row, dtype=np.int64).tobytes()
    return hashlib.sha256(identity(model) + scored.to_bytes(4, "little") + tokens).hexdigest()[:16]


def losses(model: Path, rows: Sequence[Sequence[int]], scored: int, compute: Compute) -> Scores:
    """Return the losses of the last tokens of each row, from the record or, while that is made, computed.

    Shapes: rows of one length -> (rows, scored). Raises: AssertionError for a row that was not measured.
    """
    names = [key(model, row, scored) for row in rows]
    if MEASURING:
        found = compute(rows)
        known().update(map(_packed, names, found.losses, found.hits))
        _write()
    missing = sum(name not in known() for name in names)
    assert not missing, f"{missing} of {len(rows)} rows of {model.name} were not measured: {AGAIN}"
    parts = [np.frombuffer(base64.b85decode(known()[name]), np.uint8) for name in names]
    return Scores(
        np.array([part[: 2 * scored].view(np.float16) for part in parts], dtype=np.float64),
        np.array([np.unpackbits(part[2 * scored :], count=scored) for part in parts], dtype=np.bool_),
    )


def _packed(name: str, values: np.ndarray, hits: np.ndarray) -> tuple[str, str]:
    content = values.astype(np.float16).tobytes() + np.packbits(hits).tobytes()
    return name, base64.b85encode(content).decode("ascii")


def _write() -> None:
    result = {"rows": dict(sorted(known().items()))}
    RESULT.write_text(json.dumps(result, indent=0) + "\n", encoding="utf-8")


class RecordedRunner(TorchRunner):
    """A runner of transformers whose losses were measured before; it keeps which rows it was given, and how many scored."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, device="cpu", dtype="float32")
        self.given: list[tuple[Sequence[int], int]] = []

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        self.given += [(row, scored) for row in rows]
        return losses(self.path, rows, scored, lambda some: TorchRunner.score(self, some, scored))

    def again(self, rows: Sequence[Sequence[int]], scored: int) -> Any:
        """Return the losses computed now."""
        return TorchRunner.score(self, rows, scored).losses
