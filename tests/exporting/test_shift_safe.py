"""--shift-safe and --rearch: the same logits as transformers gives the untouched checkpoint, and exact after a shift.

The oracle of the shift is llama.cpp's own: cached keys moved by llama_memory_seq_add.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import configs
import gguf_files
import models
import numpy as np
import pytest
from configs import FACTOR, TRAINED
from gguf_logits import shifted_logits

import ropetool
from ropetool.errors import ConfigError, LossyExport
from ropetool.gguf_model import shift_safe as shift_safe_module
from ropetool.gguf_model.shift_safe import ShiftSafe
from ropetool.gguf_model.sources import SourceTensor

pytest.importorskip("llama_cpp")

TOLERANCE = 2e-4  # of the largest logit
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": float(FACTOR), "original_max_position_embeddings": TRAINED,
}  # fmt: skip
CONTEXT = {"max_position_embeddings": FACTOR * TRAINED}
BOTH_KINDS = {
    "full_attention": {**YARN, "rope_theta": 40000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
}
# Keys in a projection, behind a norm of each head, fused with others, partly rotating, a latent of MLA, some layers.
CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": YARN},
    "qwen3": {"rope_parameters": YARN},
    "olmo2": {"rope_parameters": YARN},
    "gpt_neox": {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}},
    "deepseek_v3": {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
    "ministral3": {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3}},
}


def written(path: Path, family: str) -> Path:
    return models.write(path, family, {**CHANGES[family], **CONTEXT})


def moved(path: Path, by: int) -> np.ndarray:
    """Return the logits behind 700 tokens that were all moved by so many positions."""
    return shifted_logits(path, models.TOKENS[:701], by, configs.LENGTH)


@pytest.mark.parametrize("family", CHANGES)
def test_the_factor_in_the_keys_is_the_factor_in_the_file(family: str, tmp_path: Path) -> None:
    source = written(tmp_path / "model", family)
    made = models.export(source, tmp_path / "x.gguf", outtype="f32", shift_safe=True)
    wanted = models.torch_logits(source)
    assert models.apart(wanted, models.llama_logits(made.output)) < TOLERANCE
    assert len(made.bakes) == 1
    assert made.bakes[0].startswith("attention factor 1.")


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_keys_that_keep_their_size_would_be_seen(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(tmp_path / "model", family)
    whole = shift_safe_module.shift_safe

    def without_gains(view: Any) -> ShiftSafe:
        return replace(whole(view), gains={})

    monkeypatch.setattr(shift_safe_module, "shift_safe", without_gains)
    made = models.export(source, tmp_path / "x.gguf", outtype="f32", shift_safe=True)
    assert models.apart(models.torch_logits(source), models.llama_logits(made.output)) > 20 * TOLERANCE


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_context_shift_changes_nothing(family: str, tmp_path: Path) -> None:
    source = written(tmp_path / "model", family)
    plain = models.export(source, tmp_path / "plain.gguf", outtype="f32").output
    safe = models.export(source, tmp_path / "safe.gguf", outtype="f32", shift_safe=True).output
    still = moved(safe, 0)
    assert models.apart(still, moved(plain, 0)) < TOLERANCE
    assert models.apart(still, moved(safe, 64)) < TOLERANCE
    assert models.apart(still, moved(plain, 64)) > 20 * TOLERANCE  # which multiplies its cached keys once more


def test_a_factor_that_some_layers_would_keep_is_refused(tmp_path: Path) -> None:
    """llama.cpp multiplies YaRN's own factor in full layers alone, and attn_factor in all: both cannot become 1."""
    source = models.write(tmp_path / "model", "gemma3_text", {"rope_parameters": BOTH_KINDS, **CONTEXT})
    with pytest.raises(LossyExport, match=r"sliding_attention: attention factor 0\.878249 instead of 1"):
        models.export(source, tmp_path / "x.gguf", shift_safe=True)
    assert not (tmp_path / "x.gguf").exists()


