"""The tensors of a GGUF model with the names and row order of a Hugging Face class, written as safetensors files.

Each tensor is converted a few units at a time, so that memory does not grow with its size.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.tensor_bytes import StoredTensor
from ropetool.errors import CheckpointError, CorruptFile, LossyExport, RopetoolError
from ropetool.families.tensors import Function
from ropetool.files.copying import write_all
from ropetool.files.digests import new_file
from ropetool.files.dtypes import STORAGE, decode, encode
from ropetool.files.gguf import GGML_TYPES, ggml_type
from ropetool.files.gguf.numbers import decoded_blocks
from ropetool.files.hf import header_bytes
from ropetool.files.regular import open_regular
from ropetool.gguf_model.shapes import ExpectedTensor, Permutation

CHUNK = 1 << 17  # elements converted at once; their float32 numbers fit a processor's cache
AHEAD = 4  # chunks that are converted while one is written
MAX_SHARD = 5 * 10**9  # bytes of tensors in one file, as in transformers


@dataclass(frozen=True)
class FilePart:
    """The place in the GGUF file of some elements of a checkpoint's tensor.

    name: the tensor of the file.
    begin: the number of the first element in that tensor.
    order: the order in the file; None for the checkpoint's order.
    offset: the number that the file has added to each element.
    function: the function that the file has applied to each element after the offset; empty for none.
    """

    name: str
    begin: int
    order: Permutation | None
    offset: float
    function: Function = ""


@dataclass(frozen=True)
class CheckpointTensor:
    """A tensor of the checkpoint. The parts of the GGUF file fill it completely."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[FilePart, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class WrittenTensors:
    """The written files.

    tensors: the number of tensors.
    nbytes: the bytes of all tensors.
    rounded: the number of tensors that rounding changed.
    """

    files: tuple[Path, ...]
    tensors: int
    nbytes: int
    rounded: int


INVERSES: dict[str, Callable[[Any], Any]] = {"minus_exp": lambda x: np.log(-x)}
Tell = Callable[[str, int, int], None]


