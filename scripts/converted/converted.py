#!/usr/bin/env python3
"""Export a tiny random model of the classes that llama.cpp's converter registers, and write what came of it.

Those that transformers has are made of their defaults with every size small that does not decide rotation
(ropetool/probing/tiny.py); those of remote code that tests/exporting/remote_models states are made by it, and mlx-lm or a
class of transformers stands for them. Each is exported in float32 by the converter, and both sides' logits are compared. The
result is tests/exporting/converted.json, from which scripts/docs.py writes a table of docs/export.md. mlx-lm runs by the
interpreter that ROPETOOL_ENGINE_MLX names.

    scripts/converted/converted.py                    all: some 40 minutes of a core
    scripts/converted/converted.py --only CLASS       these alone, keep the rest; repeat it
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork of a process with more threads may wait for ever
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "")]

import models
import tokenizer_making
from exporting import remote_models
from exporting.remote_models import TOKENIZER_CONFIG, VOCABULARY

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import RopetoolError
from ropetool.families import Family
from ropetool.gguf_export import export_checkpoint
from ropetool.gguf_export.converter import child, launch
from ropetool.gguf_export.converter.finding import SOURCES, Converter
from ropetool.probing import facts, tiny
from ropetool.verification.measures.divergence import NEVER

RESULT = ROOT / "tests" / "exporting" / "converted.json"
TOKENS = 192
PLAIN = 8  # from this id on: those below stand for images and the like in a tiny config
PROGRAMS = ("transformers", "llama-cpp-python")  # whose releases decide what is recorded
MLX = "ROPETOOL_ENGINE_MLX"  # the interpreter of an environment with mlx-lm
Record = dict[str, Any]


def registered() -> list[str]:
    """Return the classes of text models that the converter registers."""
    text = Path(os.environ[SOURCES], "conversion", "__init__.py").read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "TEXT_MODEL_MAP" and node.value:
            return sorted(ast.literal_eval(node.value))
    raise SystemExit("the converter has no TEXT_MODEL_MAP")


def kind_of(architecture: str) -> Any:
    """Return the class of transformers of this name, or the one that is published under it; None without one."""
    import transformers

    return getattr(transformers, PUBLISHED_AS.get(architecture, architecture), None)


def make(architecture: str, folder: Path) -> str:
    """Write a tiny checkpoint of a class of transformers, and return its model_type."""
    import torch

    kind = kind_of(architecture)
    defaults = kind.config_class()
    keys = tiny.overrides(defaults)
    for key, value in CHANGES.get(architecture, {}).items():
        keys[key] = {**keys.get(key, {}), **value} if key == "text_config" else value
    keys = _widened(keys)
    config = kind.config_class(**keys)
    config.architectures = [architecture]
    torch.manual_seed(0)
    model = kind._from_config(config, attn_implementation="eager").float().eval()
    facts.spread(model)
    _give_heads_one_norm(model, ONE_NORM.get(architecture, "$^"))
    _quiet_gelu(model, config)
    model.save_pretrained(folder)
    models.save(folder / "tokenizer.json", tokenizer_making.by_hand())
    models.save(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    (folder / "generation_config.json").unlink(missing_ok=True)
    _state(folder / "config.json", STATED.get(architecture, {}))
    _rename(folder / "model.safetensors", PUBLISHED_NAMES.get(architecture, ()))
    return str(config.model_type)


def _state(path: Path, more: Mapping[str, Mapping[str, Any]]) -> None:
    """Add keys to the parts of a config.json."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for part, keys in more.items():
        (config[part] if part else config).update(keys)
    models.save(path, config)


def _rename(path: Path, patterns: Sequence[tuple[str, str]]) -> None:
    """Give tensors other names, by patterns one after the other."""
    from safetensors.torch import load_file, save_file

    if not patterns:
        return
    named = load_file(path)
    for pattern, name in patterns:
        named = {re.sub(pattern, name, one): tensor for one, tensor in named.items()}
    save_file(named, path, {"format": "pt"})


