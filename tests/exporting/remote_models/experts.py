"""Models with experts, of classes that only remote code has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporting.remote_models import operations as ops
from exporting.remote_models.making import ATTENTION, ENDS, NORMS, PLAIN, VOCABULARY, Config, Remote, Written

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


def _from(lines: str, first: int, layers: int) -> str:
    """Return lines of all layers as those of the layers from one on."""
    return "".join(lines.replace("{i}", str(layer)) for layer in range(first, layers))


def _smallthinker(w: Mapping[str, Any], config: Config, ids: Any) -> Any:
    """The router sees what comes into the layer, before its norm, and its weights are sigmoids that sum to 1."""
    import torch

    x, eps = w["model.embed_tokens.weight"][ids], config["rms_norm_eps"]
    for layer, rotates in enumerate(config["rope_layout"]):
        place = f"model.layers.{layer}."
        scores = x @ w[f"{place}block_sparse_moe.primary_router.weight"].T
        scores, chosen = scores.topk(config["moe_num_active_primary_experts"])
        weights = scores.softmax(-1) if config["moe_primary_router_apply_softmax"] else scores.sigmoid()
        weights = weights / weights.sum(-1, keepdim=True)
        normed = ops.rms(x, w[f"{place}input_layernorm.weight"], eps)
        base = config["rope_theta"] if rotates else None
        x = x + ops.attention(normed, w, f"{place}self_attn.", config, base)

        def expert(token: Any, one: int, place: str = f"{place}block_sparse_moe.experts.") -> Any:
            three = (w[f"{place}{one}.{name}.weight"] for name in ("gate", "up", "down"))
            return ops.gated(token, *three, torch.relu)

        x = x + ops.mixed(ops.rms(x, w[f"{place}post_attention_layernorm.weight"], eps), weights, chosen, expert)
    return ops.rms(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T


def _grove(w: Mapping[str, Any], config: Config, ids: Any) -> Any:
    """Each pair of experts has a small one beside it, which sees the same token and counts 0.05."""
    from torch.nn.functional import silu

    x, eps = w["model.embed_tokens.weight"][ids], config["rms_norm_eps"]
    for layer in range(config["num_hidden_layers"]):
        place = f"model.layers.{layer}."
        normed = ops.rms(x, w[f"{place}input_layernorm.weight"], eps)
        x = x + ops.attention(normed, w, f"{place}self_attn.", config, config["rope_theta"])
        normed = ops.rms(x, w[f"{place}post_attention_layernorm.weight"], eps)
        scores = normed @ w[f"{place}mlp.gate.weight"].T
        chosen = scores.sigmoid().topk(config["num_experts_per_tok"])[1]
        weights = scores.softmax(-1).gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        for kind, share, ones in (("experts", 1.0, chosen), ("chunk_experts", 0.05, chosen // 2)):

            def expert(token: Any, one: int, place: str = f"{place}mlp.{kind}.") -> Any:
                three = (w[f"{place}{one}.{name}_proj.weight"] for name in ("gate", "up", "down"))
                return ops.gated(token, *three, silu)

            x = x + share * ops.mixed(normed, weights, ones, expert)
    return ops.rms(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T


def _arctic(w: Mapping[str, Any], config: Config, ids: Any) -> Any:
    """The experts see what comes into the layer; beside them is a small feed-forward behind the attention."""
    from torch.nn.functional import silu

    x, eps = w["model.embed_tokens.weight"][ids], config["rms_norm_eps"]
    for layer in range(config["num_hidden_layers"]):
        place = f"model.layers.{layer}."
        came = ops.rms(x, w[f"{place}post_attention_layernorm.weight"], eps)
        normed = ops.rms(x, w[f"{place}input_layernorm.weight"], eps)
        x = x + ops.attention(normed, w, f"{place}self_attn.", config, config["rope_theta"])
        three = (w[f"{place}residual_mlp.{name}.weight"] for name in ("w1", "w3", "w2"))
        x = x + ops.gated(ops.rms(x, w[f"{place}residual_layernorm.weight"], eps), *three, silu)
        weights, chosen = (
            (came @ w[f"{place}block_sparse_moe.gate.weight"].T).softmax(-1).topk(config["num_experts_per_tok"])
        )

        def expert(token: Any, one: int, place: str = f"{place}block_sparse_moe.experts.") -> Any:
            three = (w[f"{place}{one}.{name}.weight"] for name in ("w1", "w3", "w2"))
            return ops.gated(token, *three, silu)

        x = x + ops.mixed(came, weights / weights.sum(-1, keepdim=True), chosen, expert)
    return ops.rms(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T


def _ocr(w: Mapping[str, Any], config: Config, ids: Any) -> Any:
    """A llama whose layers behind the first have experts, and one that all tokens go through."""
    from torch.nn.functional import silu

    text = config["language_config"]
    x, eps = w["model.embed_tokens.weight"][ids], 1e-6
    for layer in range(text["num_hidden_layers"]):
        place = f"model.layers.{layer}."
        normed = ops.rms(x, w[f"{place}input_layernorm.weight"], eps)
        x = x + ops.attention(normed, w, f"{place}self_attn.", text, 10000.0)
        normed = ops.rms(x, w[f"{place}post_attention_layernorm.weight"], eps)
        shared = f"{place}mlp." if layer < text["first_k_dense_replace"] else f"{place}mlp.shared_experts."
        x = x + ops.gated(normed, *(w[f"{shared}{name}_proj.weight"] for name in ("gate", "up", "down")), silu)
        if layer < text["first_k_dense_replace"]:
            continue

        def expert(token: Any, one: int, place: str = f"{place}mlp.experts.") -> Any:
            return ops.gated(token, *(w[f"{place}{one}.{name}_proj.weight"] for name in ("gate", "up", "down")), silu)

        scores = (normed @ w[f"{place}mlp.gate.weight"].T).softmax(-1)
        x = x + ops.mixed(normed, *scores.topk(text["num_experts_per_tok"]), expert)
    return ops.rms(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T


def _maple(w: Mapping[str, Any], config: Config, ids: Any) -> Any:
    """Half of each head rotates in the layers that slide, nothing in the others; the experts' inner numbers end at 7."""
    from torch.nn.functional import silu

    x, eps = w["model.word_embeddings.weight"][ids], config["rms_norm_eps"]
    for layer, kind in enumerate(config["layer_types"]):
        place, slides = f"model.layers.{layer}.", kind == "sliding_attention"
        x = x + ops.attention(
            ops.rms(x, w[f"{place}input_layernorm.weight"], eps), w, f"{place}self_attn.", config,
            config["rope_theta"] if slides else None, share=config["partial_rotary_factor"],
            window=config["sliding_window"] if slides else 0,
        )  # fmt: skip
        normed = ops.rms(x, w[f"{place}post_attention_layernorm.weight"], eps)
        weights, chosen = (normed @ w[f"{place}mlp.gate.weight"].T).softmax(-1).topk(config["num_experts_per_tok"])

        def expert(token: Any, one: int, place: str = f"{place}mlp.experts.") -> Any:
            gate, up, down = (w[f"{place}{one}.{name}_proj.weight"] for name in ("gate", "up", "down"))
            return (silu((token @ gate.T).clamp(max=7)) * (token @ up.T).clamp(-7, 7)) @ down.T

        x = x + ops.mixed(normed, weights / weights.sum(-1, keepdim=True), chosen, expert)
    return ops.rms(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T


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
    "DeepseekForCausalLM": Remote(
        {
            **PLAIN, "model_type": "deepseek", "intermediate_size": 160, "moe_intermediate_size": 96,
            "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
            "moe_layer_freq": 1, "norm_topk_prob": False, "scoring_func": "softmax", "attention_bias": False,
            "num_hidden_layers": 3, "rope_scaling": None,
        },
        ATTENTION + NORMS + ENDS + DENSE_FIRST + _from(OF_QWEN + SHARED, 1, 3),
        sizes={"layers": 3}, experts=4,
    ),
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
    "MapleForCausalLM": Remote(
        {
            **PLAIN, "model_type": "maple", "head_dim": 32, "num_hidden_layers": 4, "moe_intermediate_size": 96,
            "num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 0, "norm_topk_prob": True,
            "partial_rotary_factor": 0.5, "sliding_window": 64, "nope_on_global_attention": True, "use_qk_norm": True,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "rope_scaling": None,
        },
        ATTENTION + HEAD_NORMS + NORMS + ENDS.replace("embed_tokens", "word_embeddings") + OF_QWEN,
        Written("deepgrove's modeling_maple.py", _maple),
        sizes={"layers": 4}, experts=4,
    ),
    "SmallThinkerForCausalLM": Remote(
        {
            **{key: value for key, value in PLAIN.items() if key not in ("intermediate_size", "hidden_act")},
            "model_type": "smallthinker", "num_hidden_layers": 5, "head_dim": 32, "moe_ffn_hidden_size": 96,
            "moe_num_primary_experts": 4, "moe_num_active_primary_experts": 2, "moe_primary_router_apply_softmax": False,
            "rope_layout": [0, 1, 1, 1, 0], "sliding_window_layout": [0, 1, 1, 1, 0], "sliding_window_size": 4096,
            "max_position_embeddings": 16384, "rope_theta": 1500000.0, "rope_scaling": None,
        },
        ATTENTION + NORMS + ENDS
        + """
        model.layers.{i}.block_sparse_moe.primary_router.weight 4 hidden
        model.layers.{i}.block_sparse_moe.experts.{e}.gate.weight inner hidden
        model.layers.{i}.block_sparse_moe.experts.{e}.up.weight inner hidden
        model.layers.{i}.block_sparse_moe.experts.{e}.down.weight hidden inner
        """,
        Written("PowerInfer's modeling_smallthinker.py", _smallthinker),
        sizes={"layers": 5}, experts=4,
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
    "ArcticForCausalLM": Remote(
        {
            **PLAIN, "model_type": "arctic", "num_local_experts": 4, "num_experts_per_tok": 2, "moe_layer_frequency": 1,
            "parallel_attn_mlp_res": True, "sliding_window": None, "rope_theta": 1000000.0,
        },
        ATTENTION + NORMS + ENDS
        + """
        model.layers.{i}.residual_layernorm.weight hidden
        model.layers.{i}.residual_mlp.w1.weight hidden hidden
        model.layers.{i}.residual_mlp.w2.weight hidden hidden
        model.layers.{i}.residual_mlp.w3.weight hidden hidden
        model.layers.{i}.block_sparse_moe.gate.weight 4 hidden
        model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight inner hidden
        model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight hidden inner
        model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight inner hidden
        """,
        Written("Snowflake's modeling_arctic.py", _arctic),
        experts=4,
    ),
}  # fmt: skip
