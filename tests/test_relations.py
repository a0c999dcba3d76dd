"""Relations of rows: matrices that numpy and torch scaled, rounded and permuted here, and what is said of them."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropetool.comparison import orders, relations
from ropetool.comparison.relations import (
    CHANGED,
    CONVERTED,
    IDENTICAL,
    PERMUTED,
    ROWS_SCALED,
    SCALED,
    Relation,
    RowFit,
)

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
FACTOR = 1.4591290795886054  # YaRN's attention factor at 8x, squared
ROWS, COLUMNS = 64, 96


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return float64 numbers rounded to a type by torch."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(TORCH[dtype]).double().numpy()


def matrix(dtype: str = "F32", seed: int = 0, shape: tuple[int, int] = (ROWS, COLUMNS)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rounded(rng.choice([-1, 1], shape) * rng.lognormal(-2, 1, shape).clip(0.002), dtype)  # no float16 subnormals


def relation(
    a: np.ndarray, b: np.ndarray, dtypes: tuple[str, str] = ("F32", "F32"), *, offset: float = 0.0, step: int = 7
) -> Relation:
    """Return the relation as it is found in chunks of a few rows."""
    fit = RowFit(len(a), dtypes, offset)
    for start in range(0, len(a), step):
        fit.add(start, a[start : start + step], b[start : start + step])
    return fit.relation()


def only_scale(found: Relation) -> relations.Scale:
    (scale,) = found.scales
    return scale


# --- the same numbers


@pytest.mark.parametrize("dtype", TORCH)
def test_the_same_numbers_are_identical(dtype: str) -> None:
    a = matrix(dtype)
    found = relation(a, a.copy(), (dtype, dtype))
    assert (found.kind, found.largest, found.mean) == (IDENTICAL, 0.0, 0.0)


def test_a_matrix_with_nan_is_identical_to_itself_alone() -> None:
    a = matrix()
    a[3, 3], a[4, 4] = np.nan, np.inf
    assert relation(a, a.copy()).kind == IDENTICAL
    b = a.copy()
    b[3, 3] = 0.5
    assert relation(a, b).kind == CHANGED


@pytest.mark.parametrize(
    ("one", "other", "most"),
    [("F32", "BF16", 2**-8), ("F32", "F16", 2**-11), ("F64", "F32", 2**-24), ("BF16", "F32", 0.0), ("F16", "F64", 0.0)],
)
def test_another_type_is_a_conversion_with_its_rounding(one: str, other: str, most: float) -> None:
    a = matrix(one)
    b = rounded(a, other)
    for found in (relation(a, b, (one, other)), relation(b, a, (other, one))):
        assert found.kind == CONVERTED
        assert found.largest <= most
        assert (found.largest == 0) == (most == 0)


def test_two_roundings_of_the_same_numbers_are_a_conversion() -> None:
    exact = matrix("F32")
    assert relation(rounded(exact, "F16"), rounded(exact, "BF16"), ("F16", "BF16")).kind == CONVERTED


@pytest.mark.parametrize(("one", "other"), [("F32", "BF16"), ("BF16", "F32"), ("F16", "BF16")])
def test_a_number_that_no_rounding_explains_is_a_change(one: str, other: str) -> None:
    a = matrix("BF16")
    b = rounded(a, other)
    b[17, 5] *= 1.02
    found = relation(a, rounded(b, other), (one, other))
    assert (found.kind, found.rows) == (CHANGED, ((17, 17),))


# --- scales


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("factor", [FACTOR, 1 / FACTOR, 1.05, 0.5, 2.0])
def test_a_scaled_matrix_is_found_with_its_factor(dtype: str, factor: float) -> None:
    a = matrix(dtype)
    found = relation(a, rounded(a * factor, dtype), (dtype, dtype))
    scale = only_scale(found)
    assert found.kind == SCALED
    assert scale.low * (1 - 1e-12) <= factor <= scale.high * (1 + 1e-12)
    # the factor that was found makes the very same numbers, by torch's rounding
    assert np.array_equal(rounded(a * scale.value, dtype), rounded(a * factor, dtype))
    assert scale.spread <= {"BF16": 2**-8, "F16": 2**-11, "F32": 2**-23, "F64": 2**-52}[dtype] * 1.1


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_the_way_back_is_found_too(dtype: str) -> None:
    a = matrix(dtype)
    scale = only_scale(relation(rounded(a * FACTOR, dtype), a, (dtype, dtype)))
    assert scale.low * (1 - 1e-12) <= 1 / FACTOR <= scale.high * (1 + 1e-12)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_a_product_in_float32_is_a_scale_too(dtype: str) -> None:
    a = matrix(dtype, shape=(512, 512))
    product = torch.from_numpy(a).to(TORCH[dtype]).float() * np.float32(FACTOR)
    found = relation(a, product.to(TORCH[dtype]).double().numpy(), (dtype, dtype))
    assert found.kind == SCALED
    assert only_scale(found).low <= FACTOR <= only_scale(found).high


def test_the_way_back_of_short_rows_is_one_scale() -> None:
    a = matrix("BF16", shape=(400, 16))
    found = relation(rounded(a * FACTOR, "BF16"), a, ("BF16", "BF16"))
    assert (found.kind, len(found.scales)) == (SCALED, 1)
    assert only_scale(found).low <= 1 / FACTOR <= only_scale(found).high


def test_two_bakes_of_one_matrix_are_scales_of_each_other() -> None:
    a = matrix("BF16")
    found = relation(rounded(a * 1.2, "BF16"), rounded(a * 1.5, "BF16"), ("BF16", "BF16"))
    assert found.kind == SCALED
    assert only_scale(found).low <= 1.25 <= only_scale(found).high


def test_a_bake_stored_in_another_type_is_a_scale() -> None:
    a = matrix("BF16")
    found = relation(a, rounded(a * FACTOR, "F32"), ("BF16", "F32"))
    assert found.kind == SCALED
    assert only_scale(found).value == pytest.approx(FACTOR, rel=1e-7)


def test_numbers_that_were_rounded_before_they_were_stored_wider() -> None:
    a = matrix("BF16")
    b = rounded(a * FACTOR, "BF16")
    for dtypes in (("BF16", "F32"), ("F32", "F32"), ("F32", "BF16")):
        assert only_scale(relation(a, b, dtypes)).low <= FACTOR <= only_scale(relation(a, b, dtypes)).high
    b[20, 20] *= 1.0001  # now they are no bfloat16 numbers any more
    assert relation(a, b, ("BF16", "F32")).kind == CHANGED


def test_the_rows_that_were_scaled_are_named() -> None:
    a = matrix("BF16")
    b = a.copy()
    rotary = [row for head in (0, 32) for row in range(head, head + 8)]
    b[rotary] = rounded(b[rotary] * FACTOR, "BF16")
    found = relation(a, b, ("BF16", "BF16"))
    assert found.kind == ROWS_SCALED
    assert only_scale(found).rows == found.rows == ((0, 7), (32, 39))


def test_a_gain_for_each_row_is_found() -> None:
    a = matrix("BF16")
    gains = np.tile(np.linspace(0.5, 1.5, 8), ROWS // 8)
    found = relation(a, rounded(a * gains[:, None], "BF16"), ("BF16", "BF16"))
    assert found.kind == ROWS_SCALED
    by_row = {row: s for s in found.scales for first, last in s.rows for row in range(first, last + 1)}
    assert sorted(by_row) == list(range(ROWS))
    assert len(found.scales) == 8
    assert all(
        by_row[row].low * (1 - 1e-12) <= gain <= by_row[row].high * (1 + 1e-12) for row, gain in enumerate(gains)
    )


def test_muted_rows_are_scaled_by_nothing() -> None:
    a = matrix("BF16")
    b = a.copy()
    b[8:16] = 0
    found = relation(a, b, ("BF16", "BF16"))
    assert (found.kind, found.rows) == (ROWS_SCALED, ((8, 15),))
    assert only_scale(found).low <= 0 <= only_scale(found).high < 1e-30


def test_rows_of_zeros_take_any_scale() -> None:
    a = matrix("F32")
    a[5] = a[40] = 0
    found = relation(a, rounded(a * FACTOR, "F32"))
    assert found.kind == SCALED
    assert only_scale(found).row_count == ROWS - 2


def test_a_factor_that_leaves_some_rows_is_told_for_the_others() -> None:
    a = matrix("BF16", shape=(400, 16))
    b = rounded(a * 1.0023, "BF16")
    kept = np.all(a == b, axis=1)
    assert 0 < np.mean(kept) < 0.5  # the factor is within the rounding of most numbers
    found = relation(a, b, ("BF16", "BF16"))
    assert (found.kind, only_scale(found).row_count) == (ROWS_SCALED, int(np.sum(~kept)))
    assert only_scale(found).low <= 1.0023 <= only_scale(found).high


def test_a_vector_is_scaled_where_one_factor_serves_all_its_numbers() -> None:
    norm = rounded(np.random.default_rng(3).normal(1, 0.1, (128, 1)), "BF16")
    found = relation(norm, rounded(norm * FACTOR, "BF16"), ("BF16", "BF16"))
    assert found.kind == SCALED
    random = rounded(norm * np.random.default_rng(4).uniform(0.5, 1.5, norm.shape), "BF16")
    assert relation(norm, random, ("BF16", "BF16")).kind == CHANGED


def test_a_norm_with_an_offset_is_scaled_around_it() -> None:
    norm = np.random.default_rng(3).normal(0, 0.1, (128, 1))
    a, b = rounded(norm, "F32"), rounded((1 + rounded(norm, "F32")) * FACTOR - 1, "F32")
    assert only_scale(relation(a, b, offset=1.0)).value == pytest.approx(FACTOR, rel=1e-6)
    assert relation(a, b).kind == CHANGED


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    factor=st.floats(1e-3, 1e3).filter(lambda f: abs(f - 1) > 0.02),
    dtype=st.sampled_from(["BF16", "F16", "F32"]),
    seed=st.integers(0, 999),
    first=st.integers(0, 40),
    count=st.integers(1, 20),
)
def test_any_block_of_scaled_rows_is_found(factor: float, dtype: str, seed: int, first: int, count: int) -> None:
    a = matrix(dtype, seed)
    b = a.copy()
    b[first : first + count] = rounded(b[first : first + count] * factor, dtype)
    found = relation(a, b, (dtype, dtype))
    assert (found.kind, found.rows) == (ROWS_SCALED, ((first, first + count - 1),))
    assert only_scale(found).low * (1 - 1e-12) <= factor <= only_scale(found).high * (1 + 1e-12)


def q4_k(scale: float) -> np.ndarray:
    """Return the numbers of random Q4_K blocks by the gguf package, their two float16 scales multiplied and rounded."""
    rng = np.random.default_rng(11)
    raw = rng.integers(0, 256, (2048, 144), dtype=np.uint8)
    both = np.stack([rng.uniform(5e-4, 9e-4, 2048), rng.uniform(4e-3, 8e-3, 2048)], 1).astype("<f2")
    raw[:, :4] = (both.astype(np.float64) * scale).astype("<f2").view(np.uint8)
    return gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K).astype(np.float64)


@pytest.mark.parametrize("factor", [2.917, 1 / 2.917, 1.05])
def test_scaled_blocks_that_begin_elsewhere_than_at_zero(factor: float) -> None:
    a, b = q4_k(1.0), q4_k(factor)
    assert np.any(a * b < 0) or factor != 2.917  # numbers near zero that the rounding of the scales has turned
    found = relation(a, b, ("Q4_K", "Q4_K"))
    assert found.kind == SCALED
    assert only_scale(found).low <= factor <= only_scale(found).high
    b[3, 3] += 0.1 * np.abs(b[3]).max()
    assert relation(a, b, ("Q4_K", "Q4_K")).kind == CHANGED


# --- what is not a scale


def next_up(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return the next number of the type above each positive one, by the bits that torch stores."""
    ints: Any = {"BF16": torch.int16, "F16": torch.int16, "F32": torch.int32, "F64": torch.int64}[dtype]
    stored = torch.from_numpy(np.ascontiguousarray(values)).to(TORCH[dtype])
    return (stored.view(ints) + 1).view(TORCH[dtype]).double().numpy()


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(dtype=st.sampled_from(list(TORCH)), seed=st.integers(0, 99), row=st.integers(0, 63), column=st.integers(0, 95))
def test_one_changed_number_is_never_a_scale(dtype: str, seed: int, row: int, column: int) -> None:
    a = np.abs(matrix(dtype, seed))
    b = a.copy()
    b[row, column] = next_up(a, dtype)[row, column]
    found = relation(a, b, (dtype, dtype))
    assert (found.kind, found.rows) == (CHANGED, ((row, row),))
    assert 0 < found.largest <= 2.0**-6


