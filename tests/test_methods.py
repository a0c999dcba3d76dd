"""Properties that every method must have, closed forms from the papers, and the exact refusals of bad parameters."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ropetool.errors import InvalidRope, RopetoolError, UnknownMethod, UnknownParameter
from ropetool.rope import arithmetic, methods
from ropetool.rope.formulas import dynamic_table, logn_factor, yarn_factor
from ropetool.rope.methods import Derived, Goal, Source
from ropetool.rope.tables import MAX_LENGTH, Array

RAMPS = ("ntk-by-parts", "yarn")
LLAMA2 = Source(arithmetic.base_inv_freq(1e4, 128), 4096, rope_theta=1e4)
TABLE = Source(arithmetic.base_inv_freq(5e5, 64) / np.linspace(1, 8, 32), 131072, attention_factor=1.25)

lengths = st.integers(64, 2**18)
factors = st.floats(1, 64)
rotary_dims = st.integers(2, 96).map(lambda pairs: 2 * pairs)
thetas = st.floats(2, 8).map(lambda exponent: 10**exponent)


@st.composite
def base_sources(draw: st.DrawFn) -> Source:
    theta = draw(thetas)
    return Source(arithmetic.base_inv_freq(theta, draw(rotary_dims)), draw(lengths), rope_theta=theta)


@st.composite
def table_sources(draw: st.DrawFn) -> Source:
    """Return a table that falls by uneven steps and ends, sometimes, in pairs that stand still."""
    steps = draw(st.lists(st.floats(0.01, 2), min_size=3, max_size=64))
    still = draw(st.integers(0, 3))
    inv_freq = np.concatenate([np.exp(-np.cumsum(steps)), np.zeros(still)])
    return Source(inv_freq, draw(lengths), attention_factor=draw(st.floats(0.5, 2)))


sources = st.one_of(base_sources(), table_sources())


def derive(name: str, source: Source, factor: float, attention_factor: str | float = "auto", **params: Any) -> Derived:
    method = methods.get(name)
    if name == "abf" and "rope_theta" not in params:
        params["rope_theta"] = source.rope_theta
    if name == "longrope" and "long_factor" not in params:
        params["long_factor"] = np.linspace(1, factor, source.inv_freq.size).tolist()
    return method.derive(source, Goal.make(source.length, factor, None, attention_factor), method.params(params))


def table_of(name: str, source: Source, factor: float, **params: Any) -> Array:
    return derive(name, source, factor, **params).table.at(2**30).inv_freq


# --- every method


@pytest.mark.parametrize("name", methods.names())
@settings(max_examples=40, deadline=None)
@given(source=sources, factor=factors, length=st.integers(1, MAX_LENGTH))
def test_table_is_finite_and_has_one_entry_a_pair(name: str, source: Source, factor: float, length: int) -> None:
    assume(name != "abf" or source.rope_theta is not None)
    regime = derive(name, source, factor).table.at(length)
    assert regime.inv_freq.shape == source.inv_freq.shape
    assert np.all(np.isfinite(regime.inv_freq))
    assert np.array_equal(regime.inv_freq > 0, source.inv_freq > 0)
    assert math.isfinite(regime.attention_factor)


@pytest.mark.parametrize("name", methods.names())
@settings(max_examples=40, deadline=None)
@given(source=sources)
def test_factor_1_is_the_identity(name: str, source: Source) -> None:
    assume(name != "abf" or source.rope_theta is not None)
    derived = derive(name, source, 1)
    # dynamic follows the length, not the factor: the identity holds up to the trained length
    regime = derived.table.at(source.length)
    np.testing.assert_allclose(regime.inv_freq, source.inv_freq, rtol=1e-14)
    assert regime.attention_factor == pytest.approx(source.attention_factor, rel=1e-14)
    assert derived.softmax_multiplier == 1
    assert derived.max_position_embeddings == source.length


@pytest.mark.parametrize("name", methods.names())
def test_no_method_turns_a_pair_faster_than_the_source(name: str) -> None:
    table = table_of(name, LLAMA2, 8)
    assert np.all(table <= LLAMA2.inv_freq)
    assert np.all(np.diff(table) < 0)


@pytest.mark.parametrize("name", methods.names())
def test_attention_factor_builds_on_the_source_unless_it_is_stated(name: str) -> None:
    source = LLAMA2 if name == "abf" else TABLE
    source = replace(source, attention_factor=1.25)
    params: dict[str, Any] = {"freeze": 2 * source.length} if name == "dynamic" else {}
    own = derive(name, replace(source, attention_factor=1.0), 4, **params).table.at(1).attention_factor
    assert derive(name, source, 4, **params).table.at(1).attention_factor == pytest.approx(1.25 * own, rel=1e-15)
    stated = {"none": 1.0, "yarn": 0.1 * math.log(4) + 1, "logn": math.log(4 * source.length, source.length) ** 0.5}
    for preset, wanted in {**stated, 0.8: 0.8}.items():
        found = derive(name, source, 4, preset, **params).table.at(1).attention_factor
        assert found == pytest.approx(wanted, rel=1e-14)


@pytest.mark.parametrize("name", methods.names())
def test_softmax_multiplier_of_the_source_is_kept(name: str) -> None:
    assert derive(name, replace(LLAMA2, softmax_multiplier=1.3), 4).softmax_multiplier == 1.3


@pytest.mark.parametrize("name", methods.names())
def test_defaults_need_no_parameter_and_every_parameter_has_help(name: str) -> None:
    method = methods.get(name)
    method.params({})
    assert all(field.metadata["help"] for field in dataclasses.fields(method.params_type))
    assert all(methods.get(alias) is method for alias in method.aliases)


NATIVE_CASES = [
    ("linear", {}),
    ("ntk", {}),
    ("abf", {"rope_theta": 57200.0}),
    ("ntk-by-parts", {"beta_fast": 16.0}),
    ("yarn", {}),
    ("yarn", {"beta_fast": 8.0, "beta_slow": 2.0, "truncate": False}),
    ("dynamic", {}),
    ("dynamic", {"freeze": 9000}),
    ("llama3", {"high_freq_factor": 8.0}),
    ("longrope", {}),
    ("longrope", {"long_factor": [2.0] * 64, "short_factor": [1.5] * 64}),
]


def transformers_table(source: Source, native: Mapping[str, Any], positions: int, length: int) -> tuple[Array, float]:
    """Return what transformers' own rope function makes of native keys at a length."""
    transformers = pytest.importorskip("transformers")
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    keys = {"rope_theta": source.rope_theta, **native}
    if keys["rope_type"] == "default":  # not among the functions; the same table as linear by 1
        keys |= {"rope_type": "linear", "factor": 1.0}
    config = transformers.LlamaConfig(
        head_dim=source.rotary_dim,
        hidden_size=2 * source.rotary_dim,
        num_attention_heads=2,
        max_position_embeddings=positions,
        rope_parameters=keys,
    )
    inv_freq, attention_factor = functions[keys["rope_type"]](config, "cpu", length)
    return inv_freq.numpy(), attention_factor