def test_a_factor_of_one_kind_of_layer_goes_into_its_keys_when_it_is_extended(tmp_path: Path) -> None:
    """What the keys of a file cannot give to one kind of layer alone, an extension for llama.cpp leaves to the weights."""
    source = models.write(tmp_path / "model", "gemma3_text")
    options = {"attention_factor": 1.0, "factor": FACTOR}
    alone = ropetool.apply(ropetool.plan(source, "yarn", **options), source, tmp_path / "alone").output
    with pytest.raises(LossyExport, match="sliding_attention: attention factor"):
        models.export(alone, tmp_path / "x.gguf", allow_unverified=True)
    plan = ropetool.plan(source, "yarn", for_runtimes=["transformers", "llama.cpp"], **options)
    both = ropetool.apply(plan, source, tmp_path / "both").output
    assert plan.bakes
    made = models.export(both, tmp_path / "x.gguf", outtype="f32", allow_unverified=True)
    wanted = models.torch_logits(alone)
    assert models.apart(wanted, models.torch_logits(both)) < TOLERANCE
    assert models.apart(wanted, models.llama_logits(made.output)) < TOLERANCE


def test_nothing_to_bake_is_no_mistake(tmp_path: Path) -> None:
    source = models.write(tmp_path / "model", "llama")
    made = models.export(source, tmp_path / "x.gguf", shift_safe=True)
    assert made.bakes == ()
    plain = models.export(source, tmp_path / "y.gguf")
    assert made.output.read_bytes() == plain.output.read_bytes()


def test_a_bfloat16_key_is_rounded_once(tmp_path: Path) -> None:
    """Against numpy: the float32 product, cut to bfloat16 by the nearest even."""
    source = models.checkpoint(
        tmp_path / "model", dtype="BF16", rope_parameters={**YARN, "factor": 2.0}, max_position_embeddings=1024
    )
    made = models.export(source, tmp_path / "x.gguf", shift_safe=True)
    given = models.weights(models.BY_HAND["llama"], "BF16")["model.layers.0.self_attn.k_proj.weight"][1]
    factor = float(made.bakes[0].split()[2])
    wide = (given.astype(np.uint32) << 16).view(np.float32).astype(np.float64) * (0.1 * np.log(2.0) + 1) ** 2
    assert factor == pytest.approx(0.1 * np.log(2.0) + 1, rel=1e-5)
    bits = wide.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    heads = rounded.reshape(2, 2, 4, 16).swapaxes(1, 2).reshape(16, 16)  # llama.cpp pairs neighbouring rows
    assert gguf_files.tensors(made.output)["blk.0.attn_k.weight"][2] == heads.tobytes()


def test_gains_reach_every_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ropetool.gguf_model import streaming

    source = written(tmp_path / "model", "llama")
    whole = models.export(source, tmp_path / "x.gguf", outtype="f16", shift_safe=True).output.read_bytes()
    monkeypatch.setattr(streaming, "CHUNK", 1)
    assert models.export(source, tmp_path / "y.gguf", outtype="f16", shift_safe=True).output.read_bytes() == whole
    assert "gains" in SourceTensor.__slots__


# --- another architecture


@pytest.mark.parametrize("method", ["beta_fast", "llama3"])
def test_a_qwen2_as_llama_holds_any_table(method: str, tmp_path: Path) -> None:
    rope = (
        {**YARN, "beta_fast": 8.0}
        if method == "beta_fast"
        else {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": float(FACTOR), "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": TRAINED,
        }
    )  # fmt: skip
    source = models.write(tmp_path / "model", "qwen2", {"rope_parameters": rope, **CONTEXT})
    with pytest.raises(LossyExport) as caught:
        models.export(source, tmp_path / "x.gguf")
    exact = f"ropetool export {source} --rearch llama, whose files can store any table"
    assert caught.value.try_.startswith(f"{exact}; or --allow-inexact, which writes the nearest table for llama.cpp: ")
    made = models.export(source, tmp_path / "x.gguf", outtype="f32", rearch="llama")
    assert made.arch == "llama"
    assert models.apart(models.torch_logits(source), models.llama_logits(made.output)) < TOLERANCE


def test_other_architectures_are_not_rewritten(tmp_path: Path) -> None:
    source = models.write(tmp_path / "model", "qwen3")
    with pytest.raises(ConfigError, match=r"qwen3 models cannot be written as llama.*qwen2 as llama") as caught:
        models.export(source, tmp_path / "x.gguf", rearch="llama")
    assert caught.value.where == "--rearch"
    assert not (tmp_path / "x.gguf").exists()
