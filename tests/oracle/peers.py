"""What the inference engines are asked: small configs in every way to scale, the probes, and the comparison.

Shared by the tests of vLLM, SGLang, mlx-lm and exllamav3 and by scripts/golden/golden_peers.py. ROPETOOL_PEERS names a folder
with their Python files, NAME-VERSION each; scripts/lib.sh fills it. scripts/golden/golden_peers.py recorded all of them.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import configs
import numpy as np
import pytest

from ropetool import families, runtimes
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.rope.tables import LayerRope, RopeSet
from ropetool.runtimes import NotKnown, Refuses

TABLE, FACTOR = 3e-6, 1e-6  # relative: the engines' float32, and their factors
POSITIONS = (511, 513, 1024, 2047)
LENGTHS = (512, 1024, 2048, 4096)
HERE = Path(__file__).parent
GOLDEN = HERE / "peers.json"

# The releases that decoders were written from: the ends of the stretches that they name.
RELEASES = {
    "vllm": ("0.25.1", "0.26.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
    "sglang": ("0.5.15", "0.5.16", "0.5.23"),
    "mlx-lm": ("0.30.7", "0.31.3", "0.32.0", "0.32.2"),
    "exllamav3": ("1.6.5",),
}
WITH_FLAGS = ("vllm", "sglang")  # whose command line takes overrides of the config
PROBES = {"vllm": "vllm_probe", "sglang": "sglang_probe", "mlx-lm": "mlx_probe", "exllamav3": "exllama_probe"}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LISTS = {
    "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 512,
    "short_factor": [1.0 + 0.01 * i for i in range(16)], "long_factor": [1.0 + 0.2 * i for i in range(16)],
}  # fmt: skip
CELLS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "linear-whole": {"rope_type": "linear", "factor": 4},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 8.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": YARN,
    "yarn-attention-1": {**YARN, "attention_factor": 1.0},
    "yarn-attention-1.5": {**YARN, "attention_factor": 1.5},
    "yarn-attn": {**YARN, "attn_factor": 0.8},
    "yarn-both": {**YARN, "attention_factor": 0.9, "attn_factor": 0.9 / (0.1 * math.log(4) + 1)},
    "yarn-betas": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0},
    "yarn-exact": {**YARN, "truncate": False},
    "yarn-mscales": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn-mscale-ratio": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn-mscale-alone": {**YARN, "mscale": 0.5},
    "yarn-mscale-0": {**YARN, "attention_factor": 1.0, "mscale": 0.0},
    "yarn-one-and-mscales": {**YARN, "attention_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn-beta-0": {**YARN, "beta_fast": 0},
    "yarn-unsaid-length": {"rope_type": "yarn", "factor": 4.0},
    "longrope": LISTS,
    "longrope-alike": {**LISTS, "short_factor": LISTS["long_factor"]},
    "longrope-factor": {**LISTS, "attention_factor": 1.4},
    "longrope-mscales": {**LISTS, "short_mscale": 1.1, "long_mscale": 1.3},
}  # fmt: skip
# For families besides llama: the cells in which model files differ from each other.
SOME = (
    "default",
    "linear",
    "dynamic",
    "llama3",
    "yarn",
    "yarn-attention-1",
    "yarn-exact",
    "yarn-mscales",
    "longrope-alike",
)
MLA = (*SOME, "yarn-mscale-ratio", "yarn-mscale-alone", "yarn-mscale-0", "yarn-one-and-mscales", "yarn-attn")
PLAN = {
    **dict.fromkeys(("llama", "qwen3"), tuple(CELLS)), **dict.fromkeys(("deepseek_v2", "deepseek_v3"), MLA),
    **dict.fromkeys(("mistral", "mixtral", "qwen2", "gemma3_text", "olmo3"), SOME),
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "phi3": {"architectures": ["Phi3ForCausalLM"]},
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"], "num_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 16, "head_dim": 32, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"], "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 64,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",  # published configs have both
    },
    "granite": {
        "architectures": ["GraniteForCausalLM"], "attention_multiplier": 0.1, "logits_scaling": 8.0,
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_bias": False, "mlp_bias": False,
    },
    "starcoder2": {"architectures": ["Starcoder2ForCausalLM"], "sliding_window": None},
    "cohere": {"architectures": ["CohereForCausalLM"]},
    "glm4": {"architectures": ["Glm4ForCausalLM"], "partial_rotary_factor": 1.0, "head_dim": 32, "attention_bias": False},
    "olmo2": {"architectures": ["Olmo2ForCausalLM"]},
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "llama-outer-length": {"original_max_position_embeddings": 256},
    "llama-partial": {"partial_rotary_factor": 0.5},
    "llama-short-reach": {"max_position_embeddings": 4096},
    "mistral-window": {"sliding_window": 128},
    "deepseek_v3-half": {"rope_interleave": False},
}


OVERRIDES = "overrides by flag"  # beside a config's keys: what a command line sets in it
LONGER = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512, "rope_theta": 10000.0}
PLAIN = {"rope_type": "default", "rope_theta": 40000.0}


def plant(monkeypatch: pytest.MonkeyPatch, module: ModuleType, changes: Mapping[str, Any]) -> None:
    """Change names of a runtime's module, or as `FAMILY.FIELD` what a family's file says of that runtime."""
    for name, value in changes.items():
        family, _, field = name.rpartition(".")
        if not family:
            monkeypatch.setattr(module, name, value)
            continue
        part = module.__name__.rpartition(".")[2]
        known = families.get(family)
        changed = replace(getattr(known, part), **{field: value})
        monkeypatch.setitem(families._LIVE, family, replace(known, **{part: changed}))


def flagged() -> dict[str, dict[str, Any]]:
    """Return configs with overrides of them, by name; in half of them something of the source could stay behind."""
    lists = {**LISTS, "short_factor": LISTS["long_factor"], "rope_theta": 10000.0}
    found = {
        "llama": (config("llama", "v4", None), {"rope_parameters": LONGER}),
        "llama-yarn-attention-1.5": (config("llama", "v4", CELLS["yarn-attention-1.5"]), {"rope_parameters": LONGER}),
        "llama-yarn-attn": (config("llama", "v5", CELLS["yarn-attn"]), {"rope_parameters": LONGER}),
        "llama-yarn-betas": (config("llama", "v5", CELLS["yarn-betas"]), {"rope_parameters": LONGER}),
        "llama-llama3": (config("llama", "v4", CELLS["llama3"]), {"rope_parameters": PLAIN}),
        "phi3": (config("phi3", "v4", None), {"rope_parameters": lists, "original_max_position_embeddings": 512}),
        "deepseek_v3-yarn-mscales": (config("deepseek_v3", "v4", CELLS["yarn-mscales"]), {"rope_parameters": LONGER}),
        "glm4-share": (
            {**config("glm4", "v4", None), "partial_rotary_factor": 0.25},
            {"rope_parameters": {**LONGER, "partial_rotary_factor": 0.25}},
        ),
        "glm4-share-forgotten": (
            {**config("glm4", "v4", None), "partial_rotary_factor": 0.25}, {"rope_parameters": LONGER},
        ),
        "gemma3_text": (
            config("gemma3_text", "v4", CELLS["linear"]),
            {"rope_parameters": {"full_attention": LONGER, "sliding_attention": {**PLAIN, "rope_theta": 5000.0}}},
        ),
    }  # fmt: skip
    longer = {"max_position_embeddings": 4096}
    asked = {name: {**data, OVERRIDES: {**changes, **longer}} for name, (data, changes) in found.items()}
    return {name: data | {"rms_norm_eps": 1e-5} for name, data in asked.items()}


def jobs() -> dict[str, dict[str, Any]]:
    """Return every config by its name: family, cell and, where both are asked, the style."""
    found = {}
    for family in OTHERS:
        for cell in (
            ("default", "longrope", "longrope-alike") if family == "phi3" else ("default", "linear", "yarn-attention-1")
        ):
            found[f"{family}-{cell}"] = config(family, "v4", CELLS[cell])
    for family, cells in PLAN.items():
        for cell in cells:
            for style in ("v4", "v5") if family != "mistral" else ("v4",):
                found[f"{family}-{cell}-{style}"] = config(family, style, CELLS[cell])
    for name, changes in MORE.items():
        family = name.partition("-")[0]
        found[name] = {**config(family, "v4", YARN), **changes}
    return {name: data | {"rms_norm_eps": 1e-5} for name, data in found.items()}


def config(family: str, style: str, scaling: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a config of the family that asks for this scaling."""
    if family in OTHERS:
        data = {**configs.SMALL, "model_type": family, **OTHERS[family], "rope_theta": 10000.0, "rope_scaling": None}
    else:
        data = configs.config(family, style)
    if family == "gemma3_text":
        data["sliding_window_pattern"] = 2  # published configs state it, and mlx-lm reads nothing else
    data["max_position_embeddings"] = 2048 if scaling else 512
    if scaling is None:
        return data
    if scaling["rope_type"] == "longrope":
        data["original_max_position_embeddings"] = 512
    if style == "v4":
        return {**data, "rope_scaling": dict(scaling)}
    keys = data["rope_parameters"]
    if "full_attention" in keys:
        return {**data, "rope_parameters": {**keys, "full_attention": {**scaling, "rope_theta": 10000.0}}}
    return {**data, "rope_parameters": {**scaling, "rope_theta": 10000.0}}


