#!/usr/bin/env python3
"""Find how exllamav3 reads the rope keys of each family that it has, by asking the config classes of its architectures.

Writes ropetool/families/engine_files/exllamav3.json. ROPETOOL_PEERS names a folder with exllamav3-VERSION; the classes run
on a CPU, with stand-ins for what needs a compiled kernel (tests/oracle/peer_stand_ins.py).
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/oracle"), str(ROOT / "scripts")]

import mlx_files  # noqa: E402 - small configs
import peer_stand_ins  # noqa: E402

from ropetool import families, names  # noqa: E402
from ropetool.families import records  # noqa: E402
from ropetool.runtimes import exllamav3  # noqa: E402

PACKAGE = "exllamav3"
FILE = ROOT / "ropetool/families/engine_files/exllamav3.json"
WINDOW, CONTEXT = 8, 512
STATED = 20000.0
# Files that a processor brings, which the classes of wrappers ask for before anything else.
PROCESSOR = {
    "size": {"shortest_edge": 3136, "longest_edge": 1003520}, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 0.00392156862745098,
    "min_pixels": 3136, "max_pixels": 1003520, "image_processor_type": "", "image_seq_length": 256, "resample": 3,
}  # fmt: skip
PROCESSORS = (
    "Qwen2VLImageProcessorFast", "Glm4vImageProcessor", "Gemma3ImageProcessor", "PixtralImageProcessorFast", "PixtralImageProcessor",
    "Lfm2VlImageProcessorFast",
)  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "dots1": {"norm_topk_prob": True},
    "exaone4": {"sliding_window_pattern": "LLLG"},
    "laguna": {"gating": "per-head", "norm_topk_prob": True, "decoder_sparse_step": 1},
    "lfm2_vl": {"encoder_patch_size": 16},
    "qwen3_vl_moe": {"num_experts": 4, "norm_topk_prob": True},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "moe", "mamba"], "hybrid_override_pattern": "M*EM"},
    "qwen3_moe": {"norm_topk_prob": True},
}
STYLES = {"NEOX": "half", "GPTJ": "interleaved"}


def architectures(root: Path) -> dict[str, tuple[str, str]]:
    """Return the file and the config class by the name in a config's `architectures`."""
    found = {}
    for file in (root / PACKAGE / "architecture").glob("*.py"):
        for match in re.finditer(r'class (\w+)\(.*\):\n(?:    .*\n)*?    arch_string = "(\w+)"', file.read_text()):
            found[match[2]] = file.stem, match[1]
    return found


