"""The rotary part of a GGUF export: the rotation of a checkpoint, and the first encoding that llama.cpp reads as it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from ropetool import names, runtimes
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import ConfigError, LossyExport, RopetoolError, sentence_of
from ropetool.escaping import command, number
from ropetool.files.gguf import Patch, TensorInfo, Value, ValueType
from ropetool.rope.deviation import Deviation, deviation
from ropetool.rope.tables import TABLE_TOLERANCE, LayerRope, RopeSet, is_number
from ropetool.runtimes import NotHeld, NotKnown, Refuses
from ropetool.runtimes.decoded import first_that_serves
from ropetool.runtimes.hf_formulas import Layers, layers_of
from ropetool.runtimes.llama_cpp import architectures as keys
from ropetool.runtimes.llama_cpp import exported_layers
from ropetool.runtimes.llama_cpp.decoding import decode
from ropetool.runtimes.llama_cpp.encodings import (
    GgufEncoding,
    approximate_encodings,
    gguf_encodings,
    rotating_entry,
)

REARCH = {"qwen2": ("llama",)}  # its graph computes the same with other names, and uses frequency vectors


@dataclass(frozen=True)
class Rotation:
    """The rotation of a checkpoint, and the target for its GGUF file.

    arch: llama.cpp's name of the architecture.
    source: the tables that transformers computes.
    target: the same with llama.cpp's layout and layer types, the context length that the scaling reaches, and without
      windows that have no effect.
    keys: the keys for the layer types.
    notes: on the context length and on ignored windows.
    layers: the layers of the model.
    ignored_window: a window below the context length that llama.cpp ignores, in tokens; None without one.
    """

    arch: str
    source: RopeSet
    target: RopeSet
    keys: Mapping[str, Value]
    notes: tuple[str, ...]
    layers: Layers
    ignored_window: int | None = None

    @property
    def interleaved(self) -> bool:
        """Whether rows move: llama.cpp pairs neighbouring channels, and the checkpoint channels half a head apart."""
        return self._entry.layout == "half" and keys.get(self.arch).layout == "interleaved"

    @property
    def head_dim(self) -> int:
        return self._entry.head_dim

    @property
    def rotary_dim(self) -> int:
        return self._entry.rotary_dim

    @property
    def _entry(self) -> LayerRope:
        return self.source.entries[names.FULL_ATTENTION]


def rotation(source: RopeSet, view: HfCheckpoint, *, allow_full_attention: bool = False, rearch: str = "") -> Rotation:
    """Return the rotation of a checkpoint.

    source: the tables that transformers computes from it.
    allow_full_attention: ignore a sliding window below the context length if llama.cpp has none.
    rearch: the architecture of the file, one of REARCH; empty for the family's own.
    Raises: ConfigError for another `rearch`; LossyExport for a window that llama.cpp ignores.
    """
    arch = keys.get(_checked_arch(view.family.gguf_architecture, rearch))
    layers = layers_of(view.config, view.family, source, view.where)
    context, context_notes = reached_context(source)
    window_notes = exported_layers.window_notes(layers, arch, context, view.where, allow_full_attention)
    target = replace(
        source, max_position_embeddings=context, entries=exported_layers.entries(source, layers, arch, view.where)
    )
    layer_keys = exported_layers.layer_keys(target, layers, arch)
    ignored = layers.window if layers.sliding and not exported_layers.slides(arch, layers) else None
    return Rotation(
        arch.name, source, target, layer_keys, (*context_notes, *window_notes), layers,
        ignored if ignored is not None and ignored < context else None,
    )  # fmt: skip


def _checked_arch(own: str, rearch: str) -> str:
    if not rearch:
        return own
    if rearch not in REARCH.get(own, ()):
        able = ", ".join(f"{name} as {' or '.join(others)}" for name, others in REARCH.items())
        raise ConfigError(
            f"{own} models cannot be written as {rearch}: llama.cpp would compute something else; possible: {able}",
            where="--rearch",
        )  # fmt: skip
    return rearch


def reached_context(source: RopeSet) -> tuple[int, tuple[str, ...]]:
    """Return the context length of the file, and notes.

    YaRN's factor takes precedence over a smaller configured length.
    """
    entry, context = source.entries[names.FULL_ATTENTION], source.max_position_embeddings
    original = entry.original_max_position_embeddings
    if entry.rope_type != "yarn" or original is None or entry.factor is None:
        return context, ()
    reached = round(original * entry.factor)
    if reached <= context:
        return context, ()
    return reached, (
        f"context_length is {reached}, YaRN's factor {entry.factor:g} times {original}; max_position_embeddings in config.json "
        f"is still {context}",
    )


def encode(
    rotation: Rotation, values: Mapping[str, Value], infos: Sequence[TensorInfo], where: str
) -> tuple[GgufEncoding, tuple[str, ...]]:
    """Return the first encoding that llama.cpp decodes to the target, in a file with these keys and tensors, and notes.

    Raises: LossyExport with the result of each encoding, or if no layer rotates.
    """
    target, arch = rotation.target, rotation.arch
    entry = rotating_entry(target)
    if entry.rope_theta is None:  # an exaone4 that slides nowhere, say
        raise LossyExport(
            f"no layer of this {arch} model rotates, but llama.cpp always rotates {arch} files", where=where
        )
    plain = GgufCheckpoint({**values, **rotation.keys}, {info.name: info for info in infos}, _no_vector, where)

    def attempt(encoding: GgufEncoding) -> tuple[GgufEncoding | None, str]:
        objection = objection_to(target, plain.after(Patch(set=encoding.keys, tensors=encoding.tensors)))
        return (None, objection) if objection else (encoding, "")

    kept, tried = first_that_serves(gguf_encodings(target, arch, entry.rope_theta), attempt)
    if kept is not None:
        return replace(kept, keys={**rotation.keys, **kept.keys}), _list_notes(target)
    raise _lossy(target, arch, rejections(tried), where)


def rejections(tried: Sequence[tuple[GgufEncoding, str]]) -> list[str]:
    """Return why encodings were rejected, each with its difference."""
    return [f"{encoding.name} give a different table ({reason})" for encoding, reason in tried]


@dataclass(frozen=True)
class Approximation:
    """The encoding with the tables nearest to a target, and their deviation from it."""

    encoding: GgufEncoding
    deviation: Deviation


def approximate(
    rotation: Rotation, values: Mapping[str, Value], infos: Sequence[TensorInfo], where: str
) -> Approximation | None:
    """Return the encoding nearest to a target, in a file with these keys and tensors; None without one.

    The distance is the root mean square of rotated vectors (Deviation.rms). It includes factors, and it counts a pair
    that is off by many turns no more than a pair that is off by one. Only the tables may differ from the target:
    layers, windows, context and the factor on the whole score must be equal.
    """
    target, arch = rotation.target, rotation.arch
    entry = rotating_entry(target)
    if entry.rope_theta is None:
        return None
    plain = GgufCheckpoint({**values, **rotation.keys}, {info.name: info for info in infos}, _no_vector, where)
    best: Approximation | None = None
    for encoding in approximate_encodings(target, arch, entry.rope_theta):
        try:
            decoded = decode(plain.after(Patch(set=encoding.keys, tensors=encoding.tensors)))
        except (Refuses, RopetoolError):
            continue
        if decoded.max_position_embeddings != target.max_position_embeddings:
            continue
        apart = deviation(target, decoded)
        if apart is not None and (best is None or apart.rms < best.deviation.rms * (1 - TABLE_TOLERANCE)):
            best = Approximation(replace(encoding, keys={**rotation.keys, **encoding.keys}), apart)
    return best


def read_exported(view: HfCheckpoint) -> RopeSet:
    """Return the tables that llama.cpp computes from ropetool's export of a checkpoint.

    Raises: Refuses if there is no such export; NotKnown for a family without export.
    """
    turned, _ = exported(view)
    return replace(turned.source, max_position_embeddings=turned.target.max_position_embeddings)


def exported(view: HfCheckpoint) -> tuple[Rotation, GgufCheckpoint]:
    """Return the rotation of a checkpoint, and the rotary part of its export.

    Raises: Refuses if there is no such export; NotKnown for a family without export.
    """
    arch = view.family.gguf_architecture
    if not arch:
        raise NotKnown(f"ropetool does not export {view.family.name} models")
    source: RopeSet = runtimes.decode(view.runtime, view)
    try:
        turned = rotation(source, view)
        sizes = _sizes(turned)
        encoding, _ = encode(turned, sizes, [], view.where)
    except LossyExport as error:
        raise NotHeld(error.message) from None
    except RopetoolError as error:
        raise Refuses(error.message) from None
    plain = GgufCheckpoint(sizes, {}, _no_vector, view.where)
    return turned, plain.after(Patch(set=encoding.keys, tensors=encoding.tensors))


def _sizes(turned: Rotation) -> dict[str, Value]:
    """Return the other keys that llama.cpp needs to compute the rotation, such as sizes and layers."""
    arch, entry = turned.arch, rotating_entry(turned.target)
    numbers = {
        keys.BLOCK_COUNT: turned.layers.count, keys.EMBEDDING_LENGTH: entry.head_dim, keys.HEAD_COUNT: 1,
        keys.KEY_LENGTH: entry.head_dim, keys.DIMENSION_COUNT: entry.rotary_dim,
    }  # fmt: skip
    sliding = turned.target.entries.get(names.SLIDING_ATTENTION)
    if sliding is not None and sliding.head_dim != entry.head_dim:
        numbers |= {keys.KEY_LENGTH_SWA: sliding.head_dim, keys.DIMENSION_COUNT_SWA: sliding.rotary_dim}
    values = {f"{arch}.{key}": Value.of(ValueType.U32, number) for key, number in numbers.items()}
    if turned.layers.stateful:
        stateful = [layer in turned.layers.stateful for layer in range(turned.layers.count)]
        heads = Value.array(ValueType.I32, [int(not one) for one in stateful])
        values |= {
            f"{arch}.{keys.RECURRENT_LAYERS}": Value.array(ValueType.BOOL, stateful), f"{arch}.{keys.HEAD_COUNT_KV}": heads,
        }  # fmt: skip
    return {keys.ARCHITECTURE: Value.of(ValueType.STR, arch), **values}


def objection_to(target: RopeSet, model: GgufCheckpoint) -> str:
    """Return how llama.cpp's reading of a file differs from the target; empty if it is equal."""
    try:
        decoded = decode(model)
    except (Refuses, RopetoolError) as refusal:
        return f"llama.cpp stops with {sentence_of(refusal)}"
    return target.mismatch(decoded)


