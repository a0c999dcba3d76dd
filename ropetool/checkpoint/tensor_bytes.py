"""The tensors of two checkpoints of one format, compared byte by byte in bounded memory.

Knows bytes in files, and nothing of what they mean.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ropetool.errors import CorruptFile
from ropetool.files.regular import open_regular

BUFFER = 2**20  # bytes of either file held at a time; eight times as many run at half the speed


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's bytes in a file: file[begin : begin + nbytes].

    dtype: its type as the file spells it. shape: as numpy has it, the contiguous length last. unit: bytes of one
    value, or of one block of values that were quantised together, which `unit_name` says.
    """

    path: Path
    begin: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    unit: int
    unit_name: str

    @property
    def units_in_row(self) -> int:
        return max(1, self.nbytes // max(1, prod(self.shape[:-1])) // self.unit)


@dataclass(frozen=True)
class CountedDifferences:
    """How many things were compared, and what is wrong with those that differ."""

    total: int
    differences: tuple[str, ...]

    def sentence(self, things: str) -> str:
        """Return the counts and the first difference in words; `things` says what was counted and what they equal."""
        same, more = self.total - len(self.differences), len(self.differences) - 1
        rest = f"; {more} more differ" if more > 1 else "; 1 more differs" if more == 1 else ""
        return f"{same} of {self.total} {things}" + (f"; {self.differences[0]}{rest}" if self.differences else "")


def compare_tensors(
    target: Mapping[str, StoredTensor], source: Mapping[str, StoredTensor], named: Mapping[str, bytes] | None = None
) -> CountedDifferences:
    """Return which tensors of the target are not the source's; of the differing values, those of the first are counted.

    named: what the plan gives other data, and the bytes that each must have.
    Raises: CorruptFile if a file has become shorter than its header says.
    """
    named = named or {}
    names = dict.fromkeys([*source, *target, *named])
    differences: list[str] = []
    for name in names:
        wanted = named.get(name, source.get(name))
        difference = _difference(target.get(name), wanted, count=not differences)
        if difference:
            differences.append(f"{name} {difference}")
    return CountedDifferences(len(names), tuple(differences))


def _difference(found: StoredTensor | None, wanted: StoredTensor | bytes | None, *, count: bool) -> str:
    if found is None:
        return "is missing"
    if wanted is None:
        return "is additional"
    if isinstance(wanted, bytes):
        return "" if read_bytes(found) == wanted else "differs from the plan"
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return f"is {found.dtype} {list(found.shape)} instead of {wanted.dtype} {list(wanted.shape)}"
    if _same_place(found, wanted) or all(a == b for a, b in _pieces(found, wanted)):
        return ""
    return _counted(found, wanted) if count else "differs"


def _same_place(a: StoredTensor, b: StoredTensor) -> bool:
    """Return whether both are the same bytes of one file, as where unchanged weights were linked."""
    return a.begin == b.begin and os.path.samefile(a.path, b.path)


def _pieces(a: StoredTensor, b: StoredTensor) -> Iterator[tuple[bytes, bytes]]:
    """Yield both tensors' bytes, whole units at a time. Shapes: of each pair equal."""
    step = max(1, BUFFER // a.unit) * a.unit
    with open_regular(a.path, buffering=0) as first, open_regular(b.path, buffering=0) as second:
        for start in range(0, a.nbytes, step):
            size = min(step, a.nbytes - start)
            yield _read_at(first, a, start, size), _read_at(second, b, start, size)


def read_bytes(stored: StoredTensor) -> bytes:
    """Return the bytes of a tensor.

    Raises: CorruptFile if its file has become shorter.
    """
    with open_regular(stored.path, buffering=0) as file:
        return _read_at(file, stored, 0, stored.nbytes)


def _read_at(file: BinaryIO, stored: StoredTensor, start: int, size: int) -> bytes:
    file.seek(stored.begin + start)
    parts, left = [], size
    while left:
        part = file.read(left)
        if not part:
            raise CorruptFile("became shorter while it was read", where=str(stored.path))
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _counted(found: StoredTensor, wanted: StoredTensor) -> str:
    """Return in how many of its units the tensor differs, and where first."""
    differing, first, passed = 0, -1, 0
    for a, b in _pieces(found, wanted):
        if a != b:
            unequal = np.flatnonzero(_units(a, found.unit) != _units(b, found.unit))
            first = passed + int(unequal[0]) if first < 0 else first
            differing += unequal.size
        passed += len(a) // found.unit
    place = f"row {first // found.units_in_row}" if len(found.shape) > 1 else f"place {first}"
    return f"differs in {differing} of {passed} {found.unit_name}, first in {place}"


def _units(raw: bytes, unit: int) -> npt.NDArray[np.void]:
    """Return the bytes as values of `unit` bytes each, which are equal when all their bytes are."""
    return np.frombuffer(raw, np.dtype((np.void, unit)))
