"""Which bytes of a checkpoint become which tensor of a GGUF file: names, types, shapes, places. Reads headers only.

Every tensor of the checkpoint has its place in the model, with the shape that config.json asks for, or is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.errors import CorruptFile, LossyExport, UnknownName, UnsupportedDtype
from ropetool.exporting.sizes import HEAD, Sizes, Wanted, tensors
from ropetool.formats.dtypes import STORAGE
from ropetool.formats.gguf.kinds import GGML_TYPES
from ropetool.formats.gguf.tensors import TensorInfo, padded
from ropetool.formats.hf import Header
from ropetool.formats.hf import TensorInfo as Stored

ALIGNMENT = 32  # llama.cpp's, where a file does not state its own
OUTTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
AUTO = "auto"
_GGML = {kind.name: number for number, kind in GGML_TYPES.items()}
# Buffers that old checkpoints carry along; transformers computes them anew.
_COMPUTED = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of the checkpoint, and the file that holds it."""

    path: Path
    stored: Stored


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor of the output: where it goes, and the sources that follow each other in it.

    dtype: the type to write. head_dim: the rows change from the half to the interleaved layout within heads of this
    many; 0 for rows that stay in place.
    """

    info: TensorInfo
    dtype: str
    sources: tuple[Source, ...]
    head_dim: int = 0


@dataclass(frozen=True)
class Layout:
    """All tensors of the output, in the order of the file; `outtype` is the type of the matrices."""

    outtype: str
    tensors: tuple[Placed, ...]
    notes: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """Where the next tensor would begin, from the start of the data."""
        return padded(self.tensors[-1].info.end, ALIGNMENT)


def lay_out(headers: list[Header], s: Sizes, outtype: str, *, interleaved: bool, where: str) -> Layout:
    """Return the layout of the output.

    `interleaved`: the runtime pairs neighbouring channels, where the checkpoint pairs those half a head apart.
    Raises: CorruptFile where a tensor is missing or has another shape; LossyExport for one that has no place;
    UnsupportedDtype for a type that is not read; UnknownName for an outtype that is not written.
    """
    held = {
        name: Source(header.path, stored)
        for header in headers
        for name, stored in header.tensors.items()
        if not name.endswith(_COMPUTED)
    }
    wanted = list(_checked(tensors(s), held, where))
    _refuse_others(held, wanted, s, where)
    chosen, notes = _outtype(outtype, [held[name] for one in wanted for name in one.sources])
    return Layout(chosen, tuple(_placed(wanted, held, s, chosen, interleaved)), (*notes, *_tied_note(held, s)))


def _checked(wanted: Iterator[Wanted], held: Mapping[str, Source], where: str) -> Iterator[Wanted]:
    """Yield the tensors, each after its sources are found to be there, readable and of the right shape."""
    for one in wanted:
        for name in one.sources:
            source = held.get(name)
            if source is None:
                raise CorruptFile(f"no weight file holds {name}, which its config asks for", where=where)
            if source.stored.dtype not in STORAGE:
                raise UnsupportedDtype(
                    f"{name} has type {source.stored.dtype}; types that can be read are {', '.join(STORAGE)}",
                    where=str(source.path),
                )
            if source.stored.shape != one.shape:
                raise CorruptFile(
                    f"{name} has shape {list(source.stored.shape)}, and config.json asks for {list(one.shape)}",
                    where=str(source.path),
                )
        yield one


def _refuse_others(held: Mapping[str, Source], wanted: list[Wanted], s: Sizes, where: str) -> None:
    known = {name for one in wanted for name in one.sources} | ({HEAD} if s.tied else set())
    others = sorted(held.keys() - known)
    if others:
        more = f", nor have {len(others) - 1} others" if len(others) > 1 else ""
        raise LossyExport(
            f"{others[0]} has no place in a {s.arch} file of this config{more}",
            where=where, try_="export a checkpoint of the plain model, adapters merged",
        )  # fmt: skip


def _tied_note(held: Mapping[str, Source], s: Sizes) -> tuple[str, ...]:
    if not (s.tied and HEAD in held):
        return ()
    return (f"{HEAD} is left out: tie_word_embeddings is true, so the embedding serves as the head",)


def _outtype(outtype: str, sources: list[Source]) -> tuple[str, tuple[str, ...]]:
    """Return the type to write matrices in, and a note of what that rounds; auto is the type of most of the numbers."""
    if outtype not in (*OUTTYPES, AUTO):
        known = ", ".join((AUTO, *OUTTYPES))
        raise UnknownName(f"{outtype!r} is no type that is written; known: {known}", where="--outtype")
    numbers: Counter[str] = Counter()
    for source in sources:
        if len(source.stored.shape) > 1:
            numbers[source.stored.dtype] += math.prod(source.stored.shape)
    most = numbers.most_common(1)[0][0]
    chosen = outtype if outtype != AUTO else {dtype: name for name, dtype in OUTTYPES.items()}.get(most, "f32")
    rounded = sorted(numbers.keys() - {OUTTYPES[chosen]} - ({"BF16", "F16"} if chosen == "f32" else set()))
    return chosen, (f"matrices in {', '.join(rounded)} are rounded to {chosen}",) if rounded else ()


def _placed(
    wanted: list[Wanted], held: Mapping[str, Source], s: Sizes, outtype: str, interleaved: bool
) -> Iterator[Placed]:
    import gguf

    arch = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == s.arch)
    names = gguf.get_tensor_name_map(arch, s.layers)
    offset = 0
    for one in wanted:
        name = names.get_name(one.mapped, try_suffixes=(".weight", ".bias"))
        dtype = _dtype(name, one.full_shape, outtype)
        info = _info(name, one.full_shape, dtype, offset)
        yield Placed(
            info, dtype, tuple(held[source] for source in one.sources),
            head_dim=s.head_dim if one.rotating and interleaved else 0,
        )  # fmt: skip
        offset = padded(info.end, ALIGNMENT)


def _dtype(name: str, shape: tuple[int, ...], outtype: str) -> str:
    """Return the type to write: llama.cpp computes with vectors, norms and expert gates in F32 alone."""
    alone = len(shape) == 1 or name.endswith(("_norm.weight", "ffn_gate_inp.weight"))
    return "F32" if alone else OUTTYPES[outtype]


def _info(name: str, shape: tuple[int, ...], dtype: str, offset: int) -> TensorInfo:
    return TensorInfo(name, shape[::-1], _GGML[dtype], offset, math.prod(shape) * STORAGE[dtype].itemsize)


def vector_infos(vectors: Mapping[str, Any], start: int) -> list[TensorInfo]:
    """Return the table entries of float32 vectors, the first one at `start` of the data."""
    infos: list[TensorInfo] = []
    for name, vector in vectors.items():
        infos.append(_info(name, vector.shape, "F32", padded(infos[-1].end, ALIGNMENT) if infos else start))
    return infos
