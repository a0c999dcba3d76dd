"""Wrappers around a text model against transformers' own classes: which family serves, and by which table it rotates.

Every type of wrapper that the installed transformers has and that ropetool hands over.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import configs
import numpy as np
import pytest
import torch
import transformers
from models import write_config

import ropetool
from ropetool import families
from ropetool.families import records
from ropetool.families.wrappers import ALIASES, FLAT, WRAPPERS
from ropetool.probing import facts
from ropetool.runtimes import inspection
from ropetool.verification.measures.rotary import TORCH_TOLERANCE, check_rotation, largest_difference
from ropetool.verification.readback.comparing import read_back
from ropetool.verification.runners.torch_library import quiet

REMOTE = {name for name, wrapper in WRAPPERS.items() if "remote code" in wrapper.source}
BUILT_IN = sorted(WRAPPERS.keys() - REMOTE)
# Text models to put inside where the class's own default is none that is known here.
OTHERS = {
    "paligemma": "gemma2", "lfm2_vl": "qwen3", "fuyu": "llama", "exaone4_5": "exaone4",
    "blip-2": "llama", "instructblip": "llama", "instructblipvideo": "llama",
}  # fmt: skip
V5_ALONE = ("glmasr",)  # fills in rope_parameters where there are none
NO_MODEL = {"fast_vlm": "needs timm", "perception_lm": "needs timm"}  # the config alone is built


def text_type(wrapper: str) -> str:
    return OTHERS.get(wrapper) or WRAPPERS[wrapper].default


def wrapped(wrapper: str) -> dict[str, Any]:
    """Return a config of the wrapper with a small text model inside."""
    inner = {"head_dim": 32, **configs.config(text_type(wrapper), "v5" if wrapper in V5_ALONE else "v4")}
    if text_type(wrapper) == "deepseek_v3":
        del inner["head_dim"]
    if wrapper == "fun_asr_nano":  # checks that its adaptor is as wide
        width = inner["hidden_size"]
        return {
            "model_type": wrapper, "text_config": inner,
            "adaptor_config": {"hidden_size": width, "intermediate_size": width // 4},
        }  # fmt: skip
    if wrapper == "aya_vision":  # whose default vision model cannot be built
        return {"model_type": wrapper, "text_config": inner, "vision_config": {"model_type": "siglip_vision_model"}}
    return {"model_type": wrapper, "text_config": inner}


def built(path: Path) -> Any:
    """Return the wrapper's model on the meta device: the class that loads such a checkpoint."""
    config = transformers.AutoConfig.from_pretrained(path)
    tried = ("AutoModelForImageTextToText", "AutoModelForMultimodalLM", "AutoModelForSpeechSeq2Seq", "AutoModel")
    makers = [getattr(transformers, name) for name in tried if hasattr(transformers, name)]
    maker = next(found for found in makers if type(config) in found._model_mapping)
    with quiet(transformers), torch.device("meta"):
        return maker.from_config(config)


@pytest.mark.parametrize("wrapper", BUILT_IN)
def test_the_class_assumes_the_family_that_we_do(wrapper: str) -> None:
    config = transformers.CONFIG_MAPPING[wrapper]()
    found: str = config.text_config.model_type
    if wrapper != "exaone4_5":  # which assumes it only where the whole text_config is absent
        assert found == WRAPPERS[wrapper].default
    assert families.find(found) is not None or wrapper in OTHERS


def test_the_names_that_only_remote_code_has_are_said_to_be_such() -> None:
    handed = [dataclasses.replace(families.get("llama"), config_type=name) for name in (*WRAPPERS, *ALIASES)]
    noted = {family.config_type for family in handed if inspection.remote_code({}, family)}
    assert noted == {*WRAPPERS, *ALIASES} - set(transformers.CONFIG_MAPPING)


@pytest.mark.parametrize("name", families.baked())
def test_the_default_sizes_are_those_of_the_class(name: str) -> None:
    family = families.get(name)
    kind = transformers.CONFIG_MAPPING["gemma3_text" if name == "gemma3" else name]  # whose text model gemma3 holds
    found, sizes = kind(), dict(family.default_sizes)
    heads = sizes["num_attention_heads"]
    kv_heads = sizes.pop("num_key_value_heads", None)
    assert {key: getattr(found, key) for key in sizes} == sizes
    assert set(sizes) == {"hidden_size", "num_hidden_layers", "num_attention_heads"}
    if hasattr(found, "num_key_value_heads"):  # without a number of its own the class takes that of the heads
        assert kind(num_attention_heads=2 * heads).num_key_value_heads == (kv_heads or 2 * heads)


@pytest.mark.parametrize("wrapper", [name for name in BUILT_IN if not WRAPPERS[name].needs and name != "fun_asr_nano"])
def test_sizes_left_out_of_the_inner_config_are_those_of_the_family(wrapper: str, tmp_path: Path) -> None:
    """But fun_asr_nano, which checks that its adaptor is as wide as a text model of the default size is not."""
    inner = {"model_type": text_type(wrapper), "vocab_size": 64}
    config = transformers.CONFIG_MAPPING[wrapper](text_config=inner).text_config
    family = families.of_config({"model_type": wrapper, "text_config": inner})
    assert {key: getattr(config, key) for key in family.default_sizes} == family.default_sizes


