#!/usr/bin/env python3
"""Record what releases of transformers compute from configs that ropetool/doctor/older_releases.py is about.

Writes tests/oracle/older_releases.json: for each config the answers of the last release with the older reading, and of
the first one with the reading of today. Takes a minute for each release that is not installed yet.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "scripts", "tests", "tests/oracle")]

import configs
from peers import YARN

from following import readings

RESULT = ROOT / "tests" / "oracle" / "older_releases.json"
MSCALES = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}
LONG = {"max_position_embeddings": 2048}

# By name: a config, the last release with the older reading, and the first one with the reading of today.
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "minimax_m2": (
        {"model_type": "minimax_m2", **configs.SMALL, "head_dim": 32, "rotary_dim": 16, "rope_theta": 10000.0,
         "num_local_experts": 2, "num_experts_per_tok": 1},
        "5.17.0", "5.18.0",
    ),
    "deepseek_v2": ({**configs.config("deepseek_v2", "v4"), **LONG, "rope_scaling": MSCALES}, "5.14.1", "5.15.0"),
    "mistral4": (
        {
            "model_type": "mistral4", **configs.MLA, **LONG, "qk_nope_head_dim": 32,
            "rope_parameters": {
                **MSCALES, "rope_theta": 10000.0, "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.5,
                "max_position_embeddings": 512,
            },
        },
        "5.14.1", "5.15.0",
    ),
    "olmo3, rope_scaling": ({**configs.config("olmo3", "v4"), **LONG, "rope_scaling": YARN}, "5.12.1", "5.13.0"),
    "olmo3, rope_parameters": ({**readings.scaled(configs.config("olmo3", "v5", theta=500000.0), YARN), **LONG}, "5.12.1", "5.13.0"),
}  # fmt: skip


def rounded(value: Any) -> Any:
    """Return an answer with seven digits of each number."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def main() -> None:
    record: dict[str, Any] = {name: {"config": config, "answers": {}} for name, (config, _, _) in CASES.items()}
    for release in sorted({release for _, *both in CASES.values() for release in both}):
        asked = {name: config for name, (config, *both) in CASES.items() if release in both}
        for name, answer in readings.answers(release, asked).items():
            record[name]["answers"][release] = rounded(dict(answer))
    lines = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in record.items()]
    RESULT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
