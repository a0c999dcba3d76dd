"""What SGLang is asked of families that its decoder knows by its sources alone: one way to scale each, and the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import configs
import peers

from ropetool import families

GOLDEN = Path(__file__).parent / "sglang_families.json"
THETA = 12345.5  # a base that a file which cuts it to an integer shows
CELLS = ("default", "linear", "yarn", "yarn-attention-1", "llama3", "longrope-alike")
KINDS = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
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
}  # fmt: skip


def jobs() -> dict[str, dict[str, Any]]:
    """Return every config by family and cell."""
    return {f"{name}-{cell}": config(name, cell) for name in FAMILIES for cell in CELLS}


def config(name: str, cell: str) -> dict[str, Any]:
    scaling = peers.CELLS[cell]
    data = {
        **configs.SMALL, "model_type": name, "architectures": [families.get(name).architecture], "rope_theta": THETA,
        "rope_scaling": scaling, "max_position_embeddings": 2048 if scaling else 512, "rms_norm_eps": 1e-5, **FAMILIES[name],
    }  # fmt: skip
    if cell == "longrope-alike":
        pairs = 8 if "partial_rotary_factor" in data else 16
        lists = dict.fromkeys(("short_factor", "long_factor"), peers.LISTS["long_factor"][:pairs])
        data |= {"original_max_position_embeddings": 512, "rope_scaling": {**peers.LISTS, **lists}}
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
    found = {name: peers.differences(runtime, asked[name], answer) for name, answer in answers.items()}
    return {name: reasons for name, reasons in found.items() if reasons}
