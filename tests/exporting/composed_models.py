"""Tiny configs of families whose text model stands inside a wrapper, and of those whose layers are of several kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# By the family of the text model that no class has alone: the wrapper that its checkpoint is of.
WRAPPERS = {
    "gemma3": "gemma3", "qwen2_vl_text": "qwen2_vl", "qwen2_5_vl_text": "qwen2_5_vl", "qwen3_vl_text": "qwen3_vl",
}  # fmt: skip
# By wrapper: what its other parts must have in common with the text model, and what its class leaves open.
PARTS: dict[str, dict[str, Any]] = {
    "kimi_k25": {
        "image_token_id": 299,
        "video_token_id": 298,
    },  # whose embedding it takes for one of padding, without an image too
    "qwen2_vl": {"vision_config": {"hidden_size": 128}},
    "qwen2_5_vl": {"vision_config": {"out_hidden_size": 128}},
    "qwen3_vl": {"vision_config": {"out_hidden_size": 128, "depth": 2, "deepstack_visual_indexes": [0, 1]}},
}
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
    }


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
