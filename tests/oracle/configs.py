"""Configs that can see: trained length 512 and more, rotary_dim 32 and more, one for each family and style."""

from __future__ import annotations

from typing import Any

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
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
    "olmo3": "Olmo3ForCausalLM", "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
}  # fmt: skip


def config(family: str, style: str, theta: float = 10000.0) -> dict[str, Any]:
    """Return an unscaled config of the family in the v4 or v5 style."""
    data = {"architectures": [ARCHITECTURES[family]], **FAMILIES[family]}
    if style == "v4":
        local = {"rope_local_base_freq": 5000.0} if family == "gemma3_text" else {}
        return {**data, "rope_theta": theta, **local, "rope_scaling": None}
    keys = {"rope_type": "default", "rope_theta": theta}
    if "layer_types" in data:
        return {
            **data,
            "rope_parameters": {"full_attention": keys, "sliding_attention": {**keys, "rope_theta": 5000.0}},
        }
    return {**data, "rope_parameters": keys}