@pytest.mark.parametrize(("name", "params"), NATIVE_CASES)
@pytest.mark.parametrize("length", [4096, 16384])
def test_native_keys_say_the_table(name: str, params: dict[str, Any], length: int) -> None:
    derived = derive(name, LLAMA2, 4, **params)
    assert derived.native
    for native in derived.native:
        found, attention_factor = transformers_table(LLAMA2, native, derived.max_position_embeddings, length)
        regime = derived.table.at(length)
        np.testing.assert_allclose(found, regime.inv_freq, rtol=3e-6)
        assert attention_factor == pytest.approx(regime.attention_factor, rel=1e-12)


@pytest.mark.parametrize("name", [name for name in methods.names() if name != "abf"])
def test_a_table_has_no_native_keys(name: str) -> None:
    # its keys would be applied to a base table, which the source is not
    assert derive(name, TABLE, 4).native == ()


# --- closed forms


@settings(max_examples=60, deadline=None)
@given(source=sources, factor=factors)
def test_linear_divides_every_pair(source: Source, factor: float) -> None:
    np.testing.assert_allclose(table_of("linear", source, factor), source.inv_freq / factor, rtol=1e-14)


@settings(max_examples=60, deadline=None)
@given(source=sources, factor=factors)
def test_ntk_keeps_the_fastest_pair_and_divides_the_slowest(source: Source, factor: float) -> None:
    table = table_of("ntk", source, factor)
    assert table[0] == source.inv_freq[0]
    assert table[-1] == pytest.approx(source.inv_freq[-1] / factor, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(source=base_sources(), factor=factors)
def test_ntk_is_a_base_change(source: Source, factor: float) -> None:
    (native,) = derive("ntk", source, factor).native
    table = arithmetic.base_inv_freq(native["rope_theta"], source.rotary_dim)
    np.testing.assert_allclose(table_of("ntk", source, factor), table, rtol=1e-11)


@settings(max_examples=60, deadline=None)
@given(source=base_sources(), rope_theta=thetas)
def test_abf_is_the_table_of_the_stated_base(source: Source, rope_theta: float) -> None:
    table = table_of("abf", source, 4, rope_theta=rope_theta)
    np.testing.assert_allclose(table, arithmetic.base_inv_freq(rope_theta, source.rotary_dim), rtol=1e-11)


def test_abf_may_lower_the_base() -> None:
    assert np.all(table_of("abf", LLAMA2, 4, rope_theta=500.0)[1:] > LLAMA2.inv_freq[1:])


@pytest.mark.parametrize("name", RAMPS)
@pytest.mark.parametrize("ramp", ["dims", "turns"])
@settings(max_examples=60, deadline=None)
@given(source=sources, factor=factors, slow=st.floats(0.5, 4), spread=st.floats(1, 32), truncate=st.booleans())
def test_by_parts_lies_between_kept_and_divided(
    name: str, ramp: str, source: Source, factor: float, slow: float, spread: float, truncate: bool
) -> None:
    table = table_of(name, source, factor, ramp=ramp, beta_slow=slow, beta_fast=slow * spread, truncate=truncate)
    room = 1 + 1e-14
    assert np.all(table <= source.inv_freq * room)
    assert np.all(table * room >= source.inv_freq / factor)


@pytest.mark.parametrize("name", RAMPS)
@pytest.mark.parametrize("ramp", ["dims", "turns"])
@settings(max_examples=60, deadline=None)
@given(source=base_sources(), factor=factors)
def test_by_parts_keeps_fast_pairs_divides_slow_ones_and_keeps_their_order(
    name: str, ramp: str, source: Source, factor: float
) -> None:
    counted = arithmetic.turns(source.inv_freq, source.length)
    assume(ramp == "turns" or arithmetic.index_at_turns(source.inv_freq, source.length, 32) < source.rotary_dim - 1)
    table = table_of(name, source, factor, ramp=ramp, truncate=False)
    np.testing.assert_allclose(table[counted >= 32], source.inv_freq[counted >= 32], rtol=1e-14)
    np.testing.assert_allclose(table[counted <= 1], source.inv_freq[counted <= 1] / factor, rtol=1e-12)
    assert np.all(np.diff(table) < 0)


@settings(max_examples=60, deadline=None)
@given(source=base_sources(), factors=st.tuples(factors, factors).map(sorted))
def test_bands_only_move_outwards_with_the_factor(source: Source, factors: list[float]) -> None:
    for name in ("linear", "ntk", "yarn", "llama3", "mixed-ntk"):
        (near, middle, far), (near_more, middle_more, far_more) = (
            arithmetic.bands(table_of(name, source, factor), source.length) for factor in factors
        )
        assert near >= near_more
        assert far <= far_more
        assert near + middle + far == near_more + middle_more + far_more == source.inv_freq.size


@settings(max_examples=60, deadline=None)
@given(source=sources, factor=factors)
def test_llama3_is_the_turns_ramp_from_1_to_4(source: Source, factor: float) -> None:
    ramp = table_of("ntk-by-parts", source, factor, ramp="turns", beta_fast=4.0, beta_slow=1.0)
    np.testing.assert_allclose(table_of("llama3", source, factor), ramp, rtol=1e-14)


@settings(max_examples=60, deadline=None)
@given(source=sources, factor=factors, exponent=st.floats(0.1, 10))
def test_mixed_ntk_gives_the_slowest_pair_all_of_the_factor(source: Source, factor: float, exponent: float) -> None:
    table = table_of("mixed-ntk", source, factor, exponent=exponent)
    assert table[-1] == pytest.approx(source.inv_freq[-1] / factor, rel=1e-14)
    moving = source.inv_freq > 0
    assert np.all(np.diff(table[moving] / source.inv_freq[moving]) <= 1e-15)


def test_mixed_ntk_survives_an_exponent_that_overflows() -> None:
    table = table_of("mixed-ntk", LLAMA2, 8, exponent=1e4)
    assert np.array_equal(table[:-1], LLAMA2.inv_freq[:-1])
    assert table[-1] == LLAMA2.inv_freq[-1] / 8


@settings(max_examples=60, deadline=None)
@given(source=sources, factor=factors, stretch=st.integers(1, 64))
def test_dynamic_is_ntk_of_the_current_length(source: Source, factor: float, stretch: int) -> None:
    found = derive("dynamic", source, factor).table.at(source.length * stretch).inv_freq
    np.testing.assert_allclose(found, table_of("ntk", source, stretch), rtol=1e-12)
    frozen = derive("dynamic", source, factor, freeze=source.length * stretch)
    assert frozen.table.is_fixed
    np.testing.assert_array_equal(frozen.table.at(1).inv_freq, found)
    assert frozen.max_position_embeddings == source.length * stretch


def test_transformers_divides_the_slowest_pair_by_57_where_dynamic_divides_by_8() -> None:
    tables = derive("dynamic", LLAMA2, 8).table, dynamic_table(LLAMA2.inv_freq, 4096, 8.0)
    ours, theirs = (LLAMA2.inv_freq[-1] / table.at(8 * 4096).inv_freq[-1] for table in tables)
    assert (ours, theirs) == (pytest.approx(8), pytest.approx(57))


def test_dynamic_keeps_the_trained_length_and_says_so() -> None:
    derived = derive("dynamic", LLAMA2, 8)
    assert derived.max_position_embeddings == 4096
    assert "max_position_embeddings stays 4096" in derived.notes[0]
    assert not derived.table.is_fixed


def test_longrope_changes_lists_at_the_trained_length() -> None:
    table = derive("longrope", LLAMA2, 4, long_factor=[4.0] * 64, short_factor=[1.5] * 64).table
    np.testing.assert_array_equal(table.at(4096).inv_freq, LLAMA2.inv_freq / 1.5)
    np.testing.assert_array_equal(table.at(4097).inv_freq, LLAMA2.inv_freq / 4)
    assert table.at(4096).attention_factor == table.at(4097).attention_factor


def test_longrope_with_equal_lists_is_fixed() -> None:
    assert derive("longrope", LLAMA2, 4, long_factor=[4.0] * 64, short_factor=[4.0] * 64).table.is_fixed
    assert derive("longrope", LLAMA2, 4, long_factor=[4.0] * 64).table.is_fixed


def test_attention_leaves_the_frequencies_and_says_what_it_is_not() -> None:
    derived = derive("attention", LLAMA2, 8)
    np.testing.assert_array_equal(derived.table.at(1).inv_freq, LLAMA2.inv_freq)
    assert "does not extend" in derived.notes[0]


@pytest.mark.parametrize(
    ("factor", "published"),
    [(2, 1.0693), (4, 1.1386), (8, 1.2079), (16, 1.2773), (32, 1.3466), (40, 1.3689), (64, 1.4159), (128, 1.4852)],
)
def test_yarn_factor_as_published(factor: float, published: float) -> None:
    assert yarn_factor(factor) == pytest.approx(published, abs=5e-5)


def test_logn_factor_of_phi3() -> None:
    assert logn_factor(32, 4096) == pytest.approx(1.1902, abs=5e-5)
    assert logn_factor(1, 4096) == 1


# DeepSeek-V3 (s 40, mscale 1), DeepSeek-V2-Lite (s 40, mscale .707), and mscale 1 at s 4
@pytest.mark.parametrize(("mscale", "factor", "published"), [(1, 40, 1.8739), (0.707, 40, 1.5896), (1, 4, 1.2965)])
def test_yarn_on_mla_scales_the_whole_score(mscale: float, factor: float, published: float) -> None:
    derived = derive("yarn", replace(LLAMA2, mscale=mscale), factor)
    assert derived.softmax_multiplier == pytest.approx(published, abs=6e-5)
    assert derived.table.at(1).attention_factor == 1
    assert derived.native[0]["mscale"] == derived.native[0]["mscale_all_dim"] == mscale


def test_yarn_on_mla_obeys_a_stated_attention_factor() -> None:
    derived = derive("yarn", replace(LLAMA2, mscale=1.0), 4, 1.1)
    assert (derived.softmax_multiplier, derived.table.at(1).attention_factor) == (1, 1.1)
    assert derived.native[0]["attention_factor"] == 1.1
    assert "mscale" not in derived.native[0]


def test_ntk_says_how_far_it_reaches() -> None:
    # pair 46 is the first of Llama-2 with under one turn in 4096: 4096 * 8^(92/126) by mpmath
    (note,) = derive("ntk", LLAMA2, 8).notes
    assert note.startswith("ntk reaches about 18696 tokens, not 32768: beyond that, pair 46 rotates further than")
    assert derive("ntk", LLAMA2, 1).notes == ()


def test_other_stretches_say_how_far_they_reach() -> None:
    # pair 46 again: 4096 * 8^((47/64)^0.625); frozen, ntk's own stretch
    (mixed,) = derive("mixed-ntk", LLAMA2, 8).notes
    assert mixed.startswith(f"mixed-ntk reaches about {int(4096 * 8 ** ((47 / 64) ** 0.625))} tokens, not 32768: ")
    (frozen,) = derive("dynamic", LLAMA2, 8, freeze=32768).notes
    assert frozen.startswith("dynamic frozen at 32768 reaches about 18696 tokens, not 32768: beyond that, pair 46 ")
    assert derive("mixed-ntk", LLAMA2, 1).notes == derive("dynamic", LLAMA2, 8, freeze=4096).notes == ()
    assert not derive("yarn", LLAMA2, 8).notes


def test_beta_fast_equal_to_beta_slow_is_a_step() -> None:
    # Kimi-K2: theta 5e4, 64 channels, 4096 tokens, beta 1/1; one turn at index 19.17, so pair 19 is kept
    kimi = Source(arithmetic.base_inv_freq(5e4, 64), 4096, rope_theta=5e4)
    for ramp in ("dims", "turns"):
        for truncate in (True, False):
            table = table_of("yarn", kimi, 32, ramp=ramp, truncate=truncate, beta_fast=1.0, beta_slow=1.0)
            np.testing.assert_allclose(table[:20], kimi.inv_freq[:20], rtol=1e-15)
            np.testing.assert_allclose(table[20:], kimi.inv_freq[20:] / 32, rtol=1e-15)


def test_ramp_beyond_the_last_channel_is_upside_down_as_in_transformers() -> None:
    # c(32) = 119 of 64 channels: the upper end is clipped below the lower one, and every pair is divided
    source = Source(arithmetic.base_inv_freq(10.0, 64), 2**20, rope_theta=10.0)
    derived = derive("yarn", source, 4)
    table = derived.table.at(1).inv_freq
    np.testing.assert_allclose(transformers_table(source, derived.native[0], 2**22, 1)[0], table, rtol=3e-6)
    np.testing.assert_allclose(table, source.inv_freq / 4, rtol=1e-14)


def test_ramp_of_no_width_does_not_divide_by_zero() -> None:
    # 6 tokens: c(1) = -0.16 is rounded up to 0, where c(32) is clipped to
    short = Source(arithmetic.base_inv_freq(1e4, 64), 6, rope_theta=1e4)
    table = table_of("yarn", short, 4)
    assert table[0] == 1
    np.testing.assert_allclose(table[1:], short.inv_freq[1:] / 4, rtol=1e-14)


@pytest.mark.parametrize("name", [name for name in methods.names() if name not in ("ntk", "dynamic")])
def test_a_single_pair_is_enough(name: str) -> None:
    source = Source(arithmetic.base_inv_freq(1e4, 2), 4096, rope_theta=1e4)
    assert table_of(name, source, 4).shape == (1,)


# --- goals


def test_goal_from_a_factor_or_a_target() -> None:
    assert Goal.make(4096, 8, None) == Goal(8.0, 32768)
    assert Goal.make(4096, None, 10000) == Goal(10000 / 4096, 10000)
    assert Goal.make(4096, 1.5, None).target_length == 6144
    assert Goal.make(100, 1.15, None).target_length == 115  # 114.99999999999999 in float64
    assert Goal.make(4096, None, 4096).factor == 1
    assert Goal.make(2**20, 2048, None).target_length == MAX_LENGTH


GOALS: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of --factor and --target-length"),
    ({"factor": 4, "target_length": 8192}, "exactly one of --factor and --target-length"),
    ({"factor": 0.5}, "0.5 is not a factor; a factor is a finite number of at least 1"),
    ({"factor": 0}, "0 is not a factor"),
    ({"factor": -4}, "-4 is not a factor"),
    ({"factor": math.nan}, "nan is not a factor"),
    ({"factor": math.inf}, "inf is not a factor"),
    ({"factor": 10**400}, "is not a factor"),
    ({"factor": True}, "True is not a factor"),
    ({"factor": "4"}, "4 is not a factor"),
    ({"factor": 1e9}, "1e+09 times 4096 tokens is above 2147483648"),
    ({"target_length": 4095}, "4095 is below the 4096 tokens of the trained length"),
    ({"target_length": 0}, "0 is below the 4096 tokens"),
    ({"target_length": 2**31 + 1}, "2147483649 tokens is above 2147483648"),
    ({"target_length": math.nan}, "nan must be a whole number of tokens"),
    ({"target_length": 8192.5}, "8192.5 must be a whole number of tokens"),
    ({"factor": 4, "attention_factor": -1.0}, "-1.0 multiplies cos and sin and must be a finite number above 0"),
    ({"factor": 4, "attention_factor": 0.0}, "0.0 multiplies cos and sin"),
    ({"factor": 4, "attention_factor": math.nan}, "nan multiplies cos and sin"),
    ({"factor": 4, "attention_factor": math.inf}, "inf multiplies cos and sin"),
    ({"factor": 4, "attention_factor": True}, "True multiplies cos and sin"),
]


