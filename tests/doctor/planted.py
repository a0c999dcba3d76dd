"""Checkpoints with one known error each, by the id of the rule that finds it: that rule and no other is to speak."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configs
import gguf
import gguf_headers
import numpy as np
from gguf_files import Tiny, model, write
from models import write_config

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
GGUF_YARN = {
    "context_length": 2048, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 512, "rope.scaling.attn_factor": float(1 / (1 + 0.1 * np.log(4))),
}  # fmt: skip
FLOAT64, UINT64 = gguf.GGUFValueType.FLOAT64, gguf.GGUFValueType.UINT64


def hf(family: str, style: str = "v4", /, **more: Any) -> Callable[[Path], Path]:
    """Return what writes a config of the family with these keys changed."""
    return lambda folder: write_config(folder / "model", {**configs.config(family, style), **more})


def scaled(family: str, context: int = 2048, **scaling: Any) -> Callable[[Path], Path]:
    """Return what writes a config with this rope_scaling beside its base."""
    return hf(family, rope_scaling=scaling, max_position_embeddings=context)


def tiny(arch: str = "llama", divisors: Any = None, **keys: Any) -> Callable[[Path], Path]:
    """Return what writes a GGUF model with these keys."""
    named = {key.replace("__", "."): value for key, value in keys.items()}
    return lambda folder: model(folder / "model.gguf", arch, named, divisors=divisors)


def header(arch: str, **more: tuple[str, Any]) -> Callable[[Path], Path]:
    return lambda folder: gguf_headers.write(folder / "model.gguf", arch, **more)


def _text(content: str) -> Callable[[Path], Path]:
    return lambda folder: write_config(folder / "model", content)


def _with_tokenizer(folder: Path) -> Path:
    model = hf("llama")(folder)
    (model / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 256}))
    return model


def _flat_where_it_is_nested(folder: Path) -> Path:
    return hf("gemma3_text", "v5", rope_parameters={"rope_type": "default", "rope_theta": 1e6})(folder)


def _rotary_dim(folder: Path) -> Path:
    config = {"model_type": "minimax_m2", **configs.EXPORTED["minimax_m2"], "rotary_dim": 16, "rope_theta": 10000.0}
    return write_config(folder / "model", {key: value for key, value in config.items() if key != "rope_parameters"})


def _without_head_dim(folder: Path) -> Path:
    config = configs.config("qwen3", "v4")
    return write_config(folder / "model", {key: value for key, value in config.items() if key != "head_dim"})


SHAPE = {"embedding_length": 256, "block_count": 1, "attention.head_count": 2}


def _bos_of_another_type(folder: Path) -> Path:
    keys = {"context_length": 512, **SHAPE, "rope.freq_base": 10000.0}
    return write(folder / "model.gguf", "llama", {**keys, "tokenizer.ggml.bos_token_id": (gguf.GGUFValueType.INT32, 1)})


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 4368439584\n"


def _pointers(folder: Path) -> Path:
    model = hf("llama")(folder)
    (model / "model.safetensors").write_text(POINTER)
    return model


def _pointer(folder: Path) -> Path:
    (folder / "model.gguf").write_text(POINTER)
    return folder / "model.gguf"


def _cut(folder: Path) -> Path:
    path = model(folder / "model.gguf")
    path.write_bytes(path.read_bytes()[:400])
    return path


def _two_lists(**keys: Any) -> Callable[[Path], Path]:
    """Return what writes a model with a list of divisors for short contexts and one for long ones."""
    named = {"context_length": 2048, "rope.scaling.original_context_length": 512, "rope.freq_base": 10000.0}
    named |= {key.replace("__", "."): value for key, value in keys.items()}
    lists = {
        "rope_factors_short.weight": np.ones(32, np.float32),
        "rope_factors_long.weight": np.full(32, 4, np.float32),
    }
    return lambda folder: Tiny("llama", named, lists).write(folder / "model.gguf")


def _llama_3(folder: Path) -> Path:
    """Write what converters made of Llama 3.1 before July 2024: its base, context and vocabulary, and no divisors."""
    keys = {
        "general.name": "Meta Llama 3.1 8B Instruct", "context_length": 131072, **SHAPE, "rope.freq_base": 500000.0,
        "attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"t{number}" for number in range(128256)], "tokenizer.ggml.merges": ["t 1"],
    }  # fmt: skip
    return write(folder / "model.gguf", "llama", keys, {"output_norm.weight": np.ones(256, np.float32)})


def _beside_its_source(keys: dict[str, Any], **config: Any) -> Callable[[Path], Path]:
    """Return what writes a GGUF model and the config.json that it was made from in one folder."""

    def both(folder: Path) -> Path:
        source = {**configs.config("llama", "v4"), "num_hidden_layers": 1, "head_dim": 64, **config}
        write_config(folder / "repository", source)
        return model(folder / "repository" / "model.gguf", "llama", keys)

    return both


Plant = tuple[Callable[[Path], Path], str]  # what writes it, and the rules that what follows from it is a case of
HF: dict[str, list[Plant]] = {
    "unreadable": [(_text("{"), ""), (_text("[1]"), ""), (_pointers, "")],
    "invalid-value": [
        (_flat_where_it_is_nested, ""),
        (scaled("llama", **{**YARN, "factor": -4.0}), ""),
        (hf("llama", max_position_embeddings=0), ""),
    ],
    "ambiguous": [
        (hf("llama", "v5", rope_theta=1e6, rope_scaling={"rope_type": "linear", "factor": 2.0}), ""),
        (scaled("llama", **{**YARN, "type": "linear"}), ""),
    ],
    "number-as-text": [(hf("llama", rope_theta="1e6"), ""), (scaled("llama", **{**YARN, "factor": "4"}), "")],
    "not-loaded": [(scaled("llama", 512, rope_type="llama3", factor=4.0), ""), (scaled("mixtral", **YARN), "")],
    "config-style": [(hf("llama", "v5", rope_parameters={"rope_type": "default", "rope_theta": 1e6}), "")],
    "attention-factor": [(scaled("llama", **YARN, attention_factor=1.3), "")],
    "softmax-scale": [(scaled("deepseek_v2", **YARN, mscale=0.7, mscale_all_dim=0.7), "runtime-stops older-release")],
    "truncate": [(scaled("llama", **YARN, truncate=False), "")],
    "scaling-ignored": [(hf("mixtral", head_dim=32, rope_scaling=YARN, max_position_embeddings=2048), "")],
    "length-rule": [(scaled("llama", 512, rope_type="dynamic", factor=4.0), "no-gguf context-length runtime-stops")],
    "other-table": [(scaled("llama", 4096, **YARN), "length-ratio attention-factor context-length")],
    "temperature": [(hf("ministral3", "v5"), "")],
    "sliding-window": [(hf("mistral", sliding_window=64), "")],
    "no-gguf": [(scaled("qwen2", **YARN, beta_fast=8.0), "")],
    "length-ratio": [(scaled("llama", 512, **YARN), "scaling-ignored context-length")],
    "original-length": [
        (
            hf("llama", rope_scaling=YARN, max_position_embeddings=4096, original_max_position_embeddings=1024),
            "other-table attention-factor",
        ),
        (scaled("llama", 512, rope_type="yarn", factor=4.0), "other-table context-length"),
    ],
    "context-length": [(scaled("llama", rope_type="linear", factor=4.0), "")],
    "mscale-pair": [
        (scaled("llama", **YARN, mscale=0.7), "attention-factor"),
        (scaled("llama", **YARN, mscale_all_dim=1.0), "attention-factor"),
    ],
    "unread-key": [(scaled("llama", **YARN, beta_fats=16.0), ""), (hf("llama", rope_thetta=1e6), "")],
    "tokenizer-limit": [(_with_tokenizer, "")],
    "runtime-stops": [(_without_head_dim, "")],
    "older-release": [(_rotary_dim, "")],
    "unknown-family": [(hf("llama", model_type="llamma"), "")],
}
GGUF: dict[str, list[Plant]] = {
    "unreadable": [(_cut, ""), (_pointer, "")],
    "invalid-value": [(tiny(rope__freq_base=0.5), "")],
    "key-type": [(tiny(rope__freq_base=(FLOAT64, 10000.0)), ""), (tiny(context_length=(UINT64, 512)), ""), (_bos_of_another_type, "")],
    "not-loaded": [(tiny(rope__scaling__type="llama3"), ""), (tiny("qwen2", np.ones(32)), "")],
    "rope-freqs": [(_llama_3, "")],
    "double-scaling": [(_two_lists(rope__scaling__type="longrope", rope__scaling__factor=4.0), "allocated-context")],
    "rotation-off": [(header("granite", rope__scaling__finetuned=("bool", False)), "")],
    "attention-factor": [(tiny(**GGUF_YARN, rope__scaling__yarn_attn_factor=1.3), "")],
    "sliding-window": [(header("phi3", attention__sliding_window=("uint32", 2047)), "")],
    "length-ratio": [
        (tiny(**{**GGUF_YARN, "context_length": 4096}), ""), (tiny(**{**GGUF_YARN, "context_length": 512}), ""),
    ],
    "original-length": [(tiny(**{key: GGUF_YARN[key] for key in GGUF_YARN if "original" not in key}), "")],
    "source-table": [(_beside_its_source({}, rope_theta=1e6), "")],
    "source-context": [(_beside_its_source({"context_length": 4096}), "")],
    "base-missing": [(lambda folder: Tiny("llama", {"context_length": 16384}).write(folder / "model.gguf"), "")],
    "unread-key": [
        (tiny(**GGUF_YARN, rope__scaling__yarn_beta_fast=8.0), ""),
        (header("qwen2", rope__scaling__yarn_ext_factor=("float32", 64.0)), ""),
        (header("qwen2", attention__sliding_windov=("uint32", 64)), ""), (header("qwen2", rope__freq_bass=("float32", 1e6)), ""),
    ],
    "context-shift": [(tiny(**{**GGUF_YARN, "rope.scaling.attn_factor": 1.0}), "")],
    "allocated-context": [(_two_lists(rope__scaling__type="longrope"), "")],
    "unknown-family": [(lambda folder: gguf_headers.write(folder / "model.gguf", "llama5"), "")],
}  # fmt: skip
