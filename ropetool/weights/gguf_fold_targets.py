"""Where a GGUF file can carry a change: its family's sites under llama.cpp's names, with the sizes from its metadata.

Knows tensor names and keys, not what a change does to them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from ropetool import families, names
from ropetool.checkpoint.views import GgufView
from ropetool.errors import LossyExport
from ropetool.families import BakeSites, Family, Stage
from ropetool.files.gguf import ValueType
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import Refuses
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import decoding, layers
from ropetool.runtimes.llama_cpp.layers import Model, value_of
from ropetool.weights.fold_targets import View

FUSED = "attn_qkv"  # [all queries, all keys, all values], whatever order the checkpoint had
# The names that llama.cpp gives to what the families name as transformers does (gguf-py/gguf/tensor_mapping.py).
TENSORS = {
    "q_proj": "attn_q", "k_proj": "attn_k", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
    "q_layernorm": "attn_q_norm", "k_layernorm": "attn_k_norm", "qkv_proj": FUSED, "query_key_value": FUSED,
    "q_layernorm.norms.{head}": "attn_q_norm", "k_layernorm.norms.{head}": "attn_k_norm",
    "q_b_proj": "attn_q_b", "kv_a_proj_with_mqa": "attn_kv_a_mqa", "q_a_layernorm": "attn_q_a_norm",
}  # fmt: skip
# Architectures beyond those of a family's own name, by the family whose sites they have.
MORE = {
    "deepseek2": "deepseek_v3", "gemma3": "gemma3_text", "gpt-oss": "gpt_oss", "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
}  # fmt: skip
_MLA_SIZES = {"q_lora_rank": "attention.q_lora_rank", "kv_lora_rank": "attention.kv_lora_rank"}


@dataclass(frozen=True)
class GgufTensor:
    """A tensor as bakes see it: ggml's name of its type, and its shape, rows first."""

    dtype: str
    shape: tuple[int, ...]


def gguf_view(model: GgufView) -> View:
    """Return a GGUF model as bakes look at it.

    Raises: LossyExport if llama.cpp refuses the model, or its sites are not known.
    """
    rope = decoded(model)
    reader = Model.of(model)
    family = _family(reader.arch.name, model.where)
    tensors = {name: GgufTensor(info.type_name, info.shape[::-1]) for name, info in model.tensors.items()}
    sites = _sites(family, model)
    return View(replace(family, bake=sites), _config(reader), rope, tensors, {}, model.where)


def decoded(model: GgufView) -> RopeSet:
    """Return what llama.cpp computes from a model.

    Raises: LossyExport if it refuses it.
    """
    try:
        return decoding.decode(model)
    except Refuses as refusal:
        raise LossyExport(f"llama.cpp refuses it: {refusal}", where=model.where) from None


def architectures() -> dict[str, str]:
    """Return the architectures whose sites are known, each with the family that describes them."""
    own = {name: name for name in families.names() if families.get(name).gguf_architecture == name}
    return dict(sorted({**own, **MORE}.items()))


def _family(arch: str, where: str) -> Family:
    family = families.find(architectures().get(arch, ""))
    if family is None:
        known = ", ".join(architectures())
        raise LossyExport(
            f"it is not known where files of {arch} make their queries and keys; known: {known}", where=where,
            try_="bake the checkpoint that it was converted from",
        )  # fmt: skip
    return family


def _sites(family: Family, model: GgufView) -> BakeSites:
    """Return the family's sites under the names of the file; a file may hold the projections in one tensor."""
    assert family.bake is not None
    fused = any(re.fullmatch(rf"blk\.\d+\.{FUSED}\.weight", name) for name in model.tensors)
    lone = next((n for n in model.tensors if fused and re.fullmatch(r"blk\.\d+\.attn_[qk]\.bias", n)), None)
    if lone is not None:
        raise LossyExport(f"has projections in one tensor and {lone} beside it", where=model.where)
    bake = family.bake
    return BakeSites(
        layers=("blk.{layer}",), q=_named(bake.q, fused), k=_named(bake.k, fused), score=_named(bake.score, fused),
        clip_key=bake.clip_key, refused=bake.refused,
    )  # fmt: skip


def _named(stages: tuple[Stage, ...], fused: bool) -> tuple[Stage, ...]:
    return tuple(_renamed(stage, fused) for stage in stages)


def _renamed(stage: Stage, fused: bool) -> Stage:
    """Return the step as the file has it: gemma's 1 is already added to its norms."""
    name = TENSORS[stage.tensor]
    if name == FUSED or (fused and stage.tensor in ("q_proj", "k_proj")):
        return replace(stage, tensor=FUSED, rows="fused_sides")
    return replace(stage, tensor=name, offset=0.0)


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