@pytest.mark.parametrize(("goal", "text"), GOALS)
def test_goal_refuses(goal: dict[str, Any], text: str) -> None:
    values = {"factor": None, "target_length": None, **goal}
    refuses(InvalidRope, text, lambda: Goal.make(4096, **values))


@pytest.mark.parametrize("length", [1, 0, -4096, 2**31 + 1])
def test_source_refuses_a_length(length: int) -> None:
    refuses(InvalidRope, f"the trained length is {length} tokens", lambda: Source(LLAMA2.inv_freq, length))


# --- bad parameters


def refuses(error: type[RopetoolError], text: str, call: Any, where: str = "") -> None:
    with pytest.raises(RopetoolError) as caught:
        call()
    assert type(caught.value) is error
    assert text in caught.value.message
    assert where in caught.value.where


BAD_VALUES: list[tuple[str, dict[str, Any], str, str]] = [
    ("yarn", {"beta_fast": 1.0, "beta_slow": 32.0}, "beta_fast 1 is below beta_slow 32", "--beta-fast"),
    ("ntk-by-parts", {"beta_fast": 0.5}, "beta_fast 0.5 is below beta_slow 1", "--beta-fast"),
    ("yarn", {"beta_fast": -1.0}, "beta_fast is -1.0; it counts turns", "--beta-fast"),
    ("yarn", {"beta_slow": 0.0}, "beta_slow is 0.0; it counts turns", "--beta-slow"),
    ("yarn", {"beta_slow": 1e-320}, "must be from 1e-06 to 1e+09", "--beta-slow"),
    ("yarn", {"beta_fast": 1e10}, "must be from 1e-06 to 1e+09", "--beta-fast"),
    ("yarn", {"beta_slow": math.nan}, "beta_slow is nan", "--beta-slow"),
    ("yarn", {"beta_fast": math.inf}, "beta_fast is inf", "--beta-fast"),
    ("yarn", {"ramp": "cosine"}, "'cosine' is not a ramp; pass dims or turns", "-p ramp"),
    ("llama3", {"low_freq_factor": 4.0, "high_freq_factor": 1.0}, "the low one smaller", "-p low_freq_factor"),
    ("llama3", {"low_freq_factor": 4.0}, "low_freq_factor 4 and high_freq_factor 4", "-p low_freq_factor"),
    ("llama3", {"low_freq_factor": 0.0}, "must be above 0", "-p low_freq_factor"),
    ("llama3", {"high_freq_factor": math.nan}, "high_freq_factor nan", "-p low_freq_factor"),
    ("mixed-ntk", {"exponent": 0.0}, "0.0 is not an exponent", "-p exponent"),
    ("mixed-ntk", {"exponent": math.inf}, "inf is not an exponent", "-p exponent"),
    ("dynamic", {"freeze": 4095}, "4095 must be from the trained length, 4096,", "-p freeze"),
    ("dynamic", {"freeze": 2**31 + 1}, "to 2147483648 tokens", "-p freeze"),
    ("abf", {"rope_theta": None}, "abf needs the new base", "--rope-theta"),
    ("abf", {"rope_theta": 1.0}, "1 is not a base; a base is a finite number above 1", "--rope-theta"),
    ("abf", {"rope_theta": -1e6}, "-1e+06 is not a base", "--rope-theta"),
    ("abf", {"rope_theta": math.nan}, "nan is not a base", "--rope-theta"),
    ("longrope", {"long_factor": []}, "longrope needs a list of divisors", "-p long_factor"),
    ("longrope", {"long_factor": [1.0] * 63}, "long_factor has 63 entries; the model has 64", "-p long_factor"),
    ("longrope", {"long_factor": [1.0] * 63 + [0.0]}, "long_factor[63] is 0.0", "-p long_factor"),
    ("longrope", {"long_factor": [1.0, -2.0] * 32}, "long_factor[1] is -2.0", "-p long_factor"),
    ("longrope", {"long_factor": [math.nan] * 64}, "long_factor[0] is nan", "-p long_factor"),
    ("longrope", {"long_factor": [1.0] * 64, "short_factor": []}, "short_factor has 0 entries", "-p short_factor"),
    ("longrope", {"long_factor": [1.0] * 64, "short_factor": [math.inf] * 64}, "short_factor[0] is inf", "-p short"),
]


