"""The fold targets of a GGUF file: the steps of its family or of llama.cpp's graph, with sizes from the metadata."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

from ropetool import families, names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import LossyExport
from ropetool.families.family import Family, FoldStep
from ropetool.files.gguf import ValueType
from ropetool.rope.tables import RopeSet
from ropetool.runtimes.base import Refuses
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import folding, layers
from ropetool.runtimes.llama_cpp.architectures import Architecture
from ropetool.runtimes.llama_cpp.layers import ModelKeys, value_of
from ropetool.weights.bakeable import computed
from ropetool.weights.fold_targets import FoldTargets, cannot_bake

FUSED = "attn_qkv"  # [all queries, all keys, all values], regardless of the order in the checkpoint
FUSED_ROWS = ("fused_sides", "fused_heads")
_MLA_SIZES = {"q_lora_rank": "attention.q_lora_rank", "kv_lora_rank": "attention.kv_lora_rank"}
_INDEXER_SIZE = "attention.indexer.key_length"


def gguf_targets(model: GgufCheckpoint) -> FoldTargets:
    """Return the fold targets of a GGUF model.

    Raises: LossyExport if llama.cpp refuses the model, if its steps are unknown, or if a norm after the rotation or its
    graph makes bakes impossible.
    """
    rope = computed(model)
    try:
        return _targets(model, rope)
    except Refuses as refusal:  # about a key that only the rows need
        raise LossyExport(f"llama.cpp stops on this file: {refusal}", where=model.where) from None


def _targets(model: GgufCheckpoint, rope: RopeSet) -> FoldTargets:
    reader = ModelKeys.of(model)
    reason = folding.refusal(reader)
    if reason:
        raise cannot_bake(reader.arch.name, reason, model.where)
    family = _family(reader.arch, model.where)
    fused = _fused(model, rope)
    assert family.bake is not None

    def named(steps: tuple[FoldStep, ...], projection: str) -> tuple[FoldStep, ...]:
        return tuple(_renamed(family, step, projection, fused) for step in steps)

    bake = family.bake
    steps = replace(
        bake, layers=("blk.{layer}",), q=named(bake.q, folding.QUERIES), k=named(bake.k, folding.KEYS),
        score=named(bake.score, ""), indexer_k=named(bake.indexer_k, ""), k_plain=(), score_key="",
    )  # fmt: skip
    count = layers.layer_count(reader)
    config, own = _config(reader, count)
    without_attention = _without_attention(reader, count)
    rotating = _rotating(rope)
    if rotating and without_attention.issuperset(rotating):
        raise LossyExport(
            "is 0 for layers that rotate, so they have no keys to bake into", where=reader.where(archs.HEAD_COUNT_KV)
        )
    return FoldTargets(
        replace(family, bake=steps), config, rope, model.stored, {}, model.where, own,
        without_attention=without_attention,
        without_keys=_without_keys(reader, count),
    )  # fmt: skip


def _family(arch: Architecture, where: str) -> Family:
    """Return the family of files with this architecture, or a minimal family from llama.cpp's graph."""
    known = families.by_gguf_architecture()
    if arch.name in known:
        return known[arch.name]
    if arch.name not in folding.known():
        raise LossyExport(
            f"ropetool has no data on the queries and keys of {arch.name} files", where=where,
            try_="bake the checkpoint that it was converted from",
        )  # fmt: skip
    layout: Literal["half", "interleaved"] = "half" if arch.layout == "half" else "interleaved"
    return Family(arch.name, "", "", layout, mla=arch.name in folding.LATENT, bake=folding.steps(arch))


def _rotating(rope: RopeSet) -> list[int]:
    return [layer for entry in rope.entries.values() if entry.table is not None for layer in entry.layers]


def _fused(model: GgufCheckpoint, rope: RopeSet) -> bool:
    """Return whether the projections of the layers that rotate are in one tensor."""
    fused = any(f"blk.{layer}.{FUSED}.weight" in model.tensors for layer in _rotating(rope))
    lone = next((n for n in model.tensors if fused and re.fullmatch(r"blk\.\d+\.attn_[qk]\.bias", n)), None)
    if lone is not None:
        raise LossyExport(
            f"has fused projections and a separate {lone}, which bake does not support", where=model.where
        )
    return fused


