"""Variants that combine passes, against their formulas with transformers' own logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from verifying import rope_of

import ropetool
from ropetool.errors import ConfigError
from ropetool.lab.yardsticks.named import parse
from ropetool.lab.yardsticks.runner import yardstick_runner
from ropetool.verification.runners.torch_runner import TorchRunner

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
BOS, TRAINED, SCORED = 0, 256, 40


def ensemble(spec: str) -> Any:
    runner = TorchRunner(DEMO, device="cpu")
    return yardstick_runner(parse(spec, TRAINED, 2048), runner, rope_of(DEMO), trained=TRAINED, nested=False)


def row(tokens: int) -> list[int]:
    return [BOS, *np.random.default_rng(tokens).integers(3, 2048, tokens - 1).tolist()]


def probabilities(ids: list[int], base: float = 1e4) -> Any:
    """Return transformers' probabilities after each token, with a base of the rotation, in float64."""
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    model.model.rotary_emb.inv_freq = base ** (-torch.arange(0, 64, 2) / 64)
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits[0].double().softmax(dim=-1).numpy()


def naive_bayes(ids: list[int], tail: int, count: int) -> Any:
    """Return NBCE's probabilities after each of the last tokens, by its formula."""
    end, context = ids[-tail:], ids[1:-tail]
    room = TRAINED - 1 - tail
    pieces = []
    while context:
        context, piece = context[:-room], context[-room:]
        pieces.append(probabilities([BOS, *piece, *end])[-count:])
    alone = probabilities([BOS, *end])[-count:]
    mixed = []
    for place in range(count):
        entropy = [-(piece[place] * np.log(piece[place])).sum() for piece in pieces]
        surest = pieces[int(np.argmin(entropy))][place]
        raw = np.log(surest) * 1.25 - np.log(alone[place]) * 0.25
        mixed.append(np.exp(raw) / np.exp(raw).sum())
    return np.array(mixed)


def test_nbce_is_its_formula() -> None:
    ids = row(600)
    scores = ensemble("nbce(64)").score([ids], SCORED)
    expected = naive_bayes(ids, 64, SCORED + 1)[:-1]
    losses = -np.log(expected[np.arange(SCORED), ids[-SCORED:]])
    assert np.abs(scores.losses[0] - losses).max() < 1e-4
    assert (scores.hits[0] == (expected.argmax(axis=-1) == np.array(ids[-SCORED:]))).all()
    alone = -np.log(probabilities(ids[-64:])[-SCORED - 1 : -1][np.arange(SCORED), ids[-SCORED:]])
    assert np.abs(scores.losses[0] - alone).max() > 0.1  # the pieces do matter
    predictions = ensemble("nbce(64)").predict([ids], [[5, 9]])
    last = naive_bayes(ids, 64, 1)[0]
    assert np.abs(np.exp(predictions.log_probs[0]) - last[[5, 9]]).max() < 1e-6
    assert predictions.top[0] == last.argmax()


def test_nbce_leaves_a_text_within_the_trained_length_as_it_is() -> None:
    ids = row(200)
    own = TorchRunner(DEMO, device="cpu").score([ids], SCORED)
    assert np.abs(ensemble("nbce(64)").score([ids], SCORED).losses - own.losses).max() < 1e-5


def test_nbce_refuses_scored_tokens_that_leave_no_room() -> None:
    with pytest.raises(ConfigError, match="the end of 300 tokens leaves no room"):
        ensemble("nbce(64)").score([row(600)], 299)


def test_the_mean_over_bases_is_that_of_their_probabilities() -> None:
    ids = row(500)
    scores = ensemble("bases(3,4)").score([ids], SCORED)
    means = np.mean([probabilities(ids, 1e4 * factor ** (64 / 62)) for factor in (1, 2, 4)], axis=0)
    losses = -np.log(means[-SCORED - 1 : -1][np.arange(SCORED), ids[-SCORED:]])
    assert np.abs(scores.losses[0] - losses).max() < 1e-3
    one = -np.log(probabilities(ids, 1e4 * 4 ** (64 / 62))[-SCORED - 1 : -1][np.arange(SCORED), ids[-SCORED:]])
    assert np.abs(losses - one).max() > 0.05


@pytest.mark.parametrize("spec", ["nbce(64)", "bases(2,4)"])
def test_ensembles_have_no_cache(spec: str) -> None:
    with pytest.raises(ConfigError, match="without a cache"):
        ensemble(spec).generated(row(20), 4)
