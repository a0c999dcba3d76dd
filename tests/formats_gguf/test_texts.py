"""Values from the text that a user types, against the gguf package's reader, and the first elements of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import write

from ropetool.errors import ConfigError
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.files.gguf.texts import first, is_type, type_label, value_of

TYPES = gguf.GGUFValueType
STATED: list[tuple[str, str, Any, list[Any]]] = [
    ("u8", "255", 255, [TYPES.UINT8]), ("i8", "-128", -128, [TYPES.INT8]), ("u16", "0x10", 16, [TYPES.UINT16]),
    ("i16", "-1", -1, [TYPES.INT16]), ("u32", " 4096 ", 4096, [TYPES.UINT32]), ("u32", "32k", 32768, [TYPES.UINT32]),
    ("u64", "1M", 2**20, [TYPES.UINT64]), ("i32", "-7", -7, [TYPES.INT32]),
    ("u64", "18446744073709551615", 2**64 - 1, [TYPES.UINT64]), ("i64", "-9223372036854775808", -(2**63), [TYPES.INT64]),
    ("f32", "1e6", 1e6, [TYPES.FLOAT32]), ("f64", "0.1", 0.1, [TYPES.FLOAT64]), ("bool", "true", True, [TYPES.BOOL]),
    ("bool", "False", False, [TYPES.BOOL]), ("str", " {{ a }}\n", " {{ a }}\n", [TYPES.STRING]), ("str", "", "", [TYPES.STRING]),
    ("arr of str", '["a", "\\u00e9"]', ["a", "é"], [TYPES.ARRAY, TYPES.STRING]),
    ("arr of i32", "[1, -2]", [1, -2], [TYPES.ARRAY, TYPES.INT32]),
    ("arr of bool", "[true, false]", [True, False], [TYPES.ARRAY, TYPES.BOOL]),
    ("arr of f32", "[1, 0.5]", [1.0, 0.5], [TYPES.ARRAY, TYPES.FLOAT32]),
]  # fmt: skip


@pytest.mark.parametrize(("label", "text", "value", "types"), STATED)
def test_a_text_becomes_what_the_gguf_package_reads(
    label: str, text: str, value: Any, types: list[Any], tmp_path: Path
) -> None:
    write_patched(read_header(_plain(tmp_path / "a.gguf")), Patch({"x.y": value_of(label, text)}), tmp_path / "b.gguf")
    field = gguf.GGUFReader(tmp_path / "b.gguf").fields["x.y"]
    assert field.types == types
    assert field.contents() == value


def _plain(path: Path) -> Path:
    return write(path, "llama", None, {"a": np.ones(32, np.float32)})


@pytest.mark.parametrize(
    ("label", "text", "says"),
    [
        ("u32", "-1", "-1 does not fit u32, which ranges from 0 to 4294967295"),
        ("u32", "1.5", "'1.5' is not a whole number; u32 requires one"),
        ("u32", "32q", "'32q' is not a whole number"), ("f32", "32k", "'32k' is not a number"), ("u16", "64k", "65536 does not fit u16"),
        ("u8", "256", "256 does not fit u8"), ("f32", "1e39", "does not fit f32"), ("f32", "many", "'many' is not a number"),
        ("bool", "1", "'1' is neither true nor false; bool requires one of them"), ("arr of i32", "1, 2", "is not a JSON array"),
        ("arr of i32", "{}", "is not a JSON array in"), ("arr of i32", "[1.5]", "1.5 is not a whole number"),
        ("arr of i32", "[[1]]", "is not a whole number"), ("arr of str", "[1]", "1 is not text"),
        ("arr of i32", "[" * 100_000, "is not a JSON array"), ("arr of u8", "[true]", "True is not a number"),
    ],
)  # fmt: skip
def test_what_is_no_value_is_refused(label: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        value_of(label, text)
    assert says in caught.value.message


def test_types_and_what_are_none() -> None:
    assert [type_label(text) for text in ("u32", "ARR:I32", "arr of str")] == ["u32", "arr of i32", "arr of str"]
    assert not any(map(is_type, ("arr", "arr:arr", "int", "u33", "")))
    with pytest.raises(ConfigError, match=r"'u33' is not a type \(did you mean u32") as caught:
        type_label("u33")
    assert "or arr: followed by one of them" in caught.value.try_


@pytest.mark.parametrize("element", [ValueType.U8, ValueType.I32, ValueType.F64, ValueType.BOOL, ValueType.STR])
def test_the_first_elements_are_those_of_the_whole(element: ValueType) -> None:
    plain = {ValueType.STR: ["", "é", "abc", "d"], ValueType.BOOL: [True, False, True, True]}
    values = plain.get(element, [1, 2, 3, 4])
    for count in (0, 1, 3, 4, 9):
        assert first(Value.array(element, values), count) == values[:count]
    assert first(Value.array(element, []), 3) == []
