"""Which layers of a checkpoint look back through a window: as the classes of transformers have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import configs
import models
import pytest

from ropetool import families
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.runtimes import get, hf_formulas, inspection

MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
WINDOW = {"sliding_window": 64, "use_sliding_window": True}
OFF = {**WINDOW, "use_sliding_window": False}
EVERY_SECOND = {"no_rope_layers": None, "no_rope_layer_interval": 2}
# By name: the family, and what its config has otherwise.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("gemma2", {}),
    "gemma3_text": ("gemma3_text", {}),
    "olmo3": ("olmo3", {}),
    "gpt_oss": ("gpt_oss", {}),
    "exaone4, layers that slide": ("exaone4", {"sliding_window": 64, "layer_types": MIXED[:2]}),
    "exaone4, no window": ("exaone4", {}),
    "smollm3, no window": ("smollm3", {}),
    "smollm3, a switch alone": ("smollm3", {"use_sliding_window": True}),
    "smollm3, a window that is off": ("smollm3", OFF),
    "smollm3, layers that do not rotate": ("smollm3", WINDOW),
    "smollm3, every second one": ("smollm3", {**WINDOW, **EVERY_SECOND}),
    "smollm3, stated": ("smollm3", {**WINDOW, "layer_types": MIXED}),
    "smollm3, stated and off": ("smollm3", {**OFF, "layer_types": MIXED}),
    "smollm3, stated as full": ("smollm3", {**WINDOW, "layer_types": ["full_attention"] * 4}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_layers_that_slide_are_those_of_the_class(name: str) -> None:
    family, changes = CONFIGS[name]
    config = {"model_type": family, **configs.EXPORTED[family], **changes}
    made = pytest.importorskip("transformers").AutoConfig.for_model(**config)
    expected = {layer for layer, kind in enumerate(made.layer_types) if kind == "sliding_attention"}
    source = get("transformers").decode(HfCheckpoint(config, families.get(family)))
    found = hf_formulas.layers_of(config, families.get(family), source, "here")
    assert found.sliding == (expected if made.sliding_window is not None else set())
    assert found.window == made.sliding_window or not expected


def test_stated_layers_slide_whatever_the_switch_says(tmp_path: Path) -> None:
    """Of smollm3, whose layer_types choose the mask (models/smollm3/modeling_smollm3.py)."""
    pytest.importorskip("torch")
    plain, sliding, other = (
        models.torch_logits(models.write(tmp_path / f"model-{number}", "smollm3", changes), 600)
        for number, changes in enumerate(({}, {**OFF, "layer_types": MIXED}, OFF))
    )
    assert models.apart(plain, sliding) > 0.1
    assert models.apart(plain, other) == 0


@pytest.mark.parametrize(
    ("kinds", "window"),
    [
        (["sliding_attention"] * 3 + ["full_attention"], 64),  # all that rotate, and no other
        (["sliding_attention"] * 4, 64),
        (MIXED, None),  # one table for both kinds, of which only one slides
        (["full_attention"] * 3 + ["sliding_attention"], None),  # the one that does not rotate
    ],
)
def test_the_window_of_layers_that_rotate(kinds: list[str], window: int | None, tmp_path: Path) -> None:
    source = models.write(tmp_path / "model", "smollm3", {**WINDOW, "layer_types": kinds})
    rope = inspection.inspect(source).rope
    assert rope is not None
    assert rope.entries["full_attention"].sliding_window == window


def test_a_config_in_which_no_layer_rotates_is_refused_by_name(tmp_path: Path) -> None:
    """Of exaone4, whose layers rotate only where they slide, if any does (modeling_exaone4.py)."""
    config = {"model_type": "exaone4", **configs.EXPORTED["exaone4"], "sliding_window": 64}
    config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (reading,) = (one for one in inspection.inspect(tmp_path).readings if one.name == "llama.cpp")
    assert reading.refuses == "no layer of this exaone4 model rotates, but llama.cpp always rotates exaone4 files"
