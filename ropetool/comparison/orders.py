"""Find equal rows of two matrices in a different order, and the name of this order."""

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
    plain = np.ascontiguousarray(rows + 0.0)  # turns -0 into 0
    digests = b"".join(hashlib.blake2b(row.data, digest_size=8).digest() for row in plain)
    return np.frombuffer(digests, np.uint64)


def permuted(a: Keys, b: Keys, runs: Iterable[int]) -> Relation | None:
    """Return the relation if the rows are equal in a different order, or None.

    runs: the lengths of stretches in which a known order may repeat, in rows.
    """
    if len(a) != len(b) or not np.array_equal(np.sort(a), np.sort(b)):
        return None
    relation = Relation(PERMUTED, rows=stretches(a != b), total=len(a))
    for run in sorted(set(runs), reverse=True):
        for name, order in known_orders(run):
            if run > 2 and _explains(a, b, order):
                return replace(relation, order=name, runs=run)
    return relation


def known_orders(run: int) -> tuple[tuple[str, Ints], ...]:
    """Return the known orders of this many rows, with their names."""
    return (("half to interleaved", half_to_interleaved(run)), ("interleaved to half", interleaved_to_half(run)))


def _explains(a: Keys, b: Keys, order: Ints) -> bool:
    """Return whether B follows from A by stretches in this order, with unmoved rows between them."""
    run, row = len(order), 0
    while row < len(a):
        if row + run <= len(a) and np.array_equal(a[row : row + run][order], b[row : row + run]):
            row += run
        elif a[row] == b[row]:
            row += 1
        else:
            return False
    return True
