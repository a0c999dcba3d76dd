"""Where a GGUF file can carry a change: its family's steps under llama.cpp's names, with the sizes from its metadata.

Knows tensor names and keys, not what a change does to them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ropetool import families, names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import LossyExport
from ropetool.families import Family, FoldStep, FoldSteps
from ropetool.files.gguf import ValueType
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import layers
from ropetool.runtimes.llama_cpp.layers import Model, value_of
from ropetool.weights.bakeable import computed
from ropetool.weights.fold_targets import FoldTargets

FUSED = "attn_qkv"  # [all queries, all keys, all values], whatever order the checkpoint had
_MLA_SIZES = {"q_lora_rank": "attention.q_lora_rank", "kv_lora_rank": "attention.kv_lora_rank"}


def gguf_targets(model: GgufCheckpoint) -> FoldTargets:
    """Return a GGUF model as bakes look at it.

    Raises: LossyExport if llama.cpp refuses the model, or its steps are not known.
    """
    rope = computed(model)
    reader = Model.of(model)
    family = _family(reader.arch.name, model.where)
    steps = _steps(family, model)
    return FoldTargets(replace(family, bake=steps), _config(reader), rope, model.stored, {}, model.where)


def _family(arch: str, where: str) -> Family:
    known = families.by_gguf_architecture()
    if arch not in known:
        raise LossyExport(
            f"it is not known where files of {arch} make their queries and keys; known: {', '.join(known)}", where=where,
            try_="bake the checkpoint that it was converted from",
        )  # fmt: skip
    return known[arch]


def _steps(family: Family, model: GgufCheckpoint) -> FoldSteps:
    """Return the family's steps under the names of the file; a file may hold the projections in one tensor."""
    assert family.bake is not None
    fused = any(re.fullmatch(rf"blk\.\d+\.{FUSED}\.weight", name) for name in model.tensors)
    lone = next((n for n in model.tensors if fused and re.fullmatch(r"blk\.\d+\.attn_[qk]\.bias", n)), None)
    if lone is not None:
        raise LossyExport(f"has projections in one tensor and {lone} beside it", where=model.where)
    bake = family.bake
    return FoldSteps(
        layers=("blk.{layer}",), q=_named(family, bake.q, fused), k=_named(family, bake.k, fused),
        score=_named(family, bake.score, fused), clip_key=bake.clip_key, refused=bake.refused,
    )  # fmt: skip


def _named(family: Family, steps: tuple[FoldStep, ...], fused: bool) -> tuple[FoldStep, ...]:
    return tuple(_renamed(family, step, fused) for step in steps)


def _renamed(family: Family, step: FoldStep, fused: bool) -> FoldStep:
    """Return the step as the file has it: gemma's 1 is already added to its norms."""
    name = family.gguf_name(step.tensor)
    assert name is not None  # the loader of families has seen to it
    if name == FUSED or (fused and step.tensor in ("q_proj", "k_proj")):
        return replace(step, tensor=FUSED, rows="fused_sides")
    return replace(step, tensor=name, offset=0.0)


def _config(model: Model) -> dict[str, Any]:
    """Return the sizes that row selectors count with, under the names of config.json."""
    count = layers.layer_count(model)
    heads = _same(model, archs.HEAD_COUNT, count)
    config = {
        names.NUM_HIDDEN_LAYERS: count, names.HIDDEN_SIZE: int(model.need(archs.EMBEDDING_LENGTH)),
        names.NUM_ATTENTION_HEADS: heads, names.NUM_KEY_VALUE_HEADS: _same(model, archs.HEAD_COUNT_KV, count) or heads,
    }  # fmt: skip
    clamp = value_of(model.view, model.key("attention.clamp_kqv"), ValueType.F32)
    config |= {"clip_qkv": clamp} if clamp else {}
    return config | (_mla_sizes(model) if model.arch.mla else {})


def _same(model: Model, suffix: str, count: int) -> int | None:
    found = {model.per_layer(suffix, layer) for layer in range(count)}
    if len(found) > 1:
        raise LossyExport("differs from layer to layer", where=model.where(suffix))
    return found.pop()


def _mla_sizes(model: Model) -> dict[str, int | None]:
    """Return the sizes of MLA; files from before the split of kv_b state whole heads in key_length."""

    def read(suffix: str) -> int | None:
        found: int | None = value_of(model.view, model.key(suffix), ValueType.U32)
        return found

    sizes = {key: read(suffix) for key, suffix in _MLA_SIZES.items()}
    whole = read("attention.key_length_mla") or int(model.need(archs.KEY_LENGTH))
    rotary = layers.rotary_dim(model, sliding=False)
    return {**sizes, "qk_rope_head_dim": rotary, "qk_nope_head_dim": whole - rotary}
