"""Gains tried in a loaded model, against transformers with what a plan with the same gains wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import write_model, write_tokenizer

import ropetool
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.choosing.candidates import of_plan
from ropetool.errors import ConfigError
from ropetool.plans.gains import heads_of, with_gains
from ropetool.plans.plan import Plan
from ropetool.verification.runners.rotated import RotatedRunner
from ropetool.verification.runners.scaled import ScaledRunner, _changed
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.weights.edits import TensorEdit, row_change

PAIRS, HEADS, LAYERS = 16, 4, 2
RNG = np.random.default_rng(11)
PAIR_GAINS = tuple(RNG.uniform(0.5, 2, PAIRS).tolist())
HEAD_GAINS = RNG.uniform(0.5, 2, (LAYERS, HEADS, 1)).tolist()
BAND_GAINS = RNG.uniform(0.5, 2, (LAYERS, HEADS, 3)).tolist()
CASES = {"pairs": {"pair_gains": PAIR_GAINS}, "heads": {"head_gains": HEAD_GAINS}, "bands": {"head_gains": BAND_GAINS}}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grouped")
    write_model(folder, num_attention_heads=HEADS, num_key_value_heads=2, hidden_size=128)
    write_tokenizer(folder)
    return folder


def planned(source: Path, case: str) -> Plan:
    return with_gains(ropetool.plan(source, "yarn", factor=4), HfCheckpoint.open(source), **CASES[case])  # type: ignore[arg-type]


def rows() -> list[list[int]]:
    return [[0, *row] for row in np.random.default_rng(1).integers(1, 300, size=(2, 150)).tolist()]


def view(runner: TorchRunner, source: Path, plan: Plan) -> ScaledRunner:
    meant = ropetool.inspect(source).rope
    assert meant is not None
    assert plan.target is not None
    return ScaledRunner(RotatedRunner(runner, plan.target, own=meant, nested=False), runner, plan.tensors)


@pytest.mark.parametrize("case", CASES)
def test_gains_compute_what_transformers_does_with_the_output(case: str, source: Path, tmp_path: Path) -> None:
    plan = planned(source, case)
    ropetool.apply(plan, source, tmp_path / "output")
    runner = TorchRunner(source, dtype="float64")
    own = runner.score(rows(), 16).losses
    written = TorchRunner(tmp_path / "output", dtype="float64").score(rows(), 16).losses
    found = view(runner, source, plan).score(rows(), 16).losses
    assert np.abs(found - written).max() < 1e-4  # the output rounds to float32 once, its tables are float32
    assert np.array_equal(runner.score(rows(), 16).losses, own)  # put back bit by bit
    plain = ropetool.plan(source, "yarn", factor=4)
    assert np.abs(view(runner, source, plain).score(rows(), 16).losses - found).max() > 1e-3


def test_the_gain_of_a_head_multiplies_its_scores(source: Path) -> None:
    """A gain of 4 on all heads is a softmax that is 4 times as sharp, which transformers has a number for."""
    plan = with_gains(
        ropetool.plan(source, "yarn", factor=4), HfCheckpoint.open(source), head_gains=[[[4.0]] * HEADS] * LAYERS
    )
    runner = TorchRunner(source, dtype="float64")
    found = view(runner, source, plan).score(rows(), 16).losses
    sharper = TorchRunner(source, dtype="float64")
    for layer in sharper.model._model.model.layers:
        layer.self_attn.scaling *= 4
    expected = view(sharper, source, ropetool.plan(source, "yarn", factor=4)).score(rows(), 16).losses
    assert np.abs(found - expected).max() < 1e-9


def test_the_bands_of_a_head_are_its_pairs_from_fast_to_slow(source: Path) -> None:
    edits = planned(source, "bands").tensors
    first = next(edit for edit in edits if edit.tensor.endswith("layers.0.self_attn.q_proj.weight"))
    factors = np.array(first.factors)
    assert first.starts == (0,)
    assert np.array_equal(factors[:PAIRS], factors[PAIRS:])  # both channels of a pair
    assert np.allclose(factors[[0, 4, 5, 10, 11, 15]], np.repeat(BAND_GAINS[0][0], 2))


def test_there_is_a_gain_for_each_query_head(source: Path) -> None:
    assert heads_of(HfCheckpoint.open(source)) == (HEADS,) * LAYERS
    with pytest.raises(ConfigError, match="layer 0 has 4 query heads, but there are 2 gains"):
        with_gains(ropetool.plan(source, "yarn", factor=4), HfCheckpoint.open(source), head_gains=[[[1.0]] * 2] * 2)
    with pytest.raises(ConfigError, match="has 2 layers, but there are gains for 1"):
        with_gains(ropetool.plan(source, "yarn", factor=4), HfCheckpoint.open(source), head_gains=[[[1.0]] * 4])


def test_a_tensor_that_the_model_does_not_have_is_named(source: Path) -> None:
    runner = TorchRunner(source, dtype="float64")
    before = {name: value.clone() for name, value in runner.model.parameters.items()}
    known = planned(source, "pairs").tensors[0]
    wrong = ScaledRunner(
        runner, runner, [known, TensorEdit("model.layers.9.x.weight", "scale", 4, (0,), 4, factors=(2.0,))]
    )
    with pytest.raises(ConfigError, match=r"does not contain the tensor model.layers.9.x.weight of the file"):
        wrong.score(rows(), 16)
    assert all(torch.equal(value, before[name]) for name, value in runner.model.parameters.items())


def test_a_comparison_does_not_take_gains_for_a_table(source: Path, tmp_path: Path) -> None:
    """It turns a loaded model by the plan's table, and would leave the gains out without a word."""
    place = tmp_path / "plan.json"
    place.write_text(json.dumps(planned(source, "heads").to_json()))
    with pytest.raises(ConfigError, match="weights"):
        of_plan(HfCheckpoint.open(source), place, "plan.json")
    place.write_text(json.dumps(ropetool.plan(source, "yarn", factor=4).to_json()))
    assert of_plan(HfCheckpoint.open(source), place, "plan.json").plan.method == "yarn"


def test_a_gain_is_not_rounded_before_it_multiplies() -> None:
    torch.manual_seed(3)
    weight = torch.randn(4, 64).to(torch.bfloat16)
    change = row_change([TensorEdit("w", "scale", 4, (0,), 4, factors=(1.0013, 0.7071, 1.2599, 1.9871))])
    expected = weight.double().numpy() * np.array([[1.0013], [0.7071], [1.2599], [1.9871]])
    _changed(torch.nn.Parameter(weight), change)
    assert torch.equal(weight, torch.from_numpy(expected).to(torch.bfloat16))
