#!/usr/bin/env python3
"""Find how exllamav3 reads the rope keys of each family that it has, by asking the config classes of its architectures.

Writes ropetool/families/engine_files/exllamav3.json. ROPETOOL_PEERS names a folder with exllamav3-VERSION; the classes run
on a CPU, with stand-ins for what needs a compiled kernel (tests/oracle/exllama_models_probe.py).

    scripts/engine_files/exllamav3_files.py           what each architecture reads
    scripts/engine_files/exllamav3_files.py --record  what whole models answer, which tests compare the decoder with
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/oracle"), str(ROOT / "scripts")]

import exllama_models_probe as probe

from engine_files import recording, small_models
from ropetool import families, names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families import records
from ropetool.runtimes import engine_formulas as engine
from ropetool.runtimes import exllamav3

FILE = ROOT / "ropetool/families/engine_files/exllamav3.json"
WINDOW, CONTEXT = 8, 512
STATED = 20000.0
KEYS = (names.ROPE_THETA, names.ROPE_SCALING, names.ROPE_PARAMETERS, names.PARTIAL_ROTARY_FACTOR)
# What published configs have beside what transformers' config classes write: in the text model's part, and around it.
MORE: dict[str, dict[str, Any]] = {
    "dots1": {"norm_topk_prob": True},
    "exaone4": {"sliding_window_pattern": "LLLG"},
    "gemma4": {"hidden_size_per_layer_input": 0, "global_head_dim": 512},
    "gemma4_unified": {"hidden_size_per_layer_input": 0, "global_head_dim": 512},
    "glm5_next": {
        "layer_types": ["linear_attention"] * 3 + ["deepseek_sparse_attention"], "index_kpool": 4, "indexer_types": ["full"] * 4,
        "linear_attn_config": {"num_heads": 2, "head_dim": 32, "short_conv_kernel_size": 4},
    },
    "laguna": {"gating": "per-head", "norm_topk_prob": True, "decoder_sparse_step": 1},
    "qwen3_vl_moe": {"num_experts": 4, "norm_topk_prob": True},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention", "moe", "mamba"], "hybrid_override_pattern": "M*EM",
        "mtp_layers_block_type": ["attention", "moe"],
    },
    "qwen3_moe": {"norm_topk_prob": True},
}  # fmt: skip
GEMMA4 = {"patch_size": 16, "pooling_kernel_size": 3, "rms_norm_eps": 1e-6}
AROUND: dict[str, dict[str, Any]] = {
    "gemma4": {
        "vision_soft_tokens_per_image": 280, "vision_config": {
            **GEMMA4, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 64,
            "position_embedding_size": 64,
        },
    },
    "gemma4_unified": {
        "vision_soft_tokens_per_image": 280, "vision_config": {
            **GEMMA4, "mm_embed_dim": 64, "output_proj_dims": 64, "model_patch_size": 48, "mm_posemb_size": 64,
        },
    },
}  # fmt: skip
STYLES = {"NEOX": "half", "GPTJ": "interleaved"}


def small(model_type: str, known: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a small config of a type as published ones are, and where its text model's part is."""
    config, path = small_models.small(model_type)
    architecture = next(iter(config["architectures"] or ()), None) or ""
    whole = architecture.replace("ForCausalLM", "ForConditionalGeneration")
    config["architectures"] = [whole if path and whole in known else architecture]
    part = config
    for key in path:
        part = part[key]
    part |= MORE.get(model_type, {})
    config |= AROUND.get(model_type, {})
    config |= {
        k: v for k, v in part.items() if model_type in small_models.FLAT and k not in ("model_type", "architectures")
    }
    if part.get("head_dim") is None:
        part["head_dim"] = part["hidden_size"] // part["num_attention_heads"]
    part[names.MAX_POSITION_EMBEDDINGS] = CONTEXT
    return config, path


REASONS = {  # of architectures whose reading is their own
    "deepseek_v4": "its attention, in modules/dsv4.py, calculates separate tables",
    "muse_glimmer": "it reads layer_rope_theta, a base for each layer",
    "qwen4_exp": "it does not accept indexed_attention in layer_types, which transformers writes",
    "step3p7": "it reads a separate base and rotating share for each layer",
}


ZERO = {name: {"zero": ["hidden_size_per_layer_input"]} for name in ("gemma4", "gemma4_unified")}


def facts(model_type: str, known: Mapping[str, tuple[str, str]]) -> dict[str, Any] | None:
    """Return what exllamav3 does with configs of a type, None where it has no architecture of the name."""
    config, path = small(model_type, known)
    if config["architectures"][0] not in known:
        return None
    file, _ = known[config["architectures"][0]]
    if model_type in REASONS:
        return {"file": file, "odd": REASONS[model_type]}
    try:
        found = {"file": file, **_facts(known, config, path), **ZERO.get(model_type, {})}
        return found if families.of_config(config).mla else {k: v for k, v in found.items() if k != "mscales"}
    except Exception as error:  # noqa: BLE001 - whatever stops the class
        reason = " ".join(str(error).split()).replace(tempfile.gettempdir(), "")[:120]
        return {"file": file, "odd": f"it rejects a small test config: {type(error).__name__}: {reason}"}


