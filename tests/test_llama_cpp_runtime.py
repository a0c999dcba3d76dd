"""The llama.cpp decoder against closed forms and numbers worked out by hand, and every value that stops llama.cpp."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import write
from hypothesis import given, settings
from hypothesis import strategies as st

from ropetool import names, runtimes
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import InvalidRope, UnknownRuntime
from ropetool.files.gguf import Patch, TensorInfo, Value, ValueType, read_shards
from ropetool.rope.tables import LayerRope, RopeSet, Temperature
from ropetool.runtimes import Refuses
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import decoding, mscale
from ropetool.runtimes.llama_cpp.layers import UNROTATED

FULL, SLIDING = names.FULL_ATTENTION, names.SLIDING_ATTENTION
PAIRS = np.arange(32)
BASE = 10000.0 ** (-PAIRS / 32)  # a head of 64 channels
F32, F16 = 0, 1
LENGTHS: dict[str, Any] = {
    archs.CONTEXT_LENGTH: 2048, archs.EMBEDDING_LENGTH: 128, archs.BLOCK_COUNT: 2, archs.HEAD_COUNT: 2,
}  # fmt: skip
YARN: dict[str, Any] = {
    archs.SCALING_TYPE: "yarn", archs.FACTOR: 4.0, archs.ORIGINAL_CONTEXT_LENGTH: 512,
}  # fmt: skip
G = 0.1 * math.log(4) + 1


def value(suffix: str, stated: Any) -> Value:
    if isinstance(stated, Value):
        return stated
    if isinstance(stated, list):
        return Value.array(ValueType.BOOL if isinstance(stated[0], bool) else ValueType.I32, stated)
    return Value.of(archs.TYPES[suffix], stated)


def model(
    arch: str = "llama", keys: dict[str, Any] | None = None, vectors: dict[str, Any] | None = None, ggml_type: int = F32
) -> GgufCheckpoint:
    """Return the view of a two-layer model with heads of 64 channels; a key given as None is left out."""
    stated = {suffix: wanted for suffix, wanted in {**LENGTHS, **(keys or {})}.items() if wanted is not None}
    values = {f"{arch}.{suffix}": value(suffix, wanted) for suffix, wanted in stated.items()}
    values[archs.ARCHITECTURE] = Value.of(ValueType.STR, arch)
    data = {name: np.asarray(vector, np.float32) for name, vector in (vectors or {}).items()}
    tensors = {name: TensorInfo(name, v.shape, ggml_type, 0, v.nbytes) for name, v in data.items()}
    return GgufCheckpoint(values, tensors, lambda name: data[name])


def decode(arch: str = "llama", keys: dict[str, Any] | None = None, **options: Any) -> RopeSet:
    return decoding.decode(model(arch, keys, **options))


def full(arch: str = "llama", keys: dict[str, Any] | None = None, **options: Any) -> LayerRope:
    return decode(arch, keys, **options).entries[FULL]


def table(entry: LayerRope) -> np.ndarray:
    assert entry.table is not None
    assert entry.table.is_fixed
    return entry.table.regimes[0].inv_freq


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=0)


# --- precedence


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_without_scaling_keys_it_is_the_base_table(arch: str) -> None:
    found = decode(arch)
    entry = found.entries[FULL]
    close(table(entry), BASE)
    assert (entry.rope_type, entry.attention_factor, entry.factor, entry.rope_theta) == ("default", 1.0, None, 10000.0)
    assert (entry.head_dim, entry.rotary_dim, entry.layers, entry.sliding_window) == (64, 64, (0, 1), None)
    assert entry.layout == ("interleaved" if arch == "llama" else "half")
    assert (found.max_position_embeddings, found.original_max_position_embeddings) == (2048, 2048)


@pytest.mark.parametrize(
    ("keys", "divisor"),
    [
        ({archs.FACTOR: 4.0}, 4),  # no type means linear
        ({archs.SCALING_TYPE: "linear", archs.FACTOR: 4.0}, 4),
        ({archs.SCALING_TYPE: "linear"}, 1),
        ({archs.FACTOR: 0.0}, 1),
        ({archs.SCALE_LINEAR: 4.0}, 4),  # the old name
        ({archs.FACTOR: 2.0, archs.SCALE_LINEAR: 4.0}, 2),  # counts only where the new one is absent
        ({archs.FACTOR: 0.0, archs.SCALE_LINEAR: 4.0}, 1),
        ({archs.SCALING_TYPE: "none", archs.FACTOR: 4.0}, 1),
        ({archs.SCALING_TYPE: "none", archs.SCALE_LINEAR: 4.0}, 1),
        ({archs.SCALING_TYPE: "longrope", archs.FACTOR: 4.0}, 4),  # no lists in the file: the factor alone
    ],
)
def test_type_factor_and_the_old_factor(keys: dict[str, Any], divisor: float) -> None:
    entry = full(keys=keys)
    close(table(entry), BASE / divisor)
    assert entry.attention_factor == 1.0
    assert entry.rope_type == ("linear" if divisor != 1 else "default")
    assert entry.original_max_position_embeddings == (None if divisor != 1 else 2048)


@pytest.mark.parametrize("scaling_type", [None, "none", "linear", "longrope"])
def test_attn_factor_counts_for_every_type(scaling_type: str | None) -> None:
    entry = full(keys={archs.SCALING_TYPE: scaling_type, archs.ATTN_FACTOR: 1.7})
    assert entry.attention_factor == pytest.approx(1.7, rel=1e-7)
    assert entry.rope_type == "table"  # no type of Hugging Face's says it


def test_another_base() -> None:
    close(table(full(keys={archs.FREQ_BASE: 500000.0})), 500000.0 ** (-PAIRS / 32))


# --- YaRN


def by_hand(kept: Any, factor: float = 4.0) -> np.ndarray:
    kept = np.asarray(kept)
    return BASE * ((1 - kept) / factor + kept)


# 64 ln(512 / (2 pi 32)) / (2 ln 10000) = 3.2475 and 64 ln(512 / (2 pi)) / (2 ln 10000) = 15.2886: pairs 3 and 16.
RAMP = [1, 1, 1, 1, *(1 - k / 13 for k in range(1, 13)), *([0] * 16)]


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_yarn_by_hand(arch: str) -> None:
    found = decode(arch, YARN)
    entry = found.entries[FULL]
    close(table(entry), by_hand(RAMP))
    assert table(entry)[10] == pytest.approx(10000 ** (-10 / 32) * (6 / 13 + 7 / 13 / 4), rel=1e-12)
    assert entry.attention_factor == pytest.approx(1.1386294361119891, rel=1e-12)
    assert (entry.rope_type, entry.factor, entry.softmax_multiplier) == ("yarn", 4.0, 1.0)
    assert (found.max_position_embeddings, found.original_max_position_embeddings) == (2048, 512)


def test_yarn_without_its_length_counts_in_the_context() -> None:
    # 64 ln(2048 / (2 pi 32)) / (2 ln 10000) = 8.0640, and 20.1053 for one turn: pairs 8 and 21.
    keys = {**YARN, archs.ORIGINAL_CONTEXT_LENGTH: None}
    ramp = np.clip(1 - (PAIRS - 8) / 13, 0, 1)
    close(table(full(keys=keys)), by_hand(ramp))
    close(table(full(keys={**keys, archs.ORIGINAL_CONTEXT_LENGTH: 0})), by_hand(ramp))


@pytest.mark.parametrize("attn_factor", [0.5, 1.0, 1.7])
def test_yarn_multiplies_attn_factor_by_its_own(attn_factor: float) -> None:
    entry = full(keys={**YARN, archs.ATTN_FACTOR: attn_factor})
    assert entry.attention_factor == pytest.approx(attn_factor * G, rel=1e-7)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_yarn_has_no_factor_of_its_own_up_to_one(factor: float) -> None:
    entry = full(keys={**YARN, archs.FACTOR: factor, archs.ATTN_FACTOR: 1.5})
    assert entry.attention_factor == pytest.approx(1.5, rel=1e-12)
    close(table(entry), by_hand(RAMP, factor))


def test_betas_are_read_by_two_architectures_alone() -> None:
    # 64 ln(512 / (2 pi 8)) / (2 ln 10000) = 8.0640, and 12.8804 for two turns: pairs 8 and 13.
    keys = {**YARN, archs.YARN_BETA_FAST: 8.0, archs.YARN_BETA_SLOW: 2.0}
    ramp = np.clip(1 - (PAIRS - 8) / 5, 0, 1)
    for arch in ("grok", "mistral3"):
        close(table(full(arch, keys)), by_hand(ramp))
    for arch in ("llama", "qwen2", "qwen3", "deepseek"):
        close(table(full(arch, keys)), by_hand(RAMP))
    # grok counts from 8 turns by itself: pairs 8 and 16
    close(table(full("grok", YARN)), by_hand(np.clip(1 - (PAIRS - 8) / 8, 0, 1)))


def test_a_ramp_with_its_ends_crossed_is_a_step_as_in_ggml() -> None:
    # The upper end is capped at 63: with a base of 2 and 2^20 turns the lower end lies beyond it.
    keys = {**YARN, archs.FREQ_BASE: 2.0, archs.ORIGINAL_CONTEXT_LENGTH: 2**30, archs.CONTEXT_LENGTH: 2**31 - 1}
    np.testing.assert_allclose(table(full(keys=keys)), 2.0 ** (-PAIRS / 32), rtol=1e-12)


def test_grok_may_mix_and_multiply_without_the_type() -> None:
    keys = {archs.FACTOR: 4.0, archs.ORIGINAL_CONTEXT_LENGTH: 512, archs.YARN_EXT_FACTOR: 0.5}
    half = 0.5 * np.clip(1 - (PAIRS - 8) / 8, 0, 1)
    close(table(full("grok", keys)), by_hand(half))
    close(table(full("llama", keys)), BASE / 4)
    assert full("grok", keys).attention_factor == pytest.approx(G, rel=1e-12)
    # yarn_attn_factor survives only without a ramp
    assert full("grok", {**keys, archs.YARN_ATTN_FACTOR: 3.0}).attention_factor == pytest.approx(G, rel=1e-12)
    assert full("grok", {archs.YARN_ATTN_FACTOR: 3.0}).attention_factor == 3.0
    assert full("qwen2", {archs.YARN_ATTN_FACTOR: 3.0}).attention_factor == 1.0


# --- what multiplies the score


@pytest.mark.parametrize(
    ("magnitude", "multiplier"), [(1.0, G), (1.3, 1.0), (G / (0.1 * 0.707 * math.log(4) + 1), 1.2)]
)
@pytest.mark.parametrize("arch", ["deepseek2", "mistral4", "deepseek32"])
def test_mla_says_any_pair_of_magnitude_and_softmax_multiplier(arch: str, magnitude: float, multiplier: float) -> None:
    # mscale_all_dim L with 1 + 0.1 L ln s = multiplier / magnitude; only deepseek2 takes its factor out of cos and sin
    level = (multiplier / magnitude - 1) / (0.1 * math.log(4))
    attn_factor = magnitude if arch == "deepseek2" else multiplier / G
    keys = {**YARN, archs.YARN_LOG_MULTIPLIER: 0.1 * level, archs.ATTN_FACTOR: attn_factor, archs.DIMENSION_COUNT: 64}
    entry = full(arch, {**keys, archs.KEY_LENGTH: 96})
    assert entry.attention_factor == pytest.approx(magnitude, rel=1e-6)
    assert entry.softmax_multiplier == pytest.approx(multiplier**2, rel=1e-6)
    assert (entry.head_dim, entry.rotary_dim) == (64, 64)
    close(table(entry), by_hand(RAMP))


def test_linear_scaling_multiplies_the_score_of_mla() -> None:
    keys = {archs.FACTOR: 4.0, archs.KEY_LENGTH: 96, archs.DIMENSION_COUNT: 64}
    entry = full("deepseek2", keys)
    assert (entry.attention_factor, entry.score_plain) == (1.0, pytest.approx(G**2))
    mended = full("deepseek2", {**keys, archs.YARN_LOG_MULTIPLIER: -0.1 / G})
    assert (mended.attention_factor, mended.score_plain) == (1.0, pytest.approx(1.0, rel=1e-7))


@pytest.mark.parametrize("factor", [4.0, 1.0, 0.5])
@pytest.mark.parametrize("rotary", [1.0, 0.9])
@pytest.mark.parametrize("on_score", [1.0, G, 0.9, 0.9 * G])  # two of them need no multiplier with linear scaling
@pytest.mark.parametrize("scaling_type", ["linear", "yarn"])
@pytest.mark.parametrize("arch", ["deepseek2", "mistral4", "deepseek32"])
def test_numbers_that_give_two_factors(
    arch: str, scaling_type: str, on_score: float, rotary: float, factor: float
) -> None:
    if factor == 1.0:
        on_score = rotary  # without scaling the score gets the factor on cos and sin
    numbers = mscale.numbers(arch, scaling_type, factor, on_score, rotary)
    scaling = {archs.SCALING_TYPE: scaling_type, archs.FACTOR: factor, archs.ORIGINAL_CONTEXT_LENGTH: 512}
    entry = full(arch, {**scaling, **numbers, archs.KEY_LENGTH: 96, archs.DIMENSION_COUNT: 64})
    assert entry.attention_factor == pytest.approx(rotary, rel=1e-6)
    assert entry.softmax_multiplier == pytest.approx(on_score**2, rel=1e-6)


def test_a_log_multiplier_that_turns_the_factor_around() -> None:
    keys = {**YARN, archs.YARN_LOG_MULTIPLIER: -1.0, archs.DIMENSION_COUNT: 32}  # 1 + 0.1 (-10) ln 4 is below 0
    with pytest.raises(InvalidRope, match=r"yarn_log_multiplier: is -10 after loading"):
        decode("mistral4", keys)
    assert full("deepseek2", keys).attention_factor == pytest.approx(1.0)  # above and below alike


def test_mistral3_takes_its_log_multiplier_as_it_is() -> None:
    entry = full("mistral3", {**YARN, archs.YARN_LOG_MULTIPLIER: 0.5})
    assert entry.attention_factor == pytest.approx(G / (0.05 * math.log(4) + 1), rel=1e-12)
    assert entry.softmax_multiplier == 1.0


def test_temperature_and_the_length_it_counts_in() -> None:
    scale = {archs.TEMPERATURE_SCALE: 0.25}
    assert full("mistral3", {**YARN, **scale}).temperature == Temperature(0.25, 512)
    assert full("mistral3", scale).temperature == Temperature(0.25, 2048)
    assert full("mistral3", YARN).temperature is None
    mla = {archs.DIMENSION_COUNT: 32}
    assert full("deepseek2", {**mla, **scale, archs.TEMPERATURE_LENGTH: 8192}).temperature == Temperature(0.25, 8192)
    assert full("llama", {**scale, archs.TEMPERATURE_LENGTH: 8192}).temperature is None


@pytest.mark.parametrize("arch", ["hunyuan-moe", "hunyuan-dense", "hunyuan_vl", "maincoder", "talkie"])
def test_a_norm_behind_the_rotation_takes_the_factor_away(arch: str) -> None:
    entry = full(arch, {**YARN, archs.ATTN_FACTOR: 1.7})
    assert entry.attention_factor == 1.0
    close(table(entry), by_hand(RAMP))
    assert archs.ATTN_FACTOR not in archs.reads(arch)


def test_hunyuan_raises_its_base_by_alpha() -> None:
    close(table(full("hunyuan-dense", {archs.ALPHA: 4.0})), (10000 * 4 ** (64 / 62)) ** (-PAIRS / 32))
    close(table(full("llama", {archs.ALPHA: 4.0})), BASE)


def test_text_does_not_turn_by_a_fourth_image_section() -> None:
    sections = {archs.DIMENSION_SECTIONS: [8, 8, 8, 8]}
    close(table(full("hunyuan_vl", sections)), np.where(PAIRS < 24, BASE, 0))
    close(table(full("hunyuan_vl", {archs.DIMENSION_SECTIONS: [8, 12, 12, 0]})), BASE)
    close(table(full("hunyuan-dense", sections)), BASE)


# --- frequency vectors


FREQS = 1 + PAIRS / 8.0
SHORT, LONG = {archs.ROPE_FACTORS_SHORT: 1 + PAIRS / 64.0}, {archs.ROPE_FACTORS_LONG: FREQS}
LONGROPE = {archs.SCALING_TYPE: "longrope", archs.ORIGINAL_CONTEXT_LENGTH: 512}


def test_rope_freqs_divide_the_frequencies() -> None:
    found = decode(vectors={archs.ROPE_FREQS: FREQS})
    close(table(found.entries[FULL]), BASE / FREQS)
    assert found.entries[FULL].rope_type == "table"
    assert found.original_max_position_embeddings is None  # the file does not say
    stated = decode(keys={archs.ORIGINAL_CONTEXT_LENGTH: 512}, vectors={archs.ROPE_FREQS: FREQS})
    assert stated.original_max_position_embeddings == 512


def test_rope_freqs_of_one_are_no_table() -> None:
    assert full(vectors={archs.ROPE_FREQS: np.ones(32)}).rope_type == "default"


def test_rope_freqs_and_scaling_multiply() -> None:
    freqs = {archs.ROPE_FREQS: FREQS}
    close(table(full(keys={archs.FACTOR: 4.0}, vectors=freqs)), BASE / FREQS / 4)
    close(table(full(keys=YARN, vectors=freqs)), by_hand(RAMP) / FREQS)
    assert full(keys=YARN, vectors=freqs).attention_factor == pytest.approx(G, rel=1e-12)


def test_a_divisor_of_infinity_stops_a_pair() -> None:
    freqs = np.where(PAIRS < 16, 1.0, np.inf)
    found = table(full(vectors={archs.ROPE_FREQS: freqs}))
    close(found[:16], BASE[:16])
    assert (found[16:] == 0).all()


@pytest.mark.parametrize(("arch", "keys"), [("llama", LONGROPE), ("phi3", {**LONGROPE, archs.SCALING_TYPE: None})])
def test_lists_follow_the_size_of_the_context(arch: str, keys: dict[str, Any]) -> None:
    entry = full(arch, {**keys, archs.ATTN_FACTOR: 1.2}, vectors={**SHORT, **LONG})
    assert entry.table is not None
    short, long = entry.table.regimes
    assert (entry.rope_type, entry.original_max_position_embeddings, short.up_to) == ("longrope", 512, 512)
    close(short.inv_freq, BASE / SHORT[archs.ROPE_FACTORS_SHORT])
    close(long.inv_freq, BASE / FREQS)
    assert short.attention_factor == long.attention_factor == pytest.approx(1.2, rel=1e-7)


@pytest.mark.parametrize(("trained", "up_to"), [(512, 512), (700, 512), (767, 512), (768, 768), (255, None), (0, None)])
def test_a_context_is_allocated_in_steps_of_256(trained: int, up_to: int | None) -> None:
    entry = full(keys={**LONGROPE, archs.ORIGINAL_CONTEXT_LENGTH: trained}, vectors={**SHORT, **LONG})
    assert entry.table is not None
    assert [r.up_to for r in entry.table.regimes] == ([up_to, None] if up_to else [None])
    close(entry.table.regimes[-1].inv_freq, BASE / FREQS)


def test_equal_lists_are_one_table_and_an_absent_list_is_ones() -> None:
    both = {archs.ROPE_FACTORS_SHORT: FREQS, archs.ROPE_FACTORS_LONG: FREQS}
    close(table(full("phi3", vectors=both)), BASE / FREQS)
    entry = full(keys=LONGROPE, vectors=LONG)
    assert entry.table is not None
    close(entry.table.regimes[0].inv_freq, BASE)
    close(entry.table.regimes[1].inv_freq, BASE / FREQS)


def test_a_factor_beside_longrope_scales_twice() -> None:
    entry = full(keys={**LONGROPE, archs.FACTOR: 4.0}, vectors=LONG | {archs.ROPE_FACTORS_SHORT: FREQS})
    close(table(entry), BASE / FREQS / 4)


def test_vectors_that_a_graph_does_not_look_at_change_nothing() -> None:
    close(table(full("llada", vectors={archs.ROPE_FREQS: FREQS})), BASE)


# --- sliding layers


def entries(arch: str, keys: dict[str, Any], **options: Any) -> tuple[LayerRope, LayerRope]:
    found = decode(arch, {archs.BLOCK_COUNT: 12, archs.SLIDING_WINDOW: 64, **keys}, **options).entries
    assert set(found) == {FULL, SLIDING}
    assert found[FULL].sliding_window is None
    return found[FULL], found[SLIDING]


def test_gemma3_scales_full_layers_and_leaks_the_factor() -> None:
    every, near = entries("gemma3", {**YARN, archs.ATTN_FACTOR: 1.5, archs.FREQ_BASE: 1e6})
    assert (every.layers, near.layers, near.sliding_window) == ((5, 11), (0, 1, 2, 3, 4, 6, 7, 8, 9, 10), 64)
    assert (every.rope_type, near.rope_type) == ("yarn", "yarn")
    close(table(near), BASE)  # its own base, no factor, so the ramp has nothing to do
    assert every.attention_factor == pytest.approx(1.5 * G, rel=1e-12)
    assert near.attention_factor == pytest.approx(1.5, rel=1e-12)
    assert entries("gemma3", YARN)[1].attention_factor == pytest.approx(1.0, rel=1e-12)


def test_gemma2_scales_sliding_layers_too() -> None:
    every, near = entries("gemma2", {**YARN, archs.FREQ_BASE_SWA: 10000.0, archs.FREQ_BASE: 1e6})
    close(table(near), by_hand(RAMP))
    assert every.attention_factor == near.attention_factor
    assert every.rope_theta == 1e6
    assert decode("gemma2", {archs.BLOCK_COUNT: 4}).entries[SLIDING].sliding_window == 4096


@pytest.mark.parametrize("arch", ["olmo2", "mellum"])
def test_some_keep_sliding_layers_plain_and_on_the_common_base(arch: str) -> None:
    every, near = entries(arch, {**YARN, archs.ATTN_FACTOR: 1.5, archs.FREQ_BASE_SWA: 77.0})
    close(table(near), BASE)
    assert (near.attention_factor, near.rope_type) == (1.0, "default")
    assert every.attention_factor == pytest.approx(1.5 * G, rel=1e-12)
    assert archs.FREQ_BASE_SWA not in archs.reads(arch)


def test_without_a_window_there_are_no_sliding_layers() -> None:
    for arch in ("gemma3", "olmo2", "laguna"):
        assert set(decode(arch, {archs.SLIDING_WINDOW: None}).entries) == {FULL}
        assert set(decode(arch, {archs.SLIDING_WINDOW: 0}).entries) == {FULL}
    assert set(decode("llama", {archs.SLIDING_WINDOW: 64}).entries) == {FULL}  # Mistral's window is ignored


def test_the_pattern_may_be_a_step_or_a_list() -> None:
    keys = {archs.BLOCK_COUNT: 6, archs.SLIDING_WINDOW: 64}
    assert decode("gemma3", {**keys, archs.SLIDING_WINDOW_PATTERN: 3}).entries[FULL].layers == (2, 5)
    with pytest.raises(Refuses, match=r"sliding_window is 64, but no layer slides: llama\.cpp aborts"):
        decode("gemma3", {**keys, archs.SLIDING_WINDOW_PATTERN: 1})
    assert set(decode("gemma3", {**keys, archs.SLIDING_WINDOW_PATTERN: 0}).entries) == {SLIDING}
    for listed in ([True, False, True], [1, 0, 2]):  # what is not listed is a full layer
        assert decode("gemma3", {**keys, archs.SLIDING_WINDOW_PATTERN: listed}).entries[SLIDING].layers == (0, 2)
    assert decode("laguna", keys).entries[FULL].layers == (0, 4)


def test_rotary_dims_of_their_own_or_of_layer_zero() -> None:
    keys = {archs.DIMENSION_COUNT: 32, archs.DIMENSION_COUNT_SWA: 64}
    every, near = entries("laguna", keys)
    assert (every.rotary_dim, near.rotary_dim) == (32, 64)
    every, near = entries("gemma3", keys)  # layer 0 slides, and the graph has one number for all
    assert (every.rotary_dim, near.rotary_dim) == (64, 64)
    every, near = entries("modern-bert", keys)  # layer 0 is a full one
    assert (every.rotary_dim, near.rotary_dim) == (32, 32)


def test_gemma4_divides_full_layers_alone() -> None:
    keys = {archs.SLIDING_WINDOW_PATTERN: [True, False] * 6, archs.KEY_LENGTH_SWA: 64, archs.DIMENSION_COUNT_SWA: 64}
    every, near = entries("gemma4", {**keys, archs.KEY_LENGTH: 64}, vectors={archs.ROPE_FREQS: FREQS})
    close(table(every), BASE / FREQS)
    close(table(near), BASE)


def test_a_gemma4_says_of_pairs_that_they_stand_still() -> None:
    keys = {archs.SLIDING_WINDOW_PATTERN: [True, False] * 6, archs.KEY_LENGTH_SWA: 64, archs.DIMENSION_COUNT_SWA: 64}
    turns = np.arange(FREQS.size) < FREQS.size // 4
    freqs = np.where(turns, 1.0, 1e30).astype(np.float32)  # as convert_hf_to_gguf.py writes them
    every, _ = entries("gemma4", {**keys, archs.KEY_LENGTH: 64}, vectors={archs.ROPE_FREQS: freqs})
    np.testing.assert_array_equal(table(every), np.where(turns, BASE, 0.0))
    assert (table(decode("llama", vectors={archs.ROPE_FREQS: freqs}).entries[FULL]) > 0).all()


# --- layers that do not rotate


def test_an_architecture_without_rotation_has_no_table() -> None:
    entry = decode("gpt2").entries[FULL]
    assert (entry.rope_type, entry.table, entry.rotary_dim, entry.layers) == ("none", None, 0, (0, 1))


def test_a_number_of_layers_may_decide_whether_they_rotate() -> None:
    for layers, kind in ((8, "none"), (32, "default"), (33, "none"), (40, "none")):
        assert decode("baichuan", {archs.BLOCK_COUNT: layers}).entries[FULL].rope_type == kind
    drafting = {archs.BLOCK_COUNT: 33, archs.NEXTN_LAYERS: 1}
    assert decode("baichuan", drafting).entries[FULL].rope_type == "default"


def test_layers_without_rotation_stand_apart() -> None:
    found = decode("smollm3", {archs.BLOCK_COUNT: 8}).entries
    assert {t: e.layers for t, e in found.items()} == {FULL: (0, 1, 2, 4, 5, 6), FULL + UNROTATED: (3, 7)}
    assert found[FULL + UNROTATED].table is None
    found = decode("cohere2", {archs.BLOCK_COUNT: 8, archs.SLIDING_WINDOW: 64}).entries
    assert (found[FULL].table, found[FULL].layers, found[SLIDING].layers) == (None, (3, 7), (0, 1, 2, 4, 5, 6))
    assert found[SLIDING].table is not None


def test_rotation_switched_off_by_keys() -> None:
    assert decode("granite", {archs.FINETUNED: False}).entries[FULL].table is None
    assert decode("granite").entries[FULL].table is not None
    assert decode("llama", {archs.FINETUNED: False}).entries[FULL].table is not None
    keys = {archs.BLOCK_COUNT: 3, archs.SLIDING_WINDOW: 64, archs.SLIDING_WINDOW_PATTERN: [True, False, False]}
    found = decode("granite_swa", {**keys, archs.ROPE_PATTERN: [True, True, False]}).entries
    assert {t: e.layers for t, e in found.items()} == {FULL: (1,), FULL + UNROTATED: (2,), SLIDING: (0,)}


def test_recurrent_and_drafting_layers_are_not_counted() -> None:
    keys = {archs.BLOCK_COUNT: 6}
    assert full("lfm2", {**keys, archs.HEAD_COUNT_KV: [0, 2, 0, 0, 2, 0]}).layers == (1, 4)
    assert full("qwen3next", {**keys, archs.ATTENTION_INTERVAL: 3}).layers == (2, 5)
    assert full("qwen3next", {**keys, archs.RECURRENT_LAYERS: [1, 0, 1, 1, 1, 1]}).layers == (1,)
    assert full("qwen3moe", {**keys, archs.NEXTN_LAYERS: 1}).layers == (0, 1, 2, 3, 4)


# --- what stops llama.cpp


@pytest.mark.parametrize("arch", ["minimax-m2", "minimax-01", "nemotron"])
def test_architectures_that_rotate_a_part_of_each_head(arch: str) -> None:
    """Their graphs have the assertion on whole heads commented out (minimax-m2.cpp:51 and the like)."""
    entry = full(arch, {archs.DIMENSION_COUNT: 32, archs.BLOCK_COUNT: 8})
    assert (entry.head_dim, entry.rotary_dim) == (64, 32)


@pytest.mark.parametrize("arch", ["minicpm", "hunyuan-dense", "llama-embed", "qwen3tts", "granitemoe"])
def test_architectures_with_the_graph_of_another_rotate_whole_heads(arch: str) -> None:
    with pytest.raises(Refuses, match="invalid n_rot: 32, expected 64"):
        decode(arch, {archs.DIMENSION_COUNT: 32})


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "unknown type": ("llama", {archs.SCALING_TYPE: "llama3"}, {}, "is 'llama3': llama.cpp aborts the whole process"),
    "dynamic": ("qwen2", {archs.SCALING_TYPE: "dynamic"}, {}, "unless it is one of none, linear, yarn, longrope"),
    "empty type": ("llama", {archs.SCALING_TYPE: ""}, {}, "is '': llama.cpp aborts"),
    "no context": ("llama", {archs.CONTEXT_LENGTH: None}, {}, r"key not found in model: llama\.context_length"),
    "no layers": ("llama", {archs.BLOCK_COUNT: 0}, {}, "block_count is 0; llama.cpp aborts unless it is 1 to 512"),
    "too many layers": ("llama", {archs.BLOCK_COUNT: 2**32 - 1}, {}, "4294967295; llama.cpp aborts"),
    "no heads": ("llama", {archs.HEAD_COUNT: 0}, {}, "there are no heads to rotate"),
    "head of any size": ("phi2", {archs.KEY_LENGTH: 2**31}, {}, "a head has 2147483648 channels"),
    "partial llama": ("llama", {archs.DIMENSION_COUNT: 32}, {}, "invalid n_rot: 32, expected 64"),
    "partial qwen3": ("qwen3", {archs.DIMENSION_COUNT: 32}, {}, "invalid n_rot: 32, expected 64"),
    "odd": ("phi2", {archs.DIMENSION_COUNT: 31}, {}, "dimension_count is 31; it must be an even number"),
    "wider than the head": ("phi2", {archs.DIMENSION_COUNT: 66}, {}, "66 rotary channels in a head of 64: ggml aborts"),
    "freqs on qwen2": ("qwen2", {}, {archs.ROPE_FREQS: FREQS}, "wrong number of tensors; expected 1, got 0"),
    "freqs with longrope": ("llama", LONGROPE, {archs.ROPE_FREQS: FREQS}, "does not create rope_freqs.weight for llama"),
    "lists without longrope": ("llama", YARN, LONG, "does not create rope_factors_long.weight for llama with .* yarn"),
    "freqs on phi3": ("phi3", {}, {archs.ROPE_FREQS: FREQS}, "does not create rope_freqs.weight for phi3"),
    "freqs on gpt2's like": ("qwen3", {}, LONG, "does not create rope_factors_long.weight for qwen3"),
    "short vector": ("llama", {}, {archs.ROPE_FREQS: FREQS[:31]}, r"has wrong shape; expected \[32\], got \[31\]"),
    "matrix": ("llama", {}, {archs.ROPE_FREQS: np.ones((32, 2))}, r"has wrong shape; expected \[32\], got \[32, 2\]"),
    "gemma4 without freqs": (
        "gemma4", {archs.SLIDING_WINDOW: 64, archs.SLIDING_WINDOW_PATTERN: [True, False]},
        {"token_embd.weight": np.ones(4)}, "tensor 'rope_freqs.weight' not found",
    ),
    "cohere2 without window": ("cohere2", {}, {}, r"key not found in model: cohere2\.attention\.sliding_window"),
    "mimo2 without a list": ("mimo2", {archs.SLIDING_WINDOW: 9}, {}, "array key not found in model: mimo2.attention"),
    "list of floats": (
        "gemma3", {archs.SLIDING_WINDOW: 9, archs.SLIDING_WINDOW_PATTERN: Value.array(ValueType.F32, [1.0])}, {},
        "sliding_window_pattern has wrong array element type f32",
    ),
    "endless list": (
        "gemma3", {archs.SLIDING_WINDOW: 9, archs.SLIDING_WINDOW_PATTERN: [1] * 513}, {}, "array length 513 .* max 512",
    ),
    "temperature without length": (
        "deepseek2", {archs.TEMPERATURE_SCALE: 0.1, archs.DIMENSION_COUNT: 32}, {}, "the length that it refers to is 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arch", "keys", "vectors", "says"), REFUSED.values(), ids=REFUSED)
def test_what_stops_llama_cpp_is_refused(arch: str, keys: dict[str, Any], vectors: dict[str, Any], says: str) -> None:
    with pytest.raises(Refuses, match=says):
        decode(arch, keys, vectors=vectors)


def test_a_narrow_frequency_vector_is_refused() -> None:
    with pytest.raises(Refuses, match=r"rope_freqs\.weight is F16: ggml aborts the whole process unless it is F32"):
        decode(vectors={archs.ROPE_FREQS: FREQS}, ggml_type=F16)


@pytest.mark.parametrize("suffix", [*archs.ALWAYS_LOADED, archs.SCALE_LINEAR])
def test_a_rope_key_of_another_type_is_refused_as_the_loader_says_it(suffix: str) -> None:
    wanted = archs.TYPES[suffix]
    for other in (Value.of(ValueType.F64, 1.0), Value.of(ValueType.U64, 1), Value.array(wanted, [])):
        with pytest.raises(Refuses) as caught:
            decode("qwen2", {suffix: other})
        assert str(caught.value) == (
            f"key qwen2.{suffix} has wrong type {other.type.label} but expected type {wanted.label}"
        )


def test_a_key_that_the_architecture_does_not_read_may_have_any_type() -> None:
    assert full("qwen2", {archs.YARN_BETA_FAST: Value.of(ValueType.STR, "many")}).rope_type == "default"
    with pytest.raises(Refuses, match="wrong type str but expected type f32"):
        decode("mistral3", {archs.YARN_BETA_FAST: Value.of(ValueType.STR, "many")})
    # the old factor is not looked at beside the new one
    decode("qwen2", {archs.FACTOR: 2.0, archs.SCALE_LINEAR: Value.of(ValueType.STR, "four")})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({archs.FACTOR: -4.0}, r"scaling\.factor: is -4\.0; it must be a number of at least 0"),
        ({archs.FACTOR: 1e-5}, r"scaling\.factor: is 1e-05; below e\^-10"),
        ({archs.FACTOR: math.inf}, r"scaling\.factor: is inf"),
        ({archs.FREQ_BASE: math.nan}, r"freq_base: is nan"),
        ({archs.FREQ_BASE: 1.0}, r"freq_base: is 1\.0; it must be a finite number above 1"),
        ({archs.FREQ_BASE: -5.0}, r"freq_base: is -5\.0; it must be a finite number above 1"),
        ({archs.FREQ_BASE: float("inf")}, r"freq_base: is inf; it must be a finite number above 1"),
        ({archs.ATTN_FACTOR: 0.0}, r"attn_factor: is 0, which removes the positions; it must not be 0"),
        ({archs.ATTN_FACTOR: -1.0}, r"attn_factor: is -1\.0"),
    ],
)
def test_numbers_from_which_no_rotation_follows(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRope, match=says):
        decode(keys=keys)


def test_divisors_that_are_none() -> None:
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(InvalidRope, match=r"rope_freqs\.weight: entry 5 is"):
            decode(vectors={archs.ROPE_FREQS: np.where(PAIRS == 5, bad, 1.0)})
    with pytest.raises(InvalidRope, match="beta_fast is 0"):
        decode("mistral3", {**YARN, archs.YARN_BETA_FAST: 0.0})


def test_architectures_that_are_not_known() -> None:
    with pytest.raises(Refuses, match="unknown model architecture: 'llama5'"):
        decode("llama5")
    with pytest.raises(
        Refuses, match=r"llama\.cpp runs it only as a draft model, .* ropetool does not decode eagle3 files"
    ):
        decode("eagle3")
    with pytest.raises(Refuses, match="unknown model architecture: ''"):
        decoding.decode(GgufCheckpoint({}, {}, lambda name: np.ones(1, np.float32)))
    with pytest.raises(Refuses, match=r"key general\.architecture has wrong type u32 but expected type str"):
        decoding.decode(GgufCheckpoint({archs.ARCHITECTURE: Value.of(ValueType.U32, 1)}, {}, lambda name: np.ones(1)))


def test_endless_words_are_cut_in_messages() -> None:
    for arch, keys in (("x" * 10**6, {}), ("llama", {archs.SCALING_TYPE: "x" * 10**6})):
        with pytest.raises(Refuses) as caught:
            decode(arch, keys)
        assert len(str(caught.value)) < 300


NUMBERS = {
    ValueType.F32: st.one_of(st.floats(width=32), st.sampled_from([0.0, 1.0, 4.0])),
    ValueType.U32: st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2, 64, 512])),
    ValueType.STR: st.sampled_from([*archs.SCALING_TYPES, "", "llama3"]),
    ValueType.BOOL: st.booleans(),
}
ANY_KEYS = st.fixed_dictionaries({}, optional={suffix: NUMBERS[type_] for suffix, type_ in archs.TYPES.items()})
ANY_VECTOR = st.lists(st.floats(width=32), min_size=1, max_size=33)
ANY_VECTORS = st.dictionaries(st.sampled_from(archs.VECTORS), st.one_of(ANY_VECTOR, st.just([2.0] * 32)), max_size=2)


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(archs.names()), ANY_KEYS, ANY_VECTORS)
def test_any_values_give_a_table_or_are_refused(arch: str, keys: dict[str, Any], vectors: dict[str, Any]) -> None:
    try:
        found = decode(arch, keys, vectors=vectors)
    except (Refuses, InvalidRope):
        return
    for entry in found.entries.values():
        assert entry.table is None or all(np.isfinite(r.inv_freq).all() for r in entry.table.regimes)


# --- the table of what is read


PERTURBED: dict[str, Any] = {
    archs.CONTEXT_LENGTH: 4096, archs.FREQ_BASE: 20000.0, archs.SCALING_TYPE: "linear", archs.FACTOR: 8.0,
    archs.SCALE_LINEAR: 8.0, archs.ATTN_FACTOR: 1.5, archs.ORIGINAL_CONTEXT_LENGTH: 1024, archs.DIMENSION_COUNT: 32,
    archs.KEY_LENGTH: 128, archs.KEY_LENGTH_SWA: 128, archs.DIMENSION_COUNT_SWA: 32, archs.FREQ_BASE_SWA: 30000.0,
    archs.SLIDING_WINDOW: 128, archs.SLIDING_WINDOW_PATTERN: [True, True, False, False], archs.FINETUNED: False,
    archs.ALPHA: 3.0, archs.YARN_LOG_MULTIPLIER: 0.05, archs.YARN_EXT_FACTOR: 0.5, archs.YARN_ATTN_FACTOR: 1.3,
    archs.YARN_BETA_FAST: 12.0, archs.YARN_BETA_SLOW: 2.0, archs.TEMPERATURE_SCALE: 0.2,
    archs.TEMPERATURE_LENGTH: 4096, archs.ROPE_PATTERN: [True, False, True, True],
    archs.DIMENSION_SECTIONS: [8, 8, 8, 8], archs.LEADING_DENSE: 3, archs.EXPERT_COUNT: 128,
    archs.COMPRESS_RATIOS: [4, 0, 4, 0, 4, 4, 0, 0], archs.COMPRESS_FREQ_BASE: 40000.0,
}  # fmt: skip
COMMON: dict[str, Any] = {
    **YARN, archs.BLOCK_COUNT: 8, archs.SLIDING_WINDOW: 64, archs.SLIDING_WINDOW_PATTERN: [True, False, True, False],
    archs.DIMENSION_COUNT: 64, archs.DIMENSION_COUNT_SWA: 64, archs.TEMPERATURE_SCALE: 0.1,
    archs.TEMPERATURE_LENGTH: 2048,
}  # fmt: skip
# Keys without which these do not load.
NEEDED: dict[str, dict[str, Any]] = {
    "cohere2moe": {archs.LEADING_DENSE: 1},
    "deepseek4": {archs.COMPRESS_RATIOS: [0, 4] * 4, archs.COMPRESS_FREQ_BASE: 50000.0},
    "dots3note": {archs.FREQ_BASE_SWA: 700.0},
}


def outcome(arch: str, keys: dict[str, Any]) -> RopeSet | str:
    try:
        return decode(arch, keys)
    except Refuses as refusal:
        return str(refusal)


def differs(a: RopeSet | str, b: RopeSet | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a != b
    heads = [[e.head_dim for e in found.entries.values() if e.table is not None] for found in (a, b)]
    return bool(a.disagreement(b)) or heads[0] != heads[1] or a.max_position_embeddings != b.max_position_embeddings


def has_effect(arch: str, suffix: str) -> bool:
    """Return whether a change of the key is seen in any of three files: yarn, without a ramp, and without a factor."""
    others = ({}, {archs.SCALING_TYPE: None}, {archs.FACTOR: None, archs.SCALING_TYPE: None})
    common = {
        **COMMON,
        **NEEDED.get(arch, {}),
        archs.BLOCK_COUNT: archs.get(arch).layer_count or COMMON[archs.BLOCK_COUNT],
    }
    return any(
        differs(outcome(arch, {**common, **other}), outcome(arch, {**common, **other, suffix: PERTURBED[suffix]}))
        for other in others
    )


# Read, but not seen in these files: exaone4 has sliding layers only with 64 layers; smallthinker's window is fixed; in
# muse-glimmer only sliding layers rotate, and no scaling reaches those; an MLA file states its rotary part; llama4's
# window is fixed too, and only with 128 experts no norm follows its rotation; deepseek2-ocr's score is scaled by the factor of either type.
WITHOUT_EFFECT: dict[str, set[str]] = {
    "exaone4": {archs.SLIDING_WINDOW, archs.SLIDING_WINDOW_PATTERN, archs.KEY_LENGTH_SWA},
    "smallthinker": {archs.SLIDING_WINDOW},
    "muse-glimmer": {archs.SCALING_TYPE, archs.FACTOR, archs.SCALE_LINEAR, archs.ORIGINAL_CONTEXT_LENGTH},
    "llama4": {archs.SLIDING_WINDOW, archs.ATTN_FACTOR},
    "deepseek2-ocr": {archs.SCALING_TYPE},
    **{arch: {archs.KEY_LENGTH, archs.KEY_LENGTH_SWA} for arch in archs.MLA | archs.DECOUPLED},
}


@pytest.mark.parametrize("arch", archs.names())
def test_what_is_read_is_what_has_an_effect(arch: str) -> None:
    effective = {suffix for suffix in PERTURBED if has_effect(arch, suffix)}
    read = set(archs.reads(arch))
    assert effective <= read
    assert read - effective <= WITHOUT_EFFECT.get(arch, set()) | {archs.DIMENSION_COUNT, archs.DIMENSION_COUNT_SWA}


def test_reads_knows_what_it_knows() -> None:
    assert archs.reads("qwen2") == archs.READ_BY_ALL
    assert archs.reads("mistral3") - archs.READ_BY_ALL == {
        archs.YARN_BETA_FAST, archs.YARN_BETA_SLOW, archs.YARN_LOG_MULTIPLIER, archs.TEMPERATURE_SCALE,
    }  # fmt: skip
    assert archs.reads("gpt2") == {archs.CONTEXT_LENGTH}
    assert [archs.get(a).loads("yarn") for a in ("llama", "qwen2", "qwen3")] == [(archs.ROPE_FREQS,), (), ()]
    assert archs.get("llama").loads("longrope") == (archs.ROPE_FACTORS_LONG, archs.ROPE_FACTORS_SHORT)
    with pytest.raises(Refuses, match="unknown model architecture"):
        archs.reads("llama5")


# --- views


def test_the_runtime_is_found_and_reads_gguf_alone() -> None:
    assert [runtime.name for runtime in runtimes.for_format("gguf")] == ["llama.cpp"]
    with pytest.raises(UnknownRuntime, match=r"llama\.cpp does not read hf files"):
        runtimes.get("llama.cpp", "hf")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    keys = {
        "context_length": 2048, "embedding_length": 128, "block_count": 1, "attention.head_count": 2,
        "rope.freq_base": 500000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 512,
    }  # fmt: skip
    tensors = {"token_embd.weight": np.zeros((4, 128), np.float32), "rope_freqs.weight": FREQS.astype(np.float32)}
    return write(tmp_path / "model.gguf", "llama", keys, tensors)


def test_a_file_is_decoded_through_its_headers(file: Path) -> None:
    found = GgufCheckpoint.of(read_shards(file))
    assert found.where == str(file)
    entry = decoding.decode(found).entries[FULL]
    assert (entry.rope_theta, entry.params["llama.rope.scaling.factor"]) == (500000.0, 4.0)
    keys = {**YARN, archs.FREQ_BASE: 500000.0}
    close(table(entry), table(full(keys=keys, vectors={archs.ROPE_FREQS: FREQS})))


def test_a_patch_is_seen_before_it_is_written(file: Path) -> None:
    ones = np.ones(32, np.float32)
    patch = Patch(
        {
            "llama.rope.scaling.type": Value.of(ValueType.STR, "none"),
            "llama.rope.freq_base": Value.of(ValueType.F32, 1e4),
        },
        frozenset({"llama.rope.scaling.factor"}),
        {archs.ROPE_FREQS: ones},
    )
    before = GgufCheckpoint.of(read_shards(file))
    entry = decoding.decode(before.after(patch)).entries[FULL]
    close(table(entry), BASE)
    assert decoding.decode(before).entries[FULL].rope_type == "table"
    added = before.after(Patch(tensors={archs.ROPE_FACTORS_LONG: ones}))
    with pytest.raises(Refuses, match="expected 3, got 2"):
        decoding.decode(added)
