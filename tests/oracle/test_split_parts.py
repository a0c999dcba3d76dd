"""Exports over several files against the stock converter's own: the same parts, tensors and keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import converter
import gguf
import pytest
from exporting import maker

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
    source = maker.checkpoint(path, dtype="BF16", **CHANGES)
    (source / "model.safetensors").unlink()
    tensors = maker.weights({**maker.CONFIGS["llama"], **CHANGES}, "BF16")
    tensors["model.norm.weight"] = tensors.pop("model.norm.weight")  # last, as in the output
    places = {name: f"model-{at:05}-of-{len(tensors):05}.safetensors" for at, name in enumerate(tensors, 1)}
    for name, file in places.items():
        maker.write_safetensors(source / file, {name: tensors[name]})
    maker.save(source / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})
    converter.copy_tokenizer(source)
    return source


def stock(source: Path, option: str, value: str) -> list[Path]:
    """Return the parts that the stock converter writes."""
    target = source.with_name("stock.gguf")
    converter.run(source.parent, converter.CONVERTER, source, "--outtype", "bf16", "--outfile", target, option, value)
    return sorted(target.parent.glob("stock-0*.gguf"))


def our(source: Path, option: str, value: str) -> list[Path]:
    limit = {"split_max_size": value} if option == "--split-max-size" else {"split_max_tensors": int(value)}
    result = maker.export(source, source.with_name("our.gguf"), **limit)
    found = sorted(source.parent.glob("our-0*.gguf"))
    assert result.output == found[0]
    return found


def types(path: Path) -> list[Any]:
    fields = gguf.GGUFReader(path).fields
    return [fields[key].types for key in SPLIT]


@pytest.mark.parametrize(("option", "value", "count"), LIMITS)
def test_the_parts_are_the_stock_converters(option: str, value: str, count: int, tmp_path: Path) -> None:
    source = write_source(tmp_path / "model")
    expected, found = stock(source, option, value), our(source, option, value)
    assert len(found) == count
    assert [path.name for path in found] == [re.sub("^stock", "our", path.name) for path in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert list(maker.tensors(ours).items()) == list(maker.tensors(theirs).items())
        assert types(ours) == types(theirs)
    stated = [[maker.keys(path) for path in paths] for paths in (found, expected)]
    for key in OWN_KEYS:
        stated[0][0].pop(key)
    assert stated[0] == stated[1]
