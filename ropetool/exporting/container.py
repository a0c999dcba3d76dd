"""Writes a new GGUF file: the header from its parts, the data streamed from the checkpoint, a megabyte at a time.

Where the file goes and when it becomes visible is the caller's concern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.encodings_gguf import Vector
from ropetool.errors import LossyExport, PlanMismatch
from ropetool.exporting.tensors import ALIGNMENT, Layout, Placed, Source, vector_infos
from ropetool.formats import dtypes
from ropetool.formats.gguf import TensorInfo, Value
from ropetool.formats.gguf.codec import encode_text
from ropetool.formats.gguf.copying import copy_range, write_all
from ropetool.formats.gguf.cursor import I32, I64, U32
from ropetool.formats.gguf.header import MAGIC, VERSIONS, reading
from ropetool.formats.gguf.tensors import padded
from ropetool.formats.gguf.writer import creating, encode_info
from ropetool.rope import half_to_interleaved

Progress = Callable[[str, int, int], None]
CHUNK = 1 << 20  # bytes of the source converted at once; larger ones run no faster
_FINITE_BELOW = {"F16": 65520.0, "F32": 2.0**128 - 2.0**103, "BF16": 2.0**128 - 2.0**119}  # halfway to what is no more


def write(
    destination: Path, values: Mapping[str, Value], layout: Layout, vectors: Mapping[str, Vector], progress: Progress
) -> int:
    """Write the file to a new path and return its size in bytes; the vectors come behind the other tensors.

    Raises: OutputError if it cannot be written; PlanMismatch if a weight file becomes shorter meanwhile; LossyExport
    for a number that the type to write does not hold.
    """
    extra = vector_infos(vectors, layout.end)
    head = _head(values, [*(placed.info for placed in layout.tensors), *extra])
    start = padded(len(head), ALIGNMENT)
    data = start + (extra[-1].end if extra else layout.tensors[-1].info.end)
    size = padded(data, ALIGNMENT)
    with creating(destination, size) as target, ExitStack() as files:
        write_all(target, 0, head)
        sources = {path: files.enter_context(reading(path)) for path in _paths(layout)}
        for placed in layout.tensors:
            progress(placed.info.name, start + placed.info.offset, size)
            _write_tensor(sources, target, start, placed)
        for info, vector in zip(extra, vectors.values(), strict=True):
            write_all(target, start + info.offset, vector.astype("<f4").tobytes())
    progress("", size, size)
    return size


def _paths(layout: Layout) -> list[Path]:
    return sorted({source.path for placed in layout.tensors for source in placed.sources})


def _head(values: Mapping[str, Value], infos: Sequence[TensorInfo]) -> bytes:
    parts = [MAGIC, U32.pack(max(VERSIONS)), I64.pack(len(infos)), I64.pack(len(values))]
    for key, value in values.items():
        parts += (encode_text(key), I32.pack(value.type), bytes(value.raw))
    parts += map(encode_info, infos)
    return b"".join(parts)


# --- data


def _write_tensor(sources: Mapping[Path, FileIO], target: FileIO, start: int, placed: Placed) -> None:
    at = start + placed.info.offset
    for source in placed.sources:
        file, stored = sources[source.path], source.stored
        if stored.dtype == placed.dtype and not placed.head_dim:
            copy_range(file, target, stored.begin, at, stored.end - stored.begin)
            at += stored.end - stored.begin
            continue
        for piece in _pieces(file, source, placed):
            data = piece.tobytes()
            write_all(target, at, data)
            at += len(data)


def _pieces(file: FileIO, source: Source, placed: Placed) -> Iterator[npt.NDArray[Any]]:
    """Yield the tensor in the type to write, rows in their new order, about a megabyte of whole heads at a time."""
    stored = source.stored
    kind = dtypes.storage(stored.dtype)
    row = int(np.prod(stored.shape[1:])) * kind.itemsize
    unit = placed.head_dim * row if placed.head_dim else kind.itemsize
    step = max(1, CHUNK // unit) * unit
    order = half_to_interleaved(placed.head_dim) if placed.head_dim else None
    for begin in range(stored.begin, stored.end, step):
        raw = _read(file, begin, min(step, stored.end - begin))
        elements = np.frombuffer(raw, kind)
        if order is not None:
            elements = elements.reshape(-1, placed.head_dim, row // kind.itemsize)[:, order].reshape(-1)
        yield elements if stored.dtype == placed.dtype else _converted(elements, placed, stored.dtype)


def _converted(elements: npt.NDArray[Any], placed: Placed, dtype: str) -> npt.NDArray[Any]:
    values = dtypes.widened(elements) if dtype == "BF16" else elements
    largest = float(np.max(np.abs(values), initial=0))
    if _FINITE_BELOW[placed.dtype] <= largest < np.inf:
        raise LossyExport(
            f"{placed.info.name} holds {largest:.6g}, which becomes infinite in {placed.dtype}",
            where="--outtype", try_="--outtype bf16, or f32",
        )  # fmt: skip
    return dtypes.encode(values, placed.dtype)


def _read(file: FileIO, begin: int, nbytes: int) -> bytearray:
    raw = bytearray(nbytes)
    rest = memoryview(raw)
    file.seek(begin)
    while rest:
        got = file.readinto(rest)
        if not got:
            raise PlanMismatch(f"became shorter than {begin + nbytes} bytes while it was read", where=str(file.name))
        rest = rest[got:]
    return raw
