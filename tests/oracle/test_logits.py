"""The extended checkpoint against a model whose rotary module is overwritten by hand: the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import configs
import numpy as np
import pytest
import torch
from models import random_model
from transformers import AutoModelForCausalLM

import ropetool
from ropetool.verification.patching import patch


def draw(name: str, weight: torch.Tensor) -> None:
    if weight.ndim == 2:
        weight.normal_(0.0, 0.15)
    elif "norm" not in name:
        weight.normal_(0.0, 0.05)


def checkpoint(directory: Path, data: dict[str, Any]) -> Path:
    """Write a random checkpoint whose logits depend on every position: weights drawn with deviation 0.15."""
    random_model(directory, data, 7, draw)
    return directory


def logits(path: Path, change: Any = None) -> np.ndarray:
    """Return float64 logits of 1500 fixed tokens, beyond the trained length of 512."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval()
    if change is not None:
        change(model)
    ids = torch.randint(3, 96, (1, 1500), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return model(ids).logits[0].numpy()


def overwrite(inv_freq: list[float], attention_factor: float) -> Any:
    def change(model: Any) -> None:
        module = model.model.rotary_emb
        module.inv_freq = torch.tensor(inv_freq, dtype=torch.float32)
        module.attention_scaling = attention_factor

    return change


def golden_yarn() -> dict[str, Any]:
    """Return the golden table of yarn x4 at head_dim 32, theta 10000, trained length 512, from another source."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=128, num_attention_heads=4, head_dim=32, max_position_embeddings=2048,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512},
    )  # fmt: skip
    inv_freq, factor = ROPE_INIT_FUNCTIONS["yarn"](config)
    return {"inv_freq": inv_freq.tolist(), "attention_factor": factor}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("logits") / "model", configs.config("llama", "v4"))


@pytest.mark.parametrize("style", ["v4", "v5"])
def test_extended_logits_equal_those_of_a_table_set_by_hand(style: str, source: Path, tmp_path: Path) -> None:
    plan = ropetool.plan(source, "yarn", factor=4, config_style=style)
    ropetool.apply(plan, source, tmp_path / "extended")
    extended = logits(tmp_path / "extended")
    golden = golden_yarn()
    by_hand = logits(source, overwrite(golden["inv_freq"], golden["attention_factor"]))
    scale = np.abs(by_hand).max()
    np.testing.assert_allclose(extended, by_hand, rtol=0, atol=1e-5 * scale)
    # Planted: the factor forgotten, and the extension forgotten, both far outside the tolerance.
    for broken in (logits(source, overwrite(golden["inv_freq"], 1.0)), logits(source)):
        assert np.abs(extended - broken).max() > 20 * 1e-5 * scale


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_patching_a_loaded_model_equals_loading_the_extended_one(family: str, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "model", configs.config(family, "v5"))
    plan = ropetool.plan(source, "yarn", factor=4, attention_factor=1.4)
    ropetool.apply(plan, source, tmp_path / "extended")
    loaded = logits(tmp_path / "extended")
    patched = logits(source, lambda model: patch(model, plan))
    # One unit in the last place of a float32 frequency is 2e-4 radians at position 1500.
    scale = np.abs(loaded).max()
    np.testing.assert_allclose(patched, loaded, rtol=0, atol=2e-4 * scale)
    assert np.abs(logits(source) - loaded).max() > 20 * 2e-4 * scale


def test_patch_refuses_a_table_that_follows_the_length(source: Path) -> None:
    plan = ropetool.plan(source, "dynamic", factor=4)
    with pytest.raises(ropetool.errors.ConfigError, match="depends on the text length"):
        logits(source, lambda model: patch(model, plan))
