"""The proof for every family: a model that asks for a factor and its baked copy that does not have the same logits.

In float64 to 1e-10 and in float32 to 1e-4, at positions beyond the trained length; every other tensor is byte for byte
the same. Up to four times that length a few are run here, and all of them by scripts/bake_grid/grid.py, whose result says of which
code it is (test_bake_grid.py). The wrong ways stand in test_bake_sabotage.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import bake_models as models
import configs
import numpy as np
import pytest
import torch
from bake_models import BEYOND, logits
from models import set_tensors

from ropetool.errors import ConfigError
from ropetool.weights import bakes
from ropetool.weights.bakes import Bake
from ropetool.weights.edits import by_tensor
from ropetool.weights.writing import Baked

EXACT, SINGLE = 1e-10, 1e-4
LONG = ("llama", "gemma3_text", "deepseek_v3", "phi3")  # run up to four times that length
TOP_K = "deepseek_v32"  # its choice of tokens jumps where two scores are within the rounding of float32


def bake_of(directory: Path, side: str = "") -> Bake:
    """Return the bake of what the config asks for: the softmax scale of MLA, else the attention factor."""
    model = models.opened(directory)
    view = model.targets
    if view.rope.entries["full_attention"].softmax_multiplier != 1:
        return bakes.softmax_scale(model, side)
    return bakes.attention_factor(model, side or "k")


def assert_only_named_rows_changed(source: Path, target: Path, bake: Bake) -> None:
    """Compare the bytes: outside the rows that the edits name nothing differs, inside them something does."""
    before, after = models.stored(source), models.stored(target)
    assert before.keys() == after.keys()
    changes = by_tensor(bake.tensors)
    assert changes
    for name, (dtype, shape, data) in before.items():
        assert after[name][:2] == (dtype, shape)
        if name not in changes:
            assert after[name][2] == data, name
            continue
        touched = changes[name].touched
        old, new = (np.frombuffer(d, np.uint8).reshape(touched.size, -1) for d in (data, after[name][2]))
        different = (old != new).any(axis=1)
        assert not different[~touched].any(), name
        assert different[touched].mean() > 0.9, name


def assert_same_logits(source: Path, target: Path, tmp_path: Path, length: int, *, single: bool = True) -> None:
    """Compare in float64 and float32, and with a copy whose config changed but whose weights did not."""
    expected, baked = logits(source, length), logits(target, length)
    difference = np.abs(expected - baked).max()
    assert difference < EXACT
    unbaked = tmp_path / "config-alone"
    shutil.copytree(source, unbaked)
    shutil.copy(target / "config.json", unbaked / "config.json")
    assert np.abs(logits(unbaked, length) - expected).max() > 20 * SINGLE
    if single:
        found = np.abs(logits(source, length, exact=False) - logits(target, length, exact=False))
        assert found.max() < SINGLE


@pytest.mark.parametrize("name", configs.BAKED)
def test_the_baked_model_has_the_same_logits(name: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED[name], shards=2)
    bake = bake_of(source)
    models.carry_out(bake, source, tmp_path / "baked")
    assert_only_named_rows_changed(source, tmp_path / "baked", bake)
    assert_asks_for_nothing(tmp_path / "baked")
    length = configs.LENGTH if name in LONG else BEYOND
    assert_same_logits(source, tmp_path / "baked", tmp_path, length, single=name != TOP_K)


def assert_asks_for_nothing(directory: Path) -> None:
    """The config of a baked model asks for no factor, so that the same bake is refused a second time."""
    with pytest.raises(ConfigError, match="is 1 already"):
        bake_of(directory)


def test_a_sparse_choice_of_tokens_differs_in_float32_at_near_ties_alone(tmp_path: Path) -> None:
    """Up to index_topk tokens all are chosen; beyond, a rounding can swap two of them, and most rows have no tie."""
    config = configs.BAKED[TOP_K]
    source = models.write(tmp_path / "m", config)
    models.carry_out(bake_of(source), source, tmp_path / "baked")
    single = [logits(path, exact=False) for path in (source, tmp_path / "baked")]
    difference = np.abs(single[0] - single[1]).max(axis=1)
    assert difference[: config["index_topk"]].max() < SINGLE
    assert np.median(difference) < SINGLE


# --- sides and styles

SIDES = ["llama", "qwen2", "qwen3", "gemma3_text", "olmo3", "phi3", "falcon-groups", "stablelm-norms", "phi-norms"]


@pytest.mark.parametrize("side", ["q", "both"])
@pytest.mark.parametrize("name", SIDES)
def test_queries_and_both_sides_carry_the_factor_too(name: str, side: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED[name])
    bake = bake_of(source, side)
    models.carry_out(bake, source, tmp_path / "baked")
    assert_only_named_rows_changed(source, tmp_path / "baked", bake)
    assert np.abs(logits(source) - logits(tmp_path / "baked")).max() < EXACT


@pytest.mark.parametrize("side", ["norm", "q", "k", "both"])
@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "deepseek_v3-half"])
def test_the_softmax_scale_goes_into_any_side(name: str, side: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED[name])
    bake = bake_of(source, side)
    models.carry_out(bake, source, tmp_path / "baked")
    assert_only_named_rows_changed(source, tmp_path / "baked", bake)
    assert np.abs(logits(source) - logits(tmp_path / "baked")).max() < EXACT


FACTORS = {
    "plain yarn": {},
    "mscale alone": {"mscale": 0.7},
    "two that differ": {"mscale": 1.0, "mscale_all_dim": 0.707},
    "an explicit factor": {"attention_factor": 1.3},
}


@pytest.mark.parametrize("side", ["k", "q"])
@pytest.mark.parametrize("keys", FACTORS)
def test_the_factor_on_cos_and_sin_goes_into_the_decoupled_rows(keys: str, side: str, tmp_path: Path) -> None:
    config = {**configs.BAKED["deepseek_v3"], "rope_parameters": {**configs.YARN, **FACTORS[keys]}}
    source = models.write(tmp_path / "m", config)
    model = models.opened(source)
    bake = bakes.attention_factor(model, side)
    models.carry_out(bake, source, tmp_path / "baked")
    wanted = "kv_a_proj_with_mqa" if side == "k" else "q_b_proj"
    assert all(wanted in edit.tensor for edit in bake.tensors)
    assert np.abs(logits(source) - logits(tmp_path / "baked")).max() < EXACT
    # Then the softmax scale, where one is asked for: both baked, in turn, still the same model.
    if "mscale_all_dim" in FACTORS[keys]:
        bake = bake_of(tmp_path / "baked")
        models.carry_out(bake, tmp_path / "baked", tmp_path / "twice")
        assert "mscale" not in (tmp_path / "twice" / "config.json").read_text()
        assert np.abs(logits(source) - logits(tmp_path / "twice")).max() < EXACT


def test_an_indexer_takes_the_factor_into_its_own_norm(tmp_path: Path) -> None:
    """More tokens than index_topk, so that what the indexer chooses matters."""
    source = models.write(tmp_path / "m", {**configs.BAKED[TOP_K], "rope_parameters": configs.YARN})
    model = models.opened(source)
    bake = bakes.attention_factor(model)
    models.carry_out(bake, source, tmp_path / "baked")
    expected = logits(source)
    assert np.abs(expected - logits(tmp_path / "baked")).max() < EXACT
    without = Bake(tuple(edit for edit in bake.tensors if "indexer" not in edit.tensor), bake.edits)
    models.carry_out(without, source, tmp_path / "wrong")
    assert np.abs(expected - logits(tmp_path / "wrong")).max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma3_text", "deepseek_v3"])
@pytest.mark.parametrize("style", ["v4", "both"])
def test_every_style_stops_asking(name: str, style: str, tmp_path: Path) -> None:
    config = configs.BAKED[name]
    old = models.v4(config)
    data = old if style == "v4" else {**old, "rope_parameters": config["rope_parameters"]}
    source = models.write(tmp_path / "m", config)
    text = json.loads((source / "config.json").read_text())
    text.pop("rope_parameters")
    (source / "config.json").write_text(json.dumps({**text, **data}, indent=2))
    models.carry_out(bake_of(source), source, tmp_path / "baked")
    after: dict[str, Any] = json.loads((tmp_path / "baked" / "config.json").read_text())
    assert after["rope_scaling"]["attention_factor"] == 1.0
    assert ("rope_parameters" in after) == (style == "both")
    assert np.abs(logits(source) - logits(tmp_path / "baked")).max() < EXACT


def test_granite_holds_the_factor_in_its_config(tmp_path: Path) -> None:
    source = models.write(tmp_path / "m", configs.BAKED["granite"])
    model = models.opened(source)
    bake = bakes.attention_factor(model, config_only=True)
    assert bake.tensors == ()
    models.carry_out(bake, source, tmp_path / "baked")
    expected = logits(source)
    assert np.abs(expected - logits(tmp_path / "baked")).max() < EXACT
    forgotten = json.loads((tmp_path / "baked" / "config.json").read_text())
    assert forgotten["attention_multiplier"] > 0.25
    (tmp_path / "baked" / "config.json").write_text(json.dumps({**forgotten, "attention_multiplier": 0.25}))
    assert np.abs(expected - logits(tmp_path / "baked")).max() > 1e-3


def test_multi_token_prediction_layers_are_baked_with_the_others(tmp_path: Path) -> None:
    """transformers drops those tensors, so the test looks at the rows alone."""
    source = models.write(tmp_path / "m", configs.BAKED["deepseek_v3"])
    (shard,) = source.glob("*.safetensors")
    add_prediction_layer(shard, configs.BAKED["deepseek_v3"]["num_hidden_layers"])
    bake = bake_of(source)
    assert {edit.tensor.split(".")[2] for edit in bake.tensors} == {"0", "1", "2"}
    assert all(edit.tensor.endswith("q_a_layernorm.weight") for edit in bake.tensors)
    done: Baked = models.carry_out(bake, source, tmp_path / "baked")
    assert {change.tensor for change in done.tensors} == {edit.tensor for edit in bake.tensors}


def add_prediction_layer(shard: Path, number: int) -> None:
    """Give a file a copy of its last layer's attention under the next number, as DeepSeek's files have it."""
    last = f"model.layers.{number - 1}.self_attn."

    def change(tensors: dict[str, torch.Tensor]) -> None:
        extra = {n.replace(last, f"model.layers.{number}.self_attn."): t for n, t in tensors.items() if last in n}
        assert extra
        tensors |= {name: tensor.clone() for name, tensor in extra.items()}

    set_tensors(shard.parent, change, shard.name)
