"""Models with experts, of classes that only remote code has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from exporting.remote_models import operations as ops
from exporting.remote_models.making import (
    ATTENTION,
    ENDS,
    LLAMA,
    NORMS,
    PLAIN,
    VOCABULARY,
    Config,
    Remote,
    Twin,
    Written,
)

HEAD_NORMS = """
model.layers.{i}.self_attn.q_norm.weight head
model.layers.{i}.self_attn.k_norm.weight head
"""
OF_QWEN = """
model.layers.{i}.mlp.gate.weight 4 hidden
model.layers.{i}.mlp.experts.{e}.gate_proj.weight inner hidden
model.layers.{i}.mlp.experts.{e}.up_proj.weight inner hidden
model.layers.{i}.mlp.experts.{e}.down_proj.weight hidden inner
"""
DENSE_FIRST = """
model.layers.0.mlp.gate_proj.weight 160 hidden
model.layers.0.mlp.up_proj.weight 160 hidden
model.layers.0.mlp.down_proj.weight hidden 160
"""
SHARED = """
model.layers.{i}.mlp.shared_experts.gate_proj.weight 96 hidden
model.layers.{i}.mlp.shared_experts.up_proj.weight 96 hidden
model.layers.{i}.mlp.shared_experts.down_proj.weight hidden 96
"""
OF_BAILING = """
model.word_embeddings.weight vocab hidden
model.norm.weight hidden
lm_head.weight vocab hidden
model.layers.{i}.input_layernorm.weight hidden
model.layers.{i}.post_attention_layernorm.weight hidden
model.layers.{i}.attention.query_key_value.weight 256 hidden
model.layers.{i}.attention.dense.weight hidden q
"""
LIGHTNING = """
model.layers.{i}.self_attn.qkv_proj.weight 384 hidden
model.layers.{i}.self_attn.out_proj.weight hidden hidden
model.layers.{i}.self_attn.output_gate.weight hidden hidden
model.layers.{i}.self_attn.norm.weight hidden
"""


def _from(lines: str, first: int, layers: int) -> str:
    """Return lines of all layers as those of the layers from one on."""
    return "".join(lines.replace("{i}", str(layer)) for layer in range(first, layers))


def _after_attention(x: Any, w: Mapping[str, Any], place: str, config: Config, base: float, eps: float) -> Any:
    """Return what a llama's attention makes of tokens, and the input of its feed-forward."""
    normed = ops.rms(x, w[f"{place}input_layernorm.weight"], eps)
    x = x + ops.attention(normed, w, f"{place}self_attn.", config, base)
    return x, ops.rms(x, w[f"{place}post_attention_layernorm.weight"], eps)


