"""Metadata values from text on a command line, and the first elements of long arrays for display."""

from __future__ import annotations

import json
from typing import Any

from ropetool.errors import ConfigError, InvalidRope, did_you_mean
from ropetool.escaping import read_length
from ropetool.files.gguf.codec import ARRAY_HEAD, LENGTH, Value, shown
from ropetool.files.gguf.kinds import ValueType

SCALARS = {type_.label: type_ for type_ in ValueType if type_ is not ValueType.ARR}
MAX_VALUE_BYTES = 32 << 20  # the largest known vocabularies have 10 MB as JSON
_OF, _COLON = "arr of ", "arr:"  # in messages and JSON; as one word of a command line
_WORDS = {"true": True, "false": False}


def type_label(text: str) -> str:
    """Return the label of a type on a command line: u32, str, and arr:i32 or "arr of i32" for an array.

    Raises: ConfigError if the type does not exist.
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
    """Return the value in a text. Arrays are JSON, bools are true or false, and integers may be 0x10 or 32k.

    Raises: ConfigError if it does not match the type, or is outside its range.
    """
    if label.startswith(_OF):
        return _array(SCALARS[label.removeprefix(_OF)], text)
    type_ = SCALARS[label]
    return Value.of(type_, text if type_ is ValueType.STR else _number(type_, text.strip()))


def first(value: Value, count: int) -> list[Any]:
    """Return the first elements of an array without decoding the others."""
    assert value.element is not None
    fitting = min(count, value.count)
    if value.element is not ValueType.STR:
        width = (len(value.raw) - ARRAY_HEAD.size) // max(1, value.count)
        start = value.raw[: ARRAY_HEAD.size + fitting * width]
        numbers: Any = Value(ValueType.ARR, start).decode()
        return list(numbers.tolist())
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
    """Return the number in a text, or the text itself if it is not a number. The encoder then raises the error."""
    if type_ is ValueType.BOOL:
        return _WORDS.get(text.lower(), text)
    if "_" in text or not text.isascii() or text != text.strip():  # spellings that only Python accepts
        return text
    try:
        return float(text) if type_ in (ValueType.F32, ValueType.F64) else int(text, 0)
    except ValueError:
        pass
    try:
        return text if type_ in (ValueType.F32, ValueType.F64) else read_length(text)
    except InvalidRope:
        return text
