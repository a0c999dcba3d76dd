"""The rows of stored tensors as numbers, a megabyte at a time, of either format; and whether two are the same bytes.

Knows types and files, nothing of what tensors mean.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.checkpoint.tensor_bytes import StoredTensor
from ropetool.comparison.relations import Ints
from ropetool.errors import CorruptFile
from ropetool.files import dtypes
from ropetool.files.regular import open_regular
from ropetool.rope.tables import Array

CHUNK = 2**16  # numbers held as float64 at a time, of which a comparison makes about twenty copies
BUFFER = 2**20  # bytes of either file compared at a time
# What ggml stores with scales for blocks. Types that neither this nor dtypes.py reads are compared as bytes alone.
_NAMES_OF_BLOCKS = ("Q", "IQ", "TQ", "MXFP4", "NVFP4")


@dataclass(frozen=True)
class Matrix:
    """A tensor as rows of equal length, of one stored tensor or of several, one behind the other.

    A vector is a column: each of its numbers is a row. flat: so are those of norms with a row for each head.
    """

    parts: tuple[StoredTensor, ...]
    flat: bool = False

    @property
    def dtype(self) -> str:
        return self.parts[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.parts[0].shape
        return first if len(self.parts) == 1 else (len(self.parts), *first)

    @property
    def columns(self) -> int:
        return self.shape[-1] if len(self.shape) > 1 and not self.flat else 1

    @property
    def rows(self) -> int:
        return prod(self.shape) // self.columns if self.columns else 0

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def is_quantised(self) -> bool:
        """Whether blocks of numbers share scales, as in ggml's types."""
        return self.dtype.startswith(_NAMES_OF_BLOCKS)

    @property
    def is_readable(self) -> bool:
        """Whether its numbers can be decoded."""
        uniform = len({part.dtype for part in self.parts}) == 1
        return uniform and (self.dtype in dtypes.STORAGE or (self.is_quantised and _ggml_reads(self.dtype)))

    def read(self, start: int, stop: int) -> Array:
        """Return these rows as float64. Shapes: (stop - start, columns)."""
        per_part = self.rows // len(self.parts)
        found = []
        for index in range(start // per_part, (stop - 1) // per_part + 1):
            first, last = max(start - index * per_part, 0), min(stop - index * per_part, per_part)
            found.append(self._of_part(self.parts[index], per_part, first, last))
        return np.concatenate(found) if len(found) > 1 else found[0]

    def _of_part(self, part: StoredTensor, rows: int, first: int, last: int) -> Array:
        size = part.nbytes // rows
        raw = read_at(part, first * size, (last - first) * size)
        if part.dtype in dtypes.STORAGE:
            numbers: npt.NDArray[Any] = dtypes.decode(raw, part.dtype)
        else:
            numbers = _dequantised(np.frombuffer(raw, np.uint8).reshape(last - first, size), part.dtype)
        return numbers.astype(np.float64).reshape(last - first, self.columns)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield the first row and the end of each stretch that is read at once."""
        step = max(1, CHUNK // max(1, self.columns))
        for start in range(0, self.rows, step):
            yield start, min(start + step, self.rows)

    def read_ordered(self, order: Ints, start: int, stop: int) -> Array:
        """Return the rows order[start:stop]; they are near each other, so what lies between them is read too."""
        wanted = order[start:stop]
        first = int(wanted.min())
        return self.read(first, int(wanted.max()) + 1)[wanted - first]


def same_bytes(a: Matrix, b: Matrix) -> bool:
    """Return whether both are the same bytes, by type, shape and content.

    Raises: CorruptFile if a file has become shorter than its header says.
    """
    if (a.dtype, a.shape, len(a.parts)) != (b.dtype, b.shape, len(b.parts)):
        return False
    return all(_same_part(one, other) for one, other in zip(a.parts, b.parts, strict=True))


def _same_part(a: StoredTensor, b: StoredTensor) -> bool:
    if a.begin == b.begin and os.path.samefile(a.path, b.path):
        return True
    if a.nbytes != b.nbytes:
        return False
    starts = range(0, a.nbytes, BUFFER)
    return all(
        read_at(a, at, min(BUFFER, a.nbytes - at)) == read_at(b, at, min(BUFFER, a.nbytes - at)) for at in starts
    )


def differing_bytes(a: Matrix, b: Matrix) -> int:
    """Return in how many bytes two tensors of the same size differ."""
    count = 0
    for one, other in zip(a.parts, b.parts, strict=True):
        for at in range(0, one.nbytes, BUFFER):
            size = min(BUFFER, one.nbytes - at)
            first, second = (np.frombuffer(read_at(part, at, size), np.uint8) for part in (one, other))
            count += int(np.count_nonzero(first != second))
    return count


def read_at(stored: StoredTensor, start: int, size: int) -> bytes:
    """Return bytes of a tensor.

    Raises: CorruptFile.
    """
    with open_regular(stored.path, buffering=0) as file:
        file.seek(stored.begin + start)
        raw = file.read(size)
    if len(raw) != size:
        raise CorruptFile("became shorter while it was read", where=str(stored.path))
    return raw


def _ggml_reads(kind: str) -> bool:
    import gguf.quants

    known = gguf.GGMLQuantizationType.__members__
    return kind in known and known[kind] in gguf.quants._type_traits


def _dequantised(raw: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.float32]:
    import gguf.quants

    found: npt.NDArray[np.float32] = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    return found
