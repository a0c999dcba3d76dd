"""Values of a JSON file by their kind: one of another kind is refused with its place, itself and the rule.

Knows kinds; which key has which is for the reader of the file to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ropetool.errors import CorruptFile
from ropetool.files.hf.jsontext import ABSENT, is_text, shown
from ropetool.rope.tables import is_number


class JsonType(NamedTuple):
    """What a value may be, in words and as a test."""

    rule: str
    holds: Callable[[Any], bool]


def whole(low: int, high: int) -> JsonType:
    """Return the kind of whole numbers from `low` to `high`; true and false are none, nor is 1.0."""
    return JsonType(f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high)


def list_of(kind: JsonType, most: int) -> JsonType:
    """Return the kind of lists with at most so many values of one kind."""
    return JsonType(
        f"a list of at most {most:,} values, each {kind.rule}",
        lambda value: isinstance(value, list) and len(value) <= most and all(map(kind.holds, value)),
    )


TEXT = JsonType("text", is_text)
NUMBER = JsonType("a finite number", is_number)
LIST = JsonType("a list", lambda value: isinstance(value, list))
OBJECT = JsonType("an object", lambda value: isinstance(value, dict))


def taken(data: Mapping[str, Any], key: str, kind: JsonType, where: str, default: Any = ABSENT) -> Any:
    """Return the value of a key; `default` where the key is absent or null, if there is one.

    Raises: CorruptFile for a value of another kind, and for none.
    """
    value = data.get(key, ABSENT)
    if (value is ABSENT or value is None) and default is not ABSENT:
        return default
    return checked(value, kind, key, where)


def checked(value: Any, kind: JsonType, name: str, where: str) -> Any:
    """Return the value. Raises: CorruptFile, which calls it by this name, if it is of another kind."""
    if not kind.holds(value):
        raise CorruptFile(f"{name} is {shown(value)}; it must be {kind.rule}", where=where)
    return value
