"""Parity of rotation: transformers' own modules and llama.cpp's library against our tables, and defects in between."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configs
import numpy as np
import pytest
import torch
import transformers
from gguf_files import HEAD_DIM, TRAINED, Tiny, llama3_divisors
from models import write_config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from verifying import rope_of

import ropetool
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.escaping import install_line
from ropetool.files.gguf import read_shards
from ropetool.rope.tables import LayerRope
from ropetool.verification.measures import rotary
from ropetool.verification.measures.rotary import check_rotation
from ropetool.verification.runners import llama_probe
from ropetool.verification.runners.probe_model import write_probe

LISTS = {"long_factor": [1.0 + 0.2 * i for i in range(16)], "short_factor": [1.0 + 0.01 * i for i in range(16)]}
METHODS: dict[str, dict[str, Any]] = {
    "yarn": {}, "ntk": {}, "llama3": {}, "dynamic": {}, "longrope": {"params": LISTS}, "attention": {},
}  # fmt: skip


def extended(folder: Path, family: str, method: str, factor: float = 8, **changes: Any) -> Path:
    """Return a directory with the config of an extended checkpoint, and no weights."""
    source = write_config(folder / "source", {**configs.config(family, "v5"), **changes})
    target = folder / "output"
    ropetool.apply(ropetool.plan(source, method, factor=factor, **METHODS[method]), source, target)
    return target


# --- transformers


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", configs.FAMILIES)
def test_transformers_rotates_by_our_table(family: str, method: str, tmp_path: Path) -> None:
    check = check_rotation(extended(tmp_path, family, method))
    assert (check.name, check.limit, check.verdict) == ("rotation", 3e-6, "pass")
    assert check.figure is not None
    assert 0 < check.figure < 1.5e-6  # half of the limit


def test_a_context_of_131072_tokens_agrees_too(tmp_path: Path) -> None:
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    target = extended(tmp_path, "qwen3", "yarn", 4, max_position_embeddings=32768, head_dim=128, **theta)
    assert check_rotation(target).verdict == "pass"


SLIGHT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "theta +1 %": lambda keys: keys.update(rope_theta=keys["rope_theta"] * 1.01),
    "factor +1 %": lambda keys: keys.update(factor=keys["factor"] * 1.01),
    "dropped attention factor": lambda keys: keys.update(attention_factor=1.0),
    "attention factor +0.01 %": lambda keys: keys.update(attention_factor=(1 + 0.1 * np.log(8)) * 1.0001),
    "original length doubled": lambda keys: keys.update(original_max_position_embeddings=1024),
    "truncate": lambda keys: keys.update(truncate=False),
}


# deepseek_v2 gives complex numbers, and its yarn has an attention factor of 1 already.
FAR_OFF = [("llama", defect) for defect in SLIGHT] + [("deepseek_v2", "theta +1 %"), ("deepseek_v2", "truncate")]


@pytest.mark.parametrize(("family", "defect"), FAR_OFF)
def test_a_module_with_a_slightly_other_table_is_far_off(family: str, defect: str, tmp_path: Path) -> None:
    intact = extended(tmp_path, family, "yarn")
    data = json.loads((intact / "config.json").read_text())
    SLIGHT[defect](data["rope_parameters"])
    broken = write_config(tmp_path / "broken", data)
    model = rotary.skeleton(torch, transformers, broken)
    figure, place = rotary.largest_difference(torch, model, rope_of(intact))
    assert figure > 30 * rotary.TORCH_TOLERANCE
    assert place.endswith("RotaryEmbedding differs")
    assert check_rotation(broken).verdict == "pass"  # the file is consistent: readback has to find it


def test_a_module_that_does_something_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = extended(tmp_path, "llama", "yarn")
    forward = LlamaRotaryEmbedding.forward

    def without_factor(self: Any, *args: Any) -> Any:
        return tuple(value / self.attention_scaling for value in forward(self, *args))

    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", without_factor)
    check = check_rotation(target)
    assert (check.verdict, check.figure) == ("fail", pytest.approx(1 - 1 / (1 + 0.1 * np.log(8)), rel=1e-3))
    monkeypatch.setattr(
        LlamaRotaryEmbedding, "forward", lambda self, *args: tuple(v * np.nan for v in forward(self, *args))
    )
    assert (check_rotation(target).verdict, check_rotation(target).figure) == ("fail", None)


def test_the_softmax_scale_of_mla_is_compared(tmp_path: Path) -> None:
    target = extended(tmp_path, "deepseek_v3", "yarn")
    data = json.loads((target / "config.json").read_text())
    keys = data["rope_parameters"]
    keys.update(mscale=1.0, mscale_all_dim=1.0)
    with_scale = write_config(tmp_path / "scaled", data)
    assert rope_of(with_scale).entries["full_attention"].softmax_multiplier > 1.4
    assert check_rotation(with_scale).verdict == "pass"
    model = rotary.skeleton(torch, transformers, with_scale)
    for module in model.modules():
        if hasattr(module, "scaling"):
            module.scaling *= 1.001
    figure, place = rotary.largest_difference(torch, model, rope_of(with_scale))
    assert (figure, place) == (pytest.approx(1e-3, rel=1e-6), "the softmax scale differs")


def test_remote_code_is_not_run(tmp_path: Path) -> None:
    target = extended(
        tmp_path, "llama", "yarn", auto_map={"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.M"}
    )
    (target / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert check_rotation(target).verdict == "pass"
    assert not (tmp_path / "ran").exists()


def test_a_family_without_a_table_of_ours_is_not_asked(tmp_path: Path) -> None:
    target = write_config(tmp_path / "model", {"model_type": "gpt_neo", "hidden_size": 64})
    assert check_rotation(target).verdict == "-"


def test_a_config_that_neither_reads_fails(tmp_path: Path) -> None:
    target = extended(tmp_path, "llama", "yarn")
    data = json.loads((target / "config.json").read_text())
    del data["rope_parameters"]["factor"], data["rope_parameters"]["rope_type"]
    data["rope_parameters"]["rope_type"] = "linear"
    check = check_rotation(write_config(tmp_path / "broken", data))
    assert check.verdict == "fail"
    assert "KeyError" in check.detail or "factor" in check.detail


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_without_transformers_nothing_is_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = extended(tmp_path, "llama", "yarn")
    monkeypatch.setitem(sys.modules, name, None)
    check = check_rotation(target)
    assert check.verdict == "not run"
    assert check.detail == f"verification needs {name}, which is not installed: {install_line('verify')}"


# --- llama.cpp

YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": TRAINED}
KEYS: dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]] = {
    "unscaled": ({}, {}),
    "linear": ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {}),
    "yarn": (YARN, {}),
    "yarn with a factor": ({**YARN, "rope.scaling.attn_factor": 0.8}, {}),
    "another base": ({"rope.freq_base": 83000.0}, {}),
    "a short context": ({"context_length": 40}, {}),
    "131072 tokens": ({**YARN, "context_length": 131072, "rope.scaling.original_context_length": 32768}, {}),
    "divisors": ({}, {"rope_freqs.weight": llama3_divisors()}),
    "two lists": (
        {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": TRAINED},
        {
            "rope_factors_short.weight": np.linspace(1, 1.2, HEAD_DIM // 2, dtype=np.float32),
            "rope_factors_long.weight": np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32),
        },
    ),
}  # fmt: skip


def write_gguf(path: Path, arch: str = "llama", case: str = "yarn", **changes: Any) -> Path:
    keys, vectors = KEYS[case]
    stated = {"rope.freq_base": 10000.0, "rope.dimension_count": HEAD_DIM, **keys}
    return Tiny(arch, {**stated, **{key.replace("__", "."): value for key, value in changes.items()}}, vectors).write(
        path
    )


# Only llama files hold frequency vectors.
RIGHT = [(arch, case) for arch in ("llama", "qwen2", "qwen3") for case in KEYS if arch == "llama" or not KEYS[case][1]]


@pytest.mark.parametrize(("arch", "case"), RIGHT)
def test_llama_cpp_rotates_by_our_table(arch: str, case: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    check = check_rotation(write_gguf(tmp_path / "model.gguf", arch, case))
    assert (check.verdict, check.limit) == ("pass", 2e-4)
    assert check.figure is not None
    assert 0 < check.figure < 7e-5  # a third of the limit


def entry_of(path: Path) -> LayerRope:
    return rope_of(path).entries["full_attention"]


WRONG: dict[str, dict[str, Any]] = {
    "theta +1 %": {"rope__freq_base": 10100.0},
    "factor 7 for 8": {"rope__scaling__factor": 3.5},
    "dropped attention factor": {"rope__scaling__attn_factor": 1 / (1 + 0.1 * np.log(4))},
    "original length doubled": {"rope__scaling__original_context_length": 2 * TRAINED},
    "no scaling": {"rope__scaling__type": "none"},
}


@pytest.mark.parametrize("context", [2048, 131072])
@pytest.mark.parametrize("defect", WRONG)
def test_a_library_with_another_table_is_far_off(defect: str, context: int, tmp_path: Path) -> None:
    lib = pytest.importorskip("llama_cpp")
    right = entry_of(write_gguf(tmp_path / "right.gguf", context_length=context))
    wrong = write_gguf(tmp_path / "wrong.gguf", context_length=context, **WRONG[defect])
    probe = write_probe(GgufCheckpoint.of(read_shards(wrong)), "llama", entry_of(wrong), tmp_path / "probe.gguf")
    assert llama_probe.largest_difference(lib, probe, "llama", entry_of(wrong), context) < 7e-5
    assert llama_probe.largest_difference(lib, probe, "llama", right, context) > 50 * llama_probe.TOLERANCE


def test_both_lists_are_probed(tmp_path: Path) -> None:
    """Each of two lists is used by a context of its own size; a change of either alone is seen."""
    lib = pytest.importorskip("llama_cpp")
    path = write_gguf(tmp_path / "model.gguf", case="two lists")
    for name in ("rope_factors_short.weight", "rope_factors_long.weight"):
        keys, vectors = KEYS["two lists"]
        other = Tiny("llama", keys, {**vectors, name: vectors[name] * np.float32(1.1)}).write(tmp_path / "other.gguf")
        probe = write_probe(GgufCheckpoint.of(read_shards(other)), "llama", entry_of(other), tmp_path / "probe.gguf")
        assert llama_probe.largest_difference(lib, probe, "llama", entry_of(path), 2048) > 50 * llama_probe.TOLERANCE


def test_an_architecture_without_a_probe_is_not_asked(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    check = check_rotation(write_gguf(tmp_path / "model.gguf", "phi3", "unscaled"))
    assert (check.verdict, check.detail) == ("-", "ropetool has no probe for phi3, only for llama, qwen2, qwen3")


def test_a_file_that_llama_cpp_would_refuse_fails(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    check = check_rotation(write_gguf(tmp_path / "model.gguf", rope__scaling__type="yaml"))
    assert check.verdict == "fail"
    assert "llama.cpp cannot load this file" in check.detail


def test_without_llama_cpp_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    check = check_rotation(write_gguf(tmp_path / "model.gguf"))
    assert check.verdict == "not run"
    assert check.detail.endswith(install_line("llama"))
