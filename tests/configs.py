"""Configs of tiny models of each family: unscaled in both styles, exported, and baked.

They can see: trained length 512 and more, rotary_dim 32 and more. A plain family, whose layers are alike and dense,
needs no entry in a table: its config follows from its own file. The tables have what is particular to others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool import families
from ropetool.families.family import Family

TRAINED, FACTOR = 512, 4
LENGTH = TRAINED * FACTOR


def is_plain(family: Family) -> bool:
    """Return whether the file of a family is enough to make a tiny model."""
    odd = family.layer_types or family.text_path or family.mla or family.pattern or family.rotates != "all"
    programmed = family.export is not None and (family.export.counts or family.export.rules)
    return not odd and family.sliding_window in ("never", "always") and not programmed


def others(known: Mapping[str, Any], *, exported: bool = False, baked: bool = False) -> list[str]:
    """Return the plain families that a table of the tests has no entry for, those that are exported or baked alone."""
    names = families.exported() if exported else families.baked()
    unknown = (families.get(name) for name in names if name not in known)
    return [
        family.model_type
        for family in unknown
        if is_plain(family) and not (baked and (family.bake is None or family.bake.refused))
    ]


def plain_config(name: str, sizes: Mapping[str, Any], *, head_dim: int = 32) -> dict[str, Any]:
    """Return a config of these sizes, with biases and norms that are optional, and the values that llama.cpp takes.

    Where a part of each head rotates, the hidden size is such that the heads have 2 x head_dim channels. The rope keys
    are left to the caller, except those of `rope_keys`.
    """
    family = families.get(name)
    data: dict[str, Any] = {**sizes, "tie_word_embeddings": False}
    wide = head_dim * (2 if family.partial_rotary_key else 1)
    if family.default_head_dim is not None or family.null_head_dim:
        data[family.head_dim_key] = wide
    if family.default_head_dim is None or (family.export is not None and family.export.square):
        data["hidden_size"] = wide * sizes["num_attention_heads"]
    if family.sliding_window == "always":
        data["sliding_window"] = None
    if family.export is not None:
        data |= dict.fromkeys(family.export.switches, True)
        data |= {key: values[0] for key, values in family.export.fixed.items() if values[0] is not None}
        data |= {one.number: one.default or 1.0 for one in family.export.keys.values() if one.number}
        data["tie_word_embeddings"] = family.export.head == "absent"
        if not family.export.grouped:
            data.pop("num_key_value_heads")
    return data


def rope_keys(name: str, share: float = 0.5) -> dict[str, Any]:
    """Return the rope keys that a family has beside the base and the scaling."""
    return {"partial_rotary_factor": share} if families.get(name).partial_rotary_key else {}


# --- unscaled, in both styles

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
    "olmo": {"model_type": "olmo", **SMALL},
    "phi": {"model_type": "phi", **WIDE},
    "phi3": {"model_type": "phi3", **SMALL, "pad_token_id": 0, "original_max_position_embeddings": 512},
    "qwen2_moe": {"model_type": "qwen2_moe", **SMALL},
    "qwen3_moe": {"model_type": "qwen3_moe", **SMALL, "head_dim": 32},
    "smollm3": {"model_type": "smollm3", **SMALL, "no_rope_layers": [1, 0], "pad_token_id": 0},
    "stablelm": {"model_type": "stablelm", **WIDE},
    "starcoder2": {"model_type": "starcoder2", **SMALL},
}  # fmt: skip
OTHERS = others({**FAMILIES, **MORE_FAMILIES})
MORE_FAMILIES |= {name: {"model_type": name, **plain_config(name, SMALL)} for name in OTHERS}
SHARES = {"glm4": 0.5, "gpt_neox": 0.5, "phi": 0.5, "stablelm": 0.5}  # of a head that rotates
FLAT_KINDS = ("cohere2", "exaone4")  # layer types, and one table for all layers that rotate
SHARES |= {name: 0.5 for name in OTHERS if rope_keys(name)}
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


# --- exported: the config says what the class would otherwise assume

ROWS = 300  # of the embeddings: more than the tokenizer has
EXPORT_SIZES: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": ROWS, "max_position_embeddings": TRAINED, "bos_token_id": 256,
    "eos_token_id": 257, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
HALF_WINDOW = {"sliding_window": TRAINED // 2}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
HALF_ROTATES = {
    "num_attention_heads": 2, "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}  # fmt: skip
EXPORT_MLA: dict[str, Any] = {
    **EXPORT_SIZES, **EXPERTS, "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 32, "v_head_dim": 24, "n_routed_experts": 4, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
}  # fmt: skip
ROUTED: dict[str, Any] = {
    **EXPORT_SIZES, **EXPERTS, "num_hidden_layers": 3, "n_routed_experts": 4, "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
}  # fmt: skip

GRANITE = {
    "attention_multiplier": 0.25, "embedding_multiplier": 1.5, "residual_multiplier": 0.7, "logits_scaling": 3.0,
    "attention_bias": True,
}  # fmt: skip

MIXED = {"n_routed_experts", "n_shared_experts", "moe_intermediate_size", "num_experts_per_tok", "first_k_dense_replace",
         "routed_scaling_factor"}  # fmt: skip

EXPORTED: dict[str, dict[str, Any]] = {
    "llama": {**EXPORT_SIZES, "attention_bias": True, "mlp_bias": True},
    "mistral": {**EXPORT_SIZES, "head_dim": 32, "sliding_window": None},
    "ministral3": {
        **EXPORT_SIZES, "head_dim": 32, "sliding_window": None,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "llama_4_scaling_beta": 0.3,
            "original_max_position_embeddings": TRAINED,
        },
    },
    "mixtral": {**EXPORT_SIZES, "head_dim": 32, "sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": EXPORT_SIZES,
    "qwen3": {**EXPORT_SIZES, "head_dim": 32},
    "qwen2_moe": {**EXPORT_SIZES, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 80},
    "qwen3_moe": {**EXPORT_SIZES, **EXPERTS, "head_dim": 32, "num_experts": 4, "norm_topk_prob": True},
    "phi3": {
        **EXPORT_SIZES, **HALF_ROTATES, "original_max_position_embeddings": TRAINED,
    },
    "gemma2": {
        **EXPORT_SIZES, **HALF_WINDOW, "head_dim": 32, "query_pre_attn_scalar": 32, "num_hidden_layers": 3,
        "tie_word_embeddings": True, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 400.0,
        "hidden_activation": "gelu_pytorch_tanh", "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma3_text": {
        **EXPORT_SIZES, **HALF_WINDOW, "head_dim": 32, "query_pre_attn_scalar": 32, "num_hidden_layers": 3,
        "hidden_activation": "gelu_pytorch_tanh", "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 40000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
    },
    "olmo2": EXPORT_SIZES,
    "olmo3": {
        **EXPORT_SIZES, **HALF_WINDOW, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 40000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 40000.0},
        },
    },
    "granite": {
        **EXPORT_SIZES, **GRANITE, "mlp_bias": True,
    },
    "smollm3": {**EXPORT_SIZES, "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]},
    "starcoder2": {**EXPORT_SIZES, "sliding_window": None, "use_bias": True},
    "exaone4": {**EXPORT_SIZES, "head_dim": 32, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    "stablelm": {**EXPORT_SIZES, **HALF_ROTATES, "use_qkv_bias": True},
    "gpt_neox": {
        **{key: value for key, value in {**EXPORT_SIZES, **HALF_ROTATES}.items() if key != "num_key_value_heads"},
        "hidden_act": "gelu_new",
    },
    "cohere": {**EXPORT_SIZES, "logit_scale": 0.25, "tie_word_embeddings": True},
    "cohere2": {
        **EXPORT_SIZES, **HALF_WINDOW, "num_hidden_layers": 4, "logit_scale": 0.25, "tie_word_embeddings": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
    },
    "granite_swa": {
        **EXPORT_SIZES, **HALF_WINDOW, "num_hidden_layers": 3, "attention_multiplier": 0.25, "embedding_multiplier": 1.5,
        "residual_multiplier": 0.7, "logits_scaling": 3.0, "attention_bias": True, "mlp_bias": True,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "falcon": {
        **{key: value for key, value in EXPORT_SIZES.items() if key not in ("num_key_value_heads", "intermediate_size")},
        "ffn_hidden_size": 64, "multi_query": True, "new_decoder_architecture": False, "activation": "gelu_new",
    },
    "mellum": {
        **EXPORT_SIZES, **EXPERTS, **HALF_WINDOW, "head_dim": 32, "num_experts": 4, "norm_topk_prob": True, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 40000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 40000.0},
        },
    },
    "ministral": {**EXPORT_SIZES, "head_dim": 32, "sliding_window": 2 * LENGTH},
    "minicpm3": {
        **EXPORT_SIZES, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 32, "v_head_dim": 24, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256,
        "rms_norm_eps": 1e-6,
    },
    "gpt_oss": {
        **EXPORT_SIZES, **HALF_WINDOW, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "olmoe": {**EXPORT_SIZES, "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": {
        **ROUTED, **HALF_ROTATES, "num_attention_heads": 4, "head_dim": 64, "attention_bias": True, "use_qk_norm": True,
        "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
    },
    "solar_open": {**ROUTED, "head_dim": 32, "norm_topk_prob": False},
    "dots1": {**ROUTED, "first_k_dense_replace": 1, "num_key_value_heads": 4, "sliding_window": None, "norm_topk_prob": True},
    "ernie4_5_moe": {
        **EXPORT_SIZES, "num_hidden_layers": 3, "moe_intermediate_size": 16, "moe_num_shared_experts": 2, "moe_num_experts": 4,
        "moe_k": 2, "moe_layer_start_index": 1, "moe_layer_interval": 1,
    },
    "granitemoe": {**EXPORT_SIZES, **GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoeshared": {
        **EXPORT_SIZES, **GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48,
    },
    "hunyuan_v1_moe": {
        **EXPORT_SIZES, "head_dim": 32, "num_experts": 4, "moe_topk": [2, 2], "moe_intermediate_size": [64, 64],
        "num_shared_expert": [1, 1],
    },
    "exaone_moe": {
        **EXPORT_SIZES, **HALF_WINDOW, **EXPERTS, "num_hidden_layers": 4, "head_dim": 32, "num_experts": 4, "num_shared_experts": 2,
        "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "scoring_func": "sigmoid",
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    },
    "hy_v3": {
        **EXPORT_SIZES, **EXPERTS, "num_hidden_layers": 3, "head_dim": 32, "num_experts": 4, "num_shared_experts": 2,
        "router_scaling_factor": 1.5, "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "minimax_m2": {
        **EXPORT_SIZES, "head_dim": 32, "rotary_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "scoring_func": "sigmoid",
    },
    "glm4_moe_lite": {**EXPORT_MLA, "mlp_layer_types": ["dense", "sparse", "sparse"], "n_group": 1, "topk_group": 1},
    # transformers loads the padding token's embedding as 0
    "youtu": {**{key: value for key, value in EXPORT_MLA.items() if key not in MIXED}, "pad_token_id": None},
    "afmoe": {
        **EXPORT_SIZES, **HALF_WINDOW, **EXPERTS, "num_hidden_layers": 4, "head_dim": 32, "num_experts": 4, "num_shared_experts": 2,
        "num_dense_layers": 1, "route_scale": 1.5, "route_norm": True, "mup_enabled": True, "score_func": "sigmoid",
    },
    "llama4_text": {
        **EXPORT_SIZES, "num_hidden_layers": 4, "head_dim": 32, "intermediate_size_mlp": 96, "num_local_experts": 4,
        "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "no_rope_layers": [1, 1, 1, 0],
    },
    "mistral4": {
        **EXPORT_MLA, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": TRAINED,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
        },
        "max_position_embeddings": 2 * TRAINED,
    },
    "deepseek_v2": {**EXPORT_MLA, "topk_method": "greedy", "norm_topk_prob": False},
    "deepseek_v3": {**EXPORT_MLA, "n_group": 2, "topk_group": 1, "norm_topk_prob": True, "num_nextn_predict_layers": 0},
}  # fmt: skip
# By the family of a text model without a class: the wrapper of its checkpoints.
WRAPPERS = {
    "gemma3": "gemma3", "qwen2_vl_text": "qwen2_vl", "qwen2_5_vl_text": "qwen2_5_vl", "qwen3_vl_text": "qwen3_vl",
    "qwen3_vl_moe_text": "qwen3_vl_moe",
}  # fmt: skip
# By wrapper: what its other parts must have in common with the text model, and what its class leaves open.
PARTS: dict[str, dict[str, Any]] = {
    "kimi_k25": {
        "image_token_id": 299,
        "video_token_id": 298,
    },  # whose embedding it takes for one of padding, without an image too
    "gemma4": {
        "image_token_id": 299,
        "video_token_id": 298,
        "audio_token_id": 297,  # as kimi_k25
        "vision_config": {
            "model_type": "gemma4_vision",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "position_embedding_size": 16,
        },
    },
    "qwen2_vl": {"vision_config": {"hidden_size": 128, "embed_dim": 32}},  # by default a hundred million weights
    "qwen2_5_vl": {"vision_config": {"out_hidden_size": 128, "hidden_size": 32}},
    "qwen3_vl_moe": {"vision_config": {"out_hidden_size": 128, "depth": 2, "deepstack_visual_indexes": [0, 1]}},
    "qwen3_vl": {"vision_config": {"out_hidden_size": 128, "depth": 2, "deepstack_visual_indexes": [0, 1]}},
}
SHARED = {"num_experts": 4, "shared_expert_intermediate_size": 80}
CONVOLUTIONS = {
    "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
LINEAR = {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "full_attention"], "head_dim": 64,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}  # fmt: skip
INNER = {"gemma3": "gemma3_text"}


def mrope(section: tuple[int, ...], **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [*section], **more}}


def _composed() -> dict[str, dict[str, Any]]:
    """Return the configs of text models inside a wrapper, and of those whose layers are of several kinds."""
    small = EXPORT_SIZES
    heads = {**small, "head_dim": 32}
    return {
        "gemma3": EXPORTED["gemma3_text"],
        "qwen2_vl_text": {**small, **mrope((6, 5, 5))},
        "qwen2_5_vl_text": {**small, **mrope((6, 5, 5))},
        "qwen3_vl_text": {**heads, **mrope((6, 5, 5))},
        "qwen3_vl_moe_text": {**heads, **EXPERTS, "num_experts": 4, **mrope((6, 5, 5))},
        "gemma4_text": {
            **small, "head_dim": 32, "global_head_dim": 64, "sliding_window": 256, "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": small["vocab_size"], "use_double_wide_mlp": True,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 40000.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
        "lfm2": {**small, **CONVOLUTIONS, "num_attention_heads": 4, "intermediate_size": 90, "block_multiple_of": 32},
        "lfm2_moe": {**small, **CONVOLUTIONS, **EXPERTS, "tie_word_embeddings": True, "num_experts": 4, "num_dense_layers": 1},
        "qwen3_5_text": {**heads, **LINEAR, **mrope((6, 5, 5), partial_rotary_factor=0.5)},
        "qwen3_5_moe_text": {
            **{key: value for key, value in heads.items() if key != "intermediate_size"}, **LINEAR, **EXPERTS, **SHARED,
            **mrope((6, 5, 5), partial_rotary_factor=0.5),
        },
        "qwen3_next": {
            **heads, **LINEAR, **EXPERTS, **SHARED,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
    }  # fmt: skip


EXPORTED |= _composed()
for _name in others(EXPORTED, exported=True):
    _rope = {"rope_type": "default", "rope_theta": 10000.0, **rope_keys(_name)}
    EXPORTED[_name] = {**plain_config(_name, EXPORT_SIZES), "rope_parameters": _rope}


def as_published(stored: dict[str, Any], wrapper: str) -> dict[str, Any]:
    """Return tensors as the repositories of a wrapper hold them, where transformers 5.23.0 saves them otherwise.

    Of a kimi_k25 it calls all layers blocks; of a qwen3_vl_moe it leaves the experts as they are computed with.
    """
    if wrapper == "kimi_k25":
        return {
            name.replace("language_model.model.blocks.", "language_model.model.layers."): t
            for name, t in stored.items()
        }
    if wrapper == "qwen3_vl_moe":
        return {name: t.transpose(1, 2).contiguous() if ".mlp.experts." in name else t for name, t in stored.items()}
    return stored


def wrapped(text: Mapping[str, Any], wrapper: str) -> dict[str, Any]:
    """Return the config of a wrapper around that of a text model, its other parts as small as they can be."""
    from transformers import AutoConfig

    from ropetool.probing import tiny

    whole = AutoConfig.for_model(wrapper)
    outer = {key: value for key, value in tiny.overrides(whole).items() if key != "text_config"}
    for key, more in PARTS.get(wrapper, {}).items():
        outer[key] = {**outer.get(key, {}), **more} if isinstance(more, dict) else more
    inner = {**text, "model_type": INNER.get(text["model_type"], text["model_type"])}
    return {"model_type": wrapper, **outer, "tie_word_embeddings": text["tie_word_embeddings"], "text_config": inner}


# --- baked: in the v5 style and asking for YaRN's factor

YARN: dict[str, Any] = {
    "rope_type": "yarn", "factor": float(FACTOR), "original_max_position_embeddings": TRAINED, "rope_theta": 10000.0,
}  # fmt: skip
HALF = {**YARN, "partial_rotary_factor": 0.5}
ALL_DIM = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
THREE_LAYERS = {
    "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
}  # fmt: skip
FLAT_LAYERS = {**THREE_LAYERS, "rope_parameters": YARN}


def asking(name: str, **more: Any) -> dict[str, Any]:
    """Return the config of a family with YaRN's keys; more: keys that differ from its unscaled config."""
    data = {**FAMILIES, **MORE_FAMILIES}.get(name, {"model_type": name, **MLA})
    sizes = {"max_position_embeddings": LENGTH, "pad_token_id": 0}
    given = {
        key: value for key, value in {**data, **sizes, "rope_parameters": YARN, **more}.items() if value is not ABSENT
    }
    return {key: value for key, value in given.items() if key != "torch_dtype"}


