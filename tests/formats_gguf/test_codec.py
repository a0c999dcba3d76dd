"""Values: encoded as the gguf package encodes them, refused where they do not fit, decoded to what they were."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter
from gguf_files import SCALARS
from hypothesis import given
from hypothesis import strategies as st

from ropetool.errors import ConfigError
from ropetool.files.gguf import Value, ValueType

INTEGERS = {kind: (8 * size, signed) for kind, size, signed in [
    (ValueType.U8, 1, False), (ValueType.I8, 1, True), (ValueType.U16, 2, False), (ValueType.I16, 2, True),
    (ValueType.U32, 4, False), (ValueType.I32, 4, True), (ValueType.U64, 8, False), (ValueType.I64, 8, True),
]}  # fmt: skip


def limits(kind: ValueType) -> tuple[int, int]:
    bits, signed = INTEGERS[kind]
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


def scalars(kind: ValueType) -> st.SearchStrategy:
    if kind in INTEGERS:
        return st.integers(*limits(kind))
    return {
        ValueType.F32: st.floats(width=32, allow_nan=False),
        ValueType.F64: st.floats(allow_nan=False),
        ValueType.BOOL: st.booleans(),
        ValueType.STR: st.text(max_size=40),
    }[kind]


KINDS = [kind for kind in ValueType if kind is not ValueType.ARR]
PAIRS = st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), scalars(kind)))
LISTS = st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), st.lists(scalars(kind), max_size=8)))


@pytest.fixture(scope="module")
def package() -> GGUFWriter:
    return GGUFWriter(None, "llama")


@given(pair=PAIRS)
def test_scalars_are_packed_as_the_package_packs_them(package, pair):
    kind, value = pair
    ours = Value.of(kind, value)
    assert ours.raw == package._pack_val(value, GGUFValueType(kind), add_vtype=False)
    assert ours.decode() == value
    assert (ours.element, ours.count, ours.label) == (None, 1, kind.name.lower())


@given(pair=LISTS)
def test_arrays_are_packed_as_the_package_packs_them(package, pair):
    kind, values = pair
    ours = Value.array(kind, values)
    if values:  # the package packs no empty array
        theirs = package._pack_val(values, GGUFValueType.ARRAY, add_vtype=False, sub_type=GGUFValueType(kind))
        assert ours.raw == theirs
    assert list(ours.decode()) == values
    assert (ours.element, ours.count, ours.label) == (kind, len(values), f"arr of {kind.name.lower()}")


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_end_at_the_limits_of_their_type(kind):
    low, high = limits(kind)
    assert [Value.of(kind, value).decode() for value in (low, high)] == [low, high]
    for value in (low - 1, high + 1):
        with pytest.raises(
            ConfigError, match=f"^{value} does not fit {kind.label}, which ranges from {low} to {high}$"
        ):
            Value.of(kind, value)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (ValueType.U32, True, "True is not a number; u32 requires one"),
        (ValueType.U32, 1.0, "1.0 is not a whole number; u32 requires one"),
        (ValueType.U32, "1", "'1' is not a whole number; u32 requires one"),
        (ValueType.F32, "1", "'1' is not a number; f32 requires one"),
        (ValueType.F32, False, "False is not a number; f32 requires one"),
        (ValueType.F32, 3.5e38, r"3.5e\+38 does not fit f32, whose largest number is 3.40282e\+38"),
        (
            ValueType.F64,
            10**400,
            r"^a number of more than 80 digits does not fit f64, whose largest number is 1.79769e\+308",
        ),
        (ValueType.U64, 10**4000, "^a number of more than 80 digits does not fit u64"),
        (ValueType.BOOL, 1, "1 is neither true nor false; bool requires one of them"),
        (ValueType.STR, 7, "7 is not text; str requires text"),
        (ValueType.STR, b"x", "b'x' is not text; str requires text"),
        (ValueType.STR, "\ud800", "is not text: surrogates not allowed at letter 0"),
        (ValueType.ARR, [1], "an array requires the type of its elements"),
    ],
)
def test_values_of_another_kind_are_refused(kind, value, message):
    with pytest.raises(ConfigError, match=message):
        Value.of(kind, value)


def test_an_array_is_refused_for_one_bad_element_and_for_nesting():
    with pytest.raises(ConfigError, match="256 does not fit u8"):
        Value.array(ValueType.U8, [1, 256])
    with pytest.raises(ConfigError, match="nested"):
        Value.array(ValueType.ARR, [])


def test_numbers_of_numpy_are_taken_and_kept_in_single_precision():
    assert Value.of(ValueType.U16, np.int64(7)).decode() == 7
    assert Value.of(ValueType.F32, np.float64(0.1)).decode() == np.float32(0.1)
    assert math.isnan(Value.of(ValueType.F32, float("nan")).decode())


def test_bytes_that_are_not_utf8_survive():
    value = Value(ValueType.STR, struct.pack("<Q", 3) + b"a\xffb")
    assert Value.of(ValueType.STR, value.decode()) == value


def test_any_byte_but_zero_is_true():
    assert Value(ValueType.BOOL, b"\x07").decode() is True
    assert Value(ValueType.ARR, struct.pack("<iQ", 7, 3) + b"\x00\x01\x80").decode().tolist() == [False, True, True]


def test_equality_is_that_of_type_and_bytes():
    assert Value.of(ValueType.U32, 1) == Value(ValueType.U32, memoryview(struct.pack("<I", 1)))
    assert Value.of(ValueType.U32, 1) != Value.of(ValueType.I32, 1)
    assert Value.of(ValueType.U32, 1) != Value.of(ValueType.U32, 2)


def test_the_makers_list_of_types_is_complete():
    assert {int(kind) for kind in SCALARS} == {int(kind) for kind in KINDS}
