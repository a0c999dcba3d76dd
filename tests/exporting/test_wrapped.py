"""Text models inside the wrappers that transformers saves: the same logits from llama.cpp, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf_files
import models
import pytest
import tokenizer_making

from ropetool.errors import CorruptFile, LossyExport, RopetoolError
from ropetool.gguf_export import export_checkpoint

pytest.importorskip("llama_cpp")

TOLERANCE = 2e-4  # of the largest logit
AROUND = (
    ("mistral", "mistral3"), ("ministral3", "mistral3"), ("llama", "llava"), ("mistral", "llava_next"),
    ("qwen2", "internvl"), ("llama", "idefics3"), ("qwen3", "lighton_ocr"), ("deepseek_v3", "kimi_k25"),
    ("qwen3_5_text", "qwen3_5"), ("qwen3_5_moe_text", "qwen3_5_moe"), ("lfm2", "lfm2_vl"), ("gemma4_text", "gemma4"),
    ("mistral4", "mistral3"),
)  # fmt: skip


@pytest.mark.parametrize(("family", "wrapper"), AROUND)
def test_llama_cpp_computes_what_the_wrapper_does_with_text(family: str, wrapper: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "model", family, wrapper=wrapper)
    made = models.export(source, tmp_path / "x.gguf")
    wanted = models.torch_logits(source, models.SHORT)
    tolerance = 1e-3 if family in models.TABLED else TOLERANCE
    assert models.apart(wanted, models.llama_logits(made.output, models.SHORT)) < tolerance
    assert any("the file contains only the text model" in note for note in made.notes)


@pytest.mark.parametrize(("family", "wrapper"), [("llama", "llava"), ("mistral", "mistral3"), ("gemma3", "gemma3")])
def test_one_matrix_for_embedding_and_head(family: str, wrapper: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "model", family, {"tie_word_embeddings": True}, wrapper=wrapper)
    made = models.export(source, tmp_path / "x.gguf").output
    assert "output.weight" not in gguf_files.tensors(made)
    wanted = models.torch_logits(source, models.SHORT)
    assert models.apart(wanted, models.llama_logits(made, models.SHORT)) < (
        1e-3 if family in models.TABLED else TOLERANCE
    )


@pytest.mark.parametrize(("family", "wrapper"), [("qwen3_vl_text", "qwen3_vl"), ("qwen3_5_text", "qwen3_5")])
def test_the_comparison_runs_the_wrapper(family: str, wrapper: str, tmp_path: Path) -> None:
    """The whole export, with its gate: the runner of torch loads the wrapper and gives its logits."""
    source = models.write(tmp_path / "model", family, wrapper=wrapper)
    plain = {**tokenizer_making.TOKENIZER_CONFIG, "eos_token": "<|eos|>"}
    (source / "tokenizer_config.json").write_text(json.dumps(plain))
    checks = {check.name: check for check in export_checkpoint(source, tmp_path / "x.gguf").checks}
    assert checks["KL"].figure is not None
    assert (checks["KL"].verdict, checks["same tables"].verdict) == ("pass", "pass")


def _without(name: str) -> Any:
    return lambda stored: {key: tensor for key, tensor in stored.items() if not key.endswith(name)}


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (_without("layers.1.mlp.up_proj.weight"), CorruptFile, r"no weight file contains model\.layers\.1\.mlp\.up_proj\.weight"),
        (_without("lm_head.weight"), CorruptFile, r"no weight file contains lm_head\.weight"),
        (
            lambda stored: {**stored, "language_model.model.layers.0.adapter.weight": next(iter(stored.values())).clone()},
            LossyExport, r"has no place for model\.layers\.0\.adapter\.weight",
        ),
    ],
)  # fmt: skip
def test_what_a_wrapper_must_hold(change: Any, error: type[RopetoolError], text: str, tmp_path: Path) -> None:
    source = models.set_tensors(models.write(tmp_path / "model", "llama", wrapper="llava"), change)
    with pytest.raises(error, match=text):
        models.export(source, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_sizes_that_transformers_leaves_out_are_those_of_the_class(tmp_path: Path) -> None:
    """llava-hf/llava-1.5-7b-hf states of its llama neither intermediate_size nor hidden_size."""
    source = models.write(tmp_path / "model", "llama", wrapper="llava")
    text = models.config_of(source)["text_config"]
    del text["intermediate_size"]
    models.set_config(source, text_config=text)
    with pytest.raises(CorruptFile, match=r"has shape \[64, 128\]; config.json requires \[11008, 128\]"):
        models.export(source, tmp_path / "x.gguf")
