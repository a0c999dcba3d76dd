"""Families with one feed-forward to a layer, and norms by the root of the mean square.

Source: transformers 5.23.0, models/*/configuration_*.py and modeling_*.py; src/models/*.cpp of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping

from ropetool.files.gguf import Value, ValueType
from ropetool.gguf_export.shapes.base import REQUIRED, Family, Model
from ropetool.gguf_export.shapes.rows import ALWAYS, Rows, attention, fused_gate, gated, head_norms, linear, vector

NORMS: Rows = (vector("input_layernorm", "attn_norm"), vector("post_attention_layernorm", "ffn_norm"))
# Behind attention and feed-forward instead of before them.
POST_NORMS: Rows = (
    vector("post_attention_layernorm", "post_attention_norm"),
    vector("post_feedforward_layernorm", "post_ffw_norm"),
)
BIASES = {"attention_bias": ("attention_bias", False), "mlp_bias": ("mlp_bias", False)}
LLAMA: Rows = (*NORMS, *attention("attention_bias", "attention_bias"), *gated(bias="mlp_bias"))


MULTIPLIERS = {
    "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
}  # fmt: skip


def _granite(model: Model) -> Mapping[str, Value]:
    return {name: Value.of(ValueType.F32, model.number(key, 1.0)) for name, key in MULTIPLIERS.items()}


def _check_granite(model: Model) -> None:
    for key in MULTIPLIERS.values():
        model.need_nonzero(key, 1.0)


FAMILIES = {
    "llama": Family(LLAMA, switches=BIASES),
    "mistral": Family((*NORMS, *attention(), *gated()), kv_heads=8),
    "ministral3": Family((*NORMS, *attention(), *gated()), kv_heads=8, eps=1e-5),
    "qwen2": Family((*NORMS, *attention(ALWAYS), *gated()), kv_heads=32, square=True),
    "qwen3": Family((*NORMS, *attention(), *head_norms(), *gated()), kv_heads=32, output_bias=False),
    "granite": Family(LLAMA, switches=BIASES, more=_granite, check=_check_granite),
    "smollm3": Family(
        (*NORMS, *attention(), *gated()), kv_heads=4, tied=True, output_bias=False, fixed={"mlp_bias": (False, None)}
    ),
    "phi3": Family(
        (
            *NORMS, *linear("self_attn.qkv_proj", "attn_qkv", "fused", "hidden"),
            *linear("self_attn.o_proj", "attn_output", "hidden", "queries"), *fused_gate(),
        ),
        eps=1e-5, square=True, derived=lambda c: {"fused": c["queries"] + 2 * c["keys"]},
    ),
    "glm4": Family(
        (
            vector("input_layernorm", "attn_norm"), vector("post_self_attn_layernorm", "post_attention_norm"),
            vector("post_attention_layernorm", "ffn_norm"), vector("post_mlp_layernorm", "post_ffw_norm"),
            *attention("attention_bias"), *fused_gate(),
        ),
        kv_heads=2, eps=1.5625e-07, switches={"attention_bias": ("attention_bias", True)},
    ),
    "olmo2": Family(
        (*attention(), *head_norms("queries", "keys"), *POST_NORMS, *gated()),
        eps=1e-5, square=True, head=REQUIRED, output_bias=False,
    ),
    "exaone4": Family(
        (*attention(), *head_norms(), *POST_NORMS, *gated()), kv_heads=32, eps=1e-5, square=True,
    ),
}  # fmt: skip
FAMILIES["olmo3"] = FAMILIES["olmo2"]
