"""The numbers of a GGUF file's tensors, read from the checkpoint and converted, a few megabytes at a time.

Threads read and convert; what comes out has the order of the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from io import FileIO
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt

from ropetool.errors import PlanMismatch
from ropetool.files.dtypes import STORAGE, decode
from ropetool.files.gguf import ggml_type
from ropetool.files.gguf.header import reading
from ropetool.files.gguf.numbers import decoded_blocks
from ropetool.gguf_model import chunks, mxfp4
from ropetool.gguf_model.chunks import Piece
from ropetool.gguf_model.sources import Source
from ropetool.gguf_model.tensors import Layout, Placed
from ropetool.machine import processors

CHUNK = 1 << 20  # bytes of the source read at once; larger ones run no faster
AHEAD = 16 << 20  # bytes of the source that may wait for being written
MAX_THREADS = 8  # more of them wait for the one that writes
AT_WORK = 64 << 20  # bytes of the source that all threads may hold; the allocator keeps several times that


def numbers(placed: Placed) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the numbers of a tensor as they would stand in the file, flat, a few megabytes at a time.

    Raises: as converted does.
    """
    for _, data in converted(Layout(placed.dtype, (placed,)), allow_nan=True):
        if placed.dtype in STORAGE:
            yield decode(data, placed.dtype).astype(np.float32, copy=False)
        else:
            yield decoded_blocks(np.frombuffer(data, np.uint8).reshape(1, -1), ggml_type(placed.dtype)).reshape(-1)


def converted(layout: Layout, *, allow_nan: bool) -> Iterator[tuple[Piece, memoryview]]:
    """Yield the pieces in their order with their bytes in the file, several being converted at once.

    Raises: PlanMismatch if a weight file becomes shorter meanwhile; LossyExport for a number that the type to write
    does not hold; CheckpointError for a NaN or an infinity, unless `allow_nan`.
    """
    with ExitStack() as files:
        weights = {path: _Weights(files.enter_context(reading(path))) for path in _paths(layout)}

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
                    message = f"shrank below {begin + nbytes} bytes while ropetool read it"
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
