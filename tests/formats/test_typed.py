"""Values of JSON files by their kind."""

from __future__ import annotations

from typing import Any

import pytest

from ropetool.errors import CorruptFile
from ropetool.files.hf.typed import LIST, NUMBER, OBJECT, TEXT, JsonType, list_of, taken, whole

GOOD: list[tuple[JsonType, list[Any]]] = [
    (TEXT, ["", "a", "\u00e9\U0001f600"]), (NUMBER, [0, -1.5, 10**300]), (whole(0, 7), [0, 7]),
    (LIST, [[], [1]]), (OBJECT, [{}, {"a": 1}]), (list_of(TEXT, 2), [[], ["a", "b"]]),
]  # fmt: skip
BAD: list[tuple[JsonType, list[Any]]] = [
    (TEXT, [1, None, True, [], "\ud800", "a\udc80"]),
    (NUMBER, ["1", None, True, [], float("nan"), float("inf"), 10**400]),
    (whole(0, 7), [-1, 8, True, 1.0, "1", 10**400, float("inf")]),
    (LIST, [None, "", {}, 7]), (OBJECT, [None, [], "a", 7]), (list_of(TEXT, 2), ["ab", [1], ["a", "b", "c"], {"a": 1}]),
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
