"""The families that are read from transformers' source, extended in the style they take: the real rotary modules agree.

That the records are true to the models is for tests/oracle/test_probing.py; here what ropetool makes of them is held against the
classes, before and after.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import write_config
from probes import probe

import ropetool
from ropetool import families
from ropetool.errors import LossyExport
from ropetool.families import records
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import inspection

LENGTHS = [256, 512, 513, 2048]
TOLERANCE = 3e-6  # transformers computes its tables in float32
CELLS: dict[str, dict[str, Any]] = {
    "linear": {}, "abf": {"params": {"rope_theta": 5e5}}, "yarn": {}, "llama3": {}, "ntk": {},
}  # fmt: skip
RECORDED = [name for name in families.names() if name not in {*families.baked(), *families.remote()}]
# Whose rotary module asks for more than a config of sizes: an encoder, image sections, a class in another module.
BUILT_OTHERWISE = {"evolla", "granite4_vision_text", "hunyuan_vl_text", "voxtral_realtime_text"}
ROTATING = [name for name in RECORDED if families.get(name).rotates != "none" and name not in BUILT_OTHERWISE]
SECTIONED = dict.fromkeys(("glm4v_text", "glm4v_moe_text"), 0.5)  # image sections of 32 pairs: half of heads of 128

NEEDED = {"cosmos3_edge_text": {"mrope_section": [24, 20, 20]}}  # rope keys that the class has no number of its own for


def refusal(name: str, cell: str) -> str:
    """Return why no encoding says it, empty where one does."""
    family = families.get(name)
    full = family.default_rope_keys.get("full_attention", {})
    if cell in ("linear", "yarn", "llama3") and family.rope_types == ("default",):
        return "accepts only the rope_type default"
    if cell in ("yarn", "llama3") and full.get("rope_type") == "proportional":
        return "no combination of RoPE keys produces this table"
    return "attention factor 1 instead" if cell == "yarn" and family.norm_after else ""


def config(name: str) -> dict[str, Any]:
    """Return a config of the class's own sizes with 512 trained positions and layers of every kind."""
    family = families.get(name)
    sizes = {**family.default_sizes, **family.rotates_if}
    made: dict[str, Any] = {"model_type": name, **sizes, "max_position_embeddings": 512}
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    if family.default_head_dim is None and made["hidden_size"] // made["num_attention_heads"] % 4:
        made[family.head_dim_key] = 64  # which the class's own sizes do not make pairs of
    if family.nested and family.default_sliding_window is None:
        made["sliding_window"] = 64
    if family.nested:
        theirs = {ours: name for name, ours in family.kind_names.items() if not name.isdigit()}
        count = made["num_hidden_layers"]
        kinds = [theirs.get(kind, kind) for kind in family.layer_types]
        made["layer_types"] = [*(kinds * count)[: count - 1], theirs.get("full_attention", "full_attention")]
        made["rope_parameters"] = {
            family.rope_group(kind): {"rope_theta": base, **(family.default_rope_keys.get(kind) or plain)}
            for kind, base in family.default_rope_theta.items()
        }
        return made
    if name in SECTIONED:
        return {**made, "head_dim": 128, "rope_parameters": {**plain, "partial_rotary_factor": SECTIONED[name]}}
    return {**made, "rope_parameters": {**plain, **NEEDED.get(name, {})}}


