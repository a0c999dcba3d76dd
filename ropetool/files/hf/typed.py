"""Type checks for values of a JSON file. An error shows the place, the value and the rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ropetool.errors import CorruptFile
from ropetool.files.hf.jsontext import ABSENT, is_text, shown
from ropetool.rope.tables import is_number


class JsonType(NamedTuple):
    """A rule for a JSON value.

    rule: the rule as text.
    holds: returns whether a value follows the rule.
    """

    rule: str
    holds: Callable[[Any], bool]


def whole(low: int, high: int) -> JsonType:
    """Return the rule for whole numbers from `low` to `high`. It excludes true, false and 1.0."""
    return JsonType(f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high)


def list_of(type_: JsonType, most: int) -> JsonType:
    """Return the rule for lists with at most `most` values that follow another rule."""
    return JsonType(
        f"a list of at most {most:,} values, each {type_.rule}",
        lambda value: isinstance(value, list) and len(value) <= most and all(map(type_.holds, value)),
    )


TEXT = JsonType("text", is_text)
NUMBER = JsonType("a finite number", is_number)
LIST = JsonType("a list", lambda value: isinstance(value, list))
OBJECT = JsonType("an object", lambda value: isinstance(value, dict))


def taken(data: Mapping[str, Any], key: str, type_: JsonType, where: str, default: Any = ABSENT) -> Any:
    """Return the value of a key. If the key is missing or null, return `default`, if given.

    Raises: CorruptFile if the value breaks the rule, or if it is missing and there is no default.
    """
    value = data.get(key, ABSENT)
    if (value is ABSENT or value is None) and default is not ABSENT:
        return default
    return checked(value, type_, key, where)


def checked(value: Any, type_: JsonType, name: str, where: str) -> Any:
    """Return the value if it follows the rule. Raises: CorruptFile, with this name, if it does not."""
    if not type_.holds(value):
        raise CorruptFile(f"{name} is {shown(value)}; it must be {type_.rule}", where=where)
    return value
