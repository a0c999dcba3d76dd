"""Rotary arithmetic against mpmath, complex numbers and transformers' own rotations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from ropetool.errors import InvalidRope
from ropetool.rope import arithmetic

LLAMA2 = arithmetic.base_inv_freq(1e4, 128)
LENGTH = 4096
rng = np.random.default_rng(2104)


@pytest.mark.parametrize(("rope_theta", "rotary_dim"), [(1e4, 128), (5e5, 64), (1e6, 80), (150000.0, 20), (1e8, 2)])
def test_base_table_by_mpmath(rope_theta: float, rotary_dim: int) -> None:
    with mp.workdps(50):
        wanted = [float(mpf(rope_theta) ** (-mpf(2 * i) / rotary_dim)) for i in range(rotary_dim // 2)]
    np.testing.assert_allclose(arithmetic.base_inv_freq(rope_theta, rotary_dim), wanted, rtol=1e-14)


@pytest.mark.parametrize("rotary_dim", [-2, 0, 1, 63])
def test_rotary_dim_is_even(rotary_dim: int) -> None:
    with pytest.raises(InvalidRope, match=f"rotary_dim is {rotary_dim}; it must be even"):
        arithmetic.base_inv_freq(1e4, rotary_dim)


@pytest.mark.parametrize("rope_theta", [0, -1e4, 1, 0.5, math.nan, math.inf, "10000", None, True, 10**400])
def test_rope_theta_is_a_number_above_1(rope_theta: Any) -> None:
    with pytest.raises(InvalidRope, match="must be a finite number above 1"):
        arithmetic.base_inv_freq(rope_theta, 64)


def test_wavelengths_and_turns_of_llama_2() -> None:
    # by mpmath: 2 pi 10000^(2i/128) tokens a turn, 4096 / that turns
    wavelengths, turns = arithmetic.wavelengths(LLAMA2), arithmetic.turns(LLAMA2, LENGTH)
    assert wavelengths[[0, 32, 63]] == pytest.approx([6.28318530717959, 628.318530717959, 54410.1431307767], rel=1e-13)
    assert turns[[0, 20, 45, 46, 63]] == pytest.approx(
        [651.898646904403, 36.6589548990018, 1.00387601867038, 0.869320817245293, 0.0752800813288639], rel=1e-13
    )
    assert arithmetic.bands(LLAMA2, LENGTH) == (21, 25, 18)


def test_bands_of_known_models() -> None:
    # counted by mpmath
    assert arithmetic.bands(arithmetic.base_inv_freq(1e4, 64), 256) == (1, 12, 19)
    assert arithmetic.bands(arithmetic.base_inv_freq(5e5, 128), 8192) == (19, 16, 29)
    assert arithmetic.bands(arithmetic.base_inv_freq(1e6, 128), 32768) == (24, 16, 24)


def test_band_limits_belong_to_the_middle() -> None:
    assert arithmetic.bands(2 * math.pi * np.array([64.0, 32.0, 1.0, 0.5]) / 2**16, 2**16) == (1, 2, 1)


def test_pair_that_never_turns() -> None:
    table = np.array([1.0, 0.0])
    assert arithmetic.wavelengths(table).tolist() == [2 * math.pi, math.inf]
    assert arithmetic.turns(table, 100).tolist() == [50 / math.pi, 0.0]
    assert arithmetic.bands(table, 1000) == (1, 0, 1)


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_wavelengths_refuse(bad: float) -> None:
    with pytest.raises(InvalidRope, match="negative or NaN"):
        arithmetic.wavelengths(np.array([1.0, bad]))


# --- the index at a number of turns


@settings(max_examples=200, deadline=None)
@given(
    exponent=st.floats(1, 9),
    pairs=st.integers(2, 128),
    length=st.integers(16, 2**20),
    count=st.floats(0.1, 128),
)
def test_index_at_turns_on_a_geometric_table(exponent: float, pairs: int, length: int, count: float) -> None:
    theta = 10**exponent
    closed_form = 2 * pairs * math.log(length / (2 * math.pi * count)) / (2 * math.log(theta))
    found = arithmetic.index_at_turns(arithmetic.base_inv_freq(theta, 2 * pairs), length, count)
    assert found == pytest.approx(closed_form, rel=1e-9, abs=1e-9)


def turns_of(inv_freq: float) -> float:
    """Return how often a pair of this frequency turns in 1000 tokens."""
    return inv_freq * 1000 / (2 * math.pi)


@pytest.mark.parametrize(
    ("table", "inv_freq", "index"),
    [
        ([1, 0.25, 0.01], 1, 0),
        ([1, 0.25, 0.01], 0.5, 0.5),
        ([1, 0.25, 0.01], 0.05, 1.5),
        ([1, 0.25, 0.01], 0.01, 2),
        ([1, 0.25, 0.01], 4, -1),  # beyond the front: the slope of the first interval, ln 4 a pair
        ([1, 0.25, 0.01], 0.0004, 3),  # beyond the end: the slope of the last, ln 25 a pair
        ([1, 0, 0.25, 0.01], 0.5, 1),  # a pair that stands still is skipped, its index is not
        ([1, 0.25, 0, 0], 1 / 64, 3),  # beyond the last pair that moves
        ([1, 0.1, 0.2, 0.05], 0.1, 2.5),  # not falling everywhere: the last pair that is as fast counts
        ([1, 0.5, 0.5, 0.125], 0.25, 2.5),
    ],
)
def test_index_at_turns_on_made_up_tables(table: list[float], inv_freq: float, index: float) -> None:
    found = arithmetic.index_at_turns(np.array(table), 1000, turns_of(inv_freq))
    assert found == pytest.approx(index, abs=1e-9)


@pytest.mark.parametrize(
    ("table", "inv_freq", "text"),
    [
        ([1.0], 0.5, "at least two pairs that rotate"),
        ([1.0, 0.0, 0.0], 0.5, "at least two pairs that rotate"),
        ([0.5, 0.5, 0.1], 1.0, "pair 1 does not rotate more slowly than pair 0"),
        ([1.0, 0.1, 0.1], 0.01, "pair 2 does not rotate more slowly than pair 1"),
        ([1.0, 0.1, 0.2], 0.01, "pair 2 does not rotate more slowly than pair 1"),
    ],
)
def test_index_at_turns_refuses(table: list[float], inv_freq: float, text: str) -> None:
    with pytest.raises(InvalidRope, match=text):
        arithmetic.index_at_turns(np.array(table), 1000, turns_of(inv_freq))


# --- layouts


@pytest.mark.parametrize("rotary_dim", [2, 4, 20, 128])
def test_layouts_are_inverse_permutations(rotary_dim: int) -> None:
    there, back = arithmetic.half_to_interleaved(rotary_dim), arithmetic.interleaved_to_half(rotary_dim)
    identity = list(range(rotary_dim))
    assert sorted(there) == identity
    assert there[back].tolist() == back[there].tolist() == identity


def test_half_to_interleaved_brings_the_halves_of_a_pair_together() -> None:
    assert arithmetic.half_to_interleaved(8).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert arithmetic.interleaved_to_half(8).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


# --- the rotation


def complex_rotation(x: Any, positions: Any, inv_freq: Any, attention_factor: float, layout: str) -> Any:
    """Return the rotary channels turned as complex numbers: pair (a, b) is a + ib."""
    pairs = inv_freq.size
    first = slice(0, pairs) if layout == "half" else slice(0, 2 * pairs, 2)
    second = slice(pairs, 2 * pairs) if layout == "half" else slice(1, 2 * pairs, 2)
    turned = (x[..., first] + 1j * x[..., second]) * attention_factor * np.exp(1j * positions[:, None] * inv_freq)
    out = x.copy()
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [64, 16])
def test_rotation_is_complex_multiplication(layout: str, rotary_dim: int) -> None:
    x = rng.standard_normal((3, 5, 64))
    positions = np.array([0, 1, 7, 4095, 100000])
    inv_freq = arithmetic.base_inv_freq(1e4, rotary_dim)
    found = arithmetic.rotate(x, positions, inv_freq, 1.1386, layout)
    np.testing.assert_allclose(found, complex_rotation(x, positions, inv_freq, 1.1386, layout), atol=1e-13)
    np.testing.assert_array_equal(found[..., rotary_dim:], x[..., rotary_dim:])


@pytest.mark.parametrize(
    ("module", "layout", "rotary_dim"),
    [("llama", "half", 64), ("cohere", "interleaved", 64), ("glm", "interleaved", 32), ("phi", "half", 64)],
)
def test_rotation_is_that_of_transformers(module: str, layout: str, rotary_dim: int) -> None:
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
    x = rng.standard_normal((1, 2, 6, 64))
    positions = np.array([0.0, 1, 3, 500, 5000, 5001])
    inv_freq = arithmetic.base_inv_freq(1e4, rotary_dim)
    angles = torch.from_numpy(positions[:, None] * inv_freq)[None]
    # each model spreads the angles over the channels in its own way before it rotates
    spread = torch.repeat_interleave(angles, 2, dim=-1) if module == "cohere" else torch.cat([angles, angles], dim=-1)
    cos, sin = spread.cos() * 1.25, spread.sin() * 1.25
    q, k = modeling.apply_rotary_pos_emb(torch.from_numpy(x), torch.from_numpy(x), cos, sin)
    found = arithmetic.rotate(x, positions, inv_freq, 1.25, layout)
    for turned in (q, k):
        # cohere rotates in float32 whatever it is given
        np.testing.assert_allclose(found, turned.numpy(), rtol=0, atol=1e-6 if module == "cohere" else 1e-12)
    other = arithmetic.rotate(x, positions, inv_freq, 1.25, "half" if layout == "interleaved" else "interleaved")
    assert np.abs(other - q.numpy()).max() > 0.1


@settings(max_examples=50, deadline=None)
@given(
    offset=st.integers(0, 2**20),
    distance=st.integers(0, 4096),
    layout=st.sampled_from(["half", "interleaved"]),
    attention_factor=st.floats(0.5, 2),
)
def test_score_depends_on_the_distance_alone(offset: int, distance: int, layout: str, attention_factor: float) -> None:
    seeded = np.random.default_rng(7)
    q, k = seeded.standard_normal((2, 1, 96))
    inv_freq = arithmetic.base_inv_freq(1e4, 64)

    def score(query_position: int, key_position: int) -> float:
        turned_q = arithmetic.rotate(q, np.array([query_position]), inv_freq, attention_factor, layout)
        turned_k = arithmetic.rotate(k, np.array([key_position]), inv_freq, attention_factor, layout)
        return (turned_q @ turned_k.T).item()

    assert score(offset + distance, offset) == pytest.approx(score(distance, 0), abs=1e-7)


def test_attention_factor_enters_the_rotary_score_squared() -> None:
    q, k = rng.standard_normal((2, 1, 64))
    inv_freq = arithmetic.base_inv_freq(1e4, 32)
    far, near = np.array([900]), np.array([100])
    plain = q[:, 32:] @ k[:, 32:].T
    scores = [
        (arithmetic.rotate(q, far, inv_freq, a) @ arithmetic.rotate(k, near, inv_freq, a).T - plain).item()
        for a in (1.0, 1.2)
    ]
    assert abs(scores[0]) > 0.1
    assert scores[1] == pytest.approx(1.44 * scores[0], rel=1e-12)