def _facts(known: Mapping[str, tuple[str, str]], config: dict[str, Any], path: list[str]) -> dict[str, Any]:
    family = families.of_config(config)

    def read(theta: float | None, scaling: Mapping[str, Any] | None, **near: float) -> list[dict[str, Any]]:
        """Return what each attention module is given; near: keys of each kind of layer beside its type."""
        stated = copy.deepcopy(config)
        part = stated
        for key in path:
            part = part[key]
        inner = part.pop(names.ROPE_PARAMETERS, None) or {}
        if any(isinstance(one, Mapping) for one in inner.values()):
            part[names.ROPE_PARAMETERS] = {
                k: {"rope_type": "default", **near} for k, v in inner.items() if isinstance(v, Mapping)
            }
        elif names.PARTIAL_ROTARY_FACTOR in inner:
            part[names.PARTIAL_ROTARY_FACTOR] = inner[names.PARTIAL_ROTARY_FACTOR]
        part.pop(names.ROPE_THETA, None)
        if theta is not None:
            part[names.ROPE_THETA] = theta
        part[names.ROPE_SCALING] = scaling
        if config["model_type"] in small_models.FLAT:
            stated = {k: v for k, v in stated.items() if k not in KEYS} | {k: part[k] for k in KEYS if k in part}
        probe.layers(probe.read(known, stated))
        return list(probe.seen)

    scaling = {names.ROPE_TYPE: "linear", names.FACTOR: 2.0}
    modules = read(STATED, scaling)
    turning = [one for one in modules if one.get("rope_settings") is not None]
    if not turning:
        return {} if family.rotates == "none" else {"odd": "its architecture does not rotate"}
    kinds = _kinds(config, modules)
    full = kinds[names.FULL_ATTENTION][0]["rope_settings"]
    above = full.rope_theta == STATED and full.rope_scaling == scaling
    nested = _kinds(config, read(None, None, rope_theta=STATED))[names.FULL_ATTENTION][0]["rope_settings"]
    if not above and nested.rope_theta != STATED:
        return {"odd": "it is not clear which key sets the base"}
    without = _kinds(config, read(None, None))
    bare = without[names.FULL_ATTENTION][0]["rope_settings"]
    out: dict[str, Any] = {"layout": STYLES[full.rope_style.name]}
    if family.nested and nested.rope_theta == STATED:
        out["nested"] = "beside" if above else "inside"
    if bare.rope_theta != 10000.0:
        out["base"] = bare.rope_theta
    sliding = next((one["rope_settings"] for one in kinds.get(names.SLIDING_ATTENTION, ())), None)
    own = without[names.SLIDING_ATTENTION][0]["rope_settings"] if "nested" in out and sliding is not None else sliding
    if own is not None and own.rope_theta not in (STATED, bare.rope_theta):
        out["local_base"] = own.rope_theta
    if sliding is not None and sliding.rope_scaling and sliding.override_type != "default":
        return {"odd": "its sliding layers are scaled"}
    widths = {one.get("sliding_window", -1) for one in modules} - {-1}
    if widths - {WINDOW, WINDOW - 1}:
        return {"odd": f"windows of {widths}"}
    if widths:
        out["window"] = True
    if widths == {WINDOW}:  # the kernel counts how far back it looks, beside the token itself
        out["wider_window"] = True
    if full.yarn_mscale_ratio is False:
        out["mscales"] = False
    return out


def _kinds(config: dict[str, Any], modules: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the modules of each kind of layer that rotates."""
    shape = engine.shape(HfCheckpoint(config, families.of_config(config)))
    rotates = {kind: entry.layers for kind, entry in shape.entries.items() if entry.table is not None}
    order = sorted(i for places in rotates.values() for i in places)
    turning = [one for one in modules if one.get("rope_settings") is not None]
    if len(order) != len(turning):
        raise ValueError(f"{len(turning)} of its layers rotate, but in transformers {len(order)}")
    return {kind: [turning[order.index(i)] for i in places] for kind, places in rotates.items()}


def record(root: Path, known: Mapping[str, tuple[str, str]]) -> None:
    """Write what whole models answer in the cases of tests/oracle/mlx_cases.py, for types that are decoded."""
    written = json.loads(FILE.read_text(encoding="utf-8"))
    decoded = [name for name, one in written.items() if "odd" not in one and "layout" in one]
    ask = partial(_told, known)
    subjects = {}
    for name in decoded:
        model_type = name.partition(" of ")[0]
        subjects[name] = small_models.Subject(exllamav3.NAME, model_type, ask, small(model_type, known))
    recording.write_record(exllamav3.NAME, subjects, whole=True, made_with=probe.fingerprint(root))


def _told(known: Mapping[str, tuple[str, str]], _: str, config: Mapping[str, Any], lengths: tuple[int, ...]) -> Any:
    found = probe.answer(known, config)
    return found if "error" in found else {"lengths": {str(length): found["layers"] for length in lengths}}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="write what tests compare with instead")
    options = parser.parse_args()
    import transformers

    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    root = Path(os.environ.get("ROPETOOL_PEERS", "")) / f"{exllamav3.NAME}-{exllamav3.VERSIONS}"
    if not root.is_dir():
        print(f"ROPETOOL_PEERS has no {root.name}", file=sys.stderr)
        return 1
    known = probe.install(root)
    if options.record:
        record(root, known)
        return 0
    found = {}
    for model_type in sorted(records.names()):
        name = small_models.key_of(model_type)
        family = families.find(model_type)
        if name is None or (family is not None and family.own_name and family.exllamav3 is not None):
            continue
        one = facts(model_type, known)
        if one is not None:
            found[name] = one
            print(name, json.dumps(one), file=sys.stderr)
    FILE.write_text(recording.text_of(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
