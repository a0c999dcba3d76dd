"""Exports over several files against the stock converter's own: the same parts, tensors and keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import converter
import gguf_files
import models
import pytest
from gguf_files import GGUFReader

CHANGES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 50257, "tie_word_embeddings": True, "bos_token_id": 50256, "eos_token_id": 50256,
    "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
}  # fmt: skip
# The stock converter lets the tokenizer's own class decide about these, ropetool states them.
OWN_KEYS = {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"}
SPLIT = ("split.no", "split.count", "split.tensors.count")
# Each of 20 tensors; several; the embedding of 6.4 MB by itself, and what else has room. All sizes are multiples of
# 32: the stock converter adds them as they are, gguf-split and ropetool as they lie in the file.
LIMITS = [("--split-max-tensors", "1", 20), ("--split-max-tensors", "7", 3), ("--split-max-size", "33K", 6)]

pytestmark = converter.needs_tokenizer_too


def write_source(path: Path) -> Path:
    """Write a checkpoint with each tensor in a file of its own: the stock converter sorts those of one file."""
    source = models.checkpoint(path, dtype="BF16", **CHANGES)
    (source / "model.safetensors").unlink()
    tensors = models.weights({**models.BY_HAND["llama"], **CHANGES}, "BF16")
    tensors["model.norm.weight"] = tensors.pop("model.norm.weight")  # last, as in the output
    places = {name: f"model-{at:05}-of-{len(tensors):05}.safetensors" for at, name in enumerate(tensors, 1)}
    models.write_shards(source, tensors, places)
    converter.copy_tokenizer(source)
    return source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("split") / "model")


def stock(source: Path, limit: str) -> list[Path]:
    """Return the parts that the stock converter writes; the first call makes those of all limits beside the source."""
    if not source.with_name(limit).is_dir():
        calls = []
        for option, value, _ in LIMITS:
            source.with_name(value).mkdir()
            output = source.with_name(value) / "stock.gguf"
            calls.append([source, "--outtype", "bf16", "--outfile", output, option, value])
        converter.convert(source.parent, calls)
    return sorted(source.with_name(limit).glob("stock-0*.gguf"))


def our(source: Path, output: Path, option: str, value: str) -> list[Path]:
    limit = {"split_max_size": value} if option == "--split-max-size" else {"split_max_tensors": int(value)}
    result = models.export(source, output, **limit)
    found = sorted(output.parent.glob("our-0*.gguf"))
    assert result.output == found[0]
    return found


def types(reader: GGUFReader) -> list[Any]:
    return [reader.fields[key].types for key in SPLIT]


@pytest.mark.parametrize(("option", "value", "count"), LIMITS)
def test_the_parts_are_the_stock_converters(option: str, value: str, count: int, source: Path, tmp_path: Path) -> None:
    found = our(source, tmp_path / "our.gguf", option, value)
    assert len(found) == count
    made = converter.compared(f"{option} {value}", source, *found)
    if made.settled:
        return
    expected = stock(source, value)
    assert [path.name for path in found] == [re.sub("^stock", "our", path.name) for path in expected]
    read = [[GGUFReader(path) for path in paths] for paths in (found, expected)]  # seconds for a vocabulary
    for ours, theirs in zip(*read, strict=True):
        assert list(gguf_files.tensors(ours).items()) == list(gguf_files.tensors(theirs).items())
        assert types(ours) == types(theirs)
    stated = [[gguf_files.keys(reader) for reader in readers] for readers in read]
    for key in OWN_KEYS:
        stated[0][0].pop(key)
    assert stated[0] == stated[1]
    made.passed()
