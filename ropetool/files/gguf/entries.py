"""The entries of a header: keys with their values, and the table of tensors. Each step is checked against the file's end.

Values are views of their bytes. Only general.alignment is interpreted, because it affects the container.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ropetool.errors import CorruptFile
from ropetool.files.gguf.codec import Value, shown
from ropetool.files.gguf.kinds import GGML_TYPES, PACKING, ValueType

I32 = struct.Struct("<i")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
I64 = struct.Struct("<q")

MAX_STRINGS = 1 << 22  # in all lists of a file, because each takes a step; the largest known tokenizers have 800,000
AGAIN = "download or convert the file again"
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_KEY_BYTES = 65_535  # the limit in the GGUF specification; llama.cpp does not have a limit
MAX_NAME_BYTES = 63  # ggml keeps 64 bytes with the closing zero
MAX_DIMS = 4


class HeaderGoesOn(CorruptFile):
    """The header does not end within the given bytes, but the file has more."""


class Cursor:
    """A position in `view`, the first bytes of a file of `file_size`."""

    def __init__(self, view: memoryview, file_size: int, path: Path) -> None:
        self.view = view
        self.position = 0
        self._file_size = file_size
        self._path = path
        self._place = "the header"
        self._place_at = 0
        self._strings = 0

    def enter(self, place: str, at: int) -> None:
        """Name the part of the header that is read next, for error messages."""
        self._place = place
        self._place_at = at

    def error(self, message: str, *, try_: str = "") -> CorruptFile:
        """Return the error for the current part of the header."""
        return CorruptFile(f"{self._place} at byte {self._place_at} {message}", where=str(self._path), try_=try_)

    def number(self, packing: struct.Struct) -> int:
        """Return the next integer of this packing."""
        number: int = packing.unpack_from(self.view, self.skip(packing.size))[0]
        return number

    def skip(self, nbytes: int, what: str = "") -> int:
        """Skip some bytes and return their start. If they exceed the file, the error message contains `what`."""
        start = self.position
        if nbytes > len(self.view) - start:
            raise self.beyond(start + nbytes, what)
        self.position = start + nbytes
        return start

    def text(self, longest: int, rule: str) -> str:
        """Return the next string as a name of at most `longest` bytes. `rule` ends the message about a longer one."""
        length = self.number(U64)
        what = f"has a name of {length} bytes"
        if length > self._file_size:
            raise self.beyond(length, what)
        if length > longest:
            raise self.error(f"{what}; {rule}")
        start = self.skip(length, what)
        return str(self.view[start : self.position], "utf-8", "surrogateescape")

    def skip_strings(self, count: int) -> None:
        """Skip strings by their lengths. Creating an object for each would take ten times as long."""
        self._strings += count if self.position + 8 * count <= len(self.view) else 0  # else the loop ends soon
        if self._strings > MAX_STRINGS:
            raise self.error(f"has {count:,} strings; ropetool reads at most {MAX_STRINGS:,} per file")
        length_at, view, position, fitting = U64.unpack_from, self.view, self.position, 0
        try:
            for fitting in range(count):  # noqa: B007 (used after the loop)
                position += 8 + length_at(view, position)[0]
            fitting = count
        except (struct.error, OverflowError):  # the position is beyond the view
            position += 8
        if position > len(view):
            raise self.beyond(position, f"has {count} strings, at most {fitting} complete")
        self.position = position

    def beyond(self, end: int, what: str = "") -> CorruptFile:
        """Return the error for bytes that reach to `end`, which is beyond the view."""
        if end <= self._file_size:
            message = f"{self._place} at byte {self._place_at} does not end within {len(self.view)} bytes"
            return HeaderGoesOn(f"{message}, more than any model needs", where=str(self._path))
        ends = f"the file ends at byte {self._file_size}"
        return self.error(f"{what}, but {ends}" if what else f"is cut off: {ends}", try_=AGAIN)


# --- keys and values


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


# --- tensors


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in the header.

    shape: the stored order, with the contiguous length first. numpy has it last.
    ggml_type: a key of GGML_TYPES.
    offset: from the start of the data, in bytes.
    nbytes: the size without padding, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """Return the end of the tensor without padding, from the start of the data, in bytes."""
        return self.offset + self.nbytes

    @property
    def type_name(self) -> str:
        """Return ggml's name of the type: F32, Q4_K."""
        return GGML_TYPES[self.ggml_type].name


def padded(size: int, alignment: int) -> int:
    """Return the size rounded up to a multiple of the alignment, a power of two."""
    return (size + alignment - 1) & -alignment


def read_tensors(cursor: Cursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    """Return the next `count` tensors of the table.

    Raises: CorruptFile if llama.cpp would not load a name, shape or type, or if an offset is not the sum of the padded
    sizes before it.
    """
    tensors: dict[str, TensorInfo] = {}
    expected = 0
    for index in range(count):
        info = _tensor(cursor, index)
        if info.name in tensors:
            raise cursor.error("appears a second time; a tensor appears once")
        if info.offset != expected:
            fault = "overlaps the tensor before it" if info.offset < expected else "leaves a gap before it"
            raise cursor.error(f"{fault}: its offset is {info.offset} instead of {expected}")
        tensors[info.name] = info
        expected = padded(info.end, alignment)
    return tuple(tensors.values())


def _tensor(cursor: Cursor, index: int) -> TensorInfo:
    start = cursor.position
    cursor.enter(f"tensor number {index}", start)
    name = cursor.text(MAX_NAME_BYTES, f"a tensor's name has at most {MAX_NAME_BYTES}")
    cursor.enter(f"tensor {shown(name)}", start)
    n_dims = cursor.number(U32)
    if n_dims > MAX_DIMS:
        raise cursor.error(f"has {n_dims} dimensions; at most {MAX_DIMS} are allowed")
    shape = tuple(cursor.number(I64) for _ in range(n_dims))
    ggml_type = cursor.number(I32)
    nbytes = _nbytes(cursor, shape, ggml_type)
    return TensorInfo(name, shape, ggml_type, cursor.number(U64), nbytes)


def _nbytes(cursor: Cursor, shape: tuple[int, ...], number: int) -> int:
    elements = prod(shape)
    if min(shape, default=0) < 0 or elements >= 2**63:
        raise cursor.error(f"has shape {list(shape)}; each dimension must be at least 0, and the product below 2^63")
    ggml_type = GGML_TYPES.get(number)
    if ggml_type is None:
        raise cursor.error(f"has the unknown tensor type {number}")
    row = shape[0] if shape else 1
    if row % ggml_type.block:
        raise cursor.error(f"has rows of {row} elements; {ggml_type.name} stores blocks of {ggml_type.block}")
    return elements // ggml_type.block * ggml_type.nbytes