def family(name: str) -> str:
    """Return the model_type of a config."""
    return str(jobs()[name]["model_type"])


def program_of(runtime: str) -> str:
    return runtime.partition("@")[0]


def decode(runtime: str, data: Mapping[str, Any]) -> RopeSet:
    """Return what our decoder says of a config."""
    return runtimes.get(runtime).decode(HfCheckpoint(data, families.of_config(data)))


def source(program: str, version: str) -> Path | None:
    """Return the folder with the files of a release, None where there is none."""
    root = os.environ.get("ROPETOOL_PEERS", "")
    folder = Path(root) / f"{program}-{version}"
    return folder if root and folder.is_dir() else None


def probe(program: str, folder: Path, asked: Sequence[Mapping[str, Any]], scratch: Path) -> list[dict[str, Any]]:
    """Return the answers of a release to these configs."""
    work = []
    for number, data in enumerate(asked):
        path = scratch / str(number)
        path.mkdir(parents=True, exist_ok=True)
        stated = {key: value for key, value in data.items() if key != OVERRIDES}
        (path / "config.json").write_text(json.dumps(stated))
        work.append({
            "path": str(path), "positions": POSITIONS, "lengths": LENGTHS, "overrides": data.get(OVERRIDES, {}),
        })  # fmt: skip
    extra = {"mlx-lm": str(folder.parent / "mlx")}.get(program, "")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}{os.pathsep}{extra}".rstrip(os.pathsep)}
    done = subprocess.run(
        [sys.executable, str(HERE / f"{PROBES[program]}.py"), str(folder)], input=json.dumps(work),
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def mlx_version() -> str:
    """Return the version of the mlx that mlx-lm is run with."""
    root = Path(os.environ.get("ROPETOOL_PEERS", ""))
    return next(iter(sorted(root.glob("mlx/mlx-*.dist-info")))).name.split("-")[1]


def golden(program: str, version: str, *, flags: bool = False) -> dict[str, dict[str, Any]]:
    """Return the recorded answers of a release by the name of the config; of those with overrides, if asked."""
    data = _recorded()
    names, answers = ("flagged_configs", "flagged") if flags else ("configs", "releases")
    found = {}
    for name, place in zip(data[names], data[answers][f"{program} {version}"], strict=True):
        answer = data["answers"][place]
        layers = answer.get("layers")
        if isinstance(layers, dict):
            answer = {**answer, "layers": {kind: data["layers"][i] for kind, i in layers.items()}}
        elif layers is not None:
            answer = {**answer, "layers": [data["layers"][i] for i in layers]}
        found[name] = answer
    return found


@cache
def _recorded() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return data


def runtime_of(program: str, version: str) -> str:
    """Return the name of the runtime that stands for a release."""
    whole = runtimes.all_of(program)
    return whole[0].name if whole[0].releases is None else runtimes.all_of(f"{program}@{version}")[0].name


def compared(program: str, version: str, answers: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the configs in which a decoder and a release differ, or that a decoder does not know, and in what."""
    runtime, asked = runtime_of(program, version), jobs()
    found = {name: differences(runtime, asked[name], answer) for name, answer in answers.items()}
    return {name: reasons for name, reasons in found.items() if reasons}


def asked_live(program: str, version: str, scratch: Path, *, flags: bool = False) -> dict[str, dict[str, Any]]:
    """Return the answers of a release that is at hand; skips the test where it is not."""
    folder = source(program, version)
    if folder is None:
        pytest.skip(f"ROPETOOL_PEERS has no {program}-{version}")
    asked = flagged() if flags else jobs()
    return dict(zip(asked, probe(program, folder, list(asked.values()), scratch), strict=True))


def differences(runtime: str, data: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """Return where a decoder and the program's own answer differ."""
    try:
        decoded = decode(runtime, data)
    except NotKnown:
        return ["not known"]
    except Refuses as refusal:
        return [] if "error" in answer else [f"decoder: {refusal}"]
    if "error" in answer:
        return [f"program: {answer['error']}"]
    found = [f"context {answer['context']}"] if not _context_agrees(runtime, decoded, answer) else []
    if answer.get("transformers"):
        reason = decode("transformers", data).disagreement(decoded)
        return [*found, reason] if reason else found
    for kind, entry in decoded.entries.items():
        for index in _indices(answer, kind, entry):
            layer = answer["layers"][index]
            if families.of_config(data).sliding_window == "alternate":
                layer = {**layer, "window": entry.sliding_window}  # a RopeSet has one kind of layer there
            found += [f"{kind} {index}: {reason}" for reason in _layer(entry, layer, answer)]
    return found


def _context_agrees(runtime: str, decoded: RopeSet, answer: Mapping[str, Any]) -> bool:
    """vLLM's default is below what --max-model-len may ask for with longrope, and may be above what its tables hold."""
    if "context" not in answer:
        return True
    if program_of(runtime) != "vllm":
        return bool(decoded.max_position_embeddings == answer["context"])
    reach = min((layer["regimes"][-1]["reach"] for layer in answer.get("layers", [])), default=1 << 40)
    return bool(decoded.max_position_embeddings == min(answer["longest"], reach))


def _indices(answer: Mapping[str, Any], kind: str, entry: LayerRope) -> Sequence[Any]:
    if isinstance(answer["layers"], dict):
        return ["sliding" if kind == "sliding_attention" and "sliding" in answer["layers"] else "full"]
    return entry.layers


def _layer(entry: LayerRope, layer: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    found = []
    if ("half" if layer["half"] else "interleaved") != entry.layout:
        found.append(f"layout {entry.layout}")
    softmax = layer.get("softmax", answer.get("softmax"))
    if not math.isclose(softmax, entry.softmax_multiplier, rel_tol=FACTOR):
        found.append(f"softmax {softmax} against {entry.softmax_multiplier}")
    if "window" in layer and layer["window"] != entry.sliding_window:
        found.append(f"window {layer['window']} against {entry.sliding_window}")
    if layer.get("slides") is not None and layer["slides"] != (entry.sliding_window is not None):
        found.append(f"slides: {layer['slides']}")
    return found + _tables(entry, layer)


def _tables(entry: LayerRope, layer: Mapping[str, Any]) -> list[str]:
    assert entry.table is not None
    pairs: list[tuple[Any, Any]] = []
    if "lengths" in layer:
        pairs = [(entry.table.at(int(n)), _with_rows(int(n), found)) for n, found in layer["lengths"].items()]
    elif "regimes" in layer:
        ours = entry.table.regimes
        pairs = [(ours[0] if i == 0 else ours[-1], t) for i, t in enumerate(layer["regimes"])]
        if len(layer["regimes"]) < len(ours):
            return ["more regimes than the program has"]
    else:
        pairs = [(entry.table.regimes[-1], layer)]
    return [reason for ours, theirs in pairs for reason in _table(ours, theirs)]


def _with_rows(length: int, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the row of its last position under its number; recorded answers have no rows."""
    return {**theirs, "rows": {length - 1: theirs["row"]} if "row" in theirs else {}}


def _table(ours: Any, theirs: Mapping[str, Any]) -> list[str]:
    inv_freq = np.array(theirs["inv_freq"])
    if inv_freq.shape != ours.inv_freq.shape:
        return [f"{inv_freq.size} pairs against {ours.inv_freq.size}"]
    found = []
    worst = float(np.max(np.abs(inv_freq / ours.inv_freq - 1)))
    if worst > TABLE:
        found.append(f"inv_freq off by {worst:.2g}")
    if not math.isclose(theirs["attention_factor"], ours.attention_factor, rel_tol=FACTOR):
        found.append(f"attention factor {theirs['attention_factor']} against {ours.attention_factor}")
    for position, row in theirs.get("rows", {}).items():
        angles = int(position) * ours.inv_freq
        wanted = ours.attention_factor * np.concatenate([np.cos(angles), np.sin(angles)])
        # A float32 angle is known to 6e-8 of itself, and the table to TABLE.
        allowed = 2e-6 + 4e-7 * np.concatenate([angles, angles])
        if np.any(np.abs(np.array(row) - wanted) > allowed * ours.attention_factor):
            found.append(f"cos and sin of position {position}")
    return found