def _list_notes(target: RopeSet) -> tuple[str, ...]:
    table = rotating_entry(target).table
    if table is None or len(table.regimes) == 1:
        return ()
    return (
        "llama.cpp chooses between the two lists by its context size, transformers by the length of each text: results "
        f"differ for texts of up to {table.regimes[0].up_to} tokens in a larger context",
    )


def _lossy(target: RopeSet, arch: str, rejected: list[str], where: str) -> LossyExport:
    entry = rotating_entry(target)
    settings = ", ".join(
        f"{name} {value}" for name, value in entry.params.items() if is_number(value) or value is False
    )
    if entry.table is not None and entry.table.rule is not None:
        rejected = ["its table depends on the length of the text, but a file stores one table for all lengths"]
    elif not keys.get(arch).vectors:
        rejected.append(f"llama.cpp does not use frequency vectors for {arch}")
    elif not rejected:
        rejected = [f"for {arch}, llama.cpp uses one frequency vector at all lengths, not a short and a long list"]
    what = f"{entry.rope_type} scaling with {settings}" if settings else f"a rope_theta of {entry.rope_theta:g} here"
    source = Path(where).parent
    fixed = entry.table is not None and entry.table.rule is None and len(entry.table.regimes) == 1
    if fixed and arch in REARCH:
        remedy = (
            f"{command('ropetool', 'export', source, '--rearch', REARCH[arch][0])}, whose files can store any table"
        )
    else:
        factor = number(entry.factor or 1)
        remedy = command("ropetool", "extend", source, "--method", "yarn", "--factor", factor, "--from", "original")
    return LossyExport(f"{arch} files cannot store {what}: {'; '.join(rejected)}", where=where, try_=remedy)


def _no_vector(name: str) -> NoReturn:
    raise LossyExport(f"{name} is not among the tensors")
