"""What llama.cpp's own converter loses is found in the files that it writes, and nothing in those that it writes right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import converter
import models
import numpy as np
import pytest

from ropetool.doctor import ERROR, NOTE, examine

pytestmark = converter.needs_tokenizer_too

SIZES: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 328, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 50257, "tie_word_embeddings": True, "bos_token_id": 50256, "eos_token_id": 50256,
    "architectures": ["LlamaForCausalLM"], "torch_dtype": "float32", "max_position_embeddings": 2048,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
ONES = np.ones(16).tolist()
# What a config asks for, the rules that find what became of it, without its source and with it.
CASES: dict[str, tuple[dict[str, Any] | None, set[str], set[str]]] = {
    "plain": (None, set(), set()),
    "linear": ({"rope_type": "linear", "factor": 4.0}, set(), set()),
    "llama3": (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 512}, set(), set(),
    ),
    "yarn": (YARN, set(), set()),
    "attention factor": ({**YARN, "attention_factor": 1.0}, {"attention-factor"}, {"attention-factor", "source-table"}),
    "betas": ({**YARN, "beta_fast": 8.0}, {"unread-key"}, {"unread-key", "source-table"}),
    "truncate": ({**YARN, "truncate": False}, set(), {"source-table"}),
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0}, set(), {"source-table"}),
    "longrope": (
        {"rope_type": "longrope", "factor": 4.0, "short_factor": ONES, "long_factor": [4.0] * 16,
         "original_max_position_embeddings": 512}, set(), {"source-table"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint of each case, and the file that the converter makes of it."""
    folder = tmp_path_factory.mktemp("stock")
    calls = []
    for name, (scaling, _, _) in CASES.items():
        source = models.checkpoint(folder / name, dtype="F32", **SIZES, rope_scaling=scaling)
        converter.copy_tokenizer(source)
        calls.append([source, "--outtype", "f32", "--outfile", folder / f"{name}.gguf"])
    converter.convert(folder, calls)
    return folder


def found(folder: Path, name: str, source: str | None = None) -> dict[str, str]:
    """Return the rules that speak, notes aside, with the worst severity."""
    worst = sorted(
        examine([str(folder / f"{name}.gguf")], source=source).findings, key=lambda one: one.severity != ERROR
    )
    return {one.rule: one.severity for one in reversed(worst) if one.severity != NOTE}


@pytest.mark.parametrize("name", CASES)
def test_what_the_stock_converter_loses_is_found(name: str, folder: Path) -> None:
    _, alone, beside = CASES[name]
    assert set(found(folder, name)) == alone
    with_source = found(folder, name, str(folder / name))
    assert set(with_source) == beside
    assert with_source.get("source-table", ERROR) == ERROR
