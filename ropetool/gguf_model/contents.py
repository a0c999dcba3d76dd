"""The contents of a checkpoint's GGUF file: the tensors, then the keys, which depend on the tensors.

This module reads headers, config and tokenizer. It reads weights only to compare a tied head with the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import LossyExport, NotACheckpoint
from ropetool.files import linking
from ropetool.files.dtypes import STORAGE
from ropetool.files.gguf import Value
from ropetool.gguf_model import metadata
from ropetool.gguf_model.outtypes import AUTO, is_made_by_libllama
from ropetool.gguf_model.shapes import ModelShape, check_exported, read_model
from ropetool.gguf_model.tensors import Layout, Placed, lay_out
from ropetool.gguf_model.tokenizer import tokenizer_values
from ropetool.gguf_model.wrapped import text_config
from ropetool.names import QUANTIZATION_CONFIG
from ropetool.plans.formats import HfFormat
from ropetool.rope.deviation import Deviation
from ropetool.runtimes.llama_cpp import exported
from ropetool.runtimes.llama_cpp.encodings import GgufEncoding
from ropetool.weights.edits import RowChange


@dataclass(frozen=True, eq=False)
class Body:
    """The tensors of a checkpoint's GGUF file, with the model and the rotation that determine its keys.

    layout: the tensors in the order of the file.
    bakes: a phrase for each setting that is in the weights and not in the keys.
    notes: sentences on the checkpoint, the tensors and the rotation.
    """

    checkpoint: HfCheckpoint
    model: ModelShape
    rotation: exported.Rotation
    layout: Layout
    bakes: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Keys:
    """All keys of a checkpoint's GGUF file.

    tokenizer: the keys of the tokenizer, which `values` contains too.
    tokenizer_notes: notes about the tokenizer, which `notes` contains too.
    deviation: the difference between the tables of file and checkpoint; None if they are equal.
    """

    values: Mapping[str, Value]
    encoding: GgufEncoding
    tokenizer: Mapping[str, Value]
    tokenizer_notes: tuple[str, ...]
    notes: tuple[str, ...]
    deviation: Deviation | None


def check_source(checkpoint: HfCheckpoint) -> None:
    """Raise an error for a family without an export table, missing weights, or a link that leads out of the directory.

    Raises: LossyExport, NotACheckpoint, CheckpointError.
    """
    check_exported(checkpoint.family, checkpoint.where)
    check_weights(checkpoint)
    linking.check_links(checkpoint.path)  # the model card and the chat template become part of the file


def check_weights(checkpoint: HfCheckpoint) -> None:
    """Raise NotACheckpoint for a config without weights."""
    if checkpoint.directory.config_only:
        raise NotACheckpoint(
            "contains a config but no weights",
            where=str(checkpoint.path),
            try_="pass a directory with weights, *.safetensors",
        )


def body_of(
    checkpoint: HfCheckpoint,
    outtype: str = AUTO,
    *,
    rearch: str = "",
    allow_full_attention: bool = False,
    safe_to_shift: bool = False,
) -> Body:
    """Return the tensors of a checkpoint's GGUF file.

    The family must have an export table. The options are those of `export`.
    Raises: the errors of export_checkpoint for the config, the positions and the headers.
    """
    form, where = HfFormat.of(checkpoint, None), checkpoint.where
    rope = form.read(checkpoint.runtime).understood(where)
    gains: Mapping[str, RowChange] = {}
    words: tuple[str, ...] = ()
    if safe_to_shift:
        from ropetool.gguf_model.shift_safe import shift_safe  # other exports change no weights
        from ropetool.weights.opening import bakeable

        safe = shift_safe(bakeable(checkpoint).targets)
        rope, gains, words = safe.rope, safe.gains, safe.words
    rotation = exported.rotation(rope, checkpoint, rearch=rearch, allow_full_attention=allow_full_attention)
    model = read_model(
        checkpoint.family, text_config(checkpoint), rotation.arch, rotation.head_dim, rotation.rotary_dim, where
    )
    layout = _layout(checkpoint, model, outtype, rotation.interleaved, gains)
    return Body(
        checkpoint, model, rotation, layout, words, (*form.notes(), *layout.notes, *rotation.notes)
    )  # fmt: skip


def keys_of(body: Body, *, allow_inexact: bool) -> Keys:
    """Return all keys of the file with these tensors.

    Raises: the errors of export_checkpoint for the positions, the model card and the tokenizer.
    """
    checkpoint, model, layout = body.checkpoint, body.model, body.layout
    general, card_notes = metadata.general_values(checkpoint.path, model, layout)
    values = general | metadata.model_values(model, layout)
    encoding, rope_notes, deviation = _encoded(body, values, allow_inexact)
    tokenizer, token_notes = tokenizer_values(checkpoint.path, text_config(checkpoint), model.counts["vocabulary"])
    values, name_notes = metadata.loadable(values, tokenizer["tokenizer.ggml.tokens"])
    return Keys(
        values | dict(encoding.keys) | tokenizer, encoding, tokenizer, token_notes,
        (*rope_notes, *token_notes, *card_notes, *name_notes), deviation,
    )  # fmt: skip


def exported_keys(checkpoint: HfCheckpoint) -> GgufCheckpoint:
    """Return the keys of a checkpoint's GGUF file, without tensors.

    Raises: the errors of export_checkpoint.
    """
    check_source(checkpoint)
    keys = keys_of(body_of(checkpoint), allow_inexact=True)
    return GgufCheckpoint(keys.values, {}, _no_vector, where=str(checkpoint.path))


def _no_vector(name: str) -> Any:
    raise KeyError(name)


def exported_tensors(checkpoint: HfCheckpoint) -> tuple[Placed, ...]:
    """Return the tensors of a checkpoint's GGUF file in float32, without reading them. MXFP4 tensors keep their type.

    Raises: LossyExport if the family has no table; the errors of export_checkpoint for the config and the headers.
    """
    check_exported(checkpoint.family, checkpoint.where)
    return body_of(checkpoint, "f32", allow_full_attention=True).layout.tensors


def _encoded(
    body: Body, values: Mapping[str, Value], allow_inexact: bool
) -> tuple[GgufEncoding, tuple[str, ...], Deviation | None]:
    """Return the encoding of the positions, notes, and its deviation from the checkpoint; None if it is exact.

    Raises: LossyExport if no encoding is exact, with the deviation that allow_inexact would accept.
    """
    rotation, where = body.rotation, body.checkpoint.where
    infos = [placed.info for placed in body.layout.tensors]
    try:
        return (*exported.encode(rotation, values, infos, where), None)
    except LossyExport as refusal:
        nearest = exported.approximate(rotation, values, infos, where)
        if nearest is None:
            raise
        if not allow_inexact:
            step = f"--allow-inexact, which writes the nearest table for llama.cpp: {nearest.deviation}"
            refusal.try_ = f"{refusal.try_}; or {step}" if refusal.try_ else step
            raise
        note = f"the RoPE table differs from the checkpoint (--allow-inexact): {nearest.deviation}"
        return replace(nearest.encoding, name=f"{nearest.encoding.name}, inexact"), (note,), nearest.deviation


def _layout(
    checkpoint: HfCheckpoint, model: ModelShape, outtype: str, interleaved: bool, gains: Mapping[str, RowChange]
) -> Layout:
    """Return the layout of the file. gains: factors for the rows of key weights, by tensor name.

    For a type of libllama's quantiser: the layout of its input, with the least rounding.
    """
    headers, quantization = checkpoint.headers, checkpoint.config.get(QUANTIZATION_CONFIG)
    wrapped = checkpoint.family.wrapped

    def lay(outtype: str) -> Layout:
        return lay_out(
            headers, model, outtype, interleaved=interleaved, where=str(checkpoint.path), quantization=quantization,
            gains=gains, wrapped=wrapped,
        )  # fmt: skip

    if not is_made_by_libllama(outtype):
        return lay(outtype)
    layout = lay(AUTO)
    exact = lay("f32") if _rounds(layout) else layout
    return replace(exact, notes=(*exact.notes, f"matrices are quantised to {outtype} by llama.cpp's own quantiser"))


def _rounds(layout: Layout) -> bool:
    """Return whether the layout stores a matrix in fewer bits than the checkpoint, or than its computation needs."""
    return any(
        placed.dtype in STORAGE
        and placed.dtype != "F32"
        and (source.stored.dtype != placed.dtype or source.gains is not None)
        for placed in layout.tensors
        for source in placed.sources
    )
