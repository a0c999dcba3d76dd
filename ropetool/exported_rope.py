"""The rotary part of a GGUF export: what the checkpoint computes, and the first encoding that llama.cpp reads as that.

Knows neither tensors nor tokenizers.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from ropetool import names, runtimes
from ropetool.encodings_gguf import GgufEncoding, gguf_encodings
from ropetool.errors import LossyExport, RopetoolError
from ropetool.formats.gguf import Patch, TensorInfo, Value, ValueType
from ropetool.runtimes import GgufView, HfView, NotKnown, Refuses
from ropetool.runtimes import llama_cpp_archs as keys
from ropetool.spec import LayerRope, RopeSet, is_number

RUNTIME, BASIS = "llama.cpp", "transformers"  # what reads the export, and what says what is exported


@dataclass(frozen=True)
class Rotation:
    """What the checkpoint computes, and what of it the file can be asked to hold.

    `source` is what transformers computes; `target` the same with llama.cpp's layout, the context that the scaling
    reaches, and without a window that makes no difference.
    """

    arch: str
    source: RopeSet
    target: RopeSet
    notes: tuple[str, ...]

    @property
    def interleaved(self) -> bool:
        """Whether rows move: llama.cpp pairs neighbouring channels, the checkpoint those half a head apart."""
        return self.source.entries[names.FULL_ATTENTION].layout != self.target.entries[names.FULL_ATTENTION].layout

    @property
    def head_dim(self) -> int:
        return self.source.entries[names.FULL_ATTENTION].head_dim


def rotation(source: RopeSet, arch: str, where: str, *, allow_full_attention: bool = False) -> Rotation:
    """Return the rotation of a checkpoint with one kind of layer, of which transformers computes `source`.

    Raises: LossyExport for a sliding window shorter than the context, unless full attention is allowed.
    """
    entry = source.entries[names.FULL_ATTENTION]
    context, context_notes = _context(source)
    window_notes = _window(entry.sliding_window, context, where, allow_full_attention)
    target = replace(source, max_position_embeddings=context).with_entry(
        names.FULL_ATTENTION, replace(entry, layout=keys.get(arch).layout, sliding_window=None)
    )
    return Rotation(arch, source, target, (*context_notes, *window_notes))


def _context(source: RopeSet) -> tuple[int, tuple[str, ...]]:
    """Return the context to state; YaRN's factor reaches beyond a max_position_embeddings that was left as it was."""
    entry, stated = source.entries[names.FULL_ATTENTION], source.max_position_embeddings
    original = entry.original_max_position_embeddings
    if entry.rope_type != "yarn" or original is None or entry.factor is None:
        return stated, ()
    reached = round(original * entry.factor)
    if reached <= stated:
        return stated, ()
    return reached, (
        f"context_length is {reached}, which YaRN's factor {entry.factor:g} reaches from {original}; config.json still "
        f"states max_position_embeddings {stated}",
    )


def _window(window: int | None, context: int, where: str, allowed: bool) -> tuple[str, ...]:
    """Return a note on a window that llama.cpp does not know of here."""
    if window is None:
        return ()
    if window >= context:
        return (f"llama.cpp ignores the sliding window of {window} tokens; a context of {context} stays inside it",)
    ignored = f"llama.cpp ignores the sliding window of {window} tokens and attends to the whole context of {context}"
    if not allowed:
        raise LossyExport(ignored, where=where, try_="--allow-full-attention, if the model is meant to bear it")
    return (f"{ignored}: beyond {window} tokens it computes something else than transformers",)


def encode(
    rotation: Rotation, values: Mapping[str, Value], infos: Sequence[TensorInfo], where: str
) -> tuple[GgufEncoding, tuple[str, ...]]:
    """Return the first encoding that llama.cpp decodes to the target, in a file of these keys and tensors; and notes.

    Raises: LossyExport with what llama.cpp would make of each.
    """
    target, arch = rotation.target, rotation.arch
    entry = target.entries[names.FULL_ATTENTION]
    assert entry.rope_theta is not None
    plain = GgufView(values, {info.name: info for info in infos}, _no_vector, where)
    rejected = []
    for encoding in gguf_encodings(target, arch, entry.rope_theta):
        reason = _difference(target, plain.after(Patch(set=encoding.keys, tensors=encoding.tensors)))
        if not reason:
            return encoding, _list_notes(target)
        rejected.append(f"{encoding.name} make it another table ({reason})")
    raise _lossy(entry, arch, rejected, where)


