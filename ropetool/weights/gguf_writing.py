"""Writing baked GGUF files: the patched copy first, then each touched tensor again, each number rounded once.

Knows GGUF files and row changes; neither models nor keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ropetool.errors import PlanMismatch, UnsupportedDtype
from ropetool.files.dtypes import STORAGE
from ropetool.files.gguf import GGML_TYPES, GgufHeader, Patch, TensorInfo, read_header, split_patch, write_patched
from ropetool.files.gguf.copying import write_all
from ropetool.files.gguf.header import reading
from ropetool.files.gguf.kinds import F32
from ropetool.files.gguf.numbers import numbers, read_numbers
from ropetool.files.hf import TensorInfo as Stored
from ropetool.files.output import output_error
from ropetool.rope.tables import Array
from ropetool.weights.checking import Reader
from ropetool.weights.edits import RowChange, TensorEdit, by_tensor
from ropetool.weights.gguf_scales import ScaleErrors, check_factors, scaled_rows
from ropetool.weights.writing import Baked, BakedTensor, Errors, fill, mark, new_pieces

CHUNK_BYTES = 4 << 20  # at two bits a number 128 MiB as float64
_PLAN_AGAIN = "make a new plan"


def gguf_marks(edits: Sequence[TensorEdit], headers: Sequence[GgufHeader]) -> dict[str, str]:
    """Return for each file that the edits touch what tells whether it is still the same: header, size and time."""
    touched = by_tensor(edits).keys()
    return {h.path.name: mark(h.path, h.data_start) for h in headers if any(t.name in touched for t in h.tensors)}


def gguf_growth(edits: Sequence[TensorEdit], headers: Sequence[GgufHeader], bake_dtype: str = "") -> int:
    """Return by how many bytes the numbers become more if the scaled tensors are stored in this type.

    Raises: UnsupportedDtype.
    """
    changes = by_tensor(edits)
    touched = [info for header in headers for info in header.tensors if info.name in changes]
    return sum(_retyped(info, _new_type(info, changes[info.name], bake_dtype)).nbytes - info.nbytes for info in touched)


def gguf_reader(headers: Sequence[GgufHeader]) -> Reader:
    """Return what reads a tensor by name as float64, rows first; quantised numbers as llama.cpp takes them."""
    places = {info.name: (header, info) for header in headers for info in header.tensors}
    return lambda name: read_numbers(*places[name])


def bake_gguf(
    headers: Sequence[GgufHeader],
    edits: Sequence[TensorEdit],
    patch: Patch,
    targets: Sequence[Path],
    *,
    bake_dtype: str = "",
    expected: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Baked:
    """Write every file of a model that changes to its target; the others are the caller's to link.

    headers, targets: of all files of the model, in order. patch: what else changes, of the whole model. bake_dtype:
    F32 to store scaled tensors so; by default each keeps its type. expected: the `gguf_marks` of the plan.
    Raises: PlanMismatch if a file has changed since the plan or a tensor is not there; LossyExport if a product does
    not fit its type; UnsupportedDtype; OutputError.
    """
    changes = by_tensor(edits)
    _check_all_there(changes, headers, bake_dtype)
    if expected is not None and gguf_marks(edits, headers) != dict(expected):
        raise PlanMismatch("a file has changed since the plan was made", where=str(headers[0].path), try_=_PLAN_AGAIN)
    files, done = [], []
    for header, part, target in zip(headers, split_patch(tuple(headers), patch), targets, strict=True):
        inside = {info.name: changes[info.name] for info in header.tensors if info.name in changes}
        if not inside and part.is_empty:
            continue
        if progress is not None:
            progress(header.path.name)
        done += write_baked(header, inside, part, target, bake_dtype)
        files.append(target)
    return Baked(tuple(files), tuple(done), sum(path.stat().st_size for path in files))


def write_baked(
    header: GgufHeader, changes: Mapping[str, RowChange], patch: Patch, target: Path, bake_dtype: str = ""
) -> list[BakedTensor]:
    """Write one file with its patch and these of its tensors changed; every other byte stays what it was.

    Raises: PlanMismatch, LossyExport, UnsupportedDtype, OutputError.
    """
    touched = [info for info in header.tensors if info.name in changes]
    types = {info.name: _new_type(info, changes[info.name], bake_dtype) for info in touched}
    write_patched(header, patch, target, {i.name: types[i.name] for i in touched if types[i.name] != i.ggml_type})
    written = read_header(target)
    places = {info.name: written.data_start + info.offset for info in written.tensors}
    try:
        with reading(header.path) as source, FileIO(target, "r+") as file:
            return [
                _write_tensor(source, file, places[info.name], header, info, changes[info.name], types[info.name])
                for info in touched
            ]
    except OSError as error:
        raise output_error(error, target, need=written.file_size) from error


def _check_all_there(changes: Mapping[str, RowChange], headers: Sequence[GgufHeader], bake_dtype: str) -> None:
    """Refuse, before anything is written, a tensor that is absent or whose type cannot take its change."""
    known = {info.name: info for header in headers for info in header.tensors}
    for name, change in changes.items():
        info = known.get(name)
        if info is None or change.source.size not in _heights(info):
            raise PlanMismatch(
                f"{name} is not there with {change.source.size} rows", where=str(headers[0].path), try_=_PLAN_AGAIN
            )
        if change.offset and info.type_name not in STORAGE:
            raise UnsupportedDtype(f"has type {info.type_name}, which holds no sum with {change.offset:g}", where=name)
        if _new_type(info, change, bake_dtype) == info.ggml_type:
            check_factors(info.type_name, change.factor, name)


def _heights(info: TensorInfo) -> tuple[int, ...]:
    """Return how many rows a tensor may be seen to have: those of its table, or its elements where none shares a block."""
    elements = int(np.prod(info.shape))
    rows = elements // info.shape[0] if info.shape and info.shape[0] else 0
    return (rows, elements) if GGML_TYPES[info.ggml_type].block == 1 else (rows,)


def _new_type(info: TensorInfo, change: RowChange, bake_dtype: str) -> int:
    """Return the type to store a tensor in; rows that only move keep theirs, and so does what is as wide already."""
    wide = bool(bake_dtype) and info.type_name not in ("F32", "F64") and not bool(np.all(change.factor == 1))
    return F32 if wide else info.ggml_type


def _retyped(info: TensorInfo, ggml_type: int) -> TensorInfo:
    kind = GGML_TYPES[ggml_type]
    return replace(info, ggml_type=ggml_type, nbytes=int(np.prod(info.shape)) // kind.block * kind.nbytes)


def baked_gguf_bytes(header: GgufHeader, info: TensorInfo, change: RowChange, bake_dtype: str = "") -> bytes:
    """Return what a tensor of a file is after the change.

    Raises: CorruptFile if the file ends inside it; LossyExport, UnsupportedDtype.
    """
    with reading(header.path) as source:
        pieces, _ = _pieces(source, header, info, change, _new_type(info, change, bake_dtype))
        return b"".join(pieces)


# --- one tensor


def _pieces(
    source: FileIO, header: GgufHeader, info: TensorInfo, change: RowChange, ggml_type: int
) -> tuple[Iterator[memoryview], Errors | ScaleErrors]:
    """Return the new bytes of a tensor in runs of rows, and their errors, complete when the runs are."""
    begin, dtype = header.data_start + info.offset, GGML_TYPES[ggml_type].name
    if info.type_name in STORAGE:
        stored = Stored(info.name, info.type_name, info.shape[::-1], begin, begin + info.nbytes)
        return new_pieces(source, stored, change, dtype)
    errors = ScaleErrors("float16" if ggml_type == info.ggml_type else "float32")
    return _blocks(source, begin, info, change, ggml_type, errors), errors


def _write_tensor(
    source: FileIO, file: FileIO, at: int, header: GgufHeader, info: TensorInfo, change: RowChange, ggml_type: int
) -> BakedTensor:
    """Write the changed rows at their place; return what happened."""
    pieces, errors = _pieces(source, header, info, change, ggml_type)
    for data in pieces:
        write_all(file, at, data)
        at += len(data)
    below = errors.subnormal if isinstance(errors, ScaleErrors) else 0
    low = (f"{below} of its products are below the normal range of their type",) if below else ()
    touched, dtype = int(np.count_nonzero(change.touched)), GGML_TYPES[ggml_type].name
    return BakedTensor(
        info.name, header.path.name, touched, dtype, errors.highest, errors.mean, (*change.reasons, *low)
    )


def _blocks(
    source: FileIO, begin: int, info: TensorInfo, change: RowChange, ggml_type: int, errors: ScaleErrors
) -> Iterator[memoryview]:
    """Yield the new bytes of a quantised tensor in runs of rows."""
    raw = np.empty(info.nbytes, np.uint8)
    source.seek(begin)
    fill(source, raw.data, info.name)
    rows = raw.reshape(change.source.size, -1)
    step = max(1, CHUNK_BYTES // rows.shape[1])
    for first in range(0, len(rows), step):
        chunk = slice(first, first + step)
        taken, factor = rows[change.source[chunk]], change.factor[chunk]
        if ggml_type == info.ggml_type:
            scaled_rows(taken, info.type_name, factor, errors, info.name)
            yield taken.reshape(-1).data
        else:
            yield _widened(taken, factor, info, errors)


def _widened(taken: npt.NDArray[np.uint8], factor: Array, info: TensorInfo, errors: ScaleErrors) -> memoryview:
    """Return quantised rows as float32 numbers times their factors."""
    exact = numbers(taken, info.ggml_type, info.name) * factor[:, None]
    with np.errstate(over="ignore"):
        stored = exact.astype("<f4")
    errors.add(exact[factor != 1], stored.astype(np.float64)[factor != 1], info.name)
    return stored.reshape(-1).view(np.uint8).data