@pytest.mark.parametrize(("name", "params", "text", "where"), BAD_VALUES)
def test_method_refuses_a_value(name: str, params: dict[str, Any], text: str, where: str) -> None:
    method = methods.get(name)
    values = method.params_type(**{k: tuple(v) if isinstance(v, list) else v for k, v in params.items()})
    refuses(InvalidRope, text, lambda: method.derive(LLAMA2, Goal.make(4096, 4, None), values), where)


BAD_KINDS: list[tuple[str, dict[str, Any], str]] = [
    (
        "yarn",
        {"beta": "4"},
        "yarn has no parameter beta (did you mean beta_slow or beta_fast?); it has: beta_fast, beta_slow, truncate, ramp",
    ),
    ("linear", {"factor": "4"}, "linear has no parameter factor; it has: none"),
    ("yarn", {"truncate": "maybe"}, "'maybe' is not true or false"),
    ("yarn", {"beta_fast": "many"}, "'many' is not a number"),
    ("yarn", {"beta_fast": None}, "None is not a number"),
    ("yarn", {"beta_fast": 10**400}, "is not a number"),
    ("dynamic", {"freeze": "1.5"}, "'1.5' is not a whole number"),
    ("dynamic", {"freeze": 1.5}, "1.5 is not a whole number"),
    ("dynamic", {"freeze": math.inf}, "inf is not a whole number"),
    ("dynamic", {"freeze": math.nan}, "nan is not a whole number"),
    ("longrope", {"long_factor": 3}, "3 is not a list of numbers"),
    ("longrope", {"long_factor": "12"}, "'12' is not a list of numbers"),
    ("longrope", {"long_factor": [[1.0], [2.0]]}, "[[1.0], [2.0]] is not a list of numbers"),
    ("longrope", {"short_factor": ["one"]}, "['one'] is not a list of numbers"),
]


