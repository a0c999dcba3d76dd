"""Writes a new GGUF file: the header from its parts, the data streamed from the checkpoint, a few megabytes at a time.

Threads read and convert; one writes, in the order of the file, so the same input makes the same bytes. Where the file
goes and when it becomes visible is the caller's concern.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt

from ropetool.errors import PlanMismatch
from ropetool.files.dtypes import STORAGE, decode
from ropetool.files.gguf import TensorInfo, Value, ggml_type
from ropetool.files.gguf.copying import write_all
from ropetool.files.gguf.header import reading
from ropetool.files.gguf.numbers import decoded_blocks
from ropetool.files.gguf.tensors import padded
from ropetool.files.gguf.writer import creating, encode_head, encode_info
from ropetool.gguf_export import chunks, mxfp4
from ropetool.gguf_export.chunks import Piece
from ropetool.gguf_export.sources import Source
from ropetool.gguf_export.tensors import ALIGNMENT, Layout, Placed, vector_infos
from ropetool.runtimes.llama_cpp.encodings import Vector

Progress = Callable[[str, int, int], None]
CHUNK = 1 << 20  # bytes of the source read at once; larger ones run no faster
AHEAD = 16 << 20  # bytes of the source that may wait for being written
MAX_THREADS = 8  # more of them wait for the one that writes
AT_WORK = 64 << 20  # bytes of the source that all threads may hold; the allocator keeps several times that


@dataclass(frozen=True)
class File:
    """One file to write: its keys, its tensors from the checkpoint, and the vectors that come behind them."""

    values: Mapping[str, Value]
    layout: Layout
    vectors: Mapping[str, Vector]

    def infos(self) -> list[TensorInfo]:
        """Return the tensor table."""
        return [*(placed.info for placed in self.layout.tensors), *vector_infos(self.vectors, self.layout.end)]

    def start(self) -> int:
        """Return where the data begins."""
        return padded(len(_head(self.values, self.infos())), ALIGNMENT)

    def size(self) -> int:
        """Return the size of the whole file in bytes."""
        return padded(self.start() + self.infos()[-1].end, ALIGNMENT)


def write(destination: Path, file: File, progress: Progress, *, allow_nan: bool = False) -> int:
    """Write the file to a new path and return its size in bytes.

    Raises: OutputError if it cannot be written; PlanMismatch if a weight file becomes shorter meanwhile; LossyExport
    for a number that the type to write does not hold; CheckpointError for a NaN or an infinity, unless `allow_nan`.
    """
    infos, start, size = file.infos(), file.start(), file.size()
    with creating(destination, size) as target, ExitStack() as files:
        write_all(target, 0, _head(file.values, infos))
        weights = {path: _Weights(files.enter_context(reading(path))) for path in _paths(file.layout)}
        at, begun = start, ""
        for piece, data in _converted(file.layout, weights, allow_nan):
            if piece.placed.info.name != begun:
                at, begun = start + piece.placed.info.offset, piece.placed.info.name
                progress(begun, at, size)
            write_all(target, at, data)
            at += len(data)
        for info, vector in zip(infos[len(file.layout.tensors) :], file.vectors.values(), strict=True):
            write_all(target, start + info.offset, vector.astype("<f4").tobytes())
    progress("", size, size)
    return size


def numbers(placed: Placed) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the numbers of a tensor as they would stand in the file, flat, a few megabytes at a time.

    Raises: as write does.
    """
    layout = Layout(placed.dtype, (placed,))
    with ExitStack() as files:
        weights = {path: _Weights(files.enter_context(reading(path))) for path in _paths(layout)}
        for _, data in _converted(layout, weights, allow_nan=True):
            if placed.dtype in STORAGE:
                yield decode(data, placed.dtype).astype(np.float32, copy=False)
            else:
                yield decoded_blocks(np.frombuffer(data, np.uint8).reshape(1, -1), ggml_type(placed.dtype)).reshape(-1)


def _head(values: Mapping[str, Value], infos: Sequence[TensorInfo]) -> bytes:
    return b"".join([*encode_head(values, len(infos)), *map(encode_info, infos)])


# --- data


class _Weights:
    """A weight file that several threads read."""

    def __init__(self, file: FileIO) -> None:
        self._file, self._lock = file, Lock()

    def read(self, begin: int, nbytes: int) -> npt.NDArray[np.uint8]:
        raw = np.empty(nbytes, np.uint8)
        rest = raw.data
        with self._lock:
            self._file.seek(begin)
            while rest:
                got = self._file.readinto(rest)
                if not got:
                    message = f"became shorter than {begin + nbytes} bytes while it was read"
                    raise PlanMismatch(message, where=str(self._file.name))
                rest = rest[got:]
        return raw


def _paths(layout: Layout) -> list[Path]:
    found = {source.path for placed in layout.tensors for source in placed.sources}
    scales = {source.scales.path for placed in layout.tensors for source in placed.sources if source.scales}
    return sorted(found | scales)


def _pieces(layout: Layout, weights: Mapping[Path, _Weights]) -> Iterator[Piece]:
    for placed in layout.tensors:
        for source in placed.sources:
            yield from _pieces_of(placed, source, _scales(source, weights))


def _pieces_of(placed: Placed, source: Source, scales: bytes) -> Iterator[Piece]:
    stored = source.stored
    step = _step(placed, source)
    for begin in range(stored.begin, stored.end, step):
        yield Piece(placed, source, begin, min(step, stored.end - begin), scales)


def _step(placed: Placed, source: Source) -> int:
    """Return how many bytes of a source make a piece: a whole expert of 33 MB, where its columns become rows."""
    unit = chunks.unit(placed, source)
    return max(1, CHUNK // unit) * unit


def _threads(layout: Layout) -> int:
    """Return how many threads convert: fewer where pieces are large, as each thread keeps memory for one of them."""
    largest = max((_step(placed, source) for placed in layout.tensors for source in placed.sources), default=CHUNK)
    return max(1, min(MAX_THREADS, processors(), AT_WORK // largest))


def _scales(source: Source, weights: Mapping[Path, _Weights]) -> bytes:
    if source.scales is None or mxfp4.is_packed(source):
        return b""
    stored = source.scales.stored
    return bytes(weights[source.scales.path].read(stored.begin, stored.end - stored.begin))


def _with_own_scales(piece: Piece, weights: Mapping[Path, _Weights]) -> Piece:
    """Return the piece with the scales of its blocks: those of all experts are a 16th of the weights."""
    scales = piece.source.scales
    if scales is None or not mxfp4.is_packed(piece.source):
        return piece
    begin, nbytes = mxfp4.scales_of(piece.source, piece.begin, piece.nbytes)
    return replace(piece, scales=bytes(weights[scales.path].read(begin, nbytes)))


def _converted(layout: Layout, weights: Mapping[Path, _Weights], allow_nan: bool) -> Iterator[tuple[Piece, memoryview]]:
    """Yield the pieces in their order with their bytes in the file, several being converted at once."""

    def work(piece: Piece) -> memoryview:
        raw = weights[piece.source.path].read(piece.begin, piece.nbytes)
        return chunks.convert(raw, _with_own_scales(piece, weights), allow_nan)

    waiting: deque[tuple[Piece, Future[memoryview]]] = deque()
    ahead = 0
    with ThreadPoolExecutor(_threads(layout)) as pool:
        for piece in _pieces(layout, weights):
            waiting.append((piece, pool.submit(work, piece)))
            ahead += piece.nbytes
            while ahead > AHEAD:
                first, data = waiting.popleft()
                ahead -= first.nbytes
                yield first, data.result()
        for first, data in waiting:
            yield first, data.result()


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