def _give_heads_one_norm(model: Any, names: str) -> None:
    """Give all heads the norm of the first, where the converter takes that one's for all."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if re.search(names, name):
                weight.copy_(weight[:1].expand_as(weight))


def _quiet_gelu(model: Any, config: Any) -> None:
    """Make what a gelu is taken of small: llama.cpp takes it from a table of float16 numbers, which full weights show."""
    import torch

    if not _gelu(config):
        return
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if re.search(r"mlp|ffn|feed_forward|experts|fc1|dense_h_to_4h|per_layer", name):
                weight.mul_(0.1)


# Classes of transformers that files are published for under another name, by that name.
PUBLISHED_AS = {"BailingMoeV3ForCausalLM": "BailingHybridForCausalLM"}

# What the classes' own defaults leave without a model that both programs run, by class.
SIGMOID = {"scoring_func": "sigmoid", "first_k_dense_replace": 1}
AXES = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
QUARTER = {**AXES, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25}
CHANGES: Mapping[str, Mapping[str, Any]] = {
    # Keys that published configs state, and the converter asks for.
    "DeepseekV3ForCausalLM": SIGMOID,
    "DeepseekV32ForCausalLM": {**SIGMOID, "first_k_dense_replace": 3},
    "Dots1ForCausalLM": SIGMOID,
    "Glm4MoeForCausalLM": SIGMOID,
    "Glm4MoeLiteForCausalLM": SIGMOID,
    "GlmMoeDsaForCausalLM": {**SIGMOID, "first_k_dense_replace": 3},
    "SolarOpenForCausalLM": {"scoring_func": "sigmoid"},
    "AfmoeForCausalLM": {"mup_enabled": True, "route_norm": True, "score_func": "sigmoid"},
    "MiniMaxM2ForCausalLM": {"scoring_func": "sigmoid"},
    "ExaoneMoeForCausalLM": SIGMOID,
    "HunYuanMoEV1ForCausalLM": {"moe_intermediate_size": [32] * 4, "moe_topk": [2] * 4, "num_shared_expert": [1] * 4},
    "LagunaForCausalLM": {"layer_types": ["full_attention", "sliding_attention"] * 2},  # not those that llama.cpp assumes
    "MiMoV2FlashForCausalLM": {
        "swa_head_dim": 192, "swa_v_head_dim": 128, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2,
        "hybrid_layer_pattern": [0, 1, 1, 1], "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        "layernorm_epsilon": 1e-5,
    },
    "MiniMaxM3SparseForConditionalGeneration": {
        "text_config": {
            "layer_types": ["full_attention"] + ["minimax_m3_sparse"] * 3, "mlp_layer_types": ["dense"] + ["sparse"] * 3,
            "index_n_heads": 1,
        },
    },
    "Qwen2VLForConditionalGeneration": {"text_config": {"rope_parameters": {**AXES, "mrope_section": [16, 24, 24]}}},
    "PaddleOCRVLForConditionalGeneration": {
        "text_config": {"rope_parameters": {**AXES, "mrope_section": [16, 24, 24]}}
    },
    "Qwen3VLForConditionalGeneration": {"text_config": {"rope_parameters": AXES}},
    "Qwen3VLMoeForConditionalGeneration": {"text_config": {"rope_parameters": AXES}},
    "Qwen3_5ForCausalLM": {"rope_parameters": QUARTER},
    "Qwen4ExpForCausalLM": {"output_gate_type": "sigmoid", "indexer_budget": 2048, "rope_parameters": QUARTER},
    "Qwen3_5MoeForCausalLM": {"rope_parameters": QUARTER},
    # What llama.cpp takes for granted, or a window that it does not know of.
    "BailingMoeV3ForCausalLM": {"linear_head_dim": 64},  # as large as what rotates: head_dim is one key for both
    "BitNetForCausalLM": {"tie_word_embeddings": True},
    "ChameleonForConditionalGeneration": {  # llama.cpp never says a token of an image, which it knows by their numbers
        "vocab_size": 8320, "vocabulary_map": {"<image>": 8300, **{f"IMGIMG{token}": token for token in range(4, 8196)}},
        "image_token_id": 8300,
    },
    "Exaone4ForCausalLM": {"sliding_window": None, "layer_types": ["full_attention"] * 4},
    "FalconForCausalLM": {"num_kv_heads": 1, "ffn_hidden_size": 512},
    "Gemma3nForCausalLM": {  # of the published width: llama.cpp divides a variance by one channel less
        "hidden_size_per_layer_input": 256, "laurel_rank": 64, "num_hidden_layers": 5, "intermediate_size": [8192] * 5,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention"], "activation_sparsity_pattern": [0.95] * 5,
    },
    "GptOssForCausalLM": {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}},
    "GraniteForCausalLM": {"attention_multiplier": 0.1},
    "GraniteMoeForCausalLM": {"attention_multiplier": 0.1},
    "GraniteMoeHybridForCausalLM": {"attention_multiplier": 0.1},
    "GraniteMoeSharedForCausalLM": {"attention_multiplier": 0.1},
    "Llama4ForCausalLM": {"attention_chunk_size": 8192},
    "MistralForCausalLM": {"sliding_window": None},
    "PhiForCausalLM": {"intermediate_size": 512},
    "Qwen3MoeForCausalLM": {"norm_topk_prob": True},
}  # fmt: skip

# Keys of published configs that the class reads and does not save, by class and part of the config: added to what it saves.
STATED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "BailingMoeV3ForCausalLM": {
        "": {
            "architectures": ["BailingMoeV3ForCausalLM"], "n_group": 1, "no_kda_lora": True, "norm_topk_prob": True,
            "num_experts_per_tok": 2, "score_function": "sigmoid", "moe_shared_expert_intermediate_size": 32,
            "gated_attention_proj_granularity_type": "head_wise", "first_k_dense_replace": 2,
        },
    },
    "MiniMaxM3SparseForConditionalGeneration": {
        "text_config": {
            "n_shared_experts": 1, "scoring_func": "sigmoid", "moe_layer_freq": [0, 1, 1, 1],
            "sparse_attention_config": {
                "sparse_num_index_heads": 1, "sparse_index_dim": 128, "sparse_block_size": 128,
                "sparse_topk_blocks": 16, "sparse_local_block": 1, "sparse_attention_freq": [0, 1, 1, 1],
            },
        },
    },
}  # fmt: skip

# Names of tensors that transformers reads and does not take back when it saves, by class: patterns and names as published.
PUBLISHED_NAMES: Mapping[str, Sequence[tuple[str, str]]] = {
    "HYV4ForCausalLM": (
        (r"\.hc_pre\.hc_(attn|mlp)_layer\.", r".hc_\1_layer.hc_pre."),
        (r"\.hc_pre\.hc_head\.", ".hc_head."),
        (r"(\.mlp(?:\.shared_experts)?)\.linear_gate\.", r"\1.gate_proj."),
    ),
}
# Norms of queries and keys that published models have alike for all heads, by class: a pattern of their names.
ONE_NORM = {"ChameleonForConditionalGeneration": r"[qk]_norm"}


def _widened(value: Any) -> Any:
    """Return keys of a config with a vocabulary that the tokenizer fits in."""
    if isinstance(value, dict):
        return {
            key: VOCABULARY if "vocab_size" in key and one == tiny.VOCABULARY else _widened(one)
            for key, one in value.items()
        }
    return value


def record(architecture: str, folder: Path) -> Record:
    """Return what exporting a tiny model of the class comes to."""
    remote = kind_of(architecture) is None
    if remote and architecture not in remote_models.REMOTE:
        return {"outcome": "remote code"}
    source, target = folder / "model", folder / "model.gguf"
    try:
        found: Record = {"model_type": (remote_models.make if remote else make)(architecture, source)}
    except Exception as error:  # noqa: BLE001 - whatever the class makes of its own defaults
        return {"outcome": "not made", "reason": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    try:
        written = export_checkpoint(
            source, target, outtype="f32", converter="auto", allow_full_attention=True, check=False, sidecars=False
        )
    except RopetoolError as error:
        return found | {"outcome": "refused", "reason": error.message.replace(str(folder), "")[:600]}
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        return found | {"outcome": "crashed", "reason": f"{type(error).__name__}: {error}"[:600]}
    found |= {"arch": written.arch, "encoding": written.encoding}
    if remote:
        found["by"] = remote_models.oracle(architecture)
    try:
        distance = apart(architecture, source, target)
    except Exception as error:  # noqa: BLE001
        return found | {
            "outcome": "not run",
            "reason": getattr(error, "message", f"{type(error).__name__}: {error}")[:300],
        }
    return found | {"outcome": "converted", "gelu": has_gelu(architecture, source), "apart": float(f"{distance:.2g}")}


def has_gelu(architecture: str, source: Path) -> bool:
    """Return whether llama.cpp takes its activation from a table of float16 numbers."""
    kind = kind_of(architecture)
    if kind is None:
        return "gelu" in json.dumps({**remote_models.REMOTE[architecture].config})
    return _gelu(kind.config_class.from_pretrained(source))


def _gelu(config: Any) -> bool:
    text = config.get_text_config(decoder=True)
    return any("gelu" in str(value) for key, value in vars(text).items() if "act" in key)


def without_tables() -> None:
    """Have no family be written by a table of ours or be refused as a whole, so that the converter is tried on each."""
    cached = vars(HfCheckpoint)["family"]

    def family(self: HfCheckpoint) -> Family:
        return dataclasses.replace(cached.func(self), export=None, not_computed="")

    setattr(HfCheckpoint, "family", property(family))  # noqa: B010


def forked(converter: Converter, conversion: child.Conversion, limits: child.ProcessLimits, *, progress: Any) -> str:
    """Do what child.convert does in a copy of this process, which has loaded all that the converter takes long to load.

    The tokenizer of the tests is none that the converter knows, so it is not asked to write it.
    """
    if conversion.vocabulary:
        return f"{child.LACKING}: the tests' tokenizer"
    task = conversion.task(converter.script, limits)
    output, (end, _) = conversion.target.parent / child.OUTPUT, os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            stream = os.open(output, os.O_WRONLY | os.O_CREAT)
            for number, mine in enumerate((end, stream, stream)):
                os.dup2(mine, number)
            for name in [name for name in sys.modules if name.partition(".")[0] == "gguf"]:
                del sys.modules[name]  # the converter brings its own
            sys.argv = ["launch", task]
            launch.main()
            code = 0
        except BaseException:  # noqa: BLE001 - what it says goes to the file
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return "" if status == 0 else child.last_line(output) or f"it ended with status {status}"


def apart(architecture: str, source: Path, target: Path) -> float:
    """Return the largest difference of a logit, as a share of the largest."""
    import numpy as np

    from ropetool.verification.runners.llama_runner import LlamaRunner

    drawn = np.random.default_rng(3).integers(3, 250, TOKENS - 1)
    tokens = [256, *(max(int(token), PLAIN) for token in drawn)]
    wanted = logits_of(architecture, source, tokens)
    found = np.concatenate([piece.copy() for _, piece in LlamaRunner(target).logits(tokens)]).astype(np.float64)
    wanted = wanted[: len(found), : found.shape[1]]
    said = wanted > NEVER
    return float(np.abs(wanted - found)[said].max() / np.abs(wanted[said]).max())


def logits_of(architecture: str, source: Path, tokens: list[int]) -> Any:
    """Return what a checkpoint's own class computes, or who stands for it, (tokens, rows)."""
    import numpy as np
    import torch

    kind = kind_of(architecture)
    if kind is not None:
        model = kind.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            return model(torch.tensor([tokens]), use_cache=False).logits[0].double().numpy()
    if remote_models.REMOTE[architecture].twin is not None:
        return remote_models.twin_logits(architecture, tokens)
    asked, answer = source.parent / "tokens.json", source.parent / "logits.npy"
    asked.write_text(json.dumps(tokens), encoding="utf-8")
    script = ROOT / "scripts" / "engines" / "engine_mlx_logits.py"
    done = subprocess.run([os.environ[MLX], script, source, asked, answer], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"mlx-lm: {(done.stderr.strip() or 'nothing said').splitlines()[-1]}")
    return np.load(answer).astype(np.float64)