@pytest.mark.parametrize(("name", "values", "text"), BAD_KINDS)
def test_params_refuse_a_kind(name: str, values: dict[str, Any], text: str) -> None:
    refuses(UnknownParameter, text, lambda: methods.get(name).params(values), "-p")


def test_params_read_text_and_typed_values_alike() -> None:
    text = {"beta_fast": "16", "truncate": "False", "ramp": "turns"}
    assert methods.get("yarn").params(text) == methods.get("yarn").params(
        {"beta_fast": 16, "truncate": False, "ramp": "turns"}
    )
    assert methods.get("dynamic").params({"freeze": "8192"}) == methods.get("dynamic").params({"freeze": 8192.0})
    assert methods.get("longrope").params({"long_factor": [1, "2"]}).long_factor == (1.0, 2.0)


@pytest.mark.parametrize("preset", ["", "Yarn", "1.1.1", "-1"])
def test_unknown_preset_is_refused(preset: str) -> None:
    text = f"{preset!r} must be a number or one of auto, none, yarn, logn"
    refuses(InvalidRope, text, lambda: derive("linear", LLAMA2, 4, preset), "--attention-factor")


def test_unknown_method_lists_the_known_ones() -> None:
    known = "abf, attention, dynamic, length, linear, llama3, longrope, mixed-ntk, ntk, ntk-by-parts, yarn"
    refuses(
        UnknownMethod,
        f"no method is called 'yarm' (did you mean yarn?); known: {known}",
        lambda: methods.get("yarm"),
        "--method",
    )