ABSENT = object()
_FALCON: dict[str, Any] = {"intermediate_size": ABSENT, "bias": True, "new_decoder_architecture": False}
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
BAKED: dict[str, dict[str, Any]] = {
    "llama": asking("llama", attention_bias=True),
    "mistral": asking("mistral", head_dim=32),
    "ministral3": asking("ministral3", rope_parameters={**YARN, "llama_4_scaling_beta": 0.3}),
    "mixtral": asking("mixtral", head_dim=32, sliding_window=None),
    "qwen2": asking("qwen2"),
    "qwen3": asking("qwen3"),
    "gemma3_text": asking("gemma3_text", **THREE_LAYERS, query_pre_attn_scalar=24),
    "olmo3": asking("olmo3", **THREE_LAYERS),
    "deepseek_v2": asking("deepseek_v2", rope_parameters=ALL_DIM),
    "deepseek_v2-no-query-latent": asking("deepseek_v2", q_lora_rank=None, rope_parameters=ALL_DIM),
    "deepseek_v3": asking("deepseek_v3", attention_bias=True, rope_parameters=ALL_DIM),
    "deepseek_v3-half": asking("deepseek_v3", rope_interleave=False, rope_parameters=ALL_DIM),
    "deepseek_v3-no-query-latent": asking("deepseek_v3", q_lora_rank=None, rope_parameters=ALL_DIM),
    "qwen2_moe": asking("qwen2_moe", **_EXPERTS, shared_expert_intermediate_size=16),
    "qwen3_moe": asking("qwen3_moe", **_EXPERTS),
    "phi3": asking("phi3", rope_parameters={
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "factor": float(FACTOR),
        "original_max_position_embeddings": TRAINED, "short_factor": [1.0] * 12,
        "long_factor": [1.0 + 0.2 * i for i in range(12)],
    }),
    "gemma2": asking("gemma2", attn_logit_softcapping=5.0, query_pre_attn_scalar=24),
    "gpt_oss": asking("gpt_oss", rope_parameters={**YARN, "truncate": False}),
    "gpt_neox": asking("gpt_neox", rope_parameters=HALF),
    "falcon-groups": asking("falcon", **{**_FALCON, "new_decoder_architecture": True}, multi_query=False, num_kv_heads=2),
    "falcon-one-key": asking("falcon", **_FALCON, multi_query=True),
    "falcon-per-head": asking("falcon", **_FALCON, multi_query=False),
    "stablelm": asking("stablelm", use_qkv_bias=True, rope_parameters=HALF),
    "stablelm-norms": asking("stablelm", qk_layernorm=True, rope_parameters=HALF),
    "phi": asking("phi", rope_parameters=HALF),
    "phi-norms": asking("phi", qk_layernorm=True, rope_parameters=HALF),
    "starcoder2": asking("starcoder2", sliding_window=None),
    "olmo": asking("olmo"),
    "olmo2": asking("olmo2"),
    "granite": asking("granite", attention_multiplier=0.25),
    "smollm3": asking("smollm3", num_hidden_layers=3, no_rope_layers=[1, 0, 1]),
    "cohere": asking("cohere", logit_scale=1.0),
    "cohere-norms": asking("cohere", logit_scale=1.0, use_qk_norm=True),
    "cohere2": asking("cohere2", **FLAT_LAYERS, logit_scale=1.0),
    "glm4": asking("glm4", rope_parameters=HALF),
    "exaone4": asking("exaone4", **FLAT_LAYERS),
    "deepseek_v32": asking("deepseek_v32", rope_parameters=ALL_DIM),
    "mistral4": asking("mistral4", qk_nope_head_dim=32, rope_parameters={
        **ALL_DIM, "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.5, "max_position_embeddings": LENGTH,
    }),
    "minicpm3": asking("minicpm3", scale_emb=1, dim_model_base=128, rope_parameters=ALL_DIM),
}  # fmt: skip
for _name in others({data["model_type"]: name for name, data in BAKED.items()}, baked=True):
    BAKED[_name] = asking(_name, rope_parameters={**YARN, **rope_keys(_name)})
