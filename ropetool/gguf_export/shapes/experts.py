"""Families whose feed-forward is a choice of experts.

Source: transformers 5.23.0, models/mixtral, qwen2_moe, qwen3_moe, gpt_oss; src/models/*.cpp of llama.cpp.
"""

from __future__ import annotations

from typing import Any

from ropetool.files.hf.jsontext import shown
from ropetool.gguf_export.shapes.base import MAX_EXPERTS, REQUIRED, Count, Family, Model
from ropetool.gguf_export.shapes.dense import NORMS
from ropetool.gguf_export.shapes.orders import columns_first, even, odd
from ropetool.gguf_export.shapes.rows import ALWAYS, Row, Rows, attention, experts, gated, head_norms, linear, vector

COUNTED = {"expert_count": "experts", "expert_used_count": "used"}
INNER = {"expert_feed_forward_length": "expert_intermediate"}
QWEN_EXPERTS: Rows = (
    *linear("mlp.gate", "ffn_gate_inp", "experts", "hidden"),
    *experts("mlp.experts", ("gate_proj", "up_proj", "down_proj"), "expert_intermediate"),
)
ALL_SPARSE: dict[str, tuple[Any, ...]] = {
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
}  # llama.cpp has experts in every layer


def _counts(experts: int, used: int, *others: str, key: str = "num_local_experts") -> dict[str, Count]:
    return {
        "experts": Count(key, experts, others, MAX_EXPERTS), "used": Count("num_experts_per_tok", used, (), MAX_EXPERTS)
    }  # fmt: skip


def _check_norm(model: Model) -> None:
    """Refuse experts whose shares are not normalised, which the class assumes where the config is silent."""
    stated = model.config.get("norm_topk_prob", False)
    if stated is not True:
        raise model.lossy(f"norm_topk_prob is {shown(stated)}; llama.cpp computes as if it were true")


def _joined() -> Rows:
    """Return gpt_oss's experts: matrices by columns, gate and up in turns."""
    inner, both = "experts hidden intermediate", "experts hidden twice"
    parts = (("gate", "gate_up_proj", both, even), ("up", "gate_up_proj", both, odd))
    weights = tuple(
        Row(
            f"mlp.experts.{source}",
            f"ffn_{name}_exps.weight",
            shape,
            order=order,
            written="experts intermediate hidden",
        )
        for name, source, shape, order in parts
    )
    biases = tuple(
        Row(
            f"mlp.experts.{source}_bias",
            f"ffn_{name}_exps.bias",
            "experts twice",
            order=order,
            written="experts intermediate",
        )
        for name, source, _, order in parts
    )
    return (
        *weights, *biases,
        Row("mlp.experts.down_proj", "ffn_down_exps.weight", "experts intermediate hidden", order=columns_first, written=inner),
        Row("mlp.experts.down_proj_bias", "ffn_down_exps.bias", "experts hidden"),
    )  # fmt: skip


FAMILIES = {
    "mixtral": Family(
        (
            *NORMS, *attention(), *linear("block_sparse_moe.gate", "ffn_gate_inp", "experts", "hidden"),
            *experts("block_sparse_moe.experts", ("w1", "w3", "w2"), "intermediate"),
        ),
        kv_heads=8, eps=1e-5, counts=_counts(8, 2, "num_experts"), sizes=COUNTED,
    ),
    "qwen2_moe": Family(
        (
            *NORMS, *attention("qkv_bias"), *QWEN_EXPERTS,
            Row("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", "one hidden"),
            *gated("mlp.shared_expert", "_shexp", "shared"),
        ),
        kv_heads=16, head=REQUIRED, square=True, switches={"qkv_bias": ("qkv_bias", True)},
        counts={
            **_counts(60, 4, key="num_experts"), "expert_intermediate": Count("moe_intermediate_size", 1408),
            "shared": Count("shared_expert_intermediate_size", 5632),
        },
        sizes={**COUNTED, **INNER, "expert_shared_feed_forward_length": "shared"},
        fixed={**ALL_SPARSE, "norm_topk_prob": (False, None)},
    ),
    "qwen3_moe": Family(
        (*NORMS, *attention(), *head_norms(), *QWEN_EXPERTS), kv_heads=4, output_bias=False,
        counts={
            **_counts(128, 8, "num_local_experts", key="num_experts"),
            "expert_intermediate": Count("moe_intermediate_size", 768),
        },
        sizes={**COUNTED, **INNER}, fixed=ALL_SPARSE, check=_check_norm,
    ),
    "gpt_oss": Family(
        (
            vector("input_layernorm", "attn_norm"), vector("post_attention_layernorm", "post_attention_norm"),
            *attention(ALWAYS, ALWAYS), Row("self_attn.sinks", "attn_sinks.weight", "heads"),
            *linear("mlp.router", "ffn_gate_inp", "experts", "hidden", ALWAYS), *_joined(),
        ),
        kv_heads=8, eps=1e-5, head=REQUIRED, counts=_counts(128, 4, "num_experts"),
        sizes={**COUNTED, "expert_feed_forward_length": "intermediate"},
        fixed={"swiglu_alpha": (1.702,), "swiglu_limit": (7.0, 7), "attention_bias": (True,)},
    ),
}  # fmt: skip
