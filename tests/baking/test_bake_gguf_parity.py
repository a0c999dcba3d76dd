"""Through llama.cpp: a GGUF that asks for a factor, and one whose weights have it, give the same logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bake_gguf_models import (
    ARCHITECTURES,
    bake_factor,
    carry_out,
    changed,
    key_tensors,
    logits_beyond,
    opened,
    quantised,
    stored,
    with_narrow_heads,
    write,
)
from models import apart

from ropetool import families
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.files.gguf import read_shards
from ropetool.runtimes.llama_cpp import decoding
from ropetool.weights import bakes
from ropetool.weights.bakes import Bake
from ropetool.weights.checking import reader
from ropetool.weights.edits import TensorEdit
from ropetool.weights.writing import growth

pytest.importorskip("llama_cpp")

TOLERANCE = 2e-4  # of the largest logit, in float32
HALF_STEP = {"F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}
KEYS = {
    "qwen3": {"attn_k_norm.weight"}, "qwen3moe": {"attn_k_norm.weight"}, "gemma3": {"attn_k_norm.weight"},
    "phi3": {"attn_qkv.weight"}, "deepseek2": {"attn_kv_a_mqa.weight"}, "olmo2": {"attn_k_norm.weight"},
    "exaone4": {"attn_k_norm.weight"},
    **{
        arch: {"attn_k.weight", "attn_k.bias"}
        for arch in ("llama", "qwen2", "qwen2moe", "starcoder2", "gpt-oss", "glm4", "stablelm")
    },
    **{arch: {"attn_k.weight"} for arch in ("gemma2", "granite", "smollm3", "command-r")},
}  # fmt: skip
KEYS |= {
    arch: key_tensors(family.model_type) for arch, family in families.by_gguf_architecture().items() if arch not in KEYS
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    return {arch: write(folder / f"{arch}.gguf", arch) for arch in ARCHITECTURES}


@pytest.fixture(scope="module")
def wanted(sources: dict[str, Path]) -> dict[str, np.ndarray]:
    return {arch: logits_beyond(path) for arch, path in sources.items()}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_weights_carry_the_factor(
    arch: str, sources: dict[str, Path], wanted: dict[str, np.ndarray], tmp_path: Path
) -> None:
    target = tmp_path / "baked.gguf"
    baked = bake_factor(sources[arch], target)
    assert apart(wanted[arch], logits_beyond(target)) < TOLERANCE
    assert {name.split(".", 2)[2] for name in changed(sources[arch], target)} == KEYS[arch]
    assert {tensor.tensor for tensor in baked.tensors} == changed(sources[arch], target)
    assert all(0 < tensor.max_error <= HALF_STEP["F32"] for tensor in baked.tensors)
    found = decoding.decode(GgufCheckpoint.of(read_shards(target)))
    assert found.entries["full_attention"].attention_factor == pytest.approx(1, rel=1e-7)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "deepseek2"])
@pytest.mark.parametrize("side", ["q", "both"])
def test_queries_and_both_sides_carry_it_too(
    arch: str, side: str, sources: dict[str, Path], wanted: dict[str, np.ndarray], tmp_path: Path
) -> None:
    bake_factor(sources[arch], tmp_path / "baked.gguf", side)
    assert apart(wanted[arch], logits_beyond(tmp_path / "baked.gguf")) < TOLERANCE


# --- planted defects


def without_tensors(bake: Bake, *ends: str) -> Bake:
    return replace(bake, tensors=tuple(edit for edit in bake.tensors if not edit.tensor.endswith(ends)))


def moved(bake: Bake, ending: str, other: str) -> Bake:
    """Return the bake with its factor in the projection under the norm, where it is divided away."""
    edits = tuple(
        TensorEdit(e.tensor.replace(ending, other), "scale", 128, (0,), 128, factors=e.factors) for e in bake.tensors
    )
    return replace(bake, tensors=edits)


DEFECTS = {
    "weights without a bake": ("llama", lambda b: replace(b, tensors=())),
    "bias left out": ("qwen2", lambda b: without_tensors(b, ".bias")),
    "norm ignored": ("qwen3", lambda b: moved(b, "attn_k_norm", "attn_k")),
    "one layer left out": ("llama", lambda b: replace(b, tensors=tuple(e for e in b.tensors if "blk.0." in e.tensor))),
    "all rows of a partly rotating head": (
        "phi3", lambda b: replace(b, tensors=tuple(replace(e, length=64) for e in b.tensors)),
    ),
    "sliding layers left out": (
        "gemma3", lambda b: replace(b, tensors=tuple(e for e in b.tensors if "blk.5." in e.tensor)),
    ),
    "latent rows": (
        "deepseek2", lambda b: replace(b, tensors=tuple(replace(e, starts=(0,), length=64) for e in b.tensors)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_wrong_way_would_be_seen(
    defect: str, sources: dict[str, Path], wanted: dict[str, np.ndarray], tmp_path: Path
) -> None:
    arch, spoil = DEFECTS[defect]
    model = opened(sources[arch])
    bake = spoil(bakes.attention_factor(model))
    carry_out(bake, sources[arch], tmp_path / "spoiled.gguf")
    assert apart(wanted[arch], logits_beyond(tmp_path / "spoiled.gguf")) > 20 * TOLERANCE


# --- narrower types


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"])
def test_narrow_types_carry_it_within_the_stated_rounding(arch: str, dtype: str, tmp_path: Path) -> None:
    source, target = with_narrow_heads(tmp_path / "source.gguf", arch, dtype), tmp_path / "baked.gguf"
    baked = bake_factor(source, target)
    in_vectors = {tensor.tensor for tensor in baked.tensors if tensor.dtype == "F32"}
    assert all(name.endswith((".bias", "_norm.weight")) for name in in_vectors)
    rest = [tensor for tensor in baked.tensors if tensor.tensor not in in_vectors]
    assert all(tensor.dtype == dtype for tensor in rest)
    assert all(0 < t.mean_error <= HALF_STEP.get(dtype, HALF_STEP["F16"]) for t in rest)
    assert bool(rest) is (arch != "qwen3")  # there the norm carries it, in float32
    stated = max((tensor.max_error for tensor in rest), default=0.0)
    assert (
        apart(logits_beyond(source), logits_beyond(target)) < TOLERANCE + 20 * stated
    )  # attention is sharp here: the unbaked file is 0.7 away
    assert changed(source, target) == {tensor.tensor for tensor in baked.tensors}


@pytest.mark.parametrize("dtype", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_K"])
def test_a_model_all_of_a_narrow_type(dtype: str, sources: dict[str, Path], tmp_path: Path) -> None:
    """llama.cpp rounds activations too, and what falls to another side there makes up to 13% of the largest logit."""
    source, target, spoiled = (tmp_path / f"{name}.gguf" for name in ("source", "baked", "spoiled"))
    quantised(sources["qwen2"], source, dtype) if dtype == "Q4_K" else write(source, "qwen2", dtype=dtype)
    bake_factor(source, target)
    before = logits_beyond(source)
    assert apart(before, logits_beyond(target)) < 0.15
    model = opened(source)
    carry_out(replace(bakes.attention_factor(model), tensors=()), source, spoiled)
    assert apart(before, logits_beyond(spoiled)) > 0.4


@pytest.mark.parametrize("dtype", ["BF16", "Q4_K"])
def test_a_wider_type_takes_the_product_almost_exactly(dtype: str, sources: dict[str, Path], tmp_path: Path) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "baked.gguf"
    if dtype == "Q4_K":
        quantised(sources["qwen2"], source, dtype)
    else:
        write(source, "qwen2", dtype=dtype)
    baked = bake_factor(source, target, bake_dtype="F32")
    assert {tensor.dtype for tensor in baked.tensors} == {"F32"}
    assert max(tensor.max_error for tensor in baked.tensors) <= HALF_STEP["F32"]
    old, new = stored(source), stored(target)
    touched = {tensor.tensor for tensor in baked.tensors}
    assert changed(source, target) == touched
    grown = sum(len(new[name][2]) - len(old[name][2]) for name in touched)
    edits = bakes.attention_factor(opened(source, "F32")).tensors
    assert grown == growth(edits, GgufCheckpoint.open(source).stored, "F32") > 0
    before, after = (reader(GgufCheckpoint.open(path).stored) for path in (source, target))
    exact = before("blk.0.attn_k.weight") * 1.5**2 * (1 + 0.1 * np.log(4)) ** 2
    assert np.abs(after("blk.0.attn_k.weight") / exact - 1)[exact != 0].max() < 2e-7
