#!/usr/bin/env python3
"""The checkpoints that scripts/corpus.py starts from: committed configs and shapes, and numbers that follow from names.

Run as a program, it writes tests/corpus_models.json anew from the tiny models of the tests; that alone needs
transformers, whose class names the tensors of each model.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "tests/oracle", "tests/baking", "")]

import tokenizer_making
from models import save, stored, write_safetensors

MODELS = ROOT / "tests" / "corpus_models.json"
TRAINED, BLOCK = 512, 32
KEPT = ("rope_theta", "partial_rotary_factor", "llama_4_scaling_beta", "max_position_embeddings")
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
Config = dict[str, Any]
Tensors = dict[str, tuple[str, np.ndarray]]  # with the types of safetensors, BF16 and F8_E4M3 as their bits


# --- configs


def rope_of(config: Config) -> Config:
    """Return the rope keys of a v5 config, those of its full layers."""
    keys: Config = config.get("text_config", config)["rope_parameters"]
    return keys.get("full_attention", keys)


def unscaled(config: Config) -> Config:
    """Return the config as before any extension."""
    found: Config = json.loads(json.dumps(config))
    keys = rope_of(found)
    kept = {key: keys[key] for key in KEPT if key in keys}
    if "llama_4_scaling_beta" in keys:
        kept["original_max_position_embeddings"] = TRAINED
    keys.clear()
    keys |= {"rope_type": "default", **kept}
    found.get("text_config", found)["max_position_embeddings"] = TRAINED
    return found


def without_multiplier(config: Config) -> Config:
    """Return the config without MLA's multiplier of the score: what is left is a factor on cos and sin."""
    found: Config = json.loads(json.dumps(config))
    for key in ("mscale", "mscale_all_dim"):
        rope_of(found).pop(key, None)
    return found


def v4(config: Config) -> Config:
    """Return an unscaled v5 config in the v4 style."""
    if "text_config" in config:
        return {**config, "text_config": v4(config["text_config"])}
    found = {key: value for key, value in config.items() if key != "rope_parameters"}
    keys = config["rope_parameters"]
    if "full_attention" in keys:
        found["rope_local_base_freq"] = keys["sliding_attention"]["rope_theta"]
    keys = {key: value for key, value in rope_of(config).items() if key != "rope_type"}
    if config["model_type"] == "gpt_neox":
        keys["rotary_pct"] = keys.pop("partial_rotary_factor")
    return {**found, **keys, "rope_scaling": None}


