"""Rows that two matrices have in common in another order, and the orders that have a name.

Pure numpy; knows the two layouts of rotary channels, neither files nor models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.comparison.relations import PERMUTED, Ints, Relation, stretches
from ropetool.rope.arithmetic import half_to_interleaved, interleaved_to_half

Keys = npt.NDArray[np.uint64]


def row_keys(rows: npt.NDArray[Any]) -> Keys:
    """Return a number for each row, the same for equal rows. Shapes: (rows, columns) -> (rows,)."""
    plain = np.ascontiguousarray(rows + 0.0)  # 0 for -0
    digests = b"".join(hashlib.blake2b(row.data, digest_size=8).digest() for row in plain)
    return np.frombuffer(digests, np.uint64)


def permuted(a: Keys, b: Keys, runs: Iterable[int]) -> Relation | None:
    """Return the relation of rows that are the same ones in another order, or None; `runs` are lengths to look for."""
    if len(a) != len(b) or not np.array_equal(np.sort(a), np.sort(b)):
        return None
    found = Relation(PERMUTED, rows=stretches(a != b), total=len(a))
    for run in sorted(set(runs), reverse=True):
        for name, order in known_orders(run):
            if run > 2 and _explains(a, b, order):
                return replace(found, order=name, runs=run)
    return found


def known_orders(run: int) -> tuple[tuple[str, Ints], ...]:
    return (
        ("half to interleaved", half_to_interleaved(run)),
        ("interleaved to half", interleaved_to_half(run)),
    )


def _explains(a: Keys, b: Keys, order: Ints) -> bool:
    """Return whether stretches in this order, and rows that stay between them, make b of a."""
    run, at = len(order), 0
    while at < len(a):
        if at + run <= len(a) and np.array_equal(a[at : at + run][order], b[at : at + run]):
            at += run
        elif a[at] == b[at]:
            at += 1
        else:
            return False
    return True
