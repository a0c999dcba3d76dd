"""The other bakes of a GGUF: what context shift asks for, MLA's softmax scale, gains, dropped pairs, another name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bake_gguf_models import (
    LENGTH,
    MLA_YARN,
    YARN,
    bake_factor,
    carry_out,
    changed,
    logits_beyond,
    next_logits,
    opened,
    quantised,
    stored,
    write,
)
from gguf_logits import shifted_logits
from models import apart

from ropetool.checkpoint.edits import METADATA, TENSORS, FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import ConfigError, LossyExport, PlanMismatch
from ropetool.files.gguf import ValueType, read_shards
from ropetool.files.hf import ABSENT
from ropetool.files.linking import place
from ropetool.files.shard_names import shard_paths
from ropetool.rope.arithmetic import half_to_interleaved
from ropetool.runtimes.llama_cpp import decoding
from ropetool.weights import bakes
from ropetool.weights.bakes import Bake
from ropetool.weights.checking import check_scores, reader
from ropetool.weights.edits import PERMUTE
from ropetool.weights.weight_files import weight_files
from ropetool.weights.writing import marks, write_weights

pytest.importorskip("llama_cpp")

TOLERANCE = 2e-4
FULL = "full_attention"
PLAIN_YARN = {key: value for key, value in YARN.items() if not key.endswith("attn_factor")}


# --- context shift


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "deepseek2"])
@pytest.mark.parametrize("side", ["k", "both"])
def test_a_context_shift_changes_nothing_after_the_bake(arch: str, side: str, tmp_path: Path) -> None:
    source, target = write(tmp_path / "yarn.gguf", arch, PLAIN_YARN), tmp_path / "safe.gguf"
    model = opened(source)
    bake = bakes.shift_safe(model, side)
    carry_out(bake, source, target)
    assert bake.notes == (bakes.SHIFT_NOTE,)
    count, by = 700, 64
    still = next_logits(target, count, 0)
    assert apart(next_logits(source, count, 0), still) < TOLERANCE
    assert apart(still, next_logits(target, count, by)) < 1e-4
    assert apart(still, next_logits(source, count, by)) > 1e-2  # the unbaked file, which scales its keys once more


def test_the_shift_really_happens(tmp_path: Path) -> None:
    """Planted: without a shift of the cells, a token at the later position sees other distances."""
    path = write(tmp_path / "m.gguf", "llama", PLAIN_YARN)
    tokens = [*range(3, 90), 7]
    assert apart(shifted_logits(path, tokens, 0, LENGTH), shifted_logits(path, tokens, 64, LENGTH)) > 1e-2


def test_a_factor_that_only_some_layers_lose_is_not_shift_safe(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", "gemma3")
    model = opened(source)
    with pytest.raises(LossyExport, match=r"sliding_attention would keep the factor 0\.878"):
        bakes.shift_safe(model)


def test_a_second_bake_finds_nothing(tmp_path: Path) -> None:
    source, target = write(tmp_path / "m.gguf", "llama"), tmp_path / "b.gguf"
    bake_factor(source, target)
    model = opened(target)
    for again in (bakes.attention_factor, bakes.shift_safe):
        with pytest.raises(ConfigError, match="1 already"):
            again(model)


# --- MLA


def mla_softmax(source: Path, target: Path, side: str) -> Bake:
    model = opened(source)
    bake = bakes.softmax_scale(model, side)
    carry_out(bake, source, target)
    return bake


MLA_CASES = {
    "both multipliers": MLA_YARN,
    "no log multiplier": {**PLAIN_YARN, "rope.scaling.attn_factor": 1.2},
    "yarn alone": PLAIN_YARN,
    "linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 1.3},
}


@pytest.mark.parametrize("case", MLA_CASES)
@pytest.mark.parametrize("side", ["", "q"])
def test_mlas_softmax_scale_goes_into_the_queries(case: str, side: str, tmp_path: Path) -> None:
    source, target = write(tmp_path / "m.gguf", "deepseek2", MLA_CASES[case]), tmp_path / "b.gguf"
    bake = mla_softmax(source, target, side)
    ending = "attn_q_b.weight" if side else "attn_q_a_norm.weight"
    assert {edit.tensor.split(".", 2)[2] for edit in bake.tensors} == {ending}
    assert apart(logits_beyond(source), logits_beyond(target)) < TOLERANCE
    carry_out(replace(bake, tensors=()), source, tmp_path / "lost.gguf")
    assert apart(logits_beyond(source), logits_beyond(tmp_path / "lost.gguf")) > 1e-2
    entry = decoding.decode(GgufCheckpoint.of(read_shards(target))).entries[FULL]
    assert entry.softmax_multiplier == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("case", MLA_CASES)
def test_mlas_factor_leaves_the_softmax_scale_alone(case: str, tmp_path: Path) -> None:
    source, target = write(tmp_path / "m.gguf", "deepseek2", MLA_CASES[case]), tmp_path / "b.gguf"
    bake_factor(source, target)
    assert apart(logits_beyond(source), logits_beyond(target)) < TOLERANCE


def test_mlas_keys_are_no_place_for_the_whole_score(tmp_path: Path) -> None:
    model = opened(write(tmp_path / "m.gguf", "deepseek2"))
    with pytest.raises(ConfigError, match="attn_k_b"):
        bakes.softmax_scale(model, "k")
    with pytest.raises(ConfigError, match="attn_k_b"):
        bakes.score_gain(model, {FULL: 1.1}, "both")


# --- gains and dropped pairs


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "deepseek2", "phi3"])
def test_a_constant_pair_gain_is_the_attention_factor(arch: str, tmp_path: Path) -> None:
    source, target = write(tmp_path / "m.gguf", arch, {}), tmp_path / "gain.gguf"
    factor = 1.3
    model = opened(source)
    view = model.targets
    pairs = view.rope.entries[FULL].rotary_dim // 2
    carry_out(bakes.pair_gain(model, {FULL: [factor**2] * pairs}), source, target)
    asked = write(tmp_path / "asked.gguf", arch, {"rope.scaling.attn_factor": factor})
    if arch == "deepseek2":  # its key also scales the whole score, which the queries then carry
        carry_out(bakes.score_gain(opened(target), {FULL: factor**2}), target, tmp_path / "gain2.gguf")
        target = tmp_path / "gain2.gguf"
    assert apart(logits_beyond(asked), logits_beyond(target)) < TOLERANCE
    assert apart(logits_beyond(asked), logits_beyond(source)) > 1e-2


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "deepseek2"])
def test_each_pair_gets_its_own_gain(arch: str, tmp_path: Path) -> None:
    """The scores of the numpy reference, pair by pair, with the layout of each architecture."""
    source, target = write(tmp_path / "m.gguf", arch, {}), tmp_path / "gain.gguf"
    model = opened(source)
    view = model.targets
    entry = view.rope.entries[FULL]
    gains = np.linspace(0.5, 1.5, entry.rotary_dim // 2)
    bake = bakes.pair_gain(model, {FULL: gains.tolist()})
    carry_out(bake, source, target)
    doubled = np.repeat(gains, 2) if entry.layout == "interleaved" else np.tile(gains, 2)
    before, after = (reader(GgufCheckpoint.open(path).stored) for path in (source, target))
    for name in sorted(changed(source, target)):
        old, new = (read(name).reshape(-1, entry.rotary_dim, old_width(read(name))) for read in (before, after))
        rotary = slice(-1, None) if arch == "deepseek2" else slice(None)
        assert np.allclose(new[rotary], old[rotary] * doubled[:, None], rtol=1e-6, atol=0)
    if arch != "deepseek2":
        checks = check_scores(bake.tensors, view, before, opened(target).targets, after)
        assert {check.layer for check in checks} == {0, 1}
        assert all(check.difference > 0.01 * check.largest for check in checks)


def old_width(tensor: np.ndarray) -> int:
    return tensor.shape[-1] if tensor.ndim > 1 else 1


def test_check_scores_reads_quantised_rows(tmp_path: Path) -> None:
    source = quantised(write(tmp_path / "m.f32", "qwen2"), tmp_path / "m.gguf", "Q4_K")
    target = tmp_path / "b.gguf"
    model = opened(source)
    view = model.targets
    bake = bakes.attention_factor(model)
    carry_out(bake, source, target)
    old, new = (reader(GgufCheckpoint.open(path).stored) for path in (source, target))
    for check in check_scores(bake.tensors, view, old, opened(target).targets, new):
        assert check.difference < 2e-3 * check.largest < check.unbaked


def test_still_pairs_stop_and_muted_ones_vanish(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", "llama")
    model = opened(source)
    view = model.targets
    gone = [29, 30, 31]
    still = bakes.drop_pairs(model, gone, "still")
    assert still.tensors == ()
    carry_out(still, source, tmp_path / "still.gguf")
    found = decoding.decode(GgufCheckpoint.of(read_shards(tmp_path / "still.gguf"))).entries[FULL]
    wanted = view.rope.entries[FULL].table.regimes[0]
    assert np.allclose(found.table.regimes[0].inv_freq[:29], wanted.inv_freq[:29], rtol=1e-6)
    assert (found.table.regimes[0].inv_freq[gone] < 1e-29).all()
    assert found.attention_factor == wanted.attention_factor
    muted = bakes.drop_pairs(model, gone, "mute")
    carry_out(muted, source, tmp_path / "mute.gguf")
    rows = np.frombuffer(stored(tmp_path / "mute.gguf")["blk.0.attn_k.weight"][2], np.float32).reshape(2, 64, 256)
    assert not rows[:, 58:].any()
    assert rows[:, :58].all()
    base = logits_beyond(source)
    assert all(apart(base, logits_beyond(tmp_path / f"{mode}.gguf")) > 1e-2 for mode in ("still", "mute"))


def test_pairs_of_a_file_without_vectors_cannot_stand_still(tmp_path: Path) -> None:
    model = opened(write(tmp_path / "m.gguf", "qwen2"))
    with pytest.raises(LossyExport, match="does not use frequency vectors for qwen2") as caught:
        bakes.drop_pairs(model, [31], "still")
    assert "--rearch llama" in caught.value.try_


def test_no_other_order_of_channels(tmp_path: Path) -> None:
    model = opened(write(tmp_path / "m.gguf", "qwen2"))
    with pytest.raises(LossyExport, match="always rotates the channels of these files in the half order"):
        bakes.layout(model, "interleaved")


# --- qwen2 as llama


def with_vectors(bake: Bake, **vectors: np.ndarray) -> Bake:
    """Return the bake with vectors beside what it edits."""
    more = (FileEdit(TENSORS, (name,), ABSENT, vector.tolist()) for name, vector in vectors.items())
    return replace(bake, edits=(*bake.edits, *more))


def rearched(source: Path, target: Path) -> Bake:
    model = opened(source)
    bake = bakes.rearch_llama(model)
    carry_out(bake, source, target)
    return bake


@pytest.mark.parametrize("dtype", ["F32", "Q8_0"])
def test_a_qwen2_file_runs_as_llama(dtype: str, tmp_path: Path) -> None:
    source, target = write(tmp_path / "m.gguf", "qwen2", dtype=dtype), tmp_path / "llama.gguf"
    bake = rearched(source, target)
    header = read_shards(target)[0]
    assert header.get("general.architecture", ValueType.STR) == "llama"
    assert not any(key.startswith("qwen2.") for key in header.values)
    assert {edit.operation for edit in bake.tensors} == {PERMUTE}
    assert apart(logits_beyond(source), logits_beyond(target)) < (TOLERANCE if dtype == "F32" else 0.02)
    order = half_to_interleaved(64)
    old, new = stored(source), stored(target)
    for name in changed(source, target):
        rows, moved = (
            np.frombuffer(s[name][2], np.uint8).reshape(-1, 64, len(s[name][2]) // 128 // heads(name))
            for s in (old, new)
        )
        assert np.array_equal(moved, rows[:, order])  # bit for bit
    assert {name.split(".", 2)[2] for name in changed(source, target)} == {
        "attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias"
    }  # fmt: skip


def heads(name: str) -> int:
    return 2 if "attn_q" in name else 1


def test_a_bias_left_in_place_would_be_seen(tmp_path: Path) -> None:
    source, target = write(tmp_path / "m.gguf", "qwen2"), tmp_path / "llama.gguf"
    model = opened(source)
    bake = bakes.rearch_llama(model)
    weights = tuple(edit for edit in bake.tensors if edit.tensor.endswith(".weight"))
    carry_out(replace(bake, tensors=weights), source, target)
    assert apart(logits_beyond(source), logits_beyond(target)) > 20 * TOLERANCE


def test_as_llama_it_takes_frequency_vectors(tmp_path: Path) -> None:
    source, target = write(tmp_path / "m.gguf", "qwen2", {}), tmp_path / "llama.gguf"
    bake = rearched(source, target)
    divisors = np.linspace(1, 4, 32).astype(np.float32)
    carry_out(with_vectors(bake, **{"rope_freqs.weight": divisors}), source, tmp_path / "vectors.gguf")
    linear = write(tmp_path / "linear.gguf", "qwen2", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    fours = with_vectors(bake, **{"rope_freqs.weight": np.full(32, 4)})
    carry_out(fours, source, tmp_path / "fours.gguf")
    assert apart(logits_beyond(linear), logits_beyond(tmp_path / "fours.gguf")) < TOLERANCE
    assert apart(logits_beyond(target), logits_beyond(tmp_path / "vectors.gguf")) > 20 * TOLERANCE


def test_only_qwen2_becomes_llama(tmp_path: Path) -> None:
    model = opened(write(tmp_path / "q3.gguf", "qwen3"))
    with pytest.raises(LossyExport, match="is a qwen3 file"):
        bakes.rearch_llama(model)
    more = {"output.bias": np.zeros(96, np.float32)}
    model = opened(write(tmp_path / "q2.gguf", "qwen2", tensors=more))
    with pytest.raises(LossyExport, match=r"output\.bias"):
        bakes.rearch_llama(model)


# --- files


def test_a_file_in_several_parts(tmp_path: Path) -> None:
    single = write(tmp_path / "one.gguf", "qwen2")
    first = write(tmp_path / "parts.gguf", "qwen2", shards=3)
    model = opened(first)
    headers = model.checkpoint.files
    bake = bakes.attention_factor(model)
    targets = shard_paths(tmp_path / "baked.gguf", 3)
    told: list[str] = []
    baked = write_weights(bake.tensors, weight_files(model.checkpoint, bake.edits), targets, progress=told.append)
    assert [path.name for path in baked.files] == [t.name for t in targets if t.exists()]
    assert told == [h.path.name for h, t in zip(headers, targets, strict=True) if t.exists()]
    assert len(baked.files) == 2  # the output's part stays
    for header, target in zip(headers, targets, strict=True):
        if not target.exists():
            place(header.path, target)
    assert apart(logits_beyond(single), logits_beyond(targets[0])) < TOLERANCE


def test_a_changed_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", "llama")
    model = opened(source)
    bake = bakes.attention_factor(model)
    known = marks(bake.tensors, weight_files(model.checkpoint))
    write(source, "llama", {"rope.freq_base": 5000.0})
    with pytest.raises(PlanMismatch, match="changed since the plan"):
        carry_out(bake, source, tmp_path / "b.gguf", expected=known)
    write(source, "deepseek2")
    with pytest.raises(PlanMismatch, match="the weights have no"):
        carry_out(bake, source, tmp_path / "b.gguf")
    assert not (tmp_path / "b.gguf").exists()


def test_wider_numbers_with_a_new_vector_and_bytes_behind_the_data(tmp_path: Path) -> None:
    """All that moves other tensors at once: a retyped tensor, an appended one, and a tail."""
    source, target = write(tmp_path / "m.gguf", "llama", dtype="Q8_0"), tmp_path / "b.gguf"
    with source.open("ab") as file:
        file.write(b"behind")
    bake = bakes.attention_factor(opened(source, "F32"))
    bake = with_vectors(bake, **{"rope_freqs.weight": np.ones(32)})
    name = FileEdit(METADATA, ("general.name",), ABSENT, {"type": "str", "value": "x" * 99})
    carry_out(replace(bake, edits=(*bake.edits, name)), source, target, bake_dtype="F32")
    keys = {f"blk.{layer}.attn_k.{part}" for layer in (0, 1) for part in ("weight", "bias")}
    assert changed(source, target) == {*keys, "rope_freqs.weight"}
    assert target.read_bytes().endswith(b"behind")
    assert {stored(target)[f"blk.{layer}.attn_k.weight"][0] for layer in (0, 1)} == {"F32"}
    assert np.isfinite(logits_beyond(target)).all()


def test_fused_projections_of_any_architecture(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", "llama")
    parts = stored(source)
    fused = {}
    for layer in (0, 1):
        rows = [np.frombuffer(parts[f"blk.{layer}.attn_{n}.weight"][2], np.float32).reshape(-1, 256) for n in "qkv"]
        bias = [np.frombuffer(parts[f"blk.{layer}.attn_{n}.bias"][2], np.float32) for n in "qkv"]
        fused[f"blk.{layer}.attn_qkv.weight"], fused[f"blk.{layer}.attn_qkv.bias"] = (
            np.concatenate(rows),
            np.concatenate(bias),
        )
    one = write(tmp_path / "fused.gguf", "llama", tensors=fused, leave_out=("attn_q.", "attn_k.", "attn_v."))
    assert apart(logits_beyond(source), logits_beyond(one)) < TOLERANCE
    bake_factor(one, tmp_path / "b.gguf")
    assert apart(logits_beyond(source), logits_beyond(tmp_path / "b.gguf")) < TOLERANCE
    assert {name.split(".", 2)[2] for name in changed(one, tmp_path / "b.gguf")} == {"attn_qkv.weight", "attn_qkv.bias"}
    half = write(tmp_path / "half.gguf", "llama", tensors=fused, leave_out=("attn_q.w", "attn_k.w", "attn_v."))
    with pytest.raises(LossyExport, match="has fused projections and a separate"):
        opened(half)