def scaled(config: Config) -> Config:
    """Return the config as it is after an extension by two: by YaRN in the v4 style, linearly in the v5 style."""
    found: Config = {**json.loads(json.dumps(config)), "max_position_embeddings": 2 * TRAINED}
    if "rope_parameters" in found:
        rope_of(found).update({"rope_type": "linear", "factor": 2.0})
        return found
    return {**found, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": TRAINED}}


# --- weights


@lru_cache(2048)
def numbers(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return float32 numbers from -1 to 1 that follow from the name: no generator whose stream may change."""
    raw = hashlib.shake_256(name.encode()).digest(4 * math.prod(shape))
    return (np.frombuffer(raw, "<i4") / 2**31).astype(np.float32).reshape(shape)


def codes(name: str, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """Return bytes from `low` to below `high` that follow from the name."""
    raw = np.frombuffer(hashlib.shake_256(name.encode()).digest(math.prod(shape)), np.uint8)
    return (low + raw.astype(np.uint16) % (high - low)).astype(np.uint8).reshape(shape)


def tensors_of(shapes: dict[str, list[int]], form: str) -> Tensors:
    """Return the tensors of a checkpoint whose matrices are in this form: F32, BF16, FP8 or MXFP4."""
    found: Tensors = {}
    for name, shape in ((name, tuple(shape)) for name, shape in shapes.items()):
        if form == "FP8" and name.endswith("_proj.weight"):
            grid = tuple(-(-size // BLOCK) for size in shape)
            found[name] = ("F8_E4M3", codes(name, shape, 0, 127))
            found[f"{name}_scale_inv"] = ("F32", numbers(f"{name}_scale_inv", grid) + np.float32(1.5))
        elif form == "MXFP4" and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            grid = (shape[0], shape[2], shape[1] // 32)
            found[f"{name}_blocks"] = ("U8", codes(f"{name}_blocks", (*grid, 16), 0, 256))
            found[f"{name}_scales"] = ("U8", codes(f"{name}_scales", grid, 121, 125))
        else:
            dtype = "BF16" if form in ("BF16", "MXFP4") else "F32"
            found[name] = (dtype, stored(numbers(name, shape), dtype))
    return found


def write(folder: Path, config: Config, shapes: dict[str, list[int]], form: str = "F32", indent: int = 2) -> Path:
    """Return a checkpoint of two shards with a tokenizer, or a config alone; written where the folder does not have it."""
    mark = hashlib.sha256(json.dumps([config, shapes, form, indent]).encode()).hexdigest()[:16]
    path = folder / mark / "model"
    if path.exists():
        return path
    path.mkdir(parents=True)
    if not shapes:
        (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return path
    quantised = {"FP8": {"quantization_config": FP8}, "MXFP4": {"quantization_config": MXFP4}}.get(form, {})
    stated = {**config, "dtype": "float32" if form in ("F32", "FP8") else "bfloat16", **quantised}
    (path / "config.json").write_text(json.dumps(stated, indent=indent) + "\n", encoding="utf-8")
    made = list(tensors_of(shapes, form).items())
    files, total = {}, 0
    for number, part in enumerate((made[::2], made[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        write_safetensors(path / file, dict(part))
        files |= {name: file for name, _ in part}
        total += sum(values.nbytes for _, (_, values) in part)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
    (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    save(path / "tokenizer.json", tokenizer_making.by_hand())
    save(path / "tokenizer_config.json", {**tokenizer_making.TOKENIZER_CONFIG, "model_max_length": TRAINED})
    return path


# --- the committed models


def models(kind: str) -> dict[str, tuple[Config, dict[str, list[int]]]]:
    """Return config and shapes by name of the models of a kind: bake, which ask for YaRN, or export, which are not scaled."""
    known = json.loads(MODELS.read_text(encoding="utf-8"))
    return {n.partition("/")[2]: (m["config"], m["tensors"]) for n, m in known.items() if n.startswith(f"{kind}/")}


def _made() -> dict[str, Any]:
    """Return the models of the tests, with the names that transformers saves tensors by."""
    import bake_models
    from configs import BAKED, EXPORTED
    from models import write as write_family

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, config in BAKED.items():
            found[f"bake/{name}"] = _saved(bake_models.write(Path(folder, "bake", name), config))
        for name in EXPORTED:
            found[f"export/{name}"] = _saved(write_family(Path(folder, "export", name), name))
    inner = found["bake/gemma3_text"]
    shapes = {name.replace("model.", "model.language_model."): shape for name, shape in inner["tensors"].items()}
    shapes["model.vision_tower.encoder.layers.0.self_attn.k_proj.weight"] = [8, 8]
    config = {"model_type": "gemma3", "text_config": inner["config"], "vision_config": {"hidden_size": 8}}
    return {**found, "bake/gemma3": {"config": config, "tensors": shapes}}


def _saved(path: Path) -> dict[str, Any]:
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    shapes = {}
    for file in path.glob("*.safetensors"):
        raw = file.read_bytes()
        entries = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        shapes |= {name: entry["shape"] for name, entry in entries.items() if name != "__metadata__"}
    left_out = ("dtype", "torch_dtype", "transformers_version")
    return {
        "config": {key: value for key, value in config.items() if key not in left_out},
        "tensors": dict(sorted(shapes.items())),
    }


if __name__ == "__main__":
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(model)}" for name, model in sorted(_made().items()))
    MODELS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
