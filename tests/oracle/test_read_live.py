"""A type that no data describes is read from the installed transformers: a made-up one on a built-in class."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import transformers

import ropetool
from ropetool import families
from ropetool.errors import UnknownFamily
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
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "model"


@pytest.mark.usefixtures("registered")
def test_it_is_inspected_and_extended(source: Path, tmp_path: Path) -> None:
    shown = inspection.inspect(source)
    assert shown.rope is not None
    assert any("no data describes tomorrow" in note for note in shown.notes)
    plan = ropetool.plan(source, "yarn", factor=4)
    assert any("read from the installed transformers" in note for note in plan.notes)
    output = ropetool.apply(plan, source, tmp_path / "out").output
    config = transformers.AutoConfig.from_pretrained(output)
    real = TomorrowForCausalLM(config).model.rotary_emb
    table = inspection.inspect(output).rope.entries["full_attention"].table.at(16384)  # type: ignore[union-attr]
    np.testing.assert_allclose(real.inv_freq.double().numpy(), table.inv_freq, rtol=3e-6)
    assert real.attention_scaling == pytest.approx(table.attention_factor, rel=1e-6)
    assert not np.allclose(table.inv_freq, arithmetic.base_inv_freq(50000.0, 128))  # it was extended at all


def test_a_type_that_transformers_does_not_have_is_refused(source: Path) -> None:
    with pytest.raises(UnknownFamily, match="'tomorrow' is not known"):
        ropetool.plan(source, "yarn", factor=4)
    assert inspection.inspect(source).rope is None


def test_without_torch_it_says_what_to_install(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropetool.checkpoint.hf._has_transformers", lambda: False)
    with pytest.raises(UnknownFamily) as refused:
        ropetool.plan(source, "yarn", factor=4)
    assert refused.value.try_.startswith("pip install 'ropetool[verify]'")
