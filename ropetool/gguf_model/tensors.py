"""The layout of a GGUF file: each tensor's name, type, shape and place, and the checkpoint tensors that it comes from.

`lay_out` reads headers. It reads weights only if a tied checkpoint stores both embedding and head, to compare them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from ropetool import packed
from ropetool.errors import CorruptFile, LossyExport, UnsupportedDtype
from ropetool.families.tensors import Function
from ropetool.files.dtypes import STORAGE
from ropetool.files.gguf import ggml_type
from ropetool.files.gguf.entries import TensorInfo, padded
from ropetool.files.hf import Header
from ropetool.files.regular import open_regular, unreadable
from ropetool.gguf_model import mxfp4
from ropetool.gguf_model.outtypes import AUTO, BLOCKS, MXFP4_MOE, OUTTYPES, check_outtype, dtype_of, nbytes_of
from ropetool.gguf_model.shapes import ExpectedTensor, ModelShape, tensors, unread
from ropetool.gguf_model.sources import SourceTensor
from ropetool.gguf_model.wrapped import left_out, text_names
from ropetool.weights.edits import RowChange

CHUNK = 1 << 20  # bytes that are compared at a time
ALIGNMENT = 32  # llama.cpp's default, in bytes
_AUTOMATIC = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
# Buffers in old checkpoints, which transformers computes again.
_COMPUTED = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor of the output, with the source tensors that follow each other in it.

    info: its entry in the tensor table of the file.
    dtype: the type to write.
    sources: tensors of the checkpoint, or parts of them, in order.
    offset: added to each number in float32.
    function: applied to each number after the offset; empty for none.
    """

    info: TensorInfo
    dtype: str
    sources: tuple[SourceTensor, ...]
    offset: float = 0.0
    function: Function = ""

    @property
    def source_names(self) -> list[str]:
        """The names of its source tensors in the checkpoint, without duplicates."""
        return list(dict.fromkeys(source.stored.name for source in self.sources))


@dataclass(frozen=True)
class Layout:
    """All tensors of the output, in the order of the file.

    outtype: the type of the matrices; mxfp4_moe for experts in MXFP4 and matrices that are not quantised.
    """

    outtype: str
    tensors: tuple[Placed, ...]
    notes: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """The place of a further tensor, in bytes from the start of the data."""
        return padded(self.tensors[-1].info.end, ALIGNMENT) if self.tensors else 0


def lay_out(
    headers: list[Header], model: ModelShape, outtype: str, *, interleaved: bool, where: str, quantization: Any = None,
    gains: Mapping[str, RowChange] | None = None, wrapped: bool = False,
) -> Layout:  # fmt: skip
    """Return the layout of the output.

    interleaved: whether the runtime pairs neighbouring channels, but the checkpoint pairs channels half a head apart.
    quantization: the quantization_config of the config. It describes packed weights.
    gains: factors for the rows of tensors, by tensor name.
    wrapped: whether the checkpoint also contains other models, such as a vision model.
    Raises: CorruptFile if a tensor is missing or has a different shape; LossyExport for a tensor without a place in the
    model; UnsupportedDtype for an unsupported type of a tensor; UnknownName for an unknown outtype.
    """
    held = {
        name: SourceTensor(header.path, stored)
        for header in headers
        for name, stored in header.tensors.items()
        if not name.endswith(_COMPUTED)
    }
    held = _unpacked(held, quantization)
    kept = text_names(held) if wrapped else {name: name for name in held}
    others = left_out(held, kept)
    held = {kept[name]: source for name, source in held.items() if name in kept}
    gains = {kept[name]: change for name, change in (gains or {}).items()}
    held = mxfp4.paired(held, quantization)
    held, model, head_notes = _tied(held, model.stored_as(held))
    held |= {name: replace(held[name], gains=change) for name, change in gains.items() if name in held}
    expected = list(_checked(tensors(model, interleaved), held, where))
    drafts = _drafting(held, model)
    _refuse_others(held, expected, drafts, model)
    chosen, type_notes = _outtype(outtype, [held[name] for one in expected for name in one.sources])
    placed = tuple(_placed(expected, held, chosen))
    packed = any(one.dtype == mxfp4.DTYPE for one in placed)
    notes = (
        *type_notes, *others, *((mxfp4.NOTE,) if packed else ()), *head_notes, *_left_out(drafts),
        *_fallback_note(placed, chosen), *model.notes,
    )  # fmt: skip
    return Layout(MXFP4_MOE if packed and OUTTYPES[chosen].dtype in STORAGE else chosen, placed, notes)


