"""Type checks for values of a JSON file. An error shows the place, the value and the rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ropetool.errors import CorruptFile, RopetoolError
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


def optional(type_: JsonType) -> JsonType:
    """Return the rule for values that follow another rule, or are null."""
    # null comes first, because after a list it would read as one of the list's values
    return JsonType(f"null or {type_.rule}", lambda value: value is None or type_.holds(value))


def matching(pattern: re.Pattern[str], rule: str) -> JsonType:
    """Return the rule for texts that match a pattern as a whole. rule: the pattern in words."""
    return JsonType(rule, lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None)


def one_of(values: Sequence[str]) -> JsonType:
    """Return the rule for a few texts."""
    return JsonType(f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in values)


TEXT = JsonType("text", is_text)
STRING = JsonType("text", lambda value: isinstance(value, str))  # also text that UTF-8 cannot encode, as in paths
NUMBER = JsonType("a finite number", is_number)
LIST = JsonType("a list", lambda value: isinstance(value, list))
OBJECT = JsonType("an object", lambda value: isinstance(value, dict))
BOOLEAN = JsonType("true or false", lambda value: isinstance(value, bool))
INTEGER = JsonType("a whole number", lambda value: type(value) is int)
STRINGS = JsonType("a list of texts", lambda value: isinstance(value, list) and all(map(STRING.holds, value)))
STRING_MEMBERS = JsonType(
    "an object of texts", lambda value: isinstance(value, dict) and all(map(STRING.holds, value.values()))
)


def taken(data: Mapping[str, Any], key: str, type_: JsonType, where: str, default: Any = ABSENT) -> Any:
    """Return the value of a key. If the key is missing or null, return `default`, if given.

    Raises: CorruptFile if the value breaks the rule, or if it is missing and there is no default.
    """
    value = data.get(key, ABSENT)
    if (value is ABSENT or value is None) and default is not ABSENT:
        return default
    return checked(value, type_, key, where)


def checked(value: Any, type_: JsonType, name: str, where: str, error: type[RopetoolError] = CorruptFile) -> Any:
    """Return the value if it follows the rule. Raises: the error, with this name, if it does not."""
    if not type_.holds(value):
        raise error(f"{name} is {shown(value)}; it must be {type_.rule}", where=where)
    return value


def check_members(
    data: Any, required: Mapping[str, JsonType], present: Mapping[str, JsonType] | None = None, place: str = "",
    where: str = "",
) -> None:  # fmt: skip
    """Check the members of an object, and ignore those without a rule.

    required: the rules of members that must exist.
    present: the rules of members that may be missing.
    place: the name of the object in errors; empty for the whole file.
    where: the file, for errors; empty if the caller adds it.
    Raises: CorruptFile for another value than an object, or the first member that breaks its rule.
    """
    checked(data, OBJECT, place or "it", where)
    within = f" of {place}" if place else ""
    for key, type_ in required.items():
        checked(data.get(key, ABSENT), type_, f"{key}{within}", where)
    for key, type_ in (present or {}).items():
        if key in data:
            checked(data[key], type_, f"{key}{within}", where)
