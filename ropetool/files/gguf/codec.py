"""Metadata values in stored form: decoding them on request, and encoding them with a range check."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import ConfigError
from ropetool.files.gguf.kinds import PACKING, ValueType

Buffer = bytes | memoryview
Decoded = bool | int | float | str | list[str] | npt.NDArray[Any]

ARRAY_HEAD = struct.Struct("<iQ")  # element type, number of elements
LENGTH = struct.Struct("<Q")
_INTEGERS = frozenset(ValueType) - {ValueType.BOOL, ValueType.F32, ValueType.F64, ValueType.STR, ValueType.ARR}


@dataclass(frozen=True, slots=True)
class Value:
    """A metadata value.

    type: its type.
    raw: the stored bytes after the type.

    Two values are equal if both are equal. An edit without effect is therefore visible without decoding.
    """

    type: ValueType
    raw: Buffer

    @classmethod
    def of(cls, type_: ValueType, value: Any) -> Value:
        """Return the value of a scalar or string type.

        Raises: ConfigError if the value does not match the type or is outside its range.
        """
        return cls(type_, _encode(type_, value))

    @classmethod
    def array(cls, element: ValueType, values: Iterable[Any]) -> Value:
        """Return an array. All its elements have one type.

        Raises: ConfigError if an element does not match the type or is outside its range, or if the elements are
        arrays.
        """
        if element is ValueType.ARR:
            raise ConfigError("the elements of an array cannot be arrays: llama.cpp refuses nested arrays")
        listed = list(values)
        return cls(ValueType.ARR, ARRAY_HEAD.pack(element, len(listed)) + _encode_all(element, listed))

    @property
    def element(self) -> ValueType | None:
        """Return the type of an array's elements, or None for other values."""
        return ValueType(ARRAY_HEAD.unpack_from(self.raw)[0]) if self.type is ValueType.ARR else None

    @property
    def count(self) -> int:
        """Return the number of an array's elements, or 1 for other values."""
        return int(ARRAY_HEAD.unpack_from(self.raw)[1]) if self.type is ValueType.ARR else 1

    @property
    def label(self) -> str:
        """Return the type as text: u32, str, arr of i32."""
        return f"arr of {self.element.label}" if self.element is not None else self.type.label

    def decode(self) -> Decoded:
        """Return the value: a number, a str, a list of str, or a read-only array of numbers.

        Bytes of a string that are not UTF-8 become lone surrogates. `of` writes these as the same bytes.
        """
        if self.type is ValueType.STR:
            return _text(self.raw[LENGTH.size :])
        if self.type is ValueType.ARR:
            return self._strings() if self.element is ValueType.STR else self._numbers()
        return self.number

    @property
    def number(self) -> bool | int | float:
        """Return the value of a scalar that is not a string."""
        value: bool | int | float = PACKING[self.type].unpack(self.raw)[0]
        return value

    def _numbers(self) -> npt.NDArray[Any]:
        assert self.element is not None
        body = self.raw[ARRAY_HEAD.size :]
        if self.element is ValueType.BOOL:  # any byte but 0 is true, as in llama.cpp
            return np.frombuffer(body, np.uint8).astype(np.bool_)
        return np.frombuffer(body, PACKING[self.element].format)

    def _strings(self) -> list[str]:
        strings = []
        position = ARRAY_HEAD.size
        for _ in range(self.count):
            start = position + LENGTH.size
            position = start + LENGTH.unpack_from(self.raw, position)[0]
            strings.append(_text(self.raw[start:position]))
        return strings


def utf8(text: str) -> bytes:
    """Return the bytes of a string from a file, in which lone surrogates represent bytes that are not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{shown(text)} is not text: {error.reason} at letter {error.start}") from None


def encode_text(text: str) -> bytes:
    """Return a string in the form of keys, values and tensor names: the number of its bytes, then the bytes."""
    encoded = utf8(text)
    return LENGTH.pack(len(encoded)) + encoded


def shown(text: str) -> str:
    """Return a key or name quoted for a message, cut after 77 letters if it is longer than 80."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _text(raw: Buffer) -> str:
    return str(raw, "utf-8", "surrogateescape")


def _encode(type_: ValueType, value: Any) -> bytes:
    if type_ is ValueType.ARR:
        raise ConfigError("an array requires the type of its elements and a list of them, not one value")
    if type_ is ValueType.STR:
        if not isinstance(value, str):
            raise ConfigError(f"{value!r} is not text; str requires text")
        return encode_text(value)
    return PACKING[type_].pack(_number(type_, value))


def _encode_all(type_: ValueType, values: Sequence[Any]) -> bytes:
    """Return the encoded values in sequence.

    A vocabulary has hundreds of thousands, mostly plain text and whole numbers.
    """
    python_types = set(map(type, values))
    if type_ is ValueType.STR and python_types == {str}:
        try:
            encoded = [value.encode("utf-8", "surrogateescape") for value in values]
        except UnicodeEncodeError:
            encoded = [*map(utf8, values)]  # raises an error that names the value
        heads = {length: LENGTH.pack(length) for length in {*map(len, encoded)}}
        return b"".join([heads[len(each)] + each for each in encoded])
    if type_ in _INTEGERS and python_types == {int}:
        low, high = _range(type_)
        if low <= min(values) and max(values) <= high:
            return np.array(values, PACKING[type_].format).tobytes()
    return b"".join([_encode(type_, value) for value in values])


def _number(type_: ValueType, value: Any) -> bool | int | float:
    is_bool = isinstance(value, (bool, np.bool_))
    if type_ is ValueType.BOOL:
        if not is_bool:
            raise ConfigError(f"{value!r} is neither true nor false; bool requires one of them")
        return bool(value)
    if is_bool:
        raise ConfigError(f"{value} is not a number; {type_.label} requires one")
    return _float(type_, value) if type_ in (ValueType.F32, ValueType.F64) else _integer(type_, value)


def _range(type_: ValueType) -> tuple[int, int]:
    bits = 8 * PACKING[type_].size
    return (0, 2**bits - 1) if type_.name[0] == "U" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _integer(type_: ValueType, value: Any) -> int:
    if not isinstance(value, (int, np.integer)):
        raise ConfigError(f"{value!r} is not a whole number; {type_.label} requires one")
    low, high = _range(type_)
    if not low <= value <= high:
        raise ConfigError(f"{_brief(value)} does not fit {type_.label}, which ranges from {low} to {high}")
    return int(value)


def _float(type_: ValueType, value: Any) -> float:
    if not isinstance(value, (int, float, np.integer, np.floating)):
        raise ConfigError(f"{value!r} is not a number; {type_.label} requires one")
    try:
        number = float(value)
        PACKING[type_].pack(number)
    except OverflowError:
        largest = float(np.finfo(PACKING[type_].format).max)
        raise ConfigError(
            f"{_brief(value)} does not fit {type_.label}, whose largest number is {largest:.6g}"
        ) from None
    return number


def _brief(number: Any) -> str:
    return str(number) if abs(number) < 1e80 else "a number of more than 80 digits"


def plain_number(value: Any) -> Any:
    """Return NaN and the infinities as text, and other values unchanged.

    JSON cannot store these numbers, and NaN does not equal itself.
    """
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