def _unpacked(held: Mapping[str, SourceTensor], quantization: Any) -> dict[str, SourceTensor]:
    """Return the tensors by name, with packed matrices under the name of the plain weight. Raises: as PackedFormat.unpack."""
    form = packed.of(quantization)
    if form is None or form.unpack is None:
        return dict(held)
    unpacked = form.unpack(held, quantization)
    others = {name: source for name, source in held.items() if name not in unpacked.used}
    matrices = {
        name: SourceTensor(part.path, part.stored, unpacking=unpacking)
        for name, (part, unpacking) in unpacked.matrices.items()
    }
    return others | matrices


def _checked(
    expected: Iterator[ExpectedTensor], held: Mapping[str, SourceTensor], where: str
) -> Iterator[ExpectedTensor]:
    """Yield the expected tensors after checking that their sources exist, have a known type and the right shape."""
    for one in expected:
        for name in one.sources:
            source = held.get(name)
            if source is None:
                raise CorruptFile(f"no weight file contains {name}, which the config requires", where=where)
            if mxfp4.is_packed(source):
                mxfp4.check_shape(source, one.shape)
                continue
            if source.stored.dtype not in STORAGE and source.unpacking is None:
                raise UnsupportedDtype(
                    f"{name} has type {source.stored.dtype}; supported: {', '.join(STORAGE)}, and FP8 with the "
                    "quant_method fp8 in quantization_config",
                    where=str(source.path),
                )
            if source.shape != one.shape:
                raise CorruptFile(
                    f"{name} has shape {list(source.shape)}; config.json requires {list(one.shape)}",
                    where=str(source.path),
                )
        yield one


def _drafting(held: Mapping[str, SourceTensor], model: ModelShape) -> frozenset[str]:
    """Return the names of tensors that only draft tokens, which transformers ignores: layers after the last one, and
    the tensors of `table.drafting`.
    """
    prefixes = tuple(f"{model.table.prefix}{model.layers + number}." for number in range(model.drafts))
    return frozenset(name for name in held if name.startswith((*prefixes, *model.table.drafting)))


def _refuse_others(
    held: Mapping[str, SourceTensor], expected: list[ExpectedTensor], drafts: Set[str], model: ModelShape
) -> None:
    known = {name for one in expected for name in one.sources} | drafts | {*unread(model)}
    others = sorted(held.keys() - known)
    if others:
        more = f" ({len(others) - 1} more)" if len(others) > 1 else ""
        raise LossyExport(
            f"a {model.arch} file with this config has no place for {others[0]}{more}",
            where=model.where, try_="merge the adapters, then export the plain model",
        )  # fmt: skip