def checkpoint_tensors(expected: Iterable[ExpectedTensor]) -> tuple[CheckpointTensor, ...]:
    """Return the checkpoint's tensors for the tensors of the file, in the order of the file."""
    parts: dict[str, list[FilePart]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for one in expected:
        at = 0
        for source in one.sources:
            shapes[source] = one.shape
            for order in one.orders or (None,):
                parts.setdefault(source, []).append(FilePart(one.name, at, order, one.offset, one.function))
                at += math.prod(one.shape) if order is None else order.shape[0] * order.taken
    return tuple(CheckpointTensor(name, shapes[name], tuple(of_tensor)) for name, of_tensor in parts.items())


def main_type(source: GgufCheckpoint) -> str:
    """Return the most common type of the numbers in matrices. Numbers in blocks count as BF16."""
    counts: dict[str, int] = {}
    for stored in source.stored.values():
        if len(stored.shape) > 1:
            dtype = stored.dtype if stored.dtype in STORAGE else "BF16"
            counts[dtype] = counts.get(dtype, 0) + math.prod(stored.shape)
    return max(counts, key=lambda dtype: counts[dtype], default="F32")


def write_tensors(
    source: GgufCheckpoint, tensors: Sequence[CheckpointTensor], folder: Path, dtype: str, tell: Tell
) -> WrittenTensors:
    """Write the tensors in this type as one safetensors file, or as shards with an index.

    Raises: CheckpointError for a file that is truncated or has a number that is not finite; LossyExport for numbers
    that the type cannot represent.
    """
    size = STORAGE[dtype].itemsize
    total = sum(one.elements for one in tensors) * size
    shards = list(_shards(tensors, size))
    files, done, rounded = [], 0, 0
    with ThreadPoolExecutor() as pool:
        for number, shard in enumerate(shards, 1):
            name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
            files.append(folder / name)
            with new_file(files[-1]) as file:
                listed = ((one.name, dtype, one.shape, one.elements * STORAGE[dtype].itemsize) for one in shard)
                write_all(file, 0, header_bytes(listed, {"format": "pt"}))
                for one in shard:
                    changed = False
                    for data, lossy in _chunks(source, one, dtype, pool):
                        write_all(file, file.tell(), data)
                        changed |= lossy
                        done += data.nbytes
                        tell(one.name, done, total)
                    rounded += changed
    if len(shards) > 1:
        places = {one.name: path.name for path, shard in zip(files, shards, strict=True) for one in shard}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        (folder / names.SAFETENSORS_INDEX_JSON).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return WrittenTensors(tuple(files), len(tensors), total, rounded)


def _shards(tensors: Sequence[CheckpointTensor], size: int) -> Iterator[list[CheckpointTensor]]:
    shard: list[CheckpointTensor] = []
    held = 0
    for one in tensors:
        nbytes = one.elements * size
        if shard and held + nbytes > MAX_SHARD:
            yield shard
            shard, held = [], 0
        shard.append(one)
        held += nbytes
    yield shard


# --- one tensor


def _chunks(
    source: GgufCheckpoint, one: CheckpointTensor, dtype: str, pool: Executor
) -> Iterator[tuple[memoryview, bool]]:
    """Yield the bytes of a tensor, some units at a time, each with whether rounding changed a number."""
    orders = [part.order for part in one.parts if part.order is not None]
    unit = orders[0].unit if orders else one.shape[-1]
    count = one.elements // unit
    stored = [source.stored[part.name] for part in one.parts]
    step = math.lcm(*(_step(each, part, unit) for each, part in zip(stored, one.parts, strict=True)))
    step *= max(1, CHUNK // (unit * step))

    def chunk(begin: int) -> tuple[memoryview, bool]:
        units = min(step, count - begin)
        whole, lossy = np.empty(units * unit, STORAGE[dtype]), False
        for part, each in zip(one.parts, stored, strict=True):
            taken = unit if part.order is None else part.order.taken
            raw = _read(each, part.begin + begin * taken, units * taken)
            elements, changed = _converted(raw, each, part, dtype)
            lossy |= changed
            if part.order is None:
                whole[:] = elements
            else:
                part.order.put(elements, whole)
        return whole.data.cast("B"), lossy

    waiting: deque[Future[tuple[memoryview, bool]]] = deque()
    for begin in range(0, count, step):
        waiting.append(pool.submit(chunk, begin))
        if len(waiting) > AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _step(stored: StoredTensor, part: FilePart, unit: int) -> int:
    """Return how many units fill whole blocks of the file's type."""
    block = _block(stored)
    taken = unit if part.order is None else part.order.taken
    return block // math.gcd(block, taken)


def _read(stored: StoredTensor, begin: int, count: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of whole blocks, from element `begin` on."""
    block = _block(stored)
    nbytes = count // block * stored.unit
    with open_regular(stored.path) as file:
        file.seek(stored.begin + begin // block * stored.unit)
        raw = file.read(nbytes)
    if len(raw) != nbytes:
        raise CorruptFile("is truncated: it ends inside its tensors", where=str(stored.path))
    return np.frombuffer(raw, np.uint8)


def _converted(
    raw: npt.NDArray[np.uint8], stored: StoredTensor, part: FilePart, dtype: str
) -> tuple[npt.NDArray[Any], bool]:
    """Return the elements for the checkpoint, with whether rounding changed one.

    Rounding counts only for tensors in a plain type, without offset and function.
    """
    if stored.dtype == dtype and not part.offset and not part.function:
        return raw.view(STORAGE[dtype]), False
    plain = stored.dtype in STORAGE
    numbers: npt.NDArray[Any]
    if plain:
        numbers = decode(raw.data, stored.dtype)
    else:
        numbers = decoded_blocks(raw.reshape(1, -1), ggml_type(stored.dtype), f"{stored.path}: {part.name}").reshape(-1)
    _check_finite(numbers, part, stored, CheckpointError("contains numbers that are not finite"))
    if part.function:
        numbers = INVERSES[part.function](numbers.astype(np.float64))
        _check_finite(numbers, part, stored, LossyExport("contains numbers that export cannot produce"))
    if part.offset:
        numbers = numbers.astype(np.float64) - part.offset
    with np.errstate(over="ignore"):
        elements = encode(numbers, dtype)
    back = decode(elements.data.cast("B"), dtype)
    _check_finite(
        back, part, stored, LossyExport(f"contains numbers too large for {dtype}", try_="--dtype bf16, or f32")
    )
    return elements, plain and not part.offset and not part.function and bool((back != numbers).any())


def _check_finite(numbers: npt.NDArray[Any], part: FilePart, stored: StoredTensor, error: RopetoolError) -> None:
    if not np.isfinite(numbers).all():
        error.where = f"{stored.path}: {part.name}"
        raise error


def _block(stored: StoredTensor) -> int:
    """Return the number of elements in a block of a tensor's type."""
    return GGML_TYPES[ggml_type(stored.dtype)].block
