"""Families that only remote code has: its older reading of rope_scaling, and refusals that say why a type is not read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import config_of, write_config

import ropetool
from ropetool import families
from ropetool.errors import InvalidRope, LossyExport, UnknownFamily
from ropetool.families.wrappers import ALIASES, UNREAD
from ropetool.files.hf.jsontext import shown
from ropetool.rope.tables import LayerRope
from ropetool.runtimes import inspection

MORE: dict[str, dict[str, Any]] = {  # without which nothing rotates
    "maple": {"layer_types": ["sliding_attention"] * 8, "sliding_window": 4096},
    **{name: {"attn_type_list": [1] * 8} for name in ("minimax_m1", "minimax_text_01")},
}
SIZES = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2}
BASE = 500000.0
FLAT = [name for name in families.remote() if not families.get(name).nested]
OLD = [name for name in families.remote() if families.get(name).scaling_keys]
NEW = [name for name in families.remote() if not families.get(name).rope_types]


def config(name: str, **keys: Any) -> dict[str, Any]:
    family = families.get(name)
    sizes = {family.size_keys.get(key, key): value for key, value in SIZES.items()}
    stated = {"model_type": name, **sizes, family.rope_theta_key or "rope_theta": BASE, family.context_key: 4096}
    stated |= {key: one.values[0] for key, one in family.needed.items()}
    stated |= MORE.get(name, {})
    return {key: value for key, value in {**stated, **keys}.items() if value is not None}


def attending(name: str) -> tuple[int, ...]:
    """Return the layers that look all the way back, of those that a config has."""
    family = families.get(name)
    step, count = family.pattern or 1, config(name).get("num_hidden_layers", SIZES["num_hidden_layers"])
    offset = step - 1 if family.pattern_offset is None else family.pattern_offset
    return tuple(range(offset, count, step))


def entry(path: Path) -> LayerRope:
    rope = inspection.inspect(path).rope
    assert rope is not None
    return rope.entries["full_attention"]


def base_of(name: str) -> float:
    """Return the base of a config as above; the code's own where that has it fixed."""
    family = families.get(name)
    return BASE if family.rope_theta_key else family.default_rope_theta["full_attention"]


def plain(name: str, base: float = 0.0) -> Any:
    base = base or base_of(name)
    width = int((families.get(name).default_head_dim or 128) * families.get(name).default_partial_rotary_factor)
    return base ** (-np.arange(0, width, 2) / width)


