"""Every value of config.json that can be wrong: the text of the error, its code, and that nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import configs
import pytest
from models import write_model
from running import refused, run

BASE = configs.config("llama", "v4")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LISTS = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
EXTEND = ("--method", "yarn", "--factor", "4")


def but(**changes: Any) -> dict[str, Any]:
    return {**BASE, **changes}


def scaled(**keys: Any) -> dict[str, Any]:
    return but(rope_scaling={**YARN, **keys})


LENGTH = "is not a length; it is a whole number of tokens from 2 to 2147483648"
THETA = "is not a base; it is a finite number above 1, up to 1e+18"
POSITIVE = "is not a finite number above 0"
WRONG_ONE = "remove the wrong one from config.json"
PUBLISHED = "set the key to the value in the published config.json"
OWN_FORM = "write rope_parameters {}"
C = "{m}/config.json"

# name -> config.json as data, text or bytes; the error; the next step. inspect and extend refuse alike.
BROKEN: dict[str, tuple[Any, str, str]] = {
    "empty": ("", f"{C}: is empty", ""),
    "blank": (" \n", f"{C}: is empty", ""),
    "malformed": ('{"a": ', f"{C}: is not valid JSON: Expecting value at line 1, column 7", ""),
    "a list": ("[1]", f"{C}: contains [1] instead of a JSON object", ""),
    "a number": ("3", f"{C}: contains 3 instead of a JSON object", ""),
    "null": ("null", f"{C}: contains null instead of a JSON object", ""),
    "binary": (b"\x80\x02}q", f"{C}: is not UTF-8: invalid start byte at byte 0", ""),
    "a key twice": ('{"a": 1, "a": 2}', f"{C}: contains the key 'a' twice in one object", ""),
    "theta 0": (but(rope_theta=0), f"{C}: rope_theta: 0 {THETA}", PUBLISHED),
    "theta negative": (but(rope_theta=-1e4), f"{C}: rope_theta: -10000.0 {THETA}", PUBLISHED),
    "theta NaN": (but(rope_theta=float("nan")), f"{C}: rope_theta: NaN {THETA}", PUBLISHED),
    "theta infinite": (but(rope_theta=float("inf")), f"{C}: rope_theta: Infinity {THETA}", PUBLISHED),
    "theta as text": (but(rope_theta="10000"), f'{C}: rope_theta: "10000" {THETA}', PUBLISHED),
    "theta true": (but(rope_theta=True), f"{C}: rope_theta: true {THETA}", PUBLISHED),
    "theta in v5": (
        {**configs.config("llama", "v5"), "rope_parameters": {"rope_theta": 0}},
        f"{C}: rope_parameters.rope_theta: 0 {THETA}", PUBLISHED,
    ),
    "a temperature as a list": (
        {**configs.config("ministral3", "v5"), "rope_parameters": {"rope_type": "yarn", "llama_4_scaling_beta": [0.1]}},
        f"{C}: rope_parameters.llama_4_scaling_beta: [0.1] is not a finite number of at least 0", PUBLISHED,
    ),
    "a context as text": (but(max_position_embeddings="512"), f'{C}: max_position_embeddings: "512" {LENGTH}', PUBLISHED),
    "a context of null": (but(max_position_embeddings=None), f"{C}: max_position_embeddings: null {LENGTH}", PUBLISHED),
    "a context of 2^60": (but(max_position_embeddings=2**60), f"{C}: max_position_embeddings: {2**60} {LENGTH}", PUBLISHED),
    "an original length as text": (
        scaled(original_max_position_embeddings="512"),
        f'{C}: rope_scaling.original_max_position_embeddings: "512" {LENGTH}', PUBLISHED,
    ),
    "a window as text": (but(sliding_window="64"), f'{C}: sliding_window: "64" {LENGTH}', PUBLISHED),
    "layers without end": (
        but(num_hidden_layers=2**40), f"{C}: num_hidden_layers: {2 ** 40} is not a whole number from 1 to 4096", PUBLISHED,
    ),
    "a head without end": (but(head_dim=2**40), f"{C}: head_dim: {2 ** 40} is not a whole number from 1 to 65536", PUBLISHED),
    "heads as text": (
        but(num_attention_heads="4"), f'{C}: num_attention_heads: "4" is not a whole number from 1 to 65536', PUBLISHED,
    ),
    "an unknown rope_type": (
        scaled(rope_type="yaml"),
        f'{C}: rope_scaling: rope_type "yaml" is unknown; known: default, linear, dynamic, yarn, longrope, llama3, '
        "proportional", "",
    ),
    "type against rope_type": (
        scaled(type="linear"),
        f'{C}: rope_scaling: rope_type is "yarn", but type is "linear"; transformers 5 reads rope_type, transformers 4 '
        "type",
        "make them equal in config.json",
    ),
    "the styles in conflict": (
        {**scaled(), "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        f"{C}: rope_scaling and rope_parameters disagree for full_attention (yarn factor 4.0 theta 10000 against "
        "default theta 10000); transformers 5 reads the first, llama.cpp's converter the second", WRONG_ONE,
    ),
    "two bases": (
        {**configs.config("llama", "v5"), "rope_theta": 5e5},
        f"{C}: rope_theta is 500000 at the top and 10000 in rope_parameters; transformers 4 reads the first, 5 the "
        "second", WRONG_ONE,
    ),
    "a factor of 0": (scaled(factor=0), f"{C}: rope_scaling.factor: 0 {POSITIVE}", PUBLISHED),
    "a factor NaN": (scaled(factor=float("nan")), f"{C}: rope_scaling.factor: NaN {POSITIVE}", PUBLISHED),
    "a factor of 400 digits": (scaled(factor=10**400), f"{C}: rope_scaling.factor: 1{'0' * 76}... {POSITIVE}", PUBLISHED),
    "a negative attention factor": (scaled(attention_factor=-1), f"{C}: rope_scaling.attention_factor: -1 {POSITIVE}", PUBLISHED),
    "a negative divisor": (
        but(rope_scaling={"rope_type": "longrope", **LISTS, "long_factor": [1.0] * 15 + [-1.0]}),
        f"{C}: rope_scaling.long_factor: it must be a list of finite numbers above 0, one per rotary pair", PUBLISHED,
    ),
    "rope_scaling as text": (but(rope_scaling="linear"), f'{C}: rope_scaling: "linear" is not an object', ""),
    "rope_parameters as a list": (but(rope_parameters=[1]), f"{C}: rope_parameters: [1] is not an object", ""),
    "flat for gemma3": (
        {**configs.config("gemma3_text", "v5"), "rope_parameters": {**YARN, "rope_theta": 1e4}},
        f"{C}: rope_parameters: it is flat, but gemma3_text requires it nested by layer type: transformers would "
        "ignore these keys", OWN_FORM.format("nested by layer type"),
    ),
    "nested for llama": (
        {**configs.config("llama", "v5"), "rope_parameters": {"full_attention": YARN}},
        f"{C}: rope_parameters: it is nested by layer type, but llama requires it flat: transformers would ignore these "
        "keys", OWN_FORM.format("flat"),
    ),
    "no text_config": (
        {"model_type": "gemma3"}, f"{C}: text_config must be an object, because it contains the rope keys of gemma3; it is null", "",
    ),
}  # fmt: skip


def with_config(root: Path, content: Any) -> Path:
    model = write_model(root / "model", BASE)
    if isinstance(content, dict):
        content = json.dumps(content)
    (model / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    return model


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_config(case: str, tmp_path: Path) -> None:
    content, error, try_ = BROKEN[case]
    model = with_config(tmp_path, content)
    refused(tmp_path, error, try_, "inspect", model)
    refused(tmp_path, error, try_, "extend", model, *EXTEND, "--from", "original")
    refused(tmp_path, error, try_, "extend", model, *EXTEND, "--config-style", "both")


CANNOT = f"{C}: transformers cannot load this config"
PARTIAL = "sets partial rotation, but llama rotates whole heads"

# What inspect shows and extend refuses.
NOT_EXTENDED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an encoder": ({"model_type": "bert"}, f"{C}: bert has no rotary positions: there is nothing to extend", ""),
    "an unknown family": (
        but(model_type="zigzag"),
        f"{C}: unknown model family 'zigzag'; `ropetool families` lists the known families; its class LlamaForCausalLM "
        "belongs to llama, internlm3, iquestcoder",
        "--as llama, if the model computes the same as that class",
    ),
    "no family": (
        but(model_type=None),
        f'{C}: model_type is missing, so the family is unknown; its class LlamaForCausalLM belongs to llama: add '
        '"model_type": "llama"',
        "ropetool families",
    ),
    "a family with a letter too many": (
        {**but(model_type="qwen22"), "architectures": ["NewForCausalLM"]},
        f"{C}: unknown model family 'qwen22' (did you mean qwen2 or qwen?); `ropetool families` lists the known families",
        "correct the model_type, or add ropetool/families/qwen22.json with the checklist in docs/contributing.md",
    ),
    "an odd rotary_dim": (
        but(head_dim=31), f"{CANNOT}: head_dim is 31; it must be even and at least 2", "",
    ),
    "a list of the wrong length": (
        but(rope_scaling={"rope_type": "longrope", **LISTS, "short_factor": [1.0]}),
        f"{CANNOT}: short_factor has 1 entries for 16 rotary pairs", "",
    ),
    "a factor that is missing": (
        but(rope_scaling={"rope_type": "linear"}), f"{CANNOT}: KeyError: linear needs factor", "",
    ),
    "theta of null": (but(rope_theta=None), f"{CANNOT}: TypeError: rope_theta is null; it must be a number", ""),
    "partial rotation": (
        but(partial_rotary_factor=0.5), f"{C}: partial_rotary_factor: 0.5 {PARTIAL}",
        "remove partial_rotary_factor from config.json",
    ),
    "partial rotation in v5": (
        {**configs.config("llama", "v5"), "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        f"{C}: partial_rotary_factor: 0.5 {PARTIAL}", "remove partial_rotary_factor from config.json",
    ),
    "partial rotation in gpt_neox's word": (
        but(rotary_pct=0.25), f"{C}: rotary_pct: 0.25 {PARTIAL}", "remove rotary_pct from config.json",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_EXTENDED)
def test_what_is_shown_but_not_extended(case: str, tmp_path: Path) -> None:
    content, error, try_ = NOT_EXTENDED[case]
    model = with_config(tmp_path, content)
    assert run("inspect", model).code == 0
    refused(tmp_path, error, try_, "extend", model, *EXTEND, "--from", "original")