def test_one_changed_number_in_a_scaled_matrix_is_seen() -> None:
    a = matrix("BF16")
    b = rounded(a * FACTOR, "BF16")
    b[20, 20] = next_up(np.abs(b), "BF16")[20, 20] * np.sign(b[20, 20])
    b[20, 20] = next_up(np.abs(b), "BF16")[20, 20] * np.sign(b[20, 20])
    assert relation(a, b, ("BF16", "BF16")).kind == CHANGED


def test_a_step_of_the_largest_mantissa_is_no_scale() -> None:
    """One number goes to the next one, which every factor from 1.002 to 1.0039 would do, and leave the others."""
    a = np.ones((1, 64))
    a[0, 7] = 2 - 2.0**-7
    b = a.copy()
    b[0, 7] = 2.0
    assert np.array_equal(rounded(a * 1.003, "BF16"), b)
    assert relation(a, b, ("BF16", "BF16")).kind == CHANGED


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a: -a,
        lambda a: -2 * a,
        lambda a: 2 * np.abs(a),
        lambda a: a + 0.01,
        lambda a: a[:, ::-1],
        lambda a: np.abs(a),
    ],
)
def test_other_changes_are_no_scale(wrong: Any) -> None:
    a = matrix("F32")
    assert relation(a, rounded(wrong(a), "F32")).kind == CHANGED


