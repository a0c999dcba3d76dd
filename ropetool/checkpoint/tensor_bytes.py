"""The tensors of two checkpoints of one format, compared byte by byte in bounded memory."""

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

BUFFER = 2**20  # bytes of either file in memory at a time; 8 MiB run at half the speed


@dataclass(frozen=True)
class StoredTensor:
    """The position of a tensor's bytes in a file: file[begin : begin + nbytes].

    path: the file.
    begin, nbytes: the range, in bytes.
    dtype: its type, as the file spells it.
    shape: numpy's shape, with the contiguous length last.
    unit: the size of one value, or of one block of quantised values, in bytes.
    unit_name: the name of these units in messages, in the plural.
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
    """The number of compared things, and a message for each that differs."""

    total: int
    differences: tuple[str, ...]

    def sentence(self, things: str) -> str:
        """Return the counts and the first difference as text.

        `things` names the counted things and the expected result.
        """
        same, more = self.total - len(self.differences), len(self.differences) - 1
        rest = f"; {more} more differ" if more > 1 else "; 1 more differs" if more == 1 else ""
        return f"{same} of {self.total} {things}" + (f"; {self.differences[0]}{rest}" if self.differences else "")


def compare_tensors(
    target: Mapping[str, StoredTensor], source: Mapping[str, StoredTensor], named: Mapping[str, bytes] | None = None
) -> CountedDifferences:
    """Return the tensors of the target that differ from the source.

    Only the first difference counts the differing values.
    named: the bytes that the plan gives to some tensors, by name.
    Raises: CorruptFile if a file has become shorter than its header requires.
    """
    named = named or {}
    names = dict.fromkeys([*source, *target, *named])
    differences: list[str] = []
    for name in names:
        expected = named.get(name, source.get(name))
        difference = _difference(target.get(name), expected, count=not differences)
        if difference:
            differences.append(f"{name} {difference}")
    return CountedDifferences(len(names), tuple(differences))


def _difference(actual: StoredTensor | None, expected: StoredTensor | bytes | None, *, count: bool) -> str:
    if actual is None:
        return "is missing"
    if expected is None:
        return "is additional"
    if isinstance(expected, bytes):
        return "" if read_bytes(actual) == expected else "differs from the plan"
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return f"is {actual.dtype} {list(actual.shape)} instead of {expected.dtype} {list(expected.shape)}"
    if _same_place(actual, expected) or all(a == b for a, b in _pieces(actual, expected)):
        return ""
    return _counted(actual, expected) if count else "differs"


def _same_place(a: StoredTensor, b: StoredTensor) -> bool:
    """Return whether both are the same bytes of one file, as for linked weights."""
    return a.begin == b.begin and os.path.samefile(a.path, b.path)


def _pieces(a: StoredTensor, b: StoredTensor) -> Iterator[tuple[bytes, bytes]]:
    """Yield the bytes of both tensors in pieces of whole units. Both pieces of a pair have the same size."""
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


def _counted(actual: StoredTensor, expected: StoredTensor) -> str:
    """Return the number of units in which the tensor differs, and the place of the first, as text."""
    differing, first, passed = 0, -1, 0
    for a, b in _pieces(actual, expected):
        if a != b:
            unequal = np.flatnonzero(_units(a, actual.unit) != _units(b, actual.unit))
            first = passed + int(unequal[0]) if first < 0 else first
            differing += unequal.size
        passed += len(a) // actual.unit
    place = f"row {first // actual.units_in_row}" if len(actual.shape) > 1 else f"place {first}"
    return f"differs in {differing} of {passed} {actual.unit_name}, first in {place}"


def _units(raw: bytes, unit: int) -> npt.NDArray[np.void]:
    """Return the bytes as values of `unit` bytes each. Two values are equal if all their bytes are equal."""
    return np.frombuffer(raw, np.dtype((np.void, unit)))