def test_abf_on_a_table_replaces_the_base_that_the_file_states() -> None:
    """f (theta' / theta) ** (-2i / d) on any table, so a table that is itself a base table moves to the new base."""
    table = arithmetic.base_inv_freq(10000.0, 64) / 4
    source = Source(table, 4096, stated_theta=10000.0)
    method = methods.get("abf")
    derived = method.derive(source, Goal.make(4096, 4.0, None), method.params({"rope_theta": 1e6}))
    np.testing.assert_allclose(derived.table.at(1).inv_freq, arithmetic.base_inv_freq(1e6, 64) / 4, rtol=1e-12)
    assert derived.native == ()


def test_abf_refuses_a_source_without_a_base() -> None:
    method = methods.get("abf")
    with pytest.raises(InvalidRope, match="does not set rope_theta"):
        method.derive(
            Source(arithmetic.base_inv_freq(10000.0, 64), 4096),
            Goal.make(4096, 4.0, None),
            method.params({"rope_theta": 1e6}),
        )


@pytest.mark.parametrize("name", ["ntk", "dynamic"])
def test_a_base_change_refuses_a_single_pair(name: str) -> None:
    source = Source(arithmetic.base_inv_freq(1e4, 2), 4096, rope_theta=1e4)
    refuses(InvalidRope, "rotary_dim is 2; a change of base needs at least two pairs", lambda: derive(name, source, 4))


@pytest.mark.parametrize("inv_freq", [[1.0, 0.0, 0.0], [0.5]])
def test_dims_ramp_refuses_a_table_with_one_moving_pair(inv_freq: list[float]) -> None:
    refuses(InvalidRope, "at least two pairs that rotate", lambda: derive("yarn", Source(np.array(inv_freq), 4096), 4))