def write(directory: Path, data: dict[str, Any]) -> Path:
    """Write a config; a text model that transformers has only inside another one, within that."""
    wrapper = records.text_types().get(data["model_type"])
    if wrapper is not None and data["model_type"] not in records.names():
        around = families.wrapper_of(wrapper)
        assert around is not None
        data = {"model_type": wrapper, around.text: {**dict.fromkeys(around.needs, 512), **data}}
    return write_config(directory, data)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Return the sources and what is written from them, by family and cell."""
    root = tmp_path_factory.mktemp("recorded")
    found = {}
    for name in ROTATING:
        source = found[name, ""] = write(root / name, config(name))
        for cell, options in CELLS.items():
            if refusal(name, cell):
                with pytest.raises(LossyExport, match=refusal(name, cell)):
                    ropetool.plan(source, cell, factor=4, config_style="v5", **options)
                continue
            plan = ropetool.plan(source, cell, factor=4, config_style="v5", **options)
            found[name, cell] = ropetool.apply(plan, source, root / f"{name}-{cell}").output
    return found


@pytest.fixture(scope="module")
def answers(directories: dict[tuple[str, str], Path]) -> dict[tuple[str, str], dict[str, Any]]:
    jobs = [{"path": str(path), "lengths": LENGTHS} for path in directories.values()]
    return dict(zip(directories, probe(jobs), strict=True))


def computed(directory: Path) -> RopeSet:
    reading = next(each for each in inspection.inspect(directory).readings if each.name == "transformers")
    assert reading.rope is not None, reading.refuses
    return reading.rope


def apart(name: str, rope: RopeSet, answer: dict[str, Any]) -> list[str]:
    """Return in what the real module differs from our reading."""
    family, found = families.get(name), []
    for kind, entry in rope.entries.items():
        assert entry.table is not None
        for length, real in zip(LENGTHS, answer["layers"][family.rope_group(kind)], strict=True):
            ours = entry.table.at(length)
            if not np.allclose(real["inv_freq"], ours.inv_freq, rtol=TOLERANCE, atol=0):
                found.append(f"{kind} at {length}: the table")
            if not family.norm_after and abs(real["attention_factor"] / ours.attention_factor - 1) > TOLERANCE:
                found.append(f"{kind} at {length}: the attention factor")
    if abs(answer["softmax"] / rope.entries["full_attention"].softmax_multiplier - 1) > TOLERANCE:
        found.append("the softmax scale")
    return found


@pytest.mark.parametrize("name", ROTATING)
def test_the_real_module_computes_what_is_written(name: str, directories: Any, answers: Any) -> None:
    for cell in ("", *CELLS):
        if not cell or not refusal(name, cell):
            assert "error" not in answers[name, cell], (cell, answers[name, cell])
            assert apart(name, computed(directories[name, cell]), answers[name, cell]) == [], cell


def odd() -> dict[str, dict[str, Any]]:
    """Return configs with the keys of published files that few classes have, or that most read otherwise."""
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 32, "beta_slow": 1}
    linear = {"rope_type": "linear", "factor": 4.0}

    def bare(name: str) -> dict[str, Any]:
        return {k: v for k, v in config(name).items() if k != "rope_parameters"}

    return {
        "deepseek_v4": {
            **{k: v for k, v in bare("deepseek_v4").items() if k != "layer_types"}, "qk_rope_head_dim": 64, "rope_theta": 10000,
            "compress_rope_theta": 160000, "rope_scaling": yarn, "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
        },
        "minimax_m2": {**bare("minimax_m2"), "rotary_dim": 64, "rope_theta": 5e6},
        "modernbert-decoder": {**bare("modernbert-decoder"), "global_rope_theta": 5e4, "rope_scaling": linear},
        "gemma3n_text": {**bare("gemma3n_text"), "rope_theta": 5e4, "rope_local_base_freq": 2e4, "rope_scaling": yarn},
        "cohere2_moe": {**bare("cohere2_moe"), "rope_theta": 5e4, "rope_scaling": linear},
        "muse_spark_text": {**bare("muse_spark_text"), "rope_theta": 5e4},
        "phimoe": {
            **bare("phimoe"), "rope_theta": 5e4, "max_position_embeddings": 2048, "original_max_position_embeddings": 512,
            "rope_scaling": {
                "type": "longrope", "short_factor": [1.5] * 64, "long_factor": [4.0] * 64, "short_mscale": 1.1,
                "long_mscale": 1.2, "original_max_position_embeddings": 512,
            },
        },
        "ernie4_5": {**bare("ernie4_5"), "head_dim": None},
        "bailing_hybrid": {**bare("bailing_hybrid"), "rope_scaling": {"type": "dynamic", "factor": 4.0}},
    }  # fmt: skip


@pytest.mark.parametrize("name", odd())
def test_odd_and_older_keys_are_read_as_the_class_reads_them(name: str, tmp_path: Path) -> None:
    data = odd()[name]
    source = write(tmp_path / "m", data)
    (answer,) = probe([{"path": str(source), "lengths": LENGTHS}])
    assert "error" not in answer, answer
    assert apart(name, computed(source), answer) == []


@pytest.mark.parametrize(
    ("name", "keys", "why"),
    [
        (
            "laguna",
            {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
            "KeyError: rope_scaling replaces the keys",
        ),
        ("minimax_m2", {"num_key_value_heads": None}, "ValidationError: num_key_value_heads is null"),
        (
            "glm",
            {"head_dim": None, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "TypeError: head_dim is null; yarn",
        ),
        ("youtu", {"head_dim": None}, "TypeError: head_dim is null; default"),
    ],
)
def test_what_stops_the_class_is_refused(name: str, keys: dict[str, Any], why: str, tmp_path: Path) -> None:
    kept = {k: v for k, v in config(name).items() if k != "rope_parameters"}
    source = write(tmp_path / "m", {**kept, **keys})
    reading = next(each for each in inspection.inspect(source).readings if each.name == "transformers")
    assert reading.refuses.startswith(why)
    (answer,) = probe([{"path": str(source), "lengths": LENGTHS}])
    rope = answer["layers"]["full_attention"][0] if "layers" in answer else None
    assert (
        rope is None or 2 * len(rope["inv_freq"]) != families.get(name).default_head_dim
    )  # which the layers cannot take


@pytest.mark.parametrize("name", ["hunyuan_v1_dense", "hunyuan_v1_moe"])
def test_a_dynamic_table_with_alpha_is_that_of_a_larger_base(name: str, tmp_path: Path) -> None:
    """As tencent/Hunyuan-7B-Instruct is published; without alpha the type follows the length as in every family."""
    scaling = {"type": "dynamic", "factor": 1.0, "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}
    data = {**config(name), "head_dim": 128, "rope_theta": 10000.0, "rope_scaling": scaling}
    del data["rope_parameters"]
    source = write(tmp_path / "m", data)
    plain = write(tmp_path / "plain", {**data, "rope_scaling": {**scaling, "alpha": None, "factor": 4.0}})
    output = ropetool.apply(ropetool.plan(source, "linear", factor=4), source, tmp_path / "out").output
    answers = probe([{"path": str(path), "lengths": LENGTHS} for path in (source, plain, output)])
    for path, answer in zip((source, plain, output), answers, strict=True):
        assert apart(name, computed(path), answer) == []
    assert apart(name, computed(source), answers[1]) != []
    assert "alpha" not in json.loads((output / "config.json").read_text())["rope_scaling"]


@pytest.mark.parametrize(
    ("wrapper", "name"), [("qwen2_5_omni", "qwen2_5_omni_text"), ("qwen3_omni_moe", "qwen3_omni_moe_text")]
)  # fmt: skip
def test_a_text_model_two_levels_down_rotates_as_planned(wrapper: str, name: str, tmp_path: Path) -> None:
    data = {"model_type": wrapper, "thinker_config": {"text_config": config(name)}, "talker_config": {}}
    source = write(tmp_path / "m", data)
    output = ropetool.apply(ropetool.plan(source, "yarn", factor=4), source, tmp_path / "out").output
    after = json.loads((output / "config.json").read_text())
    assert after["talker_config"] == {}
    assert after["thinker_config"]["text_config"]["rope_parameters"]["rope_type"] == "yarn"
    before, answer = probe([{"path": str(path), "lengths": LENGTHS} for path in (source, output)])
    assert apart(name, computed(output), answer) == []
    assert apart(name, computed(output), before) != []


@pytest.mark.parametrize(
    "name", ["qwen3_5_text", "gemma4_text", "laguna", "zaya", "granitemoehybrid", "glm4_moe", "youtu"]
)
def test_one_wrong_entry_turns_it_red(name: str, directories: Any, answers: Any) -> None:
    rope = computed(directories[name, "linear"])
    other = computed(directories[name, "abf"])
    assert apart(name, other, answers[name, "linear"]) != []
    assert apart(name, rope, {**answers[name, "linear"], "softmax": 1.01}) == ["the softmax scale"]


def test_there_are_enough_of_them() -> None:
    assert len(ROTATING) >= 99