def test_noise_in_the_last_bit_is_no_scale() -> None:
    a = np.abs(matrix("BF16"))
    b = np.where(np.random.default_rng(9).random(a.shape) < 0.5, a, next_up(a, "BF16"))
    assert relation(a, b, ("BF16", "BF16")).kind == CHANGED


def test_the_size_of_a_change_is_stated() -> None:
    a = np.ones((4, 50))
    b = a.copy()
    b[2, 0] = 1.25
    found = relation(a, b, ("F64", "F64"))
    assert found.largest == pytest.approx(0.2)  # of the larger number
    assert found.mean == pytest.approx(0.25 / 200)
    assert found.rms == pytest.approx((0.0625 / 200) ** 0.5)


# --- orders


def keys(values: np.ndarray) -> orders.Keys:
    return orders.row_keys(values)


def by_pairs(head: np.ndarray) -> np.ndarray:
    """Return the rows of a head from the half layout in pairs of neighbours, as llama.cpp's converter does it."""
    return head.reshape(2, len(head) // 2, -1).swapaxes(0, 1).reshape(head.shape)


def test_half_to_interleaved_is_named_with_its_runs() -> None:
    a = matrix()
    b = np.concatenate([by_pairs(head) for head in a.reshape(4, 16, -1)])
    found = orders.permuted(keys(a), keys(b), {16, 32})
    assert found is not None
    assert (found.kind, found.order, found.runs) == (PERMUTED, "half to interleaved", 16)
    back = orders.permuted(keys(b), keys(a), {16, 32})
    assert back is not None
    assert (back.order, back.runs) == ("interleaved to half", 16)


def test_runs_behind_rows_that_stay_are_found() -> None:
    """DeepSeek's queries: channels without rotation before the rotary ones of each head."""
    a = matrix()
    b = np.concatenate([np.concatenate([head[:8], by_pairs(head[8:])]) for head in a.reshape(4, 16, -1)])
    found = orders.permuted(keys(a), keys(b), {8})
    assert found is not None
    assert (found.order, found.runs) == ("half to interleaved", 8)


def test_another_order_has_no_name() -> None:
    a = matrix()
    b = np.concatenate([a[16:32], a[:16], a[32:]])  # two heads swapped
    found = orders.permuted(keys(a), keys(b), {16})
    assert found is not None
    assert (found.order, found.rows) == ("", ((0, 31),))


def test_other_rows_are_no_order() -> None:
    a = matrix()
    b = a[::-1].copy()
    assert orders.permuted(keys(a), keys(b), {16}) is not None
    b[7, 7] += 1e-6
    assert orders.permuted(keys(a), keys(b), {16}) is None
    assert orders.permuted(keys(a), keys(np.concatenate([a[:-1], a[:1]])), {16}) is None  # a row twice


def test_a_negative_zero_is_a_zero() -> None:
    assert keys(np.array([[0.0, 1.0]]))[0] == keys(np.array([[-0.0, 1.0]]))[0]
