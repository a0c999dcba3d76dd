"""What SGLang is asked of families that its decoder knows by its sources alone: one way to scale each, and the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import configs
import peers

from ropetool import families
from ropetool.families.family import Family
from ropetool.runtimes.base import numbers

GOLDEN = Path(__file__).parent / "sglang_families.json"
THETA = 12345.5  # a base that a file which cuts it to an integer shows
CELLS = ("default", "linear", "yarn", "yarn-attention-1", "llama3", "longrope-alike")
KINDS = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
MLA = {key: value for key, value in configs.MLA.items() if key not in configs.SMALL}
FAMILIES: dict[str, dict[str, Any]] = {
    "olmoe": {"num_experts": 2, "num_experts_per_tok": 1},
    "arcee": {},
    "apertus": {},
    "afmoe": {
        **KINDS, "head_dim": 32, "num_dense_layers": 2, "num_experts": 2, "num_experts_per_tok": 1, "score_func": "sigmoid",
    },
    "gemma": {"head_dim": 32},
    "olmo": {},
    "glm4_moe": {
        "head_dim": 32, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 2, "partial_rotary_factor": 0.5, "attention_bias": False,
    },
    "ernie4_5_moe": {"head_dim": 32, "moe_num_experts": 2, "moe_k": 1, "moe_layer_start_index": 4},
    "lfm2": {"layer_types": ["full_attention"] * 2},
    "hunyuan_v1_dense": {"head_dim": 32},
    "granitemoe": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "minimax_m2": {
        "head_dim": 32, "num_local_experts": 2, "num_experts_per_tok": 1, "rotary_dim": 16, "scoring_func": "sigmoid",
        "use_routing_bias": True,
    },
    "internlm3": {"head_dim": 32, "bias": False, "qkv_bias": False},
    "iquestcoder": {"head_dim": 32},
    "hunyuan_v1_moe": {
        "head_dim": 32, "num_experts": 2, "moe_topk": [1, 1], "moe_intermediate_size": [16, 16], "num_shared_expert": [1, 1],
        "use_mixed_mlp_moe": False,
    },
    "hy_v3": {
        "head_dim": 32, "num_experts": 2, "num_experts_per_tok": 1, "num_shared_experts": 1, "first_k_dense_replace": 2,
        "moe_intermediate_size": 16, "route_norm": True, "qk_norm": True,
    },
    "lfm2_moe": {"layer_types": ["full_attention"] * 2, "num_experts": 2, "num_experts_per_tok": 1, "num_dense_layers": 2},
    "llama4_text": {
        "head_dim": 32, "num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 64,
        "interleave_moe_layer_step": 4, "no_rope_layers": [1, 1], "attention_chunk_size": 128,
    },
    "glm4_moe_lite": {**MLA, "norm_topk_prob": True, "routed_scaling_factor": 1.0},
    "glm_moe_dsa": {
        **MLA, "norm_topk_prob": True, "routed_scaling_factor": 1.0, "index_topk": 96, "index_head_dim": 48,
        "index_n_heads": 2,
    },
    "mellum": {**KINDS, "head_dim": 32, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
    "qwen2_vl": {},
    "qwen2_5_vl": {},
    "qwen3_vl": {"head_dim": 32},
    "qwen3_vl_moe": {
        "head_dim": 32, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    },
    "glm4v_moe": {
        "head_dim": 32, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 2, "partial_rotary_factor": 0.5, "attention_bias": False,
    },
    "gemma3n_text": {
        **KINDS, "head_dim": 32, "intermediate_size": [64, 64], "activation_sparsity_pattern": [0.0, 0.0],
        "num_kv_shared_layers": 0,
    },
}  # fmt: skip

SINCE = {"mellum": "0.5.16"}  # before, SGLang has no file of it
# Wrappers by model_type: the class that their configs name, and the type of the text model inside.
WRAPPERS = {
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", "qwen2_vl_text"),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text"),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", "qwen3_vl_text"),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text"),
    "glm4v_moe": ("Glm4vMoeForConditionalGeneration", "glm4v_moe_text"),
}


def jobs() -> dict[str, dict[str, Any]]:
    """Return every config by family and cell."""
    return {f"{name}-{cell}": config(name, cell) for name in FAMILIES for cell in CELLS}


def config(name: str, cell: str) -> dict[str, Any]:
    if name in WRAPPERS:
        architecture, text_type = WRAPPERS[name]
        text = _scaled(families.get(text_type), FAMILIES[name], cell)
        return {"model_type": name, "architectures": [architecture], "text_config": {**text, "model_type": text_type}}
    family = families.get(name)
    return {"model_type": name, "architectures": [family.architecture], **_scaled(family, FAMILIES[name], cell)}


def _scaled(family: Family, keys: dict[str, Any], cell: str) -> dict[str, Any]:
    scaling = peers.CELLS[cell]
    if cell == "longrope-alike":
        pairs = keys["rotary_dim"] // 2 if "rotary_dim" in keys else 8 if "partial_rotary_factor" in keys else 16
        lists = dict.fromkeys(("short_factor", "long_factor"), peers.LISTS["long_factor"][:pairs])
        scaling = {**peers.LISTS, **lists}
    data = {**configs.SMALL, "max_position_embeddings": 2048 if scaling else 512, "rms_norm_eps": 1e-5, **keys}
    if family.nested:
        full = {"rope_type": "default", **(scaling or {}), "rope_theta": THETA}
        data["rope_parameters"] = {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        }
    else:
        data |= {"rope_theta": THETA, "rope_scaling": scaling}
    if cell == "longrope-alike":
        data["original_max_position_embeddings"] = 512
    return data


def golden(version: str) -> dict[str, dict[str, Any]]:
    """Return the recorded answers of a release by family and cell."""
    data = json.loads(GOLDEN.read_text(encoding="utf-8"))
    found = {}
    for name, answer in zip(jobs(), data["releases"][version], strict=True):
        layers = answer.get("layers")
        found[name] = answer if layers is None else {**answer, "layers": [data["layers"][i] for i in layers]}
    return found


def compared(version: str, answers: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Return the configs in which the decoder and a release differ, and in what."""
    runtime, asked = peers.runtime_of("sglang", version), jobs()
    lacking = [f"{name}-{cell}" for name, since in SINCE.items() if numbers(version) < numbers(since) for cell in CELLS]
    found = {
        name: peers.differences(runtime, asked[name], answer) for name, answer in answers.items() if name not in lacking
    }
    return {name: reasons for name, reasons in found.items() if reasons}