@pytest.mark.parametrize("wrapper", [name for name in BUILT_IN if name not in NO_MODEL])
def test_the_extended_text_model_rotates_by_the_planned_table(wrapper: str, tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", wrapped(wrapper))
    plan = ropetool.plan(source, "linear" if text_type(wrapper) == "deepseek_v3" else "ntk", factor=4)
    output = ropetool.apply(plan, source, tmp_path / "out").output
    rope = inspection.inspect(output).rope
    assert rope is not None
    text = next(m for m in built(output).modules() if getattr(m, "config", None) is not None and _is_text(m, wrapper))
    figure, place = largest_difference(torch, text, rope)
    assert figure < TORCH_TOLERANCE, place
    before = inspection.inspect(source).rope
    assert before is not None
    old, new = (r.entries["full_attention"].table.regimes[0].inv_freq for r in (before, rope))
    assert (np.abs(old / new - 1) > 1e-3).sum() >= 3
    assert largest_difference(torch, text, before)[0] > 20 * TORCH_TOLERANCE


def _is_text(module: Any, wrapper: str) -> bool:
    """Return whether this is the text model: the outermost module of its config, which holds a rotary module."""
    return module.config.model_type == text_type(wrapper) and any(hasattr(m, "rope_type") for m in module.modules())


def test_verify_reads_back_a_wrapper_and_runs_its_text_model(tmp_path: Path) -> None:
    source = write_config(tmp_path / "m", wrapped("llava"))
    output = ropetool.apply(ropetool.plan(source, "yarn", factor=4), source, tmp_path / "out").output
    checks = {check.name: check for check in (*read_back(output), check_rotation(output))}
    assert (checks["tables"].verdict, checks["rotation"].verdict) == ("pass", "pass")
    data = json.loads((output / "config.json").read_text())
    data["text_config"]["rope_scaling"]["factor"] = 5.0  # planted
    (output / "config.json").write_text(json.dumps(data))
    assert {check.name: check.verdict for check in read_back(output)}["tables"] == "fail"


def test_another_name_of_a_family_rotates_as_its_class(tmp_path: Path) -> None:
    data = configs.config("deepseek_v3", "v4")
    named = write_config(tmp_path / "named", {**data, "model_type": "kimi_k2"})
    output = ropetool.apply(ropetool.plan(named, "yarn", factor=4), named, tmp_path / "out").output
    extended = json.loads((output / "config.json").read_text())
    assert extended["model_type"] == "kimi_k2"
    real = transformers.AutoConfig.for_model(**{**extended, "model_type": "deepseek_v3"})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(real)
    rope = inspection.inspect(output).rope
    assert rope is not None
    assert largest_difference(torch, model, rope)[0] < TORCH_TOLERANCE


@pytest.mark.parametrize("wrapper", ["llava", "internvl", "idefics3", "aya_vision", "granite_speech", "kimi_k25"])
def test_an_inner_config_without_model_type_follows_the_class(wrapper: str, tmp_path: Path) -> None:
    data = wrapped(wrapper)
    del data["text_config"]["model_type"]
    source = write_config(tmp_path / "m", data)
    config = transformers.AutoConfig.from_pretrained(source)
    family = families.of_config(json.loads((source / "config.json").read_text()))
    assert family.model_type == config.text_config.model_type == WRAPPERS[wrapper].default


FLAT_SIZES = {
    "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 512, "rope_theta": 1e6,
}  # fmt: skip


@pytest.mark.parametrize("wrapper", sorted(FLAT))
def test_a_flat_config_is_extended_where_the_class_looks_without_a_text_config(wrapper: str, tmp_path: Path) -> None:
    """As Qwen2-VL and PaddleOCR-VL are published: the keys of the text model stand beside vision_config."""
    scaling = {"type": "mrope" if "qwen" in wrapper else "default", "mrope_section": [4, 6, 6]}
    write_config(tmp_path / "flat", {"model_type": wrapper, **FLAT_SIZES, "rope_scaling": scaling, "head_dim": 32})
    longer = tmp_path / "longer"
    ropetool.apply(ropetool.plan(tmp_path / "flat", "yarn", factor=4), tmp_path / "flat", longer)
    ours = inspection.inspect(longer).rope
    text = transformers.AutoConfig.from_pretrained(longer).text_config
    assert (text.hidden_size, text.max_position_embeddings) == (128, 2048)
    name = {"paddleocr_vl": "PaddleOCR"}.get(wrapper, "Qwen2VL" if wrapper == "qwen2_vl" else "Qwen2_5_VL")
    module = importlib.import_module(f"transformers.models.{wrapper}.modeling_{wrapper}")
    rotary = getattr(module, f"{name}RotaryEmbedding")(text)
    assert ours is not None
    table = ours.entries["full_attention"].table
    assert table is not None
    theirs = rotary.inv_freq.double().numpy()
    np.testing.assert_allclose(table.regimes[0].inv_freq, theirs, rtol=3e-6)
    assert table.regimes[0].attention_factor == pytest.approx(rotary.attention_scaling, rel=3e-6)


@pytest.mark.parametrize(
    "name", [n for n in sorted(records.names()) if families.wrapper_of(n) and n in transformers.CONFIG_MAPPING]
)
def test_the_text_types_that_a_class_renames_are_those_of_the_record(name: str) -> None:
    config = transformers.AutoConfig.for_model(name)
    path, text = facts.text_config(config)
    renamed = facts._renamed(config, path, text) if facts._takes_any(config, path, text) else {}
    wrapper = families.wrapper_of(name)
    assert wrapper is not None
    assert dict(wrapper.renames) == renamed
    for stated, built in renamed.items():
        assert families.text_type({"model_type": name, wrapper.text: {"model_type": stated}}) == built


def test_both_classes_of_transformers_5_23_that_rename_a_text_type_are_recorded() -> None:
    found = {name: records.renames(name) for name in records.names() if records.renames(name)}
    assert found == {"exaone4_5": {"exaone4_5_text": "exaone4"}, "kimi_k25": {"kimi_k2": "deepseek_v3"}}
