"""Writing baked shards: tensor by tensor as a stream, each number rounded once, every other byte as it was.

Knows safetensors files and row changes; neither models nor configs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import CorruptFile, LossyExport, PlanMismatch, UnsupportedDtype
from ropetool.files.dtypes import STORAGE, decode, encode
from ropetool.files.gguf.copying import copy_range, write_all
from ropetool.files.hf import DTYPE_BITS, Header, TensorInfo
from ropetool.weights.block_scales import E8M0, FP8
from ropetool.weights.edits import RowChange, TensorEdit, by_tensor

CHUNK_ELEMENTS = 1 << 20  # 8 MiB as float64
_PLAN_AGAIN = "make a new plan"


@dataclass(frozen=True)
class BakedTensor:
    """What happened to one tensor: the rows that changed, and what rounding the scaled ones once cost.

    max_error, mean_error: relative to the exact products; 0 where rows only moved.
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
    """What was written, in bytes and by tensor."""

    files: tuple[Path, ...]
    tensors: tuple[BakedTensor, ...]
    bytes_written: int


def marks(edits: Sequence[TensorEdit], headers: Sequence[Header]) -> dict[str, str]:
    """Return for each shard that the edits touch what tells whether it is still the same: header, size and time."""
    names = by_tensor(edits)
    return {
        header.path.name: mark(header.path, header.data_start)
        for header in headers
        if not names.keys().isdisjoint(header.tensors)
    }


def mark(path: Path, data_start: int) -> str:
    """Return what tells whether a weight file is still the same: a digest of its header, its size and its time."""
    status = path.stat()
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(data_start))
    digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()


def growth(edits: Sequence[TensorEdit], headers: Sequence[Header], bake_dtype: str) -> int:
    """Return by how many bytes the numbers become more if the scaled tensors are stored in this type.

    Raises: UnsupportedDtype.
    """
    changes, more = by_tensor(edits), 0
    for header in headers:
        for name, info in header.tensors.items():
            if name in changes:
                bits = DTYPE_BITS[_new_dtype(info, changes[name], bake_dtype)]
                more += (info.end - info.begin) * bits // DTYPE_BITS[info.dtype] - (info.end - info.begin)
    return more


def baked_bytes(info: TensorInfo, path: Path, change: RowChange, bake_dtype: str = "") -> bytes:
    """Return what a tensor of a file is after the change.

    Raises: CorruptFile if the file ends inside it; LossyExport, UnsupportedDtype.
    """
    dtype = _new_dtype(info, change, bake_dtype)
    with path.open("rb", buffering=0) as source:
        pieces, _ = new_pieces(source, info, change, dtype)
        return b"".join(pieces)


