"""Which bytes of a checkpoint become which tensor of a GGUF file: names, types, shapes, places. Reads headers,
and of a tied checkpoint the head that it may store beside the embedding.

Every tensor of the checkpoint has its place in the model, with the shape that config.json asks for, or is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from ropetool.errors import CheckpointError, CorruptFile, LossyExport, UnsupportedDtype
from ropetool.families.tensors import Function
from ropetool.files.dtypes import STORAGE
from ropetool.files.gguf import ggml_type
from ropetool.files.gguf.tensors import TensorInfo, padded
from ropetool.files.hf import Header
from ropetool.files.regular import open_regular
from ropetool.gguf_model import fp8, mxfp4
from ropetool.gguf_model.outtypes import AUTO, BLOCKS, MXFP4_MOE, OUTTYPES, check_outtype, dtype_of, nbytes_of
from ropetool.gguf_model.shapes import Model, Wanted, tensors, unread
from ropetool.gguf_model.sources import Source
from ropetool.gguf_model.wrapped import left_out, text_names
from ropetool.weights.edits import RowChange

CHUNK = 1 << 20  # bytes that are compared at a time
ALIGNMENT = 32  # llama.cpp's, where a file does not state its own
_READ = (*STORAGE, *fp8.TABLES)
_AUTOMATIC = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "bf16", "F8_E5M2": "bf16"}
# Buffers that old checkpoints carry along; transformers computes them anew.
_COMPUTED = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor of the output: where it goes, and the sources that follow each other in it.

    dtype: the type to write. offset: what is added to each number, in float32; function: what is done to it then.
    """

    info: TensorInfo
    dtype: str
    sources: tuple[Source, ...]
    offset: float = 0.0
    function: Function = ""

    @property
    def made_of(self) -> list[str]:
        """The checkpoint's tensors that it is made of, each once."""
        return list(dict.fromkeys(source.stored.name for source in self.sources))


@dataclass(frozen=True)
class Layout:
    """All tensors of the output, in the order of the file.

    outtype: the type of the matrices, mxfp4_moe for experts in MXFP4 beside matrices that are not quantised.
    """

    outtype: str
    tensors: tuple[Placed, ...]
    notes: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """Where the next tensor would begin, from the start of the data."""
        return padded(self.tensors[-1].info.end, ALIGNMENT) if self.tensors else 0


def lay_out(
    headers: list[Header], model: Model, outtype: str, *, interleaved: bool, where: str, quantization: Any = None,
    gains: Mapping[str, RowChange] | None = None, wrapped: bool = False,
) -> Layout:  # fmt: skip
    """Return the layout of the output.

    `interleaved`: the runtime pairs neighbouring channels, where the checkpoint pairs those half a head apart.
    quantization: the config's quantization_config, which says how FP8 weights are scaled, and which experts are MXFP4.
    gains: what rows of tensors are multiplied by. wrapped: the checkpoint holds other models beside this one.
    Raises: CorruptFile where a tensor is missing or has another shape; LossyExport for one that has no place;
    UnsupportedDtype for a type that is not read; UnknownName for an outtype that is not written.
    """
    held = {
        name: Source(header.path, stored)
        for header in headers
        for name, stored in header.tensors.items()
        if not name.endswith(_COMPUTED)
    }
    kept = text_names(held) if wrapped else {name: name for name in held}
    others = left_out(held, kept)
    held = {kept[name]: source for name, source in held.items() if name in kept}
    gains = {kept[name]: change for name, change in (gains or {}).items()}
    held = mxfp4.paired(fp8.paired(held, quantization), quantization)
    held, model, head_notes = _tied(held, model.stored_as(held))
    held |= {name: replace(held[name], gains=change) for name, change in gains.items() if name in held}
    wanted = list(_checked(tensors(model, interleaved), held, where))
    drafts = _drafting(held, model)
    _refuse_others(held, wanted, drafts, model)
    chosen, notes = _outtype(outtype, [held[name] for one in wanted for name in one.sources])
    placed = tuple(_placed(wanted, held, chosen))
    packed = any(one.dtype == mxfp4.DTYPE for one in placed)
    said = (
        *notes, *others, *((mxfp4.NOTE,) if packed else ()), *head_notes, *_left_out(drafts), *_fallback_note(placed, chosen),
        *model.notes,
    )  # fmt: skip
    return Layout(MXFP4_MOE if packed and OUTTYPES[chosen].dtype in STORAGE else chosen, placed, said)


def _checked(wanted: Iterator[Wanted], held: Mapping[str, Source], where: str) -> Iterator[Wanted]:
    """Yield the tensors, each after its sources are found to be there, readable and of the right shape."""
    for one in wanted:
        for name in one.sources:
            source = held.get(name)
            if source is None:
                raise CorruptFile(f"no weight file contains {name}, which the config requires", where=where)
            if mxfp4.is_packed(source):
                mxfp4.check_shape(source, one.shape)
                continue
            if source.stored.dtype not in _READ or (source.stored.dtype in fp8.TABLES and source.scales is None):
                raise UnsupportedDtype(
                    f"{name} has type {source.stored.dtype}; supported: {', '.join(STORAGE)}, and FP8 with the "
                    "quant_method fp8 in quantization_config",
                    where=str(source.path),
                )
            if source.stored.shape != one.shape:
                raise CorruptFile(
                    f"{name} has shape {list(source.stored.shape)}; config.json requires {list(one.shape)}",
                    where=str(source.path),
                )
        yield one


