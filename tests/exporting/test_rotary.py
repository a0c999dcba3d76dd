"""The rotary keys of an export, from config.json to the file, and what a file cannot hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_files
import models
import numpy as np
import pytest

from ropetool.errors import LossyExport

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LISTS = {
    "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 512,
    "short_factor": [1.0, 1.25, 1.5, 2.0], "long_factor": [1.0, 2.0, 3.0, 4.0],
}  # fmt: skip


def exported(tmp_path: Path, family: str = "llama", **changes: Any) -> tuple[dict[str, Any], Any, Any]:
    """Return the keys, the tensors and the result of exporting a checkpoint with these changes to its config."""
    result = models.export(models.checkpoint(tmp_path / "model", family, **changes), tmp_path / "x.gguf")
    return gguf_files.keys(result.output), gguf_files.tensors(result.output), result


def rope_keys(keys: dict[str, Any]) -> dict[str, Any]:
    return {key.partition(".")[2]: value for key, value in keys.items() if ".rope." in key or "context" in key}


def test_an_unscaled_model_states_its_base(tmp_path: Path) -> None:
    keys, _, result = exported(tmp_path, rope_theta=5e5)
    assert rope_keys(keys) == {"rope.dimension_count": 8, "context_length": 512, "rope.freq_base": 5e5}
    assert (result.encoding, result.context_length) == ("base frequency", 512)


def test_yarn_keeps_its_explicit_factor(tmp_path: Path) -> None:
    scaling = {**YARN, "attention_factor": 1.0}
    keys, _, _ = exported(tmp_path, "qwen2", max_position_embeddings=2048, rope_scaling=scaling)
    assert keys["qwen2.rope.scaling.type"] == "yarn"
    assert keys["qwen2.rope.scaling.factor"] == 4.0
    assert keys["qwen2.rope.scaling.original_context_length"] == 512
    assert keys["qwen2.rope.scaling.attn_factor"] == pytest.approx(1 / (1 + 0.1 * np.log(4)))
    assert keys["qwen2.context_length"] == 2048


def test_a_context_that_was_left_as_it_was_is_raised(tmp_path: Path) -> None:
    keys, _, result = exported(tmp_path, "qwen2", rope_scaling=YARN)
    assert keys["qwen2.context_length"] == result.context_length == 2048
    assert result.notes == (
        "context_length is 2048, YaRN's factor 4 times 512; max_position_embeddings in config.json is still 512",
    )


@pytest.mark.parametrize("context", [2048, 4096])
def test_a_context_that_reaches_as_far_stays(context: int, tmp_path: Path) -> None:
    _, _, result = exported(tmp_path, "qwen2", max_position_embeddings=context, rope_scaling=YARN)
    assert (result.context_length, result.notes) == (context, ())


@pytest.mark.parametrize(
    "scaling",
    [
        {**YARN, "beta_fast": 8}, {**YARN, "truncate": False}, {**LISTS, "short_factor": LISTS["long_factor"]},
        {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 512},
    ],
    ids=["betas", "truncate", "equal lists", "llama3"],
)  # fmt: skip
def test_a_llama_holds_any_table_and_a_qwen2_refuses_it(scaling: dict[str, Any], tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "head_dim": 16} if "beta_fast" in scaling or "truncate" in scaling else {}
    changes: dict[str, Any] = {"max_position_embeddings": 2048, "rope_scaling": scaling, **sizes}
    keys, tensors, result = exported(tmp_path, "llama", **changes)
    dim = changes.get("head_dim", 8)
    assert result.encoding == "rope_freqs.weight"
    assert tensors["rope_freqs.weight"][:2] == ("F32", (dim // 2,))
    assert keys["llama.rope.scaling.type"] == "none"
    assert "llama.rope.scaling.factor" not in keys
    if scaling["rope_type"] == "longrope":
        found = np.frombuffer(tensors["rope_freqs.weight"][2], np.float32)
        np.testing.assert_allclose(found, scaling["long_factor"], rtol=1e-6)
    qwen2 = changes | {"head_dim": None, "hidden_size": 4 * dim}
    with pytest.raises(LossyExport, match="does not use frequency vectors for qwen2") as caught:
        exported(tmp_path / "other", "qwen2", **qwen2)
    assert scaling["rope_type"] in str(caught.value)
    assert caught.value.try_.startswith(f"ropetool export {tmp_path}/other/model --rearch llama")


def test_lists_that_differ_are_written_and_noted(tmp_path: Path) -> None:
    keys, tensors, result = exported(tmp_path, max_position_embeddings=2048, rope_scaling=LISTS)
    assert keys["llama.rope.scaling.type"] == "longrope"
    assert keys["llama.rope.scaling.original_context_length"] == 512
    assert np.frombuffer(tensors["rope_factors_short.weight"][2], np.float32)[1] == 1.25
    assert "by its context size" in result.notes[0]


def test_a_table_that_follows_the_length_is_refused(tmp_path: Path) -> None:
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    with pytest.raises(LossyExport, match=r"llama files cannot store dynamic scaling with factor 4\.0: its table"):
        exported(tmp_path, rope_scaling=scaling)


# --- sliding windows, which llama.cpp does not know of in these architectures


def test_a_window_inside_the_context_is_refused_unless_allowed(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", "mistral", sliding_window=256)
    with pytest.raises(LossyExport, match="attends to the whole context of 512") as caught:
        models.export(source, tmp_path / "x.gguf")
    assert caught.value.try_.startswith("--allow-full-attention")
    assert not (tmp_path / "x.gguf").exists()
    result = models.export(source, tmp_path / "x.gguf", allow_full_attention=True)
    assert "on texts of more than 256 tokens its results differ" in result.notes[0]


def test_a_window_around_the_context_is_nothing(tmp_path: Path) -> None:
    _, _, result = exported(tmp_path, "mistral", sliding_window=512)
    assert result.notes == ()


def test_a_window_that_is_off_is_nothing(tmp_path: Path) -> None:
    _, _, result = exported(tmp_path, "qwen2", sliding_window=64, use_sliding_window=False)
    assert result.notes == ()
