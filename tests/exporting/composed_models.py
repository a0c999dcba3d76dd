"""Tiny configs of families whose text model stands inside a wrapper, and of those whose layers are of several kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# By the family of the text model that no class has alone: the wrapper that its checkpoint is of.
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
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
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


def configs(small: Mapping[str, Any], known: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the configs of the text models by family. small: the sizes that all of them have. known: other families'."""
    heads = {**small, "head_dim": 32}
    return {
        "gemma3": known["gemma3_text"],
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
