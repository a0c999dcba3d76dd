"""The tensors of a GGUF model under the names, and in the order of rows, of a Hugging Face class; written as safetensors.

A tensor is made some units at a time, so that memory does not grow with it.
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
from ropetool.files.digests import new_file
from ropetool.files.dtypes import STORAGE, decode, encode
from ropetool.files.gguf import GGML_TYPES, ggml_type
from ropetool.files.gguf.copying import write_all
from ropetool.files.gguf.numbers import decoded_blocks
from ropetool.files.hf import header_bytes
from ropetool.files.regular import open_regular
from ropetool.gguf_model.shapes import Permutation, Wanted

CHUNK = 1 << 17  # elements made at once, whose float32 numbers stay in a processor's cache
AHEAD = 4  # pieces made while one is written
MAX_SHARD = 5 * 10**9  # bytes of tensors in one file, as transformers saves them


@dataclass(frozen=True)
class Part:
    """Where elements of a checkpoint's tensor stand in the file: from element `begin` of a tensor on, in this order.

    offset: what the file has added to each; function: what it has done to each then.
    """

    name: str
    begin: int
    turn: Permutation | None
    offset: float
    function: Function = ""


@dataclass(frozen=True)
class Made:
    """A tensor of the checkpoint: its parts in the file; together they fill it."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Written:
    """What was written: the files, how many bytes of tensors, and which of them rounding changed."""

    files: tuple[Path, ...]
    tensors: int
    nbytes: int
    rounded: int


INVERSES: dict[str, Callable[[Any], Any]] = {"minus_exp": lambda x: np.log(-x)}
Tell = Callable[[str, int, int], None]


def made_of(wanted: Iterable[Wanted]) -> tuple[Made, ...]:
    """Return the checkpoint's tensors that the tensors of the file make up, in the order of the file."""
    parts: dict[str, list[Part]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for one in wanted:
        at = 0
        for source in one.sources:
            shapes[source] = one.shape
            for turn in one.turns or (None,):
                parts.setdefault(source, []).append(Part(one.name, at, turn, one.offset, one.function))
                at += math.prod(one.shape) if turn is None else turn.shape[0] * turn.taken
    return tuple(Made(name, shapes[name], tuple(found)) for name, found in parts.items())


def main_type(source: GgufCheckpoint) -> str:
    """Return the type that most numbers of the matrices have; BF16 for those in blocks."""
    counts: dict[str, int] = {}
    for stored in source.stored.values():
        if len(stored.shape) > 1:
            dtype = stored.dtype if stored.dtype in STORAGE else "BF16"
            counts[dtype] = counts.get(dtype, 0) + math.prod(stored.shape)
    return max(counts, key=lambda dtype: counts[dtype], default="F32")


def write_tensors(source: GgufCheckpoint, made: Sequence[Made], folder: Path, dtype: str, tell: Tell) -> Written:
    """Write the tensors in this type as one safetensors file, or as shards with their index.

    Raises: CheckpointError for a file that ends early, LossyExport for numbers that the type does not hold.
    """
    size = STORAGE[dtype].itemsize
    total = sum(one.elements for one in made) * size
    shards = list(_shards(made, size))
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
                    for data, lossy in _made(source, one, dtype, pool):
                        write_all(file, file.tell(), data)
                        changed |= lossy
                        done += data.nbytes
                        tell(one.name, done, total)
                    rounded += changed
    if len(shards) > 1:
        places = {one.name: path.name for path, shard in zip(files, shards, strict=True) for one in shard}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        (folder / names.SAFETENSORS_INDEX_JSON).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return Written(tuple(files), len(made), total, rounded)


def _shards(made: Sequence[Made], size: int) -> Iterator[list[Made]]:
    shard: list[Made] = []
    held = 0
    for one in made:
        nbytes = one.elements * size
        if shard and held + nbytes > MAX_SHARD:
            yield shard
            shard, held = [], 0
        shard.append(one)
        held += nbytes
    yield shard


# --- one tensor


def _made(source: GgufCheckpoint, one: Made, dtype: str, pool: Executor) -> Iterator[tuple[memoryview, bool]]:
    """Yield the bytes of a tensor, some units at a time, and whether rounding changed a number of them."""
    turns = [part.turn for part in one.parts if part.turn is not None]
    unit = turns[0].unit if turns else one.shape[-1]
    count = one.elements // unit
    stored = [source.stored[part.name] for part in one.parts]
    step = math.lcm(*(_step(each, part, unit) for each, part in zip(stored, one.parts, strict=True)))
    step *= max(1, CHUNK // (unit * step))

    def piece(begin: int) -> tuple[memoryview, bool]:
        units = min(step, count - begin)
        whole, lossy = np.empty(units * unit, STORAGE[dtype]), False
        for part, each in zip(one.parts, stored, strict=True):
            taken = unit if part.turn is None else part.turn.taken
            raw = _read(each, part.begin + begin * taken, units * taken)
            elements, changed = _converted(raw, each, part, dtype)
            lossy |= changed
            if part.turn is None:
                whole[:] = elements
            else:
                part.turn.put(elements, whole)
        return whole.data.cast("B"), lossy

    waiting: deque[Future[tuple[memoryview, bool]]] = deque()
    for begin in range(0, count, step):
        waiting.append(pool.submit(piece, begin))
        if len(waiting) > AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _step(stored: StoredTensor, part: Part, unit: int) -> int:
    """Return how many units make whole blocks of the file's type."""
    block = _block(stored)
    taken = unit if part.turn is None else part.turn.taken
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
    raw: npt.NDArray[np.uint8], stored: StoredTensor, part: Part, dtype: str
) -> tuple[npt.NDArray[Any], bool]:
    """Return the elements as they stand in the checkpoint, and whether rounding changed one that had a plain type."""
    if stored.dtype == dtype and not part.offset and not part.function:
        return raw.view(STORAGE[dtype]), False
    plain = stored.dtype in STORAGE
    found: npt.NDArray[Any]
    if plain:
        found = decode(raw.data, stored.dtype)
    else:
        found = decoded_blocks(raw.reshape(1, -1), ggml_type(stored.dtype), f"{stored.path}: {part.name}").reshape(-1)
    _check_finite(found, part, stored, CheckpointError("contains numbers that are not finite"))
    if part.function:
        found = INVERSES[part.function](found.astype(np.float64))
        _check_finite(found, part, stored, LossyExport("contains numbers that export cannot produce"))
    if part.offset:
        found = found.astype(np.float64) - part.offset
    with np.errstate(over="ignore"):
        elements = encode(found, dtype)
    back = decode(elements.data.cast("B"), dtype)
    _check_finite(
        back, part, stored, LossyExport(f"contains numbers too large for {dtype}", try_="--dtype bf16, or f32")
    )
    return elements, plain and not part.offset and not part.function and bool((back != found).any())


def _check_finite(found: npt.NDArray[Any], part: Part, stored: StoredTensor, error: RopetoolError) -> None:
    if not np.isfinite(found).all():
        error.where = f"{stored.path}: {part.name}"
        raise error


def _block(stored: StoredTensor) -> int:
    """Return how many numbers of a tensor are stored together."""
    return GGML_TYPES[ggml_type(stored.dtype)].block