def bake_tensors(
    edits: Sequence[TensorEdit],
    headers: Sequence[Header],
    out: Path,
    *,
    bake_dtype: str = "",
    expected: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Baked:
    """Write every shard that changes into `out`, under its name; the others are the caller's to link.

    bake_dtype: the type to store scaled floating-point tensors in, F32 or F64; by default each keeps its own.
    expected: the `marks` of the plan.
    Raises: PlanMismatch if a shard has changed or a tensor is not there; LossyExport if a product does not fit its
    type; UnsupportedDtype.
    """
    changes = by_tensor(edits)
    _check_all_there(changes, headers)
    if expected is not None and marks(edits, headers) != dict(expected):
        raise PlanMismatch("a weight file has changed since the plan was made", where=str(out), try_=_PLAN_AGAIN)
    files, done = [], []
    for header in headers:
        inside = {name: change for name, change in changes.items() if name in header.tensors}
        if not inside:
            continue
        if progress is not None:
            progress(header.path.name)
        target = out / header.path.name
        done += _write_shard(header, inside, target, bake_dtype)
        files.append(target)
    return Baked(tuple(files), tuple(done), sum(path.stat().st_size for path in files))


def _check_all_there(changes: Mapping[str, RowChange], headers: Sequence[Header]) -> None:
    known = {name: info for header in headers for name, info in header.tensors.items()}
    for name, change in changes.items():
        info = known.get(name)
        count = int(np.prod(info.shape)) if info else 0
        if info is None or (change.source.size not in (count, *info.shape[:1])):
            raise PlanMismatch(
                f"{name} is not there with {change.source.size} rows", where=str(headers[0].path), try_=_PLAN_AGAIN
            )


# --- one shard


def _write_shard(header: Header, changes: Mapping[str, RowChange], target: Path, bake_dtype: str) -> list[BakedTensor]:
    dtypes = {name: _new_dtype(header.tensors[name], change, bake_dtype) for name, change in changes.items()}
    head, order = _new_header(header, dtypes)
    done = []
    with header.path.open("rb", buffering=0) as source, target.open("xb", buffering=0) as file:
        write_all(file, 0, head)
        at = len(head)
        for info in order:
            change = changes.get(info.name)
            if change is None:
                copy_range(source, file, info.begin, at, info.end - info.begin)
                at += info.end - info.begin
            else:
                baked, at = _write_tensor(source, file, at, info, change, dtypes[info.name], header.path.name)
                done.append(baked)
    return done


def _new_dtype(info: TensorInfo, change: RowChange, bake_dtype: str) -> str:
    """Return the type to store a tensor in; rows that only move, and scales of blocks, keep theirs."""
    if not bake_dtype or info.dtype not in STORAGE or bool(np.all(change.factor == 1)):
        return info.dtype
    if bake_dtype not in ("F32", "F64"):
        raise UnsupportedDtype(f"is {bake_dtype}; baked tensors can be stored in F32 or F64", where="--bake-dtype")
    return bake_dtype if DTYPE_BITS[bake_dtype] > DTYPE_BITS[info.dtype] else info.dtype


def _new_header(header: Header, dtypes: Mapping[str, str]) -> tuple[bytes, list[TensorInfo]]:
    """Return the bytes before the data, and the tensors in the order of their places."""
    order = sorted(header.tensors.values(), key=lambda info: (info.begin, info.end))
    if all(header.tensors[name].dtype == dtype for name, dtype in dtypes.items()):
        return _first_bytes(header), order
    # Wide types first, as the format's own writer has them: readers want each tensor at a multiple of its width.
    order.sort(key=lambda info: -DTYPE_BITS[dtypes.get(info.name, info.dtype)])
    entries: dict[str, Any] = {"__metadata__": dict(header.metadata)} if header.metadata else {}
    at = 0
    for info in order:
        dtype = dtypes.get(info.name, info.dtype)
        size = (info.end - info.begin) * DTYPE_BITS[dtype] // DTYPE_BITS[info.dtype]
        entries[info.name] = {"dtype": dtype, "shape": list(info.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def _first_bytes(header: Header) -> bytes:
    with header.path.open("rb") as file:
        return file.read(header.data_start)


# --- one tensor


def _write_tensor(
    source: FileIO, file: FileIO, at: int, info: TensorInfo, change: RowChange, dtype: str, shard: str
) -> tuple[BakedTensor, int]:
    pieces, errors = new_pieces(source, info, change, dtype)
    for data in pieces:
        write_all(file, at, data)
        at += len(data)
    touched = int(np.count_nonzero(change.touched))
    return BakedTensor(info.name, shard, touched, dtype, errors.highest, errors.mean, change.reasons), at


def new_pieces(source: FileIO, info: TensorInfo, change: RowChange, dtype: str) -> tuple[Iterator[memoryview], Errors]:
    """Return the new bytes of a tensor in runs of rows, and their errors, complete when the runs are."""
    raw = np.empty(info.end - info.begin, dtype=np.uint8)
    source.seek(info.begin)
    fill(source, raw.data, info.name)
    rows, errors = raw.reshape(change.source.size, -1), Errors()
    chunks = (slice(first, stop) for first, stop in _chunks(rows, info.dtype))
    return (_changed(rows, chunk, info, change, dtype, errors) for chunk in chunks), errors


def fill(source: FileIO, view: memoryview, name: str) -> None:
    """Read as many bytes as the view has.

    Raises: CorruptFile if the file ends before.
    """
    while view:
        count = source.readinto(view)
        if not count:
            raise CorruptFile(f"ended inside {name} while it was read", where=str(source.name))
        view = view[count:]


def _chunks(rows: npt.NDArray[np.uint8], dtype: str) -> Iterator[tuple[int, int]]:
    width = max(1, rows.shape[1] * 8 // DTYPE_BITS[dtype])
    step = max(1, CHUNK_ELEMENTS // width)
    for first in range(0, rows.shape[0], step):
        yield first, min(rows.shape[0], first + step)


class Errors:
    """The relative rounding errors of all numbers that were multiplied."""

    def __init__(self) -> None:
        self.highest = 0.0
        self._sum = 0.0
        self._count = 0

    @property
    def mean(self) -> float:
        return self._sum / self._count if self._count else 0.0

    def add(self, exact: npt.NDArray[np.float64], stored: npt.NDArray[np.float64], name: str) -> None:
        if not np.all(np.isfinite(stored) | ~np.isfinite(exact)):
            raise LossyExport("a product is too large for its type", where=name, try_="--bake-dtype f32")
        counted = (exact != 0) & np.isfinite(exact)
        relative = np.abs(stored[counted] - exact[counted]) / np.abs(exact[counted])
        self.highest = max(self.highest, float(relative.max(initial=0.0)))
        self._sum += float(relative.sum())
        self._count += relative.size


def _changed(
    rows: npt.NDArray[np.uint8], chunk: slice, info: TensorInfo, change: RowChange, dtype: str, errors: Errors
) -> memoryview:
    """Return the bytes of a run of new rows; a row that only moves, or stays, keeps its own."""
    taken = rows[change.source[chunk]]
    factor = change.factor[chunk]
    if info.dtype == E8M0:
        return _bytes(_stepped(taken, factor, info.name))
    if info.dtype in FP8 or (dtype == info.dtype and bool(np.all(factor == 1))):
        return _bytes(taken)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one here; its own bits are kept below
        old = decode(_bytes(taken), info.dtype).astype(np.float64).reshape(taken.shape[0], -1)
    exact = (old + change.offset) * factor[:, None]
    scaled = factor != 1
    stored = encode(np.where(scaled[:, None], exact - change.offset, old), dtype)
    back = decode(_bytes(stored), dtype).astype(np.float64).reshape(old.shape)
    errors.add(exact[scaled], back[scaled] + change.offset, info.name)
    data = stored if dtype != info.dtype else _with_rows(taken, stored, scaled)
    return _bytes(data)


def _with_rows(
    taken: npt.NDArray[np.uint8], stored: npt.NDArray[Any], scaled: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint8]:
    """Return the bytes with those of the scaled rows replaced; a NaN elsewhere keeps its bits."""
    taken[scaled] = np.ascontiguousarray(stored[scaled]).view(np.uint8)
    return taken


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _stepped(bits: npt.NDArray[np.uint8], factor: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.uint8]:
    """Return powers of two times powers of two: the exponents add up."""
    steps = np.log2(factor)
    moved = bits.astype(np.int64) + steps.astype(np.int64)[:, None]
    if np.any(steps != np.round(steps)) or np.any((moved < 0) | (moved > 254)):
        raise LossyExport("a power of two leaves the range of its type, or the factor is none", where=name)
    return moved.astype(np.uint8)
