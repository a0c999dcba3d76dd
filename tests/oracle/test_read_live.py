"""A type that ropetool has no data on is read from the installed transformers: a made-up one on a built-in class."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import transformers
from models import write_config

import ropetool
from ropetool import families
from ropetool.errors import UnknownFamily
from ropetool.escaping import install_line
from ropetool.rope import arithmetic
from ropetool.runtimes import inspection

CONFIG = {
    "model_type": "tomorrow", "hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4,
    "max_position_embeddings": 4096, "rope_theta": 50000.0,
}  # fmt: skip


class TomorrowConfig(transformers.LlamaConfig):
    model_type = "tomorrow"


class TomorrowForCausalLM(transformers.LlamaForCausalLM):
    config_class = TomorrowConfig


@pytest.fixture
def registered() -> Iterator[None]:
    transformers.AutoConfig.register("tomorrow", TomorrowConfig)
    transformers.AutoModelForCausalLM.register(TomorrowConfig, TomorrowForCausalLM)
    yield
    transformers.CONFIG_MAPPING._extra_content.pop("tomorrow")
    transformers.AutoModelForCausalLM._model_mapping._extra_content.pop(TomorrowConfig)
    families._LIVE.pop("tomorrow", None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_config(tmp_path / "model", CONFIG)


@pytest.mark.usefixtures("registered")
def test_it_is_inspected_and_extended(source: Path, tmp_path: Path) -> None:
    shown = inspection.inspect(source)
    assert shown.rope is not None
    assert any("ropetool has no data on tomorrow" in note for note in shown.notes)
    plan = ropetool.plan(source, "yarn", factor=4)
    assert any("ropetool has no data on tomorrow" in note for note in plan.notes)
    output = ropetool.apply(plan, source, tmp_path / "out").output
    config = transformers.AutoConfig.from_pretrained(output)
    real = TomorrowForCausalLM(config).model.rotary_emb
    table = inspection.inspect(output).rope.entries["full_attention"].table.at(16384)  # type: ignore[union-attr]
    np.testing.assert_allclose(real.inv_freq.double().numpy(), table.inv_freq, rtol=3e-6)
    assert real.attention_scaling == pytest.approx(table.attention_factor, rel=1e-6)
    assert not np.allclose(table.inv_freq, arithmetic.base_inv_freq(50000.0, 128))  # it was extended at all


def test_a_type_that_transformers_does_not_have_is_refused(source: Path) -> None:
    with pytest.raises(UnknownFamily, match="unknown model family 'tomorrow'"):
        ropetool.plan(source, "yarn", factor=4)
    assert inspection.inspect(source).rope is None


def test_without_torch_it_says_what_to_install(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropetool.checkpoint.hf._has_transformers", lambda: False)
    with pytest.raises(UnknownFamily) as refused:
        ropetool.plan(source, "yarn", factor=4)
    assert refused.value.try_.startswith(install_line("verify"))


class AroundConfig(transformers.LlavaConfig):
    model_type = "tomorrow_vl"


@pytest.fixture
def around() -> Iterator[None]:
    transformers.AutoConfig.register("tomorrow_vl", AroundConfig)
    yield
    transformers.CONFIG_MAPPING._extra_content.pop("tomorrow_vl")
    families._LIVE_WRAPPERS.pop("tomorrow_vl", None)


@pytest.mark.usefixtures("registered", "around")
@pytest.mark.parametrize("wrapper", ["tomorrow_vl", "llava"])
def test_an_unknown_wrapper_and_an_unknown_text_model_are_read_one_after_the_other(
    wrapper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.auto import modeling_auto as auto

    monkeypatch.setitem(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "tomorrow", "TomorrowForCausalLM")
    source = write_config(tmp_path / "model", {"model_type": wrapper, "text_config": CONFIG})
    plan = ropetool.plan(source, "yarn", factor=4)
    assert {edit.path[0] for edit in plan.edits} == {"text_config"}
    noted = [note for note in inspection.inspect(source).notes if "ropetool has no data on" in note]
    assert [note.split(":")[0] for note in noted] == [
        *(["ropetool has no data on tomorrow_vl"] if wrapper == "tomorrow_vl" else []), "ropetool has no data on tomorrow",
    ]  # fmt: skip


def test_inspect_gives_the_reason_that_extend_gives(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ropetool.probing import records as probed

    monkeypatch.setattr(probed, "is_registered", lambda model_type: True)
    monkeypatch.setattr(probed, "record", lambda model_type: {"outcome": "not probed", "reason": "it wants a GPU"})
    with pytest.raises(UnknownFamily) as refused:
        ropetool.plan(source, "yarn", factor=4)
    assert "it wants a GPU" in refused.value.message
    assert f"{refused.value.message}; the keys are shown as written" in inspection.inspect(source).notes


def test_layers_that_keep_a_state_beside_layers_that_slide_and_rotate_get_a_longer_context(tmp_path: Path) -> None:
    """lara_mini of transformers 5.24, made of the record of a type whose full-attention layers do not rotate."""
    record = families.records._record("cohere2")
    assert record is not None
    state = {"attends": False, "kind": "linear_attention", "rotates": False}
    layers = [[count, layer if layer["rotates"] else state] for count, layer in record["layers"]]
    kinds = [[count, kind.replace("full", "linear")] for count, kind in record["default_layer_types"]]
    more = {"layers_with_window": layers} if "layers_with_window" in record else {}
    made = {**record, "model_type": "tomorrow", "layers": layers, "default_layer_types": kinds, **more}
    family = families.record(families.Family, families.records.described(made, "tomorrow"), "tomorrow, read live")
    families._LIVE["tomorrow"] = family
    try:
        assert family.rotates == "sliding"
        listed = ["sliding_attention", "linear_attention"] * 2
        (tmp_path / "config.json").write_text(
            json.dumps({**CONFIG, "head_dim": 128, "layer_types": listed, "sliding_window": 512})
        )
        rope = inspection.inspect(tmp_path).rope
        assert rope is not None
        assert (rope.entries["full_attention"].layers, rope.entries["full_attention"].sliding_window) == ((0, 2), 512)
        plan = ropetool.plan(tmp_path, "length", target_length=8192)
        assert [edit.path for edit in plan.edits] == [("max_position_embeddings",)]
    finally:
        families._LIVE.pop("tomorrow")