def _drafting(held: Mapping[str, Source], model: Model) -> frozenset[str]:
    """Return the tensors that only draft tokens, in layers behind the last or beside all: transformers leaves them aside."""
    prefixes = tuple(f"{model.table.prefix}{model.layers + number}." for number in range(model.drafts))
    return frozenset(name for name in held if name.startswith((*prefixes, *model.table.drafting)))


def _refuse_others(held: Mapping[str, Source], wanted: list[Wanted], drafts: Set[str], model: Model) -> None:
    known = {name for one in wanted for name in one.sources} | drafts | {*unread(model)}
    others = sorted(held.keys() - known)
    if others:
        more = f" ({len(others) - 1} more)" if len(others) > 1 else ""
        raise LossyExport(
            f"a {model.arch} file with this config has no place for {others[0]}{more}",
            where=model.where, try_="merge the adapters, then export the plain model",
        )  # fmt: skip


def _tied(held: dict[str, Source], model: Model) -> tuple[dict[str, Source], Model, tuple[str, ...]]:
    """Return the tensors, the model and a note, with embedding and head tied as transformers ties what is stored.

    Source: transformers 5.23.0, PreTrainedModel.tie_weights.
    """
    embedding, head, tied = model.embedding, model.head, "tie_word_embeddings is true"
    if not model.tied or head not in held:
        return held, model, ()
    others = {name: source for name, source in held.items() if name != head}
    if embedding not in held:
        note = f"{head} is also used as the embedding: {tied}, and {embedding} is missing"
        return {**others, embedding: held[head]}, model, (note,)
    if _same(held[embedding], held[head]):
        return others, model, (f"{head} is left out: {tied}, and it equals the embedding",)
    differs = f"{tied}, but {head} differs from {embedding}"
    return held, model.untied(differs), (f"{differs}: the file keeps both, as transformers does",)


def _same(one: Source, other: Source) -> bool:
    """Return whether two tensors are stored alike, which says that their numbers are the same."""
    if (one.stored.dtype, one.stored.shape, one.scales) != (other.stored.dtype, other.stored.shape, other.scales):
        return False
    try:
        with open_regular(one.path) as first, open_regular(other.path) as second:
            first.seek(one.stored.begin)
            second.seek(other.stored.begin)
            sizes = range(one.stored.end - one.stored.begin, 0, -CHUNK)
            return all(first.read(min(CHUNK, left)) == second.read(min(CHUNK, left)) for left in sizes)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=str(one.path)) from error


def _left_out(drafts: Set[str]) -> Iterator[str]:
    if drafts:
        yield f"{len(drafts)} tensors of draft layers are left out; neither transformers nor llama.cpp uses them"


def _fallback_note(placed: tuple[Placed, ...], outtype: str) -> tuple[str, ...]:
    return narrow_note(
        [one for one in placed if one.dtype not in ("F32", mxfp4.DTYPE, OUTTYPES[outtype].dtype)], outtype
    )


def narrow_note(narrow: Sequence[Placed], outtype: str) -> tuple[str, ...]:
    """Return a note on matrices in a type other than the requested one, because their rows are not whole blocks."""
    if not narrow:
        return ()
    counts = Counter(one.dtype for one in narrow).most_common()
    types = " and ".join(f"{dtype} ({count})" if len(counts) > 1 else dtype for dtype, count in counts)
    return (
        f"{len(narrow)} tensors are stored in {types} instead of {outtype}, the first {narrow[0].info.name}: their rows do "
        f"not fit blocks of {BLOCKS[OUTTYPES[outtype].dtype]} numbers",
    )


def _outtype(outtype: str, sources: list[Source]) -> tuple[str, tuple[str, ...]]:
    """Return the type to write matrices in, and a note of what that rounds; auto is the type of most of the numbers."""
    check_outtype(outtype)
    numbers: Counter[str] = Counter()
    for source in sources:
        if len(source.stored.shape) > 1 and not mxfp4.is_packed(source):
            numbers[source.stored.dtype] += math.prod(source.stored.shape)
    chosen = outtype if outtype != AUTO else _AUTOMATIC.get(numbers.most_common(1)[0][0], "f32")
    rounded = sorted(numbers.keys() - {OUTTYPES[chosen].dtype} - ({"BF16", "F16"} if chosen == "f32" else set()))
    return chosen, (f"matrices in {', '.join(rounded)} are rounded to {chosen}",) if rounded else ()


def _placed(wanted: list[Wanted], held: Mapping[str, Source], outtype: str) -> Iterator[Placed]:
    offset = 0
    for one in wanted:
        dtype = mxfp4.DTYPE if mxfp4.is_packed(held[one.sources[0]]) else dtype_of(one.name, one.written, outtype)
        info = _info(one.name, one.written, dtype, offset)
        sources = tuple(
            replace(held[name], turn=mxfp4.turned(held[name], turn))
            for name in one.sources
            for turn in one.turns or (None,)
        )
        yield Placed(info, dtype, sources, one.offset, one.function)
        offset = padded(info.end, ALIGNMENT)


def _info(name: str, shape: tuple[int, ...], dtype: str, offset: int) -> TensorInfo:
    return TensorInfo(name, shape[::-1], ggml_type(dtype), offset, nbytes_of(dtype, math.prod(shape)))


def vector_infos(vectors: Mapping[str, Any], start: int) -> list[TensorInfo]:
    """Return the table entries of float32 vectors, the first one at `start` of the data."""
    infos: list[TensorInfo] = []
    for name, vector in vectors.items():
        infos.append(_info(name, vector.shape, "F32", padded(infos[-1].end, ALIGNMENT) if infos else start))
    return infos
