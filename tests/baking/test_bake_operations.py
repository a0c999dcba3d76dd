"""The bakes besides a constant factor: pair gains, whole scores, channel orders, dropped pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bake_models as models
import configs
import numpy as np
import pytest
import torch
from bake_models import logits
from models import config_of, set_config
from test_bake_families import EXACT, bake_of

from ropetool.errors import ConfigError, LossyExport
from ropetool.weights import bakes
from ropetool.weights.bakes import Bake
from ropetool.weights.edits import TensorEdit, by_tensor
from ropetool.weights.operations import kept_first

SEEN = 1e-2


# --- gains


def gained(gains: np.ndarray[Any, Any], model_type: str) -> Any:
    """Let transformers multiply each rotary pair of the rotated keys by its gain: an oracle for pair gains."""
    import contextlib
    import importlib

    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    before = module.apply_rotary_pos_emb

    def apply(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *rest: Any, **more: Any) -> Any:
        turned_q, turned_k = before(q, k, cos, sin, *rest, **more)
        values = torch.tensor(gains, dtype=turned_k.dtype)
        each = values.repeat_interleave(2) if model_type == "cohere" else values.repeat(2)
        turned_k = torch.cat([turned_k[..., : each.numel()] * each, turned_k[..., each.numel() :]], -1)
        return turned_q, turned_k

    @contextlib.contextmanager
    def patched() -> Any:
        module.apply_rotary_pos_emb = apply
        try:
            yield
        finally:
            module.apply_rotary_pos_emb = before

    return patched()


@pytest.mark.parametrize("side", ["k", "q", "both"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "cohere-norms", "phi3"])
def test_each_pair_takes_its_own_gain(name: str, side: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED[name])
    model = models.opened(source)
    view = model.targets
    entry = view.rope.entries["full_attention"]
    gains = np.random.default_rng(3).uniform(0.5, 2.0, entry.rotary_dim // 2)
    bake = bakes.pair_gain(model, {"full_attention": gains.tolist()}, side)
    models.carry_out(bake, source, tmp_path / "baked")
    with gained(gains, view.family.model_type):
        expected = logits(source)
    found = logits(tmp_path / "baked")
    assert np.abs(expected - found).max() < EXACT
    assert np.abs(logits(source) - found).max() > SEEN


def test_a_constant_gain_is_the_attention_factor(tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED["qwen2"])
    model = models.opened(source)
    view = model.targets
    entry = view.rope.entries["full_attention"]
    gains = [entry.attention_factor**2] * (entry.rotary_dim // 2)
    by_gain = by_tensor(bakes.pair_gain(model, {"full_attention": gains}).tensors)
    by_factor = by_tensor(bake_of(source).tensors)
    assert by_gain.keys() == by_factor.keys()
    for name, change in by_gain.items():
        np.testing.assert_array_equal(change.factor, by_factor[name].factor)


@pytest.mark.parametrize("side", ["k", "q"])
@pytest.mark.parametrize("name", ["glm4", "stablelm", "granite"])
def test_a_temperature_of_the_whole_score_takes_all_rows(name: str, side: str, tmp_path: Path) -> None:
    """The oracle is the attention module's own scaling, multiplied in the loaded model."""
    source = models.write(tmp_path / "m", configs.BAKED[name])
    model = models.opened(source)
    view = model.targets
    models.carry_out(bakes.score_gain(model, {"full_attention": 1.3}, side), source, tmp_path / "baked")

    def hotter(model: Any) -> None:
        for layer in model.model.layers:
            layer.self_attn.scaling *= 1.3

    assert np.abs(logits(source, change=hotter) - logits(tmp_path / "baked")).max() < EXACT
    rotary = bakes.pair_gain(model, {"full_attention": [1.3] * (view.rope.entries["full_attention"].rotary_dim // 2)})
    models.carry_out(rotary, source, tmp_path / "rotary")
    difference = np.abs(logits(tmp_path / "rotary") - logits(tmp_path / "baked")).max()
    assert (difference > SEEN) == (name != "granite")  # one and the same where whole heads rotate


# --- layouts


@pytest.mark.parametrize("name", ["llama", "qwen3", "olmo2"])
def test_the_other_channel_order_is_the_same_model_to_the_other_rotation(name: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED[name])
    model = models.opened(source)
    bake = models.reordered(model, "interleaved")
    with pytest.raises(LossyExport, match="every runtime would rotate the wrong pairs"):
        bakes.layout(model, "interleaved")
    models.carry_out(bake, source, tmp_path / "baked")
    expected = logits(source)
    with models.rotated_interleaved(configs.BAKED[name]["model_type"]):
        assert np.abs(expected - logits(tmp_path / "baked")).max() < EXACT
        assert np.abs(expected - logits(source)).max() > SEEN


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v3-half", "deepseek_v3-no-query-latent", "mistral4"])
def test_rope_interleave_changes_by_a_permutation(name: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED[name])
    model = models.opened(source)
    view = model.targets
    now = view.rope.entries["full_attention"].layout
    bake = models.reordered(model, "half" if now == "interleaved" else "interleaved")
    models.carry_out(bake, source, tmp_path / "baked")
    assert config_of(tmp_path / "baked")["rope_interleave"] is (now == "half")
    expected = logits(source)
    # Nothing is rounded: the same products in the same order.
    assert np.abs(expected - logits(tmp_path / "baked")).max() < 1e-12
    set_config(source, rope_interleave=now == "half")
    assert np.abs(expected - logits(source)).max() > SEEN
    changed = {edit.tensor.rsplit(".", 2)[1] for edit in bake.tensors}
    assert changed == {"kv_a_proj_with_mqa", "q_proj" if config_of(source)["q_lora_rank"] is None else "q_b_proj"}


def test_there_and_back_again_is_the_same_file(tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED["qwen3"])
    model = models.opened(source)
    there = models.reordered(model, "interleaved")
    models.carry_out(there, source, tmp_path / "there")
    back = [TensorEdit(**{**vars(e), "order": tuple(np.argsort(e.order).tolist())}) for e in there.tensors]
    models.carry_out(Bake(tuple(back), ()), tmp_path / "there", tmp_path / "back")
    assert models.stored(tmp_path / "there") != models.stored(source)
    assert models.stored(tmp_path / "back") == models.stored(source)


# --- dropped pairs


def stopped(pairs: list[int]) -> Any:
    def change(model: Any) -> None:
        model.get_decoder().rotary_emb.inv_freq[pairs] = 0.0

    return change


PLAIN = {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize("name", ["stablelm", "stablelm-norms", "phi", "phi-norms", "gpt_neox", "glm4", "phi3"])
def test_the_slowest_pairs_stand_still_by_a_narrower_rotation(name: str, tmp_path: Path) -> None:
    share = 0.5 if name != "phi3" else 1.0
    made = {**configs.BAKED[name], "rope_parameters": {**PLAIN, "partial_rotary_factor": share}}
    source = models.write(tmp_path / "m", made)
    model = models.opened(source)
    view = model.targets
    pairs = view.rope.entries["full_attention"].rotary_dim // 2
    gone = list(range(pairs - 4, pairs))
    bake = bakes.drop_pairs(model, gone, "still")
    assert "does not extend the context" in bake.notes[0]
    models.carry_out(bake, source, tmp_path / "baked")
    after = models.opened(tmp_path / "baked").targets.rope.entries["full_attention"]
    assert after.rotary_dim == 2 * (pairs - 4)
    expected = logits(source, change=stopped(gone))
    assert np.abs(expected - logits(tmp_path / "baked")).max() < EXACT
    assert np.abs(expected - logits(source)).max() > SEEN
    if name != "glm4":  # in the interleaved order the slowest pairs are the last channels already
        models.carry_out(Bake((), bake.edits), source, tmp_path / "unpermuted")
        assert np.abs(expected - logits(tmp_path / "unpermuted")).max() > SEEN


@pytest.mark.parametrize("name", ["llama", "qwen3", "deepseek_v3"])
def test_named_pairs_stand_still_by_a_table(name: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED[name])
    model = models.opened(source)
    bake = bakes.drop_pairs(model, [3, 9, 15], "still")
    assert bake.tensors == ()
    models.carry_out(bake, source, tmp_path / "baked")
    expected = logits(source, change=stopped([3, 9, 15]))
    assert np.abs(expected - logits(tmp_path / "baked")).max() < EXACT
    assert np.abs(expected - logits(source)).max() > SEEN


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3"])
def test_muted_pairs_are_zero_in_the_keys(name: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED[name])
    model = models.opened(source)
    view = model.targets
    bake = bakes.drop_pairs(model, [2, 7], "mute")
    models.carry_out(bake, source, tmp_path / "baked")
    gains = np.ones(view.rope.entries["full_attention"].rotary_dim // 2)
    gains[[2, 7]] = 0
    with gained(gains, view.family.model_type):
        expected = logits(source)
    assert np.abs(expected - logits(tmp_path / "baked")).max() < EXACT


def test_the_order_of_kept_and_dropped_pairs() -> None:
    assert kept_first(8, [3], "half").tolist() == [0, 1, 2, 4, 5, 6, 3, 7]
    assert kept_first(8, [1], "interleaved").tolist() == [0, 1, 4, 5, 6, 7, 2, 3]
    for wrong in ([4], [-1], [0, 1, 2, 3]):
        with pytest.raises(ConfigError, match="pairs must be from 0 to 3"):
            kept_first(8, wrong, "half")


# --- what is refused


def test_what_cannot_be_baked_is_refused_with_the_reason(tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", {**configs.BAKED["llama"], "rope_parameters": PLAIN})
    model = models.opened(source)
    with pytest.raises(ConfigError, match="the attention factor is 1 already"):
        bakes.attention_factor(model)
    with pytest.raises(ConfigError, match="the softmax multiplier is 1 already"):
        bakes.softmax_scale(model)
    with pytest.raises(ConfigError, match="16 gains of at least 0, one for each rotary pair"):
        bakes.pair_gain(model, {"full_attention": [1.0] * 8})
    with pytest.raises(ConfigError, match="'v' is not one of k, q, both"):
        bakes.pair_gain(model, {"full_attention": [2.0] * 16}, "v")
    with pytest.raises(ConfigError, match="has the layout half and cannot become half"):
        bakes.reordered(model.targets, "half")
    with pytest.raises(ConfigError, match="no query latent"):
        bakes.score_gain(model, {"full_attention": 2.0}, "norm")
    asking = models.opened(models.write(tmp_path / "y", configs.BAKED["llama"]))
    with pytest.raises(LossyExport, match="no config key that multiplies the score"):
        bakes.attention_factor(asking, config_only=True)


def test_a_config_that_does_not_fit_its_weights_is_refused(tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED["llama"])
    set_config(source, num_key_value_heads=4)
    with pytest.raises(
        LossyExport, match=r"k_proj.weight has the shape \[64, 128\]; the sizes in the config require 128 rows"
    ):
        bake_of(source)
    set_config(source, num_hidden_layers=3, num_key_value_heads=2)
    with pytest.raises(LossyExport, match=r"the file has no model.layers.2.self_attn.k_proj.weight"):
        bake_of(source)
