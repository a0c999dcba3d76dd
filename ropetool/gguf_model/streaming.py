"""The numbers of a GGUF file's tensors: read from the checkpoint and converted in several threads, a few MB at a time.

The results have the order of the file.
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
from ropetool.gguf_model.chunks import Chunk
from ropetool.gguf_model.sources import SourceTensor
from ropetool.gguf_model.tensors import Layout, Placed
from ropetool.machine import processors

CHUNK = 1 << 20  # bytes of the source read at once; larger ones run no faster
AHEAD = 16 << 20  # bytes of the source that may wait for the writer
MAX_THREADS = 8  # more threads only wait for the writer
AT_WORK = 64 << 20  # bytes of the source in all threads together; the allocator keeps several times as much


def numbers(placed: Placed) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the numbers of a tensor as the file would contain them, flat, a few MB at a time.

    Raises: the errors of `converted`, except for NaN and infinities.
    """
    for _, data in converted(Layout(placed.dtype, (placed,)), allow_nan=True):
        if placed.dtype in STORAGE:
            yield decode(data, placed.dtype).astype(np.float32, copy=False)
        else:
            yield decoded_blocks(np.frombuffer(data, np.uint8).reshape(1, -1), ggml_type(placed.dtype)).reshape(-1)


def converted(layout: Layout, *, allow_nan: bool) -> Iterator[tuple[Chunk, memoryview]]:
    """Yield the chunks in the order of the file, each with its bytes for the file.

    Several chunks are converted at once.
    Raises: PlanMismatch if a weight file shrinks meanwhile; LossyExport for a number that the output type cannot
    represent; CheckpointError for a NaN or an infinity, unless `allow_nan`.
    """
    with ExitStack() as files:
        weights = {path: _Weights(files.enter_context(reading(path))) for path in _paths(layout)}

        def work(chunk: Chunk) -> memoryview:
            raw = weights[chunk.source.path].read(chunk.begin, chunk.nbytes)
            return chunks.convert(raw, _with_own_scales(chunk, weights), allow_nan)

        waiting: deque[tuple[Chunk, Future[memoryview]]] = deque()
        ahead = 0
        with ThreadPoolExecutor(_threads(layout)) as pool:
            for chunk in _chunks(layout, weights):
                waiting.append((chunk, pool.submit(work, chunk)))
                ahead += chunk.nbytes
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
    sources = [source for placed in layout.tensors for source in placed.sources]
    return sorted({one.path for source in sources for one in (source, *source.others)})


def _chunks(layout: Layout, weights: Mapping[Path, _Weights]) -> Iterator[Chunk]:
    for placed in layout.tensors:
        for source in placed.sources:
            yield from _chunks_of(placed, source, _parts(source, weights))


def _chunks_of(placed: Placed, source: SourceTensor, parts: Mapping[str, bytes]) -> Iterator[Chunk]:
    stored = source.stored
    step = _step(placed, source)
    for begin in range(stored.begin, stored.end, step):
        yield Chunk(placed, source, begin, min(step, stored.end - begin), parts=parts)


def _step(placed: Placed, source: SourceTensor) -> int:
    """Return how many bytes of a source make a chunk. A transposed expert of 33 MB is a single chunk."""
    unit = chunks.unit(placed, source)
    return max(1, CHUNK // unit) * unit


def _threads(layout: Layout) -> int:
    """Return the number of converting threads.

    It is lower for large chunks, because each thread keeps memory for one chunk.
    """
    largest = max((_step(placed, source) for placed in layout.tensors for source in placed.sources), default=CHUNK)
    return max(1, min(MAX_THREADS, processors(), AT_WORK // largest))


def _parts(source: SourceTensor, weights: Mapping[Path, _Weights]) -> Mapping[str, bytes]:
    """Return the other tensors that unpack a source, whole: at most an eighth of it, for groups of 32 numbers in 4 bits."""
    parts = {} if source.unpacking is None else source.unpacking.parts
    return {
        role: bytes(weights[part.path].read(part.stored.begin, part.stored.end - part.stored.begin))
        for role, part in parts.items()
    }


def _with_own_scales(chunk: Chunk, weights: Mapping[Path, _Weights]) -> Chunk:
    """Return an MXFP4 chunk with the scales of its blocks. The scales of all experts are a 16th of the weights."""
    scales = chunk.source.scales
    if scales is None or not mxfp4.is_packed(chunk.source):
        return chunk
    begin, nbytes = mxfp4.scales_of(chunk.source, chunk.begin, chunk.nbytes)
    return replace(chunk, scales=bytes(weights[scales.path].read(begin, nbytes)))