def _renamed(family: Family, step: FoldStep, projection: str, fused: bool) -> FoldStep:
    """Return the step with the file's tensor names: one tensor for all projections or three.

    Its offset is 0, because the norms of gemma files already contain the 1.
    """
    name = family.gguf_name(step.tensor) if family.export is not None else step.tensor
    assert name is not None  # the loader of families checks this
    if name in (FUSED, projection) and step.rows in ("heads", *FUSED_ROWS):
        name, rows = (FUSED, "fused_sides") if fused else (projection, "heads")
        return replace(step, tensor=name, rows=rows)
    rows = "heads" if "{head}" in step.tensor else step.rows  # the norms of all heads are in one tensor
    return replace(step, tensor=name, rows=rows, offset=0.0)


# --- sizes


def _config(model: ModelKeys, count: int) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Return the sizes for row selectors, with the names of config.json, and the sizes of layers that differ."""
    every = {layer: _sizes_of(model, layer, count) for layer in range(count)}
    first = next((sizes for layer, sizes in every.items() if 0 not in _heads(model, layer)), every[0])
    config = {names.NUM_HIDDEN_LAYERS: count, names.HIDDEN_SIZE: int(model.need(archs.EMBEDDING_LENGTH)), **first}
    clamp = value_of(model.view, model.key(folding.CLAMP), ValueType.F32)
    config |= {folding.CLAMP: clamp} if clamp else {}
    if model.arch.name in folding.INDEXERS:
        config["index_head_dim"] = value_of(model.view, model.key(_INDEXER_SIZE), ValueType.U32)
        config.setdefault("qk_rope_head_dim", layers.rotary_dim(model, sliding=False))
    return config, {layer: sizes for layer, sizes in every.items() if sizes != first}


def _heads(model: ModelKeys, layer: int) -> tuple[int, int]:
    heads, kv_heads = (model.per_layer(suffix, layer) for suffix in (archs.HEAD_COUNT, archs.HEAD_COUNT_KV))
    return heads or 0, (heads or 0) if kv_heads is None else kv_heads


def _sizes_of(model: ModelKeys, layer: int, count: int) -> dict[str, Any]:
    heads, kv_heads = _heads(model, layer)
    sizes = {names.NUM_ATTENTION_HEADS: heads, names.NUM_KEY_VALUE_HEADS: kv_heads}
    if model.arch.name not in folding.LATENT:
        return sizes
    slides = layer in layers.sliding_layers(model, count)
    return {**sizes, **_latent_sizes(model, slides)}


def _latent_sizes(model: ModelKeys, slides: bool) -> dict[str, int | None]:
    """Return the sizes of MLA. In files from before the split of kv_b, key_length is the size of whole heads."""

    def read(suffix: str) -> int | None:
        own: int | None = value_of(model.view, model.key(f"{suffix}_swa"), ValueType.U32) if slides else None
        size: int | None = value_of(model.view, model.key(suffix), ValueType.U32)
        return size if own is None else own

    sizes = {key: read(suffix) for key, suffix in _MLA_SIZES.items()}
    whole = read(archs.KEY_LENGTH_MLA) or read(archs.KEY_LENGTH) or layers.head_dim(model)
    rotary = layers.rotary_dim(model, sliding=slides)
    return {**sizes, "qk_rope_head_dim": rotary, "qk_nope_head_dim": whole - rotary}


def _without_attention(model: ModelKeys, count: int) -> frozenset[int]:
    """Return the layers without heads, or whose tensors belong to an earlier layer."""
    stacks = folding.TWO_STACKS.get(model.arch.name)
    own = count if stacks is None else 2 * (value_of(model.view, model.key(stacks), ValueType.U32) or count)
    return frozenset(layer for layer in range(count) if layer >= own or 0 in _heads(model, layer))


def _without_keys(model: ModelKeys, count: int) -> frozenset[int]:
    """Return the last layers if they use the keys of other layers."""
    first = folding.LAYERS_WITH_KEYS.get(model.arch.name, count)
    if model.arch.name in folding.SHARE_LAST_KEYS:
        shared = value_of(model.view, model.key(folding.SHARED_KEY_LAYERS), ValueType.U32) or 0
        first = int(model.need(archs.BLOCK_COUNT)) - shared
    return frozenset(range(max(first, 0), count))
