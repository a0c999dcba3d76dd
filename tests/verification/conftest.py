"""Tiny checkpoints made on the spot: a Llama with random weights that see positions, and its own BPE tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from models import copied, save
from tokenizer_making import trained
from tokenizers import pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM

from ropetool.verification.texts import Document

TRAINED_LENGTH = 64
BOS = "<bos>"
SIZES = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": TRAINED_LENGTH, "bos_token_id": 0,
    "initializer_range": 0.2,  # default weights are so small that positions move no logit
}  # fmt: skip
WORDS = ["the", "of", "a", "rope", "turns", "pair", "angle", "token", "length", "near", "far", "context", "read"]


def make_text(seed: int, words: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) + rng.choice(["", "", "", ".", ",", "\n"]) for _ in range(words))


def write_tokenizer(folder: Path, bos: bool = True, seed: int = 0) -> None:
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), [make_text(seed, 400)], 300, [BOS])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 0)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "model_max_length": TRAINED_LENGTH}
    save(folder / "tokenizer_config.json", config)


def write_model(folder: Path, seed: int = 0, **changes: object) -> None:
    more = {"num_key_value_heads": 1, "head_dim": 32, "tie_word_embeddings": True, "eos_token_id": None}
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**{**SIZES, **more, **changes})).save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama trained, so to speak, at 64 tokens, whose tokenizer adds BOS."""
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    folder.mkdir()
    write_model(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def dynamic(tiny: Path) -> Path:
    """The same weights with a dynamic table, which transformers changes as it meets longer rows."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    return copied(tiny, tiny.parent / "dynamic", rope_parameters=rope)


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    return [Document(f"text-{seed}.txt", make_text(seed, 300)) for seed in range(5)]


@pytest.fixture(name="write_tokenizer", scope="session")
def give_write_tokenizer() -> Callable[..., None]:
    return write_tokenizer


@pytest.fixture
def make_variant(tmp_path: Path) -> Callable[..., Path]:
    """Copy a checkpoint, with some config keys replaced."""
    names = (tmp_path / f"variant-{number}" for number in count())

    return lambda source, **changes: copied(source, next(names), **changes)
