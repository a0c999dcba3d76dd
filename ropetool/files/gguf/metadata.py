"""The metadata section of a header: keys and values in the order of the file, each value as a view of its bytes.

Only general.alignment is interpreted, because it affects the container.
"""

from __future__ import annotations

from collections.abc import Mapping

from ropetool.files.gguf.codec import Value, shown
from ropetool.files.gguf.cursor import I32, U64, Cursor
from ropetool.files.gguf.kinds import PACKING, ValueType

ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_KEY_BYTES = 65_535  # the limit in the GGUF specification; llama.cpp does not have a limit


def read_values(cursor: Cursor, count: int) -> dict[str, Value]:
    """Return the next `count` keys with their values, not decoded.

    Raises: CorruptFile if a key is empty, too long or repeated, or if a value exceeds the file.
    """
    values: dict[str, Value] = {}
    for index in range(count):
        start = cursor.position
        cursor.enter(f"key number {index}", start)
        key = cursor.text(MAX_KEY_BYTES, f"a key has at most {MAX_KEY_BYTES}")
        if not key:
            raise cursor.error("has an empty name; a key has at least one letter")
        cursor.enter(f"key {shown(key)}", start)
        if key in values:
            raise cursor.error("appears a second time; a key appears once")
        values[key] = _value(cursor)
    return values


def alignment_of(cursor: Cursor, values: Mapping[str, Value]) -> int:
    """Return the alignment of the data in bytes, from the file or 32.

    Raises: CorruptFile if it is not a u32 or not a power of two.
    """
    value = values.get(ALIGNMENT_KEY)
    if value is None:
        return DEFAULT_ALIGNMENT
    cursor.enter(f"key {ALIGNMENT_KEY!r}, before the tensors", cursor.position)
    if value.type is not ValueType.U32:
        raise cursor.error(f"has type {value.label}; it must be u32")
    alignment = value.decode()
    assert isinstance(alignment, int)
    if alignment == 0 or alignment & (alignment - 1):
        raise cursor.error(f"is {alignment}; an alignment is a power of two")
    return alignment


def _value(cursor: Cursor) -> Value:
    type_ = _type(cursor, "has type")
    start = cursor.position
    if type_ is ValueType.STR:
        length = cursor.number(U64)
        cursor.skip(length, f"has a string of {length} bytes")
    elif type_ is ValueType.ARR:
        _skip_array(cursor)
    else:
        cursor.skip(PACKING[type_].size)
    return Value(type_, cursor.view[start : cursor.position])


def _skip_array(cursor: Cursor) -> None:
    element = _type(cursor, "has elements of type")
    if element is ValueType.ARR:
        raise cursor.error("is an array of arrays; the elements of an array are numbers or strings")
    count = cursor.number(U64)
    if element is ValueType.STR:
        cursor.skip_strings(count)
    else:
        cursor.skip(count * PACKING[element].size, f"has an array of {count} {element.label}")


def _type(cursor: Cursor, what: str) -> ValueType:
    number = cursor.number(I32)
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.error(f"{what} {number}; types are {min(ValueType)} to {max(ValueType)}") from None
