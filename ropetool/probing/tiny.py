"""A tiny model of a model_type: the class's defaults, with every size reduced that does not affect the rotation.

Head sizes, rotary shares, bases and the pattern of layers stay unchanged, so the RoPE tables equal the real ones.
Widths, vocabularies, experts and the number of layers shrink.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

TOKENS = 40  # of the probing text, more than WINDOW, the size of all windows
WINDOW = 8
VOCABULARY = 128
HEADS = 2
LAYERS = 4  # the fewest layers, unless the defaults have fewer
MOST_LAYERS = 24

# Patterns of native keys with the new value. A pattern matches the whole key; the first match counts. Other keys stay.
SIZES: tuple[tuple[str, int | None], ...] = (
    (r"pad_token_id", 0),
    (r"bos_token_id", 1),
    (r".*(eos|sep|eod|start)_token_id", 2),
    (r"(image|video|audio|vision|boi|eoi|boa|eoa|img|mask)_.*(token_id|token_index)|.*_token_(id|index)", 3),
    (r".*vocab_size.*|ngram_vocab_size_base|encoder_hash_byte_group_vocab", VOCABULARY),
    (r"make_ngram_vocab_size_divisible_by|split_ngram_parts", 1),
    (r".*(intermediate_(size|dim)|ffn_dim|ffn_hidden_size|inner_dim|n_inner|d_ff|dff)(_.*)?", 32),
    (r"(.*_)?num_experts_per_tok(en)?|.*(moe_top_?k|top_k_experts|moe_k)|num_selected_experts", 2),
    (r"(num|n|moe_num)_(routed_|local_|sparse_)?experts|n_embed_experts", 4),
    (r"(num|n)_(shared_experts)|moe_num_shared_experts|num_shared_expert|zero_expert_num", 1),
    (r"n_group|topk_group|num_expert_group|moe_layer_group", 1),
    (r"q_lora_rank|kv_lora_rank|o_lora_rank|laurel_rank|gated_norm_rank|hc_lowrank", 32),
    (r"o_groups", 1),
    (r"index(er)?_(n|kv)_heads", HEADS),
    (r"linear_num_(key|value)_heads|linear_num_heads", HEADS),
    (r"num_kv_shared_layers|num_nextn_predict_layers|num_mtp_layers|mtp_num_hidden_layers", 0),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index", 1),
    (r"(.*_)?(sliding_window(_size)?|attention_window_size|local_attention|attention_chunk_size)", WINDOW),
    (r"floor_scale|log_scaling_n_floor", WINDOW),
    (r"hidden_size_per_layer_input|ple_embed_dim|embedding_size", 32),
)  # fmt: skip

MIXED = ["sliding_attention", "full_attention"] * 2
EXPERTS = {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
# Keys by model_type that no rule covers: required keys without a default, and layer types that the defaults do not use.
EXCEPTIONS: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "blt_local_decoder": {"hidden_size_global": 256},
    "blt_local_encoder": {"hidden_size_global": 256},
    "cohere_compass_text": {
        "layer_types": MIXED,
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": 10000.0} for name in sorted(set(MIXED))},
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": HEADS, "clip_qkv": 8.0}},
    "chameleon": {"vocabulary_map": {"<image>": 4, "IMGIMGA": 5, "IMGIMGB": 6}},
    "codegen": {"n_head": 4, "n_embd": 512},
    "deepseek_ocr2_text": {**EXPERTS, "mlp_layer_types": ["dense", "sparse"] * 2},
    "deepseek_v2": EXPERTS,
    "deepseek_v4": {
        "layer_types": ["sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"] * 2,
        "num_hidden_layers": 6, "mlp_layer_types": None,
    },
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "dots1": EXPERTS,
    # Its config counts attention and MLP as two layers.
    "dory": {
        "num_hidden_layers": 8, "layer_types": [block for name in MIXED for block in (name, "mlp")],
        "n_input_layers": 2, "n_recurrent_layers": 4, "n_output_layers": 2,
    },
    "glm4_moe": {"hidden_size": 256},
    "glm4v_moe_text": {"hidden_size": 256},
    "glm4v_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
    "granitemoehybrid": {"position_embedding_type": "rope", "layer_types": ["linear_attention", "full_attention"] * 2},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl_text": {
        "head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 16, 16, 16]},
    },
    "laguna": {"layer_types": MIXED},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "mellum": {"layer_types": MIXED},
    "ministral": {"head_dim": 128, "layer_types": MIXED},
    "nemotron": {"num_key_value_heads": HEADS},
    "qwen4_exp_text": {
        "indexer_n_heads": HEADS, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 64,
        "indexer_compress_ratio": 4,
    },
    "qwen3_omni_moe_text": {"hidden_size": 256},
    "step3p5": {"sliding_window": WINDOW, "layer_types": MIXED, "num_sliding_attention_heads": HEADS},
    "zamba2": {"use_mem_rope": True},
    "zaya": {"num_experts_per_tok": 1, "layer_types": ["hybrid", "hybrid_sliding"] * 2, "sliding_window": WINDOW},
}  # fmt: skip

# Inputs of a model besides tokens, by model_type: the shapes of tensors of ones. A name is the config key of a size.
FORWARD: Mapping[str, Mapping[str, tuple[int | str, ...]]] = {
    "idefics": {"image_encoder_embeddings": (1, 1, 4, "embed_dim"), "image_attention_mask": (1, TOKENS, 1)},
    "voxtral_realtime_text": {"t_cond": (1, 1, "hidden_size")},
}


def overrides(config: Any, layers: int | None = None) -> dict[str, Any]:
    """Return the keys that make a config small, as keyword arguments of its class.

    config: a transformers config of the text model or of a part of it.
    layers: the number of layers; None for one period of layer types.
    """
    names = dict(getattr(config, "attribute_map", {}))
    native = _native(config)
    small: dict[str, Any] = {}
    exceptions = EXCEPTIONS.get(getattr(config, "model_type", ""), {})
    for key, value in native.items():
        if _is_config(value):
            if inner := overrides(value):
                small[key] = inner
        else:
            changed = _small(key, value)
            if changed is not None:
                small[key] = changed
    heads_key = names.get("num_attention_heads", "num_attention_heads")
    hidden_key = names.get("hidden_size", "hidden_size")
    heads, hidden = native.get(heads_key), native.get(hidden_key)
    if type(heads) is int and type(hidden) is int and heads:
        small[heads_key] = min(heads, HEADS)
        small[hidden_key] = max(hidden // heads, 1) * small[heads_key]
    kv_key = names.get("num_key_value_heads", "num_key_value_heads")
    if type(native.get(kv_key)) is int and type(heads) is int:
        small[kv_key] = small[heads_key] if native[kv_key] == heads else 1
    layers_key = names.get("num_hidden_layers", "num_hidden_layers")
    count = native.get(layers_key)
    if type(count) is int and count:
        kept = min(period(config), count) if layers is None else layers
        small[layers_key] = kept
        for key, value in per_layer(native, count):
            small[key] = (
                [_small(key, one) or one for one in value[:kept]] if _small(key, value[0]) else list(value[:kept])
            )
    return {**small, **exceptions}


def period(config: Any) -> int:
    """Return the number of leading layers that include every layer type, in each list with one entry per layer."""
    names = dict(getattr(config, "attribute_map", {}))
    native = _native(config)
    count: int = native[names.get("num_hidden_layers", "num_hidden_layers")]
    need = LAYERS
    for _, value in per_layer(native, count):
        seen = [repr(one) for one in value]
        if len(set(seen)) <= MOST_LAYERS // 2:
            need = max(need, 1 + max(seen.index(one) for one in set(seen)))
    return min(need, count, MOST_LAYERS)


def per_layer(native: Mapping[str, Any], count: int) -> Iterator[tuple[str, list[Any]]]:
    """Yield the keys whose lists have one entry per layer."""
    for key, value in native.items():
        if isinstance(value, (list, tuple)) and len(value) == count and count > 2:
            yield key, list(value)


def _native(config: Any) -> dict[str, Any]:
    """Return the values of a config under its class's own keys. Parts of the config stay configs."""
    inner = {key: value for key, value in vars(config).items() if _is_config(value)}
    plain = {key: value for key, value in config.to_dict().items() if not isinstance(value, dict)}
    return {**plain, **inner}


def _is_config(value: Any) -> bool:
    return hasattr(value, "to_dict") and hasattr(value, "model_type")


def _small(key: str, value: Any) -> Any:
    """Return the small value of a key, or None if the key stays unchanged."""
    size: int | None = next((size for pattern, size in SIZES if re.fullmatch(pattern, key)), None)
    if size is None or value is None or isinstance(value, (bool, str, float)):
        return None
    if isinstance(value, (list, tuple)):
        return [size for one in value if type(one) is int] or None
    if type(value) is not int:
        return None
    return size if value > 0 or "token" in key else None
