"""The header of a safetensors file: names, types, shapes and places of its tensors, read within bounds.

Reads no tensor data, and believes nothing that the file says about itself before it is checked.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ropetool.errors import CheckpointError, CorruptFile
from ropetool.formats.hf.jsontext import shown, unique

MAX_HEADER = 100_000_000  # the format's own limit, in bytes
MAX_ENTRY = 2 << 20  # one tensor's line, or all of __metadata__, in characters
_CHUNK = 1 << 16
_PREFIX = 8

# Bits of one element, by the spelling in the file (safetensors 0.8).
DTYPE_BITS: Mapping[str, int] = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor; its bytes are file[begin:end]."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """What a file says about its tensors, in the order of the header; `data_start` is where the first one may begin."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    data_start: int


def read_header(path: Path) -> Header:
    """Return the checked header of a file: every byte of its data belongs to exactly one tensor.

    Raises: CorruptFile if it breaks a rule of the format; CheckpointError if it cannot be read.
    Source: github.com/huggingface/safetensors README.md "Format" and, for the dtypes, the 0.8.0 package.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _read(file, path)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=str(path)) from error


def _read(file: BinaryIO, path: Path) -> Header:
    where = str(path)
    size = os.fstat(file.fileno()).st_size
    data_start = _PREFIX + _header_length(file.read(_PREFIX), size, where)
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] | None = None
    for name, value in _entries(_Text(file, data_start - _PREFIX, where)):
        if name == "__metadata__":
            if metadata is not None:
                raise _twice(name, where)
            metadata = _metadata(value, where)
        elif name in tensors:
            raise _twice(name, where)
        else:
            tensors[name] = _tensor(name, value, data_start, where)
    _check_cover(tensors, data_start, size, where)
    return Header(path, tensors, metadata or {}, data_start)


def _header_length(prefix: bytes, size: int, where: str) -> int:
    if prefix == b"version " and size < 1024:
        raise CorruptFile("is a Git LFS pointer, not the weights", where=where, try_="git lfs pull")
    if len(prefix) < _PREFIX:
        raise CorruptFile(
            f"is {size} bytes long; a safetensors file begins with the 8-byte length of its header", where=where
        )
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER:
        raise CorruptFile(f"claims a header of {length:,} bytes; the format allows {MAX_HEADER:,}", where=where)
    if length > size - _PREFIX:
        raise CorruptFile(
            f"claims a header of {length:,} bytes, but only {size - _PREFIX:,} follow",
            where=where, try_="fetch the file again: it is cut short",
        )  # fmt: skip
    return length


# --- the header as JSON, one entry at a time


class _Text:
    """The header's characters, read as they are needed: a hostile header costs the memory of one entry."""

    def __init__(self, file: BinaryIO, length: int, where: str) -> None:
        self._file = file
        self._left = length
        self._where = where
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._decoder = json.JSONDecoder(object_pairs_hook=lambda pairs: unique(pairs, where))
        self._text = ""
        self._at = 0
        self._passed = 0  # characters dropped before _text

    def begins_with(self, char: str) -> bool:
        return (bool(self._text) or self._more()) and self._text.startswith(char)

    def peek(self) -> str:
        """Return the next character that is no space, "" at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, wanted: str) -> None:
        found = self.peek()
        if found not in wanted or not found:
            raise self.error(f"has {found!r} where {' or '.join(map(repr, wanted))} belongs")
        self._at += 1

    def value(self) -> Any:
        """Return the JSON value that begins here."""
        self.peek()
        while True:
            try:
                value, self._at = self._decoder.raw_decode(self._text, self._at)
                return value
            except RecursionError:
                raise self.error("is nested too deeply") from None
            except ValueError as error:
                if len(self._text) - self._at >= MAX_ENTRY:
                    raise self.error(f"has an entry of more than {MAX_ENTRY:,} characters, or a broken one") from None
                if not self._more():
                    raise self.error(f"is not valid JSON ({getattr(error, 'msg', error)})") from None

    def error(self, message: str) -> CorruptFile:
        return CorruptFile(f"the header {message}, at character {self._passed + self._at}", where=self._where)

    def _more(self) -> bool:
        if not self._left:
            return False
        waiting = len(self._text) - self._at
        # Doubling, so that a long entry is tried log n times.
        piece = self._file.read(min(self._left, max(_CHUNK, min(waiting, MAX_ENTRY - waiting))))
        self._left = self._left - len(piece) if piece else 0
        try:
            text = self._utf8.decode(piece, final=not self._left)
        except UnicodeDecodeError as error:
            raise self.error(f"is not UTF-8 ({error.reason})") from None
        self._passed += self._at
        self._text = self._text[self._at :] + text
        self._at = 0
        return True


_SPACE = re.compile(r"[ \t\n\r]*")


def _entries(text: _Text) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the header's object, which must be all that the header holds."""
    if not text.begins_with("{"):
        raise text.error("does not begin with '{'")
    text.take("{")
    if text.peek() == "}":
        text.take("}")
    else:
        more = True
        while more:
            if text.peek() != '"':
                raise text.error(f"has {text.peek()!r} where a name in quotes belongs")
            name = text.value()
            text.take(":")
            yield name, text.value()
            more = text.peek() == ","
            text.take(",}")
    if text.peek():
        raise text.error(f"has {text.peek()!r} behind its object, where only spaces may follow")


