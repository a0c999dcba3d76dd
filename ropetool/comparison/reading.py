"""Read the rows of stored tensors of either format as numbers, in chunks, and compare tensors byte by byte."""

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

CHUNK = 2**16  # numbers in memory as float64; a comparison makes about twenty copies of them
BUFFER = 2**20  # bytes of each file in memory
# ggml's types with a scale for each block. If neither ggml nor dtypes.py decodes a type, only bytes are compared.
_NAMES_OF_BLOCKS = ("Q", "IQ", "TQ", "MXFP4", "NVFP4")


@dataclass(frozen=True)
class Matrix:
    """A tensor as rows of equal length. It may be several stored tensors, one after the other.

    Each number of a vector is a row.
    parts: the stored tensors.
    flat: each number is a row, as in a vector. For norms that have a row for each head.
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
        """Return whether blocks of numbers share a scale, as in ggml's types."""
        return self.dtype.startswith(_NAMES_OF_BLOCKS)

    @property
    def is_readable(self) -> bool:
        """Return whether ropetool can decode the numbers."""
        uniform = len({part.dtype for part in self.parts}) == 1
        return uniform and (self.dtype in dtypes.STORAGE or (self.is_quantised and _ggml_reads(self.dtype)))

    def read(self, start: int, stop: int) -> Array:
        """Return rows as float64. Shapes: (stop - start, columns)."""
        per_part = self.rows // len(self.parts)
        pieces = []
        for index in range(start // per_part, (stop - 1) // per_part + 1):
            first, last = max(start - index * per_part, 0), min(stop - index * per_part, per_part)
            pieces.append(self._of_part(self.parts[index], per_part, first, last))
        return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]

    def _of_part(self, part: StoredTensor, rows: int, first: int, last: int) -> Array:
        size = part.nbytes // rows
        raw = read_at(part, first * size, (last - first) * size)
        if part.dtype in dtypes.STORAGE:
            numbers: npt.NDArray[Any] = dtypes.decode(raw, part.dtype)
        else:
            numbers = _dequantised(np.frombuffer(raw, np.uint8).reshape(last - first, size), part.dtype)
        return numbers.astype(np.float64).reshape(last - first, self.columns)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield the first row and the end of each chunk."""
        step = max(1, CHUNK // max(1, self.columns))
        for start in range(0, self.rows, step):
            yield start, min(start + step, self.rows)

    def read_ordered(self, order: Ints, start: int, stop: int) -> Array:
        """Return the rows order[start:stop]. Also reads the rows between them, because they are close together."""
        rows = order[start:stop]
        first = int(rows.min())
        return self.read(first, int(rows.max()) + 1)[rows - first]


def same_bytes(a: Matrix, b: Matrix) -> bool:
    """Return whether two tensors have the same type, shape and bytes.

    Raises: CorruptFile if a file is shorter than its header requires.
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
    """Return the number of bytes in which two tensors of the same size differ."""
    count = 0
    for one, other in zip(a.parts, b.parts, strict=True):
        for at in range(0, one.nbytes, BUFFER):
            size = min(BUFFER, one.nbytes - at)
            first, second = (np.frombuffer(read_at(part, at, size), np.uint8) for part in (one, other))
            count += int(np.count_nonzero(first != second))
    return count


def read_at(stored: StoredTensor, start: int, size: int) -> bytes:
    """Return `size` bytes of a tensor, from its byte number `start`.

    Raises: CorruptFile if the file ends before that.
    """
    with open_regular(stored.path, buffering=0) as file:
        file.seek(stored.begin + start)
        raw = file.read(size)
    if len(raw) != size:
        raise CorruptFile("became shorter while it was read", where=str(stored.path))
    return raw


def _ggml_reads(dtype: str) -> bool:
    import gguf.quants

    known = gguf.GGMLQuantizationType.__members__
    return dtype in known and known[dtype] in gguf.quants._type_traits


def _dequantised(raw: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[np.float32]:
    import gguf.quants

    numbers: npt.NDArray[np.float32] = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[dtype])
    return numbers
