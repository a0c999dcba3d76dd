"""Configs that can see: trained length 512 and more, rotary_dim 32 and more, one for each family and style."""

from __future__ import annotations

from typing import Any

import family_making

SMALL: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 512, "torch_dtype": "float32",
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
MLA: dict[str, Any] = {
    **SMALL, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 32, "v_head_dim": 16, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "first_k_dense_replace": 2, "n_group": 1, "topk_group": 1,
}  # fmt: skip
NESTED: dict[str, Any] = {
    **SMALL, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64,
    "head_dim": 32,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SMALL},
    "mistral": {"model_type": "mistral", **SMALL, "sliding_window": None},
    "mixtral": {"model_type": "mixtral", **SMALL, "num_local_experts": 2, "num_experts_per_tok": 1},
    "qwen2": {"model_type": "qwen2", **SMALL},
    "qwen3": {"model_type": "qwen3", **SMALL, "head_dim": 32},
    "gemma3_text": {"model_type": "gemma3_text", **NESTED},
    "olmo3": {"model_type": "olmo3", **{k: v for k, v in NESTED.items() if k != "head_dim"}},
    "deepseek_v2": {"model_type": "deepseek_v2", **MLA, "topk_method": "greedy"},
    "deepseek_v3": {"model_type": "deepseek_v3", **MLA},
}
WIDE: dict[str, Any] = {**SMALL, "hidden_size": 256}  # of whose heads half rotates
LAYER_KINDS = ["sliding_attention", "full_attention"]
# Families beyond those whose rotation the tests of verify watch too.
MORE_FAMILIES: dict[str, dict[str, Any]] = {
    "cohere": {"model_type": "cohere", **SMALL},
    "cohere2": {"model_type": "cohere2", **SMALL, "layer_types": LAYER_KINDS, "sliding_window": 64},
    "deepseek_v32": {
        "model_type": "deepseek_v32", **MLA, "index_topk": 96, "index_head_dim": 48, "index_n_heads": 2,
    },
    "exaone4": {"model_type": "exaone4", **SMALL, "head_dim": 32, "layer_types": LAYER_KINDS, "sliding_window": 64},
    "falcon": {
        "model_type": "falcon", **{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}, "alibi": False,
    },
    "gemma2": {"model_type": "gemma2", **SMALL, "head_dim": 32, "sliding_window": 64},
    "glm4": {"model_type": "glm4", **SMALL, "head_dim": 64},
    "gpt_neox": {"model_type": "gpt_neox", **{k: v for k, v in WIDE.items() if k != "num_key_value_heads"}},
    "gpt_oss": {
        "model_type": "gpt_oss", **SMALL, "head_dim": 32, "sliding_window": 64, "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "granite": {"model_type": "granite", **SMALL},
    "minicpm3": {"model_type": "minicpm3", **{k: v for k, v in MLA.items() if "expert" not in k}},
    "ministral3": {"model_type": "ministral3", **SMALL, "head_dim": 32, "sliding_window": None},
    "olmo": {"model_type": "olmo", **SMALL},
    "olmo2": {"model_type": "olmo2", **SMALL},
    "phi": {"model_type": "phi", **WIDE},
    "phi3": {"model_type": "phi3", **SMALL, "pad_token_id": 0, "original_max_position_embeddings": 512},
    "qwen2_moe": {"model_type": "qwen2_moe", **SMALL},
    "qwen3_moe": {"model_type": "qwen3_moe", **SMALL, "head_dim": 32},
    "smollm3": {"model_type": "smollm3", **SMALL, "no_rope_layers": [1, 0], "pad_token_id": 0},
    "stablelm": {"model_type": "stablelm", **WIDE},
    "starcoder2": {"model_type": "starcoder2", **SMALL},
}  # fmt: skip
OTHERS = family_making.others({**FAMILIES, **MORE_FAMILIES})
MORE_FAMILIES |= {name: {"model_type": name, **family_making.config(name, SMALL)} for name in OTHERS}
SHARES = {"glm4": 0.5, "gpt_neox": 0.5, "phi": 0.5, "stablelm": 0.5}  # of a head that rotates
FLAT_KINDS = ("cohere2", "exaone4")  # layer types, and one table for all layers that rotate
SHARES |= {name: 0.5 for name in OTHERS if family_making.rope_keys(name)}
TEMPERATURES = {"ministral3": {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 512}}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
    "olmo3": "Olmo3ForCausalLM", "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
}  # fmt: skip


def config(family: str, style: str, theta: float = 10000.0) -> dict[str, Any]:
    """Return an unscaled config of the family in the v4 or v5 style."""
    data = {**FAMILIES, **MORE_FAMILIES}[family]
    if family in ARCHITECTURES:
        data = {"architectures": [ARCHITECTURES[family]], **data}
    share = {"partial_rotary_factor": SHARES[family]} if family in SHARES else {}
    if style == "v4":
        local = {"rope_local_base_freq": 5000.0} if family == "gemma3_text" else {}
        share = {"rotary_pct": SHARES[family]} if family == "gpt_neox" else share
        return {**data, "rope_theta": theta, **local, **share, "rope_scaling": None}
    keys = {"rope_type": "default", "rope_theta": theta, **share, **TEMPERATURES.get(family, {})}
    if "layer_types" in data and family not in FLAT_KINDS:
        return {
            **data,
            "rope_parameters": {"full_attention": keys, "sliding_attention": {**keys, "rope_theta": 5000.0}},
        }
    return {**data, "rope_parameters": keys}