def _twice(name: str, where: str) -> CorruptFile:
    return CorruptFile(f"the header names {name!r} twice", where=where)


# --- what the entries must say


def _metadata(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise CorruptFile(f"__metadata__ is {shown(value)}; it holds text by name", where=where)
    return value


def _tensor(name: str, value: Any, data_start: int, where: str) -> TensorInfo:
    if not isinstance(value, dict):
        raise CorruptFile(f"tensor {name!r} is {shown(value)}; it needs dtype, shape and data_offsets", where=where)
    for key in ("dtype", "shape", "data_offsets"):
        if key not in value:
            raise CorruptFile(f"tensor {name!r} has no {key}", where=where)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CorruptFile(f"tensor {name!r} has dtype {shown(dtype)}; known are {', '.join(DTYPE_BITS)}", where=where)
    if not _are_counts(shape):
        raise CorruptFile(
            f"tensor {name!r} has shape {shown(shape)}; it lists whole numbers of at least 0", where=where
        )
    if not _are_counts(offsets) or len(offsets) != 2:
        raise CorruptFile(f"tensor {name!r} has data_offsets {shown(offsets)}; they are two whole numbers", where=where)
    begin, end = offsets
    if begin > end:
        raise CorruptFile(f"tensor {name!r} ends at {end}, before it begins at {begin}", where=where)
    _check_bytes(name, dtype, shape, end - begin, where)
    return TensorInfo(name, _SPELLING[dtype], tuple(shape), data_start + begin, data_start + end)


_SPELLING = {dtype: dtype for dtype in DTYPE_BITS}  # one string object for all tensors of a type


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**64 for v in values)


def _check_bytes(name: str, dtype: str, shape: list[int], nbytes: int, where: str) -> None:
    bits = DTYPE_BITS[dtype]
    for count in shape:
        bits *= count
        # Here and not at the end: the product of a long hostile shape would take minutes.
        if bits >= 2**64:
            raise CorruptFile(f"tensor {name!r} has shape {shown(shape)}, more than any file holds", where=where)
    if bits % 8:
        raise CorruptFile(f"tensor {name!r} is {bits} bits long ({dtype} {shown(shape)}), no whole bytes", where=where)
    if bits // 8 != nbytes:
        raise CorruptFile(
            f"tensor {name!r} spans {nbytes} bytes, but {dtype} {shown(shape)} takes {bits // 8}", where=where
        )


def _check_cover(tensors: Mapping[str, TensorInfo], data_start: int, size: int, where: str) -> None:
    """Raise CorruptFile unless the tensors, in the order of their places, cover the data without hole or overlap."""
    reached = data_start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.begin, tensor.end)):
        if tensor.begin != reached:
            problem = "leaves a hole" if tensor.begin > reached else "overlaps"
            raise CorruptFile(
                f"tensor {tensor.name!r} {problem}: it begins at {tensor.begin - data_start} of the data, "
                f"the tensors before it end at {reached - data_start}", where=where,
            )  # fmt: skip
        reached = tensor.end
    if reached > size:
        raise CorruptFile(
            f"the tensors end at byte {reached:,}, the file at {size:,}",
            where=where, try_="fetch the file again: it is cut short",
        )  # fmt: skip
    if reached < size:
        raise CorruptFile(f"{size - reached:,} bytes follow the last tensor; none may", where=where)