def _grove(w: Mapping[str, Any], config: Config, ids: Any) -> Any:
    """Each pair of experts has a small one beside it, which sees the same token and counts 0.05."""
    x, eps = w["model.embed_tokens.weight"][ids], config["rms_norm_eps"]
    for layer in range(config["num_hidden_layers"]):
        place = f"model.layers.{layer}."
        x, normed = _after_attention(x, w, place, config, config["rope_theta"], eps)
        scores = normed @ w[f"{place}mlp.gate.weight"].T
        chosen = scores.sigmoid().topk(config["num_experts_per_tok"])[1]
        weights = scores.softmax(-1).gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        for kind, share, ones in (("experts", 1.0, chosen), ("chunk_experts", 0.05, chosen // 2)):
            x = x + share * ops.mixed(normed, weights, ones, _expert(w, f"{place}mlp.{kind}."))
    return ops.rms(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T


def _ocr(w: Mapping[str, Any], config: Config, ids: Any) -> Any:
    """A llama whose layers behind the first have experts, and one that all tokens go through."""
    text = config["language_config"]
    x, eps = w["model.embed_tokens.weight"][ids], 1e-6
    for layer in range(text["num_hidden_layers"]):
        place = f"model.layers.{layer}."
        x, normed = _after_attention(x, w, place, text, 10000.0, eps)
        dense = layer < text["first_k_dense_replace"]
        x = x + ops.feed_forward(normed, w, f"{place}mlp." if dense else f"{place}mlp.shared_experts.")
        if not dense:
            scores = (normed @ w[f"{place}mlp.gate.weight"].T).softmax(-1)
            x = x + ops.mixed(normed, *scores.topk(text["num_experts_per_tok"]), _expert(w, f"{place}mlp.experts."))
    return ops.rms(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T


def _expert(w: Mapping[str, Any], place: str) -> Callable[[Any, int], Any]:
    return lambda token, number: ops.feed_forward(token, w, f"{place}{number}.")


OCR = {
    "hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 512, "vocab_size": VOCABULARY, "moe_intermediate_size": 96,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "topk_method": "greedy", "use_mla": False, "kv_lora_rank": None, "q_lora_rank": None,
    "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0, "bos_token_id": 256, "eos_token_id": 257,
}  # fmt: skip
BAILING = {
    **PLAIN, "moe_intermediate_size": 96, "num_experts": 4, "num_shared_experts": 1, "num_experts_per_tok": 2,
    "norm_topk_prob": True, "use_bias": False, "use_qkv_bias": False, "head_dim": 32,
}  # fmt: skip

EXPERTS: dict[str, Remote] = {
    "DeepseekOCRForCausalLM": Remote(
        {**OCR, "model_type": "deepseek_vl_v2", "language_config": OCR},
        ATTENTION.replace(" kv ", " q ") + NORMS + ENDS + DENSE_FIRST + _from(OF_QWEN + SHARED, 1, 3),
        Written("deepseek-ai's modeling_deepseekv2.py", _ocr),
        sizes={"layers": 3}, experts=4,
    ),
    "BailingMoeForCausalLM": Remote(
        {
            **BAILING, "model_type": "bailing_moe", "norm_head": True, "first_k_dense_replace": 0,
            "rope_scaling": None, "rope_theta": 600000.0,
        },
        OF_BAILING + OF_QWEN + SHARED,
        experts=4,
    ),
    # Sigmoids with a bias, by groups of experts; half of each head rotates.
    "BailingMoeV2ForCausalLM": Remote(
        {
            **BAILING, "model_type": "bailing_moe", "first_k_dense_replace": 1, "num_hidden_layers": 3,
            "intermediate_size": 160, "moe_shared_expert_intermediate_size": 96, "n_group": 2, "topk_group": 1,
            "num_experts": 8, "score_function": "sigmoid", "moe_router_enable_expert_bias": True,
            "routed_scaling_factor": 2.5, "use_qk_norm": True, "partial_rotary_factor": 0.5, "rope_theta": 600000.0,
            "rope_scaling": None, "num_nextn_predict_layers": 0,
        },
        OF_BAILING
        + """
        model.layers.{i}.attention.query_layernorm.weight head
        model.layers.{i}.attention.key_layernorm.weight head
        """
        + DENSE_FIRST
        + _from(OF_QWEN.replace("weight 4 hidden", "weight 8 hidden") + SHARED, 1, 3)
        + _from("\nmodel.layers.{i}.mlp.gate.expert_bias 8", 1, 3),
        sizes={"layers": 3}, experts=8,
    ),
    "GroveMoeForCausalLM": Remote(
        {
            **PLAIN, "model_type": "grove_moe", "head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1,
            "moe_intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "rope_theta": 1000000.0, "rope_scaling": None,
            "attention_bias": False, "use_sliding_window": False, "sliding_window": None,
        },
        ATTENTION + HEAD_NORMS + NORMS + ENDS + OF_QWEN
        + """
        model.layers.{i}.mlp.chunk_experts.0.gate_proj.weight 128 hidden
        model.layers.{i}.mlp.chunk_experts.0.up_proj.weight 128 hidden
        model.layers.{i}.mlp.chunk_experts.0.down_proj.weight hidden 128
        model.layers.{i}.mlp.chunk_experts.1.gate_proj.weight 128 hidden
        model.layers.{i}.mlp.chunk_experts.1.up_proj.weight 128 hidden
        model.layers.{i}.mlp.chunk_experts.1.down_proj.weight hidden 128
        """,
        Written("inclusionAI's modeling_grove_moe.py", _grove),
        sizes={"q": 256, "kv": 128, "head": 128}, experts=4,
    ),
    # Seven layers of eight keep a state that decays; residuals are of what is normalised.
    "MiniMaxText01ForCausalLM": Remote(
        {
            **PLAIN, "model_type": "minimax_text_01", "num_hidden_layers": 8, "head_dim": 32, "rotary_dim": 32,
            "rope_theta": 10000000, "attn_type_list": [0] * 7 + [1], "num_local_experts": 4, "num_experts_per_tok": 2,
            **dict.fromkeys(("layernorm_full_attention_alpha", "layernorm_linear_attention_alpha", "layernorm_mlp_alpha"), 3.5),
            **dict.fromkeys(("layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"), 1.0),
            "postnorm": True, "shared_intermediate_size": 0, "sliding_window": None,
        },
        NORMS + ENDS
        + "".join(LIGHTNING.replace("{i}", str(layer)) for layer in range(7)) + ATTENTION.replace("{i}", "7")
        + """
        model.layers.{i}.block_sparse_moe.gate.weight 4 hidden
        model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight inner hidden
        model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight hidden inner
        model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight inner hidden
        """,
        Twin(
            "MiniMaxForCausalLM",
            {
                **LLAMA, "num_hidden_layers": 8, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
                "layer_types": ["linear_attention"] * 7 + ["full_attention"], "sliding_window": None,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
                **dict.fromkeys(("full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"), 3.5),
                **dict.fromkeys(("full_attn_beta_factor", "linear_attn_beta_factor", "mlp_beta_factor"), 1.0),
            },
        ),
        sizes={"layers": 8}, experts=4, indexed=True,
    ),
}  # fmt: skip