def read_exported(view: HfView) -> RopeSet:
    """Return what llama.cpp computes from our export of a checkpoint with this config.

    Raises: Refuses where there is no such export; NotKnown for a family that is not exported.
    """
    turned, _ = exported(view)
    return replace(turned.source, max_position_embeddings=turned.target.max_position_embeddings)


def exported(view: HfView) -> tuple[Rotation, GgufView]:
    """Return the rotation of a checkpoint with this config, and the rotary part of its export.

    Raises: Refuses where there is no such export; NotKnown for a family that is not exported.
    """
    arch = view.family.gguf_architecture
    if not arch:
        raise NotKnown(f"a {view.family.model_type} is not exported")
    source: RopeSet = runtimes.get(BASIS).decode(view)
    if set(source.entries) != {names.FULL_ATTENTION} or source.entries[names.FULL_ATTENTION].table is None:
        raise NotKnown("its kinds of layer are not exported")
    try:
        turned = rotation(source, arch, view.where)
        sizes = _sizes(turned)
        encoding, _ = encode(turned, sizes, [], view.where)
    except RopetoolError as error:
        raise Refuses(error.message) from None
    plain = GgufView(sizes, {}, _no_vector, view.where)
    return turned, plain.after(Patch(set=encoding.keys, tensors=encoding.tensors))


def _sizes(turned: Rotation) -> dict[str, Value]:
    """Return the keys beside the rotary ones that llama.cpp's reading of a rotation depends on."""
    arch, entry = turned.arch, turned.target.entries[names.FULL_ATTENTION]
    numbers = {
        keys.BLOCK_COUNT: len(entry.layers), keys.EMBEDDING_LENGTH: entry.head_dim, keys.HEAD_COUNT: 1,
        keys.KEY_LENGTH: entry.head_dim, keys.DIMENSION_COUNT: entry.rotary_dim,
    }  # fmt: skip
    values = {f"{arch}.{key}": Value.of(ValueType.U32, number) for key, number in numbers.items()}
    return {keys.ARCHITECTURE: Value.of(ValueType.STR, arch), **values}


def _difference(target: RopeSet, view: GgufView) -> str:
    try:
        found = runtimes.get(RUNTIME).decode(view)
    except (Refuses, RopetoolError) as refusal:
        return f"llama.cpp refuses with {refusal}"
    if found.max_position_embeddings != target.max_position_embeddings:
        return f"context {found.max_position_embeddings} instead of {target.max_position_embeddings}"
    return target.disagreement(found)


def _list_notes(target: RopeSet) -> tuple[str, ...]:
    table = target.entries[names.FULL_ATTENTION].table
    if table is None or len(table.regimes) == 1:
        return ()
    return (
        "llama.cpp takes the short or the long list by the context that it allocates, transformers by the length of "
        f"each text: they differ for texts of up to {table.regimes[0].up_to} tokens in a larger context",
    )


def _lossy(entry: LayerRope, arch: str, rejected: list[str], where: str) -> LossyExport:
    stated = ", ".join(f"{name} {value}" for name, value in entry.params.items() if is_number(value) or value is False)
    if entry.table is not None and entry.table.rule is not None:
        rejected = ["its table follows the length of the text, and a file holds one for all lengths"]
    elif not keys.get(arch).vectors:
        rejected.append(f"llama.cpp uses no frequency vectors for {arch}")
    source, factor = Path(where).parent, f"{entry.factor or 1:g}"
    return LossyExport(
        f"{arch} files cannot hold {entry.rope_type} scaling with {stated}: {'; '.join(rejected)}",
        where=where, try_=f"ropetool extend {shlex.quote(str(source))} --method yarn --factor {factor} --from original",
    )  # fmt: skip


def _no_vector(name: str) -> NoReturn:
    raise LossyExport(f"{name} is not among the tensors")
