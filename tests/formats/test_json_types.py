"""Values of JSON files by their kind."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ropetool.errors import CorruptFile, ServerError
from ropetool.files.json_types import (
    BOOLEAN,
    INTEGER,
    LIST,
    NUMBER,
    OBJECT,
    STRING,
    STRING_MEMBERS,
    STRINGS,
    TEXT,
    JsonType,
    check_members,
    checked,
    list_of,
    matching,
    one_of,
    optional,
    taken,
    whole,
)  # fmt: skip

GOOD: list[tuple[JsonType, list[Any]]] = [
    (TEXT, ["", "a", "\u00e9\U0001f600"]), (NUMBER, [0, -1.5, 10**300]), (whole(0, 7), [0, 7]),
    (LIST, [[], [1]]), (OBJECT, [{}, {"a": 1}]), (list_of(TEXT, 2), [[], ["a", "b"]]),
    (STRING, ["", "\ud800"]), (STRINGS, [[], ["a"]]), (STRING_MEMBERS, [{}, {"a": "b"}]), (BOOLEAN, [True, False]),
    (INTEGER, [0, -1, 10**400]), (matching(re.compile("[ab]+"), "a or b"), ["a", "ba"]), (one_of(["x", "y"]), ["x"]),
]  # fmt: skip
BAD: list[tuple[JsonType, list[Any]]] = [
    (TEXT, [1, None, True, [], "\ud800", "a\udc80"]),
    (NUMBER, ["1", None, True, [], float("nan"), float("inf"), 10**400]),
    (whole(0, 7), [-1, 8, True, 1.0, "1", 10**400, float("inf")]),
    (LIST, [None, "", {}, 7]), (OBJECT, [None, [], "a", 7]), (list_of(TEXT, 2), ["ab", [1], ["a", "b", "c"], {"a": 1}]),
    (STRING, [1, None, []]), (STRINGS, ["a", [1], None]), (STRING_MEMBERS, [[], {"a": 1}, None]), (BOOLEAN, [0, 1, None, "true"]),
    (INTEGER, [True, 1.0, "1", None]), (matching(re.compile("[ab]+"), "a or b"), ["", "abc", 1, None]),
    (one_of(["x", "y"]), ["z", 1, None, []]), (optional(whole(0, 7)), [8, "a", True]),
    (optional(list_of(TEXT, 2)), ["a", [None], ["a", "b", "c"]]), (list_of(optional(TEXT), 2), [None, [1]]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in GOOD for value in values])
def test_a_value_of_the_kind_is_taken(kind: JsonType, value: Any) -> None:
    assert taken({"a": value}, "a", kind, "f.json") is value


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in BAD for value in values])
def test_any_other_is_refused_with_its_place_and_the_rule(kind: JsonType, value: Any) -> None:
    with pytest.raises(CorruptFile) as refused:
        taken({"a": value}, "a", kind, "f.json")
    assert refused.value.where == "f.json"
    assert refused.value.message.startswith("a is ")
    assert refused.value.message.endswith(f"; it must be {kind.rule}")
    assert refused.value.message.isascii()


def test_a_default_stands_for_what_is_absent_or_null() -> None:
    assert (taken({}, "a", TEXT, "f", "x"), taken({"a": None}, "a", TEXT, "f", "x")) == ("x", "x")
    with pytest.raises(CorruptFile, match="a is absent; it must be text"):
        taken({}, "a", TEXT, "f")


def test_an_error_has_the_class_and_place_of_the_caller() -> None:
    with pytest.raises(ServerError) as refused:
        checked(7, TEXT, "a", "http://x", ServerError)
    assert (refused.value.where, refused.value.message) == ("http://x", "a is 7; it must be text")
    for data, required, present in (([], {}, {}), ({}, {"a": TEXT}, {}), ({"a": 7}, {}, {"a": TEXT})):
        with pytest.raises(CorruptFile) as corrupt:
            check_members(data, required, present, where="f.json")
        assert corrupt.value.where == "f.json"


def test_null_follows_an_optional_rule() -> None:
    assert optional(TEXT).holds(None)
    assert optional(TEXT).holds("a")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (optional(list_of(TEXT, 2)), "a is 7; it must be null or a list of at most 2 values, each text"),
        (list_of(optional(TEXT), 2), "a is 7; it must be a list of at most 2 values, each null or text"),
        (optional(one_of(["x", "y"])), "a is 7; it must be null or one of x, y"),
    ],
)
def test_an_optional_rule_reads_as_a_sentence(kind: JsonType, message: str) -> None:
    with pytest.raises(CorruptFile) as refused:
        checked(7, kind, "a", "f.json")
    assert refused.value.message == message


def test_the_first_member_that_breaks_its_rule_is_named() -> None:
    check_members({"a": "x", "more": 1}, {"a": TEXT}, {"b": whole(0, 7)})
    for data, message in (
        ({}, "a of {b} is absent; it must be text"),
        ({"a": 1, "b": 9}, "a of {b} is 1; it must be text"),
        ({"a": "x", "b": None}, "b of {b} is null; it must be a whole number from 0 to 7"),
        ("x", '{b} is "x"; it must be an object'),
    ):
        with pytest.raises(CorruptFile) as refused:
            check_members(data, {"a": TEXT}, {"b": whole(0, 7)}, "{b}")  # a name from a file may contain braces
        assert refused.value.message == message