@pytest.mark.parametrize("name", FLAT)
def test_sizes_and_base_are_read_under_its_own_keys(name: str, tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", config(name))
    found = entry(source)
    assert found.table is not None
    family = families.get(name)
    assert (found.head_dim, found.layout) == (family.default_head_dim or 128, family.layout)
    assert found.layers == attending(name)
    assert np.allclose(found.table.at(4096).inv_freq, plain(name))
    notes = inspection.inspect(source).notes
    assert any(f"no class for {name}, only the remote code" in note for note in notes)


@pytest.mark.parametrize("name", [name for name in FLAT if name != "exaone"])  # which transformers 5.24 has
def test_rope_parameters_are_not_read(name: str, tmp_path: Path) -> None:
    scaled = {"rope_type": "default", "rope_theta": 7.0}
    data = {key: value for key, value in config(name).items() if value != BASE}
    found = entry(write_config(tmp_path / "m", {**data, "rope_parameters": scaled}))
    assert found.table is not None
    assert np.allclose(
        found.table.at(4096).inv_freq, plain(name, families.get(name).default_rope_theta["full_attention"])
    )
    with pytest.raises(LossyExport):
        ropetool.plan(write_config(tmp_path / "n", config(name)), "ntk", factor=2, config_style="v5")


@pytest.mark.parametrize("name", OLD)
def test_the_old_code_takes_linear_and_dynamic_by_type_and_factor_alone(name: str, tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", config(name))
    written = {
        method: config_of(ropetool.apply(ropetool.plan(source, method, factor=4), source, tmp_path / method).output)
        for method in ("linear", "dynamic")
    }
    for method, data in written.items():
        assert data["rope_scaling"] == {"type": method, "factor": written[method]["rope_scaling"]["factor"]}
    linear = entry(tmp_path / "linear").table
    dynamic = entry(tmp_path / "dynamic").table
    assert linear is not None
    assert dynamic is not None
    assert np.allclose(linear.at(16384).inv_freq, plain(name) / 4)
    factor, length = written["dynamic"]["rope_scaling"]["factor"], written["dynamic"][families.get(name).context_key]
    stretched = base_of(name) * (factor * 16384 / length - (factor - 1)) ** (
        128 / 126
    )  # InternLM2DynamicNTKScalingRotaryEmbedding
    assert np.allclose(dynamic.at(16384).inv_freq, plain(name, stretched))
    for method in ("yarn", "llama3", "longrope"):
        with pytest.raises(LossyExport, match="rope_scaling must have only the keys type and factor"):
            ropetool.plan(source, method, factor=4, **({} if method != "longrope" else {"params": divisors()}))


def divisors() -> dict[str, list[float]]:
    return {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}


@pytest.mark.parametrize(
    "spelled", [{"rope_type": "linear", "factor": 2.0}, {"type": "linear", "factor": 2.0, "more": 1}]
)
def test_the_old_code_stops_at_other_keys(spelled: dict[str, Any], tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", config("internlm2", rope_scaling=spelled))
    reading = next(each for each in inspection.inspect(source).readings if each.name == "transformers")
    assert reading.refuses == "ValueError: rope_scaling must have only the keys type and factor"


@pytest.mark.parametrize("name", NEW)
def test_code_with_the_functions_of_transformers_reads_as_a_llama_of_its_shape(name: str, tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    }  # fmt: skip
    source = write_config(tmp_path / "m", config(name, rope_scaling=scaling))
    width = plain(name).size * 2
    same = {"model_type": "llama", **SIZES, "head_dim": width, "rope_theta": BASE, "max_position_embeddings": 4096}
    llama = write_config(tmp_path / "llama", {**same, "rope_scaling": scaling})
    ours, theirs = entry(source).table, entry(llama).table
    assert ours is not None
    assert theirs is not None
    assert np.allclose(ours.at(4096).inv_freq, theirs.at(4096).inv_freq)
    assert ropetool.plan(source, "yarn", factor=2, reading="original").edits


def test_a_type_whose_code_reads_the_base_alone_takes_no_scaled_type(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", config("llada"))
    edits = {edit.path: edit.new for edit in ropetool.plan(source, "ntk", factor=4).edits}
    assert set(edits) == {("rope_theta",), ("max_sequence_length",)}
    with pytest.raises(LossyExport, match="llada accepts only the rope_type default"):
        ropetool.plan(source, "linear", factor=4)


@pytest.mark.parametrize("name", UNREAD)
def test_a_type_that_is_not_read_says_why(name: str, tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", {"model_type": name, **SIZES})
    with pytest.raises(UnknownFamily) as refusal:
        ropetool.plan(source, "yarn", factor=2)
    assert refusal.value.message == f"the model family {json.dumps(name)[1:-1]!r} is not supported: {UNREAD[name]}"
    assert any(UNREAD[name] in note for note in inspection.inspect(source).notes)
    assert families.find(name) is None


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name in families.remote() for key in families.get(name).needed]
)
def test_a_config_that_is_not_described_says_why(name: str, key: str, tmp_path: Path) -> None:
    outer, _, inner = key.partition(".")
    other: Any = [2.0] if inner else 7
    source = write_config(tmp_path / "m", {**config(name), outer: {inner: other, "type": "linear"} if inner else other})
    why = families.get(name).needed[key].why
    reading = next(each for each in inspection.inspect(source).readings if each.name == "transformers")
    assert reading.refuses == f"{key} is {shown(other)}: {why}"
    with pytest.raises(InvalidRope, match=re.escape(why)):
        ropetool.plan(source, "ntk", factor=2)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_a_scaling_that_all_releases_that_run_read_alike_is_read(key: str, tmp_path: Path) -> None:
    """openbmb/MiniCPM-2B-128k; modeling_minicpm.py of MiniCPM reads type, that of MiniCPM4 rope_type."""
    stated = config("minicpm", rope_scaling={key: "dynamic", "factor": 4.0})
    source = write_config(tmp_path / "m", stated)
    found = entry(source)
    assert (found.rope_type, found.factor) == ("dynamic", 4.0)
    assert found.table is not None
    assert np.allclose(found.table.at(4096).inv_freq, plain("minicpm"))
    stretched = BASE * (4 * 16384 / 4096 - 3) ** (128 / 126)  # _set_cos_sin_cache of both
    assert np.allclose(found.table.at(16384).inv_freq, plain("minicpm", stretched))
    plan = ropetool.plan(source, "linear", factor=2, reading="original")
    output = ropetool.apply(plan, source, tmp_path / "out").output
    assert config_of(output)["rope_scaling"] == {key: "linear", "factor": 2.0}


def test_no_scaling_is_written_whose_type_releases_read_by_different_keys(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", config("minicpm"))
    for method in ("linear", "dynamic", "yarn"):
        with pytest.raises(LossyExport, match="MiniCPM 1 and 2 read the scaling type from type"):
            ropetool.plan(source, method, factor=2)
    assert ropetool.plan(source, "ntk", factor=2).edits
    yarn = config("minicpm", rope_scaling={"type": "yarn", "factor": 4.0})
    reading = inspection.inspect(write_config(tmp_path / "yarn", yarn)).readings[0]
    assert (reading.known, "accepts only the rope_type default or linear or dynamic" in reading.refuses) == (True, True)


@pytest.mark.parametrize("stated", [True, False, None])
def test_what_the_code_does_beyond_the_context_is_said(stated: bool | None, tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", config("qwen", use_logn_attn=stated))
    said = [note for note in inspection.inspect(source).notes if "use_logn_attn" in note]
    assert said == (
        ["use_logn_attn is on: beyond 4096 tokens its code scales the score with the logarithm of the position"]
        * bool(stated)
    )


def test_the_class_in_transformers_reads_configs_with_rope_parameters(tmp_path: Path) -> None:
    """EXAONE 3.5 was remote code until transformers 5.24."""
    parameters = {"rope_type": "default", "rope_theta": BASE}
    newer = {"model_type": "exaone", **SIZES, "max_position_embeddings": 4096, "rope_parameters": parameters}
    assert (families.of_config(newer).remote, families.of_config(config("exaone")).remote) == (False, True)
    for number, one in enumerate((newer, config("exaone"))):
        source = write_config(tmp_path / str(number), one)
        output = ropetool.apply(ropetool.plan(source, "linear", factor=2), source, tmp_path / f"{number}-linear").output
        found = entry(output)
        assert found.table is not None
        assert np.allclose(found.table.at(4096).inv_freq, BASE ** (-np.arange(64) / 64) / 2)


def test_names_are_stated_once() -> None:
    assert not {*ALIASES} & {*UNREAD, *families.remote()}
    assert not {*UNREAD} & {*families.names()}
    assert not {*families.remote()} & {*families.baked()}