def alone(architecture: str) -> Record:
    """Return the record of a class, made in a copy of this process: llama.cpp ends its own where it cannot go on."""
    with tempfile.TemporaryDirectory() as folder:
        result, pid = Path(folder, "result.json"), os.fork()
        if not pid:
            try:
                result.write_text(json.dumps(record(architecture, Path(folder))), encoding="utf-8")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        if not result.is_file():
            return {"outcome": "not run", "reason": "llama.cpp ends the process"}
        found: Record = json.loads(result.read_text(encoding="utf-8"))
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="CLASS", help="a class; repeat it")
    options = parser.parse_args()
    known = json.loads(RESULT.read_text(encoding="utf-8"))["classes"] if RESULT.is_file() else {}
    import transformers  # noqa: F401 - once for all copies of this process

    from ropetool.verification.runners import llama_runner  # noqa: F401

    without_tables()
    child.convert = forked
    for architecture in options.only or registered():
        known[architecture] = alone(architecture)
        print(architecture, json.dumps(known[architecture]), flush=True)
        _write(known)
    return 0


def _write(known: Mapping[str, Record]) -> None:
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known))
    made = json.dumps({name: importlib.metadata.version(name) for name in PROGRAMS})
    RESULT.write_text(f'{{"versions": {made},\n"classes": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
