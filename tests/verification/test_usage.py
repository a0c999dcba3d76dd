"""`ropetool use` against the attention that transformers itself returns, and pairs against products written out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch
from running import run
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropetool
from ropetool.errors import ConfigError
from ropetool.lab.usage.measuring import UsageOptions, measure_usage

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
TEXT = Path(ropetool.__file__).parent / "demo" / "text" / "kjv-dan.txt"
LENGTHS = (128, 129)  # of an odd and an even number of tokens behind BOS


@pytest.fixture
def interleaved(tmp_path: Path, write_tokenizer: Callable[..., None]) -> Path:
    models.write(tmp_path / "cohere", "cohere", {"num_hidden_layers": 2})
    write_tokenizer(tmp_path / "cohere")
    return tmp_path / "cohere"


def weights(path: Path, ids: list[int]) -> Any:
    """Return the attention of each layer that transformers computes, (layers, heads, tokens, tokens)."""
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    with torch.inference_mode():
        return torch.stack(model(torch.tensor([ids]), output_attentions=True).attentions)[:, 0].numpy()


def shares(attention: Any, places: Any, period: int, far_from: float) -> tuple[Any, Any, Any]:
    """Return the shares on the first four tokens, on far tokens and on the copy, by the sentences of the help."""
    first, far, copies = (np.zeros(attention.shape[:2]) for _ in range(3))
    for place in places:
        for key in range(place + 1):
            share = attention[:, :, place, key] / len(places)
            first += share * (key < 4)
            far += share * (place - key >= far_from and key >= 4)
            copies += share * (key == place - period + 1)
    return first, far, copies


def looked_at(begin: int, end: int) -> Any:
    """Return the places from which queries are looked at: 64, as even as whole numbers allow, or all."""
    return np.linspace(begin, end - 1, min(64, end - begin), dtype=np.float32).astype(int)


def tokens(path: Path, length: int) -> tuple[list[int], list[int]]:
    """Return BOS, and the tokens of the text behind it up to a length."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    bos = tokenizer("x")["input_ids"][: len(tokenizer("x")["input_ids"]) - len(tokenizer.tokenize("x"))]
    assert len(bos) == 1
    return bos, tokenizer(TEXT.read_text(), add_special_tokens=False)["input_ids"][: length - 1]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("family", ["llama", "cohere"])
def test_shares_are_those_of_the_attention_that_transformers_returns(
    family: str, length: int, interleaved: Path
) -> None:
    path = DEMO if family == "llama" else interleaved
    usage = measure_usage(path, UsageOptions(TEXT, length, "cpu", "float32"))
    bos, ids = tokens(path, length)
    half = len(ids) // 2
    read = weights(path, [*bos, *ids])
    copied = weights(path, [*bos, *ids[:half], *ids[:half]])
    first, far, _ = shares(read, looked_at(length // 2, length), half, length / 4)
    second_copy = looked_at(1 + half, 1 + 2 * half)
    copies, beside = (shares(copied, second_copy, period, 0)[2] for period in (half, half + 1))
    assert np.abs(usage.first - first).max() < 1e-4
    assert np.abs(usage.far - far).max() < 1e-4
    assert np.abs(usage.copies - copies).max() < 1e-4
    assert np.abs(usage.copies - beside).max() > 1e-3  # the token itself is not the one after it
    assert usage.layers == tuple(range(len(read)))
    assert np.allclose(usage.by_pair.sum(axis=-1), 1)


def rotated(path: Path, ids: list[int]) -> tuple[Any, Any]:
    """Return queries and keys of the first layer after the rotation, as transformers computes them."""
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    module = __import__(type(model).__module__, fromlist=["apply_rotary_pos_emb"])
    kept: list[Any] = []
    own = module.apply_rotary_pos_emb

    def keep(*given: Any, **named: Any) -> Any:
        kept.append(own(*given, **named))
        return kept[-1]

    module.apply_rotary_pos_emb = keep
    try:
        with torch.inference_mode():
            model(torch.tensor([ids]))
    finally:
        module.apply_rotary_pos_emb = own
    return kept[0][0][0].double().numpy(), kept[0][1][0].double().numpy()


@pytest.mark.parametrize("family", ["llama", "cohere"])
def test_the_share_of_a_pair_is_its_part_of_the_variance(family: str, interleaved: Path) -> None:
    path = DEMO if family == "llama" else interleaved
    usage = measure_usage(path, UsageOptions(TEXT, 128, "cpu", "float32"))
    bos, ids = tokens(path, 128)
    q, k = rotated(path, [*bos, *ids])
    pairs = q.shape[-1] // 2
    members = [(i, i + pairs) if family == "llama" else (2 * i, 2 * i + 1) for i in range(pairs)]
    for head in range(len(q)):
        key = k[head * len(k) // len(q)]
        variance = np.zeros(pairs)
        for i, (one, other) in enumerate(members):
            for place in looked_at(64, 128):
                parts = q[head, place, one] * key[: place + 1, one] + q[head, place, other] * key[: place + 1, other]
                variance[i] += parts.var()
        assert np.abs(usage.by_pair[0, head] - variance / variance.sum()).max() < 1e-4


def test_the_command_prints_heads_and_pairs(tmp_path: Path) -> None:
    shown = run("use", DEMO, "--text", TEXT, "--length", "128")
    assert shown.code == 0
    assert "16 in 4 layers that see the whole text" in shown.out
    assert "under one turn" in shown.out
    printed = run("use", DEMO, "--text", TEXT, "--length", "128", "--json", "--report", tmp_path / "page")
    usage = json.loads(printed.out)
    assert np.array(usage["by_pair"]).shape == (4, 4, 32)
    assert {file.name for file in (tmp_path / "page").iterdir()} == {
        "copies.png", "far.png", "first.png", "index.html", "pairs.png",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (UsageOptions(length=8), "8 is not a length from 16 to the trained 256 tokens"),
        (UsageOptions(length=512), "512 is not a length from 16"),
    ],
)
def test_a_length_beyond_the_trained_one_is_refused(options: UsageOptions, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        measure_usage(DEMO, options)


def test_a_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("In the beginning was the word.")
    with pytest.raises(ConfigError, match=r"short\.txt has \d+ tokens, and 128 are read"):
        measure_usage(DEMO, UsageOptions(tmp_path / "short.txt", 128))


@pytest.mark.parametrize(
    ("family", "words"), [("falcon", "attention interface"), ("ministral", "every layer has a window")]
)
def test_models_that_cannot_be_looked_at_are_refused_without_options_of_other_commands(
    family: str, words: str, tmp_path: Path, write_tokenizer: Callable[..., None]
) -> None:
    models.write(tmp_path / family, family)
    write_tokenizer(tmp_path / family)
    with pytest.raises(ConfigError, match="its attention cannot be looked at") as caught:
        measure_usage(tmp_path / family, UsageOptions(TEXT, 64, "cpu"))
    assert words in str(caught.value)
    assert "compare" not in str(caught.value)
