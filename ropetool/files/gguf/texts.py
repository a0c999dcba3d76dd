"""Metadata values from the text that a user types, and the first elements of long arrays for whoever shows them.

Knows types, not keys: which type a key must have is for the runtimes to say.
"""

from __future__ import annotations

import json
from typing import Any

from ropetool.errors import ConfigError, InvalidRope, did_you_mean
from ropetool.escaping import read_length
from ropetool.files.gguf.codec import ARRAY_HEAD, LENGTH, Value, shown
from ropetool.files.gguf.kinds import ValueType

SCALARS = {type_.label: type_ for type_ in ValueType if type_ is not ValueType.ARR}
MAX_VALUE_BYTES = 32 << 20  # of a text that states a value: the largest vocabularies known take 10 MB as JSON
_OF, _COLON = "arr of ", "arr:"  # as messages and JSON have it; as one word of a command line
_WORDS = {"true": True, "false": False}


def type_label(text: str) -> str:
    """Return the label of the type that a user names: u32, str, and arr:i32 or "arr of i32" for an array.

    Raises: ConfigError if there is no such type.
    """
    label = text.strip().lower().replace(_COLON, _OF, 1)
    if label.removeprefix(_OF) not in SCALARS:
        known = [*SCALARS, *(_COLON + element for element in SCALARS)]
        raise ConfigError(
            f"{shown(text)} is not a type{did_you_mean(text, known)}", where="TYPE",
            try_=f"one of {', '.join(SCALARS)}, or arr: followed by one of them",
        )  # fmt: skip
    return label


def is_type(text: str) -> bool:
    """Return whether a word of a command line is a type."""
    return text.lower().replace(_COLON, _OF, 1).removeprefix(_OF) in SCALARS


def value_of(label: str, text: str) -> Value:
    """Return the value that a text states: arrays as JSON, bools as true or false, integers also as 0x10 and 32k.

    Raises: ConfigError if it is none of this type, or outside of its range.
    """
    if label.startswith(_OF):
        return _array(SCALARS[label.removeprefix(_OF)], text)
    type_ = SCALARS[label]
    return Value.of(type_, text if type_ is ValueType.STR else _number(type_, text.strip()))


def first(value: Value, count: int) -> list[Any]:
    """Return the first elements of an array, decoded without those behind them."""
    assert value.element is not None
    fitting = min(count, value.count)
    if value.element is not ValueType.STR:
        width = (len(value.raw) - ARRAY_HEAD.size) // max(1, value.count)
        start = value.raw[: ARRAY_HEAD.size + fitting * width]
        found: Any = Value(ValueType.ARR, start).decode()
        return list(found.tolist())
    position = ARRAY_HEAD.size
    for _ in range(fitting):
        position += LENGTH.size + LENGTH.unpack_from(value.raw, position)[0]
    head = ARRAY_HEAD.pack(value.element, fitting)
    decoded: Any = Value(ValueType.ARR, head + bytes(value.raw[ARRAY_HEAD.size : position])).decode()
    return list(decoded)


def _array(element: ValueType, text: str) -> Value:
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{shown(text)} is not a JSON array ({error})", try_="""'[1, 2, 3]', or '["a", "b"]'"""
        ) from None
    if not isinstance(listed, list):
        raise ConfigError(f"{shown(text)} is not a JSON array in [ and ]", try_="""'[1, 2, 3]', or '["a", "b"]'""")
    return Value.array(element, listed)


def _number(type_: ValueType, text: str) -> Any:
    """Return the number that a text states, or the text itself, which the type then refuses by its own sentence."""
    if type_ is ValueType.BOOL:
        return _WORDS.get(text.lower(), text)
    if "_" in text or not text.isascii() or text != text.strip():  # which Python takes, and nobody else
        return text
    try:
        return float(text) if type_ in (ValueType.F32, ValueType.F64) else int(text, 0)
    except ValueError:
        pass
    try:
        return text if type_ in (ValueType.F32, ValueType.F64) else read_length(text)
    except InvalidRope:
        return text