def _tied(
    held: dict[str, SourceTensor], model: ModelShape
) -> tuple[dict[str, SourceTensor], ModelShape, tuple[str, ...]]:
    """Return the tensors, the model and a note, after tying embedding and head as transformers does for these tensors.

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


def _same(one: SourceTensor, other: SourceTensor) -> bool:
    """Return whether two tensors are not packed and have the same type, shape and bytes."""
    if (one.stored.dtype, one.stored.shape) != (other.stored.dtype, other.stored.shape) or one.others or other.others:
        return False
    try:
        with open_regular(one.path) as first, open_regular(other.path) as second:
            first.seek(one.stored.begin)
            second.seek(other.stored.begin)
            sizes = range(one.stored.end - one.stored.begin, 0, -CHUNK)
            return all(first.read(min(CHUNK, left)) == second.read(min(CHUNK, left)) for left in sizes)
    except OSError as error:
        raise unreadable(error, str(one.path)) from error


def _left_out(drafts: Set[str]) -> Iterator[str]:
    if drafts:
        yield f"{len(drafts)} tensors of draft layers are left out; neither transformers nor llama.cpp uses them"


def _fallback_note(placed: tuple[Placed, ...], outtype: str) -> tuple[str, ...]:
    return narrow_note(
        [one for one in placed if one.dtype not in ("F32", mxfp4.DTYPE, OUTTYPES[outtype].dtype)], outtype
    )


def narrow_note(narrow: Sequence[Placed], outtype: str) -> tuple[str, ...]:
    """Return a note on matrices of a type other than the requested one, because their rows do not fit its blocks."""
    if not narrow:
        return ()
    counts = Counter(one.dtype for one in narrow).most_common()
    types = " and ".join(f"{dtype} ({count})" if len(counts) > 1 else dtype for dtype, count in counts)
    return (
        f"{len(narrow)} tensors are stored in {types} instead of {outtype}, the first {narrow[0].info.name}: their rows do "
        f"not fit blocks of {BLOCKS[OUTTYPES[outtype].dtype]} numbers",
    )


def _outtype(outtype: str, sources: list[SourceTensor]) -> tuple[str, tuple[str, ...]]:
    """Return the type of the matrices, and a note if this type rounds them. `auto` is the type of most numbers.

    Packed numbers are unpacked as float32, so f32 does not round them.
    """
    check_outtype(outtype)
    numbers: Counter[str] = Counter()
    nearest, within_f32 = dict(_AUTOMATIC), {"BF16", "F16"}
    for source in sources:
        if len(source.shape) > 1 and not mxfp4.is_packed(source):
            numbers[source.dtype] += math.prod(source.shape)
            if source.unpacking is not None:
                nearest[source.dtype] = source.unpacking.nearest
                within_f32.add(source.dtype)
    chosen = outtype if outtype != AUTO else nearest.get(numbers.most_common(1)[0][0], "f32")
    rounded = sorted(numbers.keys() - {OUTTYPES[chosen].dtype} - (within_f32 if chosen == "f32" else set()))
    return chosen, (f"matrices in {', '.join(rounded)} are rounded to {chosen}",) if rounded else ()


def _placed(expected: list[ExpectedTensor], held: Mapping[str, SourceTensor], outtype: str) -> Iterator[Placed]:
    offset = 0
    for one in expected:
        dtype = mxfp4.DTYPE if mxfp4.is_packed(held[one.sources[0]]) else dtype_of(one.name, one.written, outtype)
        info = _info(one.name, one.written, dtype, offset)
        sources = tuple(
            replace(held[name], order=mxfp4.reordered(held[name], order))
            for name in one.sources
            for order in one.orders or (None,)
        )
        yield Placed(info, dtype, sources, one.offset, one.function)
        offset = padded(info.end, ALIGNMENT)


def _info(name: str, shape: tuple[int, ...], dtype: str, offset: int) -> TensorInfo:
    return TensorInfo(name, shape[::-1], ggml_type(dtype), offset, nbytes_of(dtype, math.prod(shape)))


def vector_infos(vectors: Mapping[str, Any], start: int) -> list[TensorInfo]:
    """Return the entries of float32 vectors for the tensor table. The first vector is at byte `start` of the data."""
    infos: list[TensorInfo] = []
    for name, vector in vectors.items():
        infos.append(_info(name, vector.shape, "F32", padded(infos[-1].end, ALIGNMENT) if infos else start))
    return infos