def asked(kind: Any, config: Mapping[str, Any]) -> Any:
    """Return the config class's reading of a config.

    Raises: what it raises.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        for processor in PROCESSORS:
            stated = {**PROCESSOR, "image_processor_type": processor}
            for name in ("preprocessor_config.json", "processor_config.json"):
                Path(folder, name).write_text(json.dumps({**stated, "image_processor": stated}))
            try:
                return kind(folder)
            except AssertionError as error:  # it wants another one of these
                wrong = error
        raise wrong


def facts(model_type: str, known: Mapping[str, tuple[str, str]]) -> dict[str, Any] | None:
    """Return what exllamav3 does with configs of a type, None where it has no architecture of the name."""
    config, path = mlx_files.small(model_type)
    architecture = (config.get("architectures") or [""])[0]
    if architecture not in known:
        return None
    file, name = known[architecture]
    module = importlib.import_module(f"{PACKAGE}.architecture.{file}")
    for reader in [one for one in vars(module) if re.match("read_.*(vision|process)", one)]:
        setattr(module, reader, lambda *_, **__: peer_stand_ins.stand_in("images")())
    kind = getattr(module, name)
    part = config
    for key in path:
        part = part[key]
    part |= MORE.get(model_type, {})
    config |= {k: v for k, v in part.items() if model_type in mlx_files.FLAT and k != "model_type"}
    if part.get("head_dim") is None:
        part["head_dim"] = part["hidden_size"] // part["num_attention_heads"]
    part[names.MAX_POSITION_EMBEDDINGS] = CONTEXT
    try:
        found = {"file": file, **_facts(kind, config, path)}
        return found if families.of_config(config).mla else {k: v for k, v in found.items() if k != "mscales"}
    except Exception as error:  # noqa: BLE001 - whatever stops the class
        reason = " ".join(str(error).split()).replace(tempfile.gettempdir(), "")[:120]
        return {"file": file, "odd": f"a small config of it is not taken: {type(error).__name__}: {reason}"}


def _facts(kind: Any, config: dict[str, Any], path: list[str]) -> dict[str, Any]:
    def read(theta: float | None, scaling: Mapping[str, Any] | None) -> tuple[Any, Any]:
        stated = copy.deepcopy(config)
        part = stated
        for key in path:
            part = part[key]
        inner = part.pop(names.ROPE_PARAMETERS, None) or {}
        if any(isinstance(one, Mapping) for one in inner.values()):
            part[names.ROPE_PARAMETERS] = {
                k: {"rope_type": "default"} for k, v in inner.items() if isinstance(v, Mapping)
            }
        elif names.PARTIAL_ROTARY_FACTOR in inner:
            part[names.PARTIAL_ROTARY_FACTOR] = inner[names.PARTIAL_ROTARY_FACTOR]
        part.pop(names.ROPE_THETA, None)
        if theta is not None:
            part[names.ROPE_THETA] = theta
        part[names.ROPE_SCALING] = scaling
        found = asked(kind, stated)
        return _settings(found), found

    scaling = {names.ROPE_TYPE: "linear", names.FACTOR: 2.0}
    (full, sliding), found = read(STATED, scaling)
    if full is None:
        return {"odd": "its architecture does not rotate"}
    if full.rope_theta != STATED or full.rope_scaling != scaling:
        return {"odd": "it reads rope keys of each kind of layer"}
    (bare, _), _ = read(None, None)
    out: dict[str, Any] = {"layout": STYLES[full.rope_style.name]}
    if bare.rope_theta != 10000.0:
        out["base"] = bare.rope_theta
    if sliding is not None and sliding.rope_theta != STATED:
        out["local_base"] = sliding.rope_theta
    if sliding is not None and sliding.rope_scaling and sliding.override_type != "default":
        return {"odd": "its sliding layers are scaled"}
    widths = {getattr(found, "sliding_window", None), *(getattr(found, "swa_pattern", None) or ())}
    if widths & {WINDOW, WINDOW - 1}:
        out["window"] = True
    if full.yarn_mscale_ratio is False:
        out["mscales"] = False
    return out


def _settings(found: Any) -> tuple[Any, Any]:
    """Return the rope settings of full and of sliding layers, None where there are no others."""
    if hasattr(found, "rope_settings_global"):
        return found.rope_settings_global, found.rope_settings_local
    if hasattr(found, "rope_settings_list"):
        raise ValueError("rope settings of each layer")
    return found.rope_settings, getattr(found, "rope_settings_swa", None)


def main() -> int:
    import transformers

    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    root = Path(os.environ.get("ROPETOOL_PEERS", "")) / f"{PACKAGE}-{exllamav3.VERSIONS}"
    known = architectures(root)
    if not known:
        print(f"ROPETOOL_PEERS has no {root.name}", file=sys.stderr)
        return 1
    real = [f"{PACKAGE}.util.rope", f"{PACKAGE}.util.file", f"{PACKAGE}.model.config"]
    real += [f"{PACKAGE}.architecture.{file}" for file, _ in known.values()]
    peer_stand_ins.install(root, real, {}, ("xformers", "flash_attn", "marisa_trie", "formatron", "kbnf", "pydantic"))
    found = {}
    for model_type in sorted(records.names()):
        name = mlx_files.key_of(model_type)
        family = families.find(model_type)
        if name is None or (family is not None and family.own_name and family.exllamav3 is not None):
            continue
        one = facts(model_type, known)
        if one is not None:
            found[name] = one
            print(name, json.dumps(one), file=sys.stderr)
    FILE.write_text(mlx_files.text_of(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
