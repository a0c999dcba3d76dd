"""Writing of changed tensors, streamed file by file. Each number is rounded once. All other bytes stay unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from ropetool.checkpoint.tensor_bytes import StoredTensor
from ropetool.errors import CorruptFile, PlanMismatch, UnsupportedDtype
from ropetool.files.dtypes import STORAGE, decode, encode
from ropetool.files.gguf.numbers import numbers
from ropetool.files.regular import open_regular
from ropetool.rope.tables import Array
from ropetool.weights.block_scales import E8M0, FP8
from ropetool.weights.edits import RowChange, TensorEdit, by_tensor
from ropetool.weights.gguf_scales import BLOCKS, check_factors, scaled_rows, stepped
from ropetool.weights.rounding import RoundingErrors

CHUNK_ELEMENTS = 1 << 20  # 8 MiB as float64
_PLAN_AGAIN = "make a new plan"


@dataclass(frozen=True)
class NewData:
    """The new content of a tensor.

    dtype: its type.
    chunks: its bytes, in order.
    """

    dtype: str
    chunks: Iterator[memoryview]


class WeightFile(Protocol):
    """A file with tensors to rewrite. edited: whether it changes even without an edited tensor."""

    @property
    def path(self) -> Path: ...
    @property
    def data_start(self) -> int: ...
    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...
    @property
    def edited(self) -> bool: ...

    def write(self, target: Path, changed: Mapping[str, NewData]) -> None:
        """Write the whole file in order, with new data for these tensors."""


@dataclass(frozen=True)
class BakedTensor:
    """The change of one tensor.

    tensor: its name.
    shard: the name of its file.
    rows: the number of changed rows.
    dtype: its new type.
    max_error, mean_error: the relative rounding errors of the products; 0 if rows only moved.
    reasons: the reasons, as text.
    """

    tensor: str
    shard: str
    rows: int
    dtype: str
    max_error: float
    mean_error: float
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Baked:
    """The result of a bake.

    files: the written files.
    tensors: the changed tensors.
    """

    files: tuple[Path, ...]
    tensors: tuple[BakedTensor, ...]


def marks(edits: Sequence[TensorEdit], files: Sequence[WeightFile]) -> dict[str, str]:
    """Return a digest of header, size and time for each edited file, by name, to detect a later change of the file."""
    names = by_tensor(edits).keys()
    return {file.path.name: _mark(file) for file in files if not names.isdisjoint(file.tensors)}


def _mark(file: WeightFile) -> str:
    status = file.path.stat()
    with file.path.open("rb") as opened:
        digest = hashlib.sha256(opened.read(file.data_start))
    digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()


def growth(edits: Sequence[TensorEdit], stored: Mapping[str, StoredTensor], bake_dtype: str) -> int:
    """Return the additional bytes of the tensors if scaled tensors are stored in this type.

    Raises: UnsupportedDtype.
    """
    touched = [(stored[name], change) for name, change in by_tensor(edits).items() if name in stored]
    return sum(nbytes_as(tensor, _new_dtype(tensor, change, bake_dtype)) - tensor.nbytes for tensor, change in touched)


def nbytes_as(stored: StoredTensor, dtype: str) -> int:
    """Return the size of a tensor in bytes, in a type of plain numbers or its own type."""
    return stored.nbytes if dtype == stored.dtype else prod(stored.shape) * STORAGE[dtype].itemsize


def baked_bytes(name: str, stored: StoredTensor, change: RowChange, bake_dtype: str = "") -> bytes:
    """Return the bytes of a tensor after the change.

    Raises: CorruptFile if the file ends inside it; LossyExport, UnsupportedDtype.
    """
    with _opened(stored.path) as source:
        return b"".join(_Rewritten(name, stored, change, _new_dtype(stored, change, bake_dtype)).chunks(source))


def write_weights(
    edits: Sequence[TensorEdit],
    files: Sequence[WeightFile],
    targets: Sequence[Path],
    *,
    bake_dtype: str = "",
    expected: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Baked:
    """Write every changed file to its target. The caller links the other files.

    bake_dtype: the type to store scaled tensors in, F32 or F64; empty means the type of each tensor.
    expected: the `marks` of the plan.
    Raises: PlanMismatch if a file has changed since the plan or a tensor is missing.
    Raises: LossyExport if a product does not fit its type; UnsupportedDtype; OutputError.
    """
    changes = by_tensor(edits)
    _check_all_there(changes, files, bake_dtype)
    if expected is not None and marks(edits, files) != dict(expected):
        raise PlanMismatch(
            "a weight file has changed since the plan was made", where=str(files[0].path), try_=_PLAN_AGAIN
        )
    written, done = [], []
    for file, target in zip(files, targets, strict=True):
        inside = {name: change for name, change in changes.items() if name in file.tensors}
        if not inside and not file.edited:
            continue
        if progress is not None:
            progress(file.path.name)
        done += _write_file(file, inside, target, bake_dtype)
        written.append(target)
    return Baked(tuple(written), tuple(done))


def _check_all_there(changes: Mapping[str, RowChange], files: Sequence[WeightFile], bake_dtype: str) -> None:
    """Raise an error before any write if a tensor is missing or its type does not support its change."""
    known = {name: stored for file in files for name, stored in file.tensors.items()}
    for name, change in changes.items():
        stored = known.get(name)
        if stored is None or change.source.size not in _heights(stored):
            raise PlanMismatch(
                f"the weights have no {name} with {change.source.size} rows", where=str(files[0].path), try_=_PLAN_AGAIN
            )
        if change.offset and stored.dtype in BLOCKS:
            raise UnsupportedDtype(
                f"has type {stored.dtype}, which cannot store a sum with {change.offset:g}", where=name
            )
        if _new_dtype(stored, change, bake_dtype) == stored.dtype and stored.dtype != E8M0:
            check_factors(stored.dtype, change.factor, name)


def _heights(stored: StoredTensor) -> tuple[int, ...]:
    """Return the possible numbers of rows of a tensor: the rows of its table, or its elements if they form no blocks."""
    rows = prod(stored.shape[:-1])
    return (rows,) if stored.dtype in BLOCKS else (rows, prod(stored.shape))


def _write_file(file: WeightFile, changes: Mapping[str, RowChange], target: Path, bake_dtype: str) -> list[BakedTensor]:
    touched = sorted(changes, key=lambda name: file.tensors[name].begin)
    dtypes = {name: _new_dtype(file.tensors[name], changes[name], bake_dtype) for name in touched}
    tensors = {name: _Rewritten(name, file.tensors[name], changes[name], dtypes[name]) for name in touched}
    with _opened(file.path) as source:
        file.write(target, {name: NewData(tensor.dtype, tensor.chunks(source)) for name, tensor in tensors.items()})
    return [_baked(tensor, file.path.name) for tensor in tensors.values()]


def _baked(tensor: _Rewritten, file: str) -> BakedTensor:
    errors, change, below = tensor.errors, tensor.change, tensor.errors.subnormal
    low = (f"{below} of its products are below the normal range of the type",) if below else ()
    rows, reasons = int(np.count_nonzero(change.touched)), (*change.reasons, *low)
    return BakedTensor(tensor.name, file, rows, tensor.dtype, errors.highest, errors.mean, reasons)


def _new_dtype(stored: StoredTensor, change: RowChange, bake_dtype: str) -> str:
    """Return the type to store a tensor in.

    Rows that only move, FP8 and its scales keep their type. A type that is already as wide is also kept.
    """
    own = stored.dtype
    if not bake_dtype or own not in (*STORAGE, *BLOCKS) or bool(np.all(change.factor == 1)):
        return own
    if bake_dtype not in ("F32", "F64"):
        raise UnsupportedDtype(f"is {bake_dtype}; it must be F32 or F64", where="--bake-dtype")
    return own if own in STORAGE and STORAGE[bake_dtype].itemsize <= STORAGE[own].itemsize else bake_dtype


# --- one tensor


class _Rewritten:
    """A tensor with its old rows and their change.

    errors: the rounding errors of its products, complete after the last chunk.
    """

    def __init__(self, name: str, stored: StoredTensor, change: RowChange, dtype: str) -> None:
        self.name, self.stored, self.change, self.dtype = name, stored, change, dtype
        blocks = stored.dtype in BLOCKS
        self._new_rows = self._of_blocks if blocks else self._of_numbers
        rounded = ("float16" if dtype == stored.dtype else STORAGE[dtype].name) if blocks else dtype
        self.errors = RoundingErrors(rounded, scales=blocks)

    def chunks(self, source: FileIO) -> Iterator[memoryview]:
        """Yield the new bytes, several rows at a time.

        Raises: CorruptFile if the file ends inside the tensor; LossyExport, UnsupportedDtype.
        """
        raw = np.empty(self.stored.nbytes, dtype=np.uint8)
        source.seek(self.stored.begin)
        _fill(source, raw.data, self.name)
        rows = raw.reshape(self.change.source.size, -1)
        step = max(1, CHUNK_ELEMENTS // max(1, prod(self.stored.shape) // len(rows)))
        for first in range(0, len(rows), step):
            chunk = slice(first, first + step)
            new = self._new_rows(rows[self.change.source[chunk]], self.change.factor[chunk])
            yield np.ascontiguousarray(new).reshape(-1).view(np.uint8).data

    def _of_blocks(self, taken: npt.NDArray[np.uint8], factor: Array) -> npt.NDArray[Any]:
        """Return rows of blocks with multiplied scales, or the products as plain numbers."""
        own = self.stored.dtype
        if self.dtype == own:
            scaled_rows(taken, own, factor, self.errors, self.name)
            return taken
        exact = numbers(taken, BLOCKS[own], self.name) * factor[:, None]
        with np.errstate(over="ignore"):
            new = exact.astype(STORAGE[self.dtype])
        self.errors.add(exact[factor != 1], new.astype(np.float64)[factor != 1], self.name)
        return new

    def _of_numbers(self, taken: npt.NDArray[np.uint8], factor: Array) -> npt.NDArray[Any]:
        """Return rows of plain numbers. A row that only moves, or stays, keeps its bytes."""
        own, offset, scaled = self.stored.dtype, self.change.offset, factor != 1
        if own == E8M0:
            return stepped(taken, factor, self.name)
        if own in FP8 or (self.dtype == own and not scaled.any()):
            return taken
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes quiet here, but its old bits are kept below
            old = _numbers(taken, own)
        exact = (old + offset) * factor[:, None]
        new = encode(np.where(scaled[:, None], exact - offset, old), self.dtype)
        self.errors.add(exact[scaled], _numbers(new, self.dtype)[scaled] + offset, self.name)
        if self.dtype != own:
            return new
        taken[scaled] = np.ascontiguousarray(new[scaled]).view(np.uint8)  # a NaN in other rows keeps its bits
        return taken


def _numbers(rows: npt.NDArray[Any], dtype: str) -> Array:
    """Return rows of a plain type as numbers. Shapes: (rows, any) -> (rows, numbers)."""
    raw = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
    return decode(raw, dtype).astype(np.float64).reshape(len(rows), -1)


def _opened(path: Path) -> FileIO:
    return cast(FileIO, open_regular(path, buffering=0))


def _fill(source: FileIO, view: memoryview, name: str) -> None:
    """Fill the view with bytes of the file.

    Raises: CorruptFile if the file ends before.
    """
    while view:
        count = source.readinto(view)
        if not count:
            raise CorruptFile(f"shrank while ropetool read it, and ends inside {name}", where=str(source.name))
        view = view[count:]
