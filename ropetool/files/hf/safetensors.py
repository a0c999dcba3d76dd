"""The header of a safetensors file: names, types, shapes and positions of its tensors, within limits.

It reads only the header, and checks all declared sizes before use.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ropetool.errors import CorruptFile
from ropetool.files.hf.jsontext import shown, uncollected, unique
from ropetool.files.regular import is_lfs_pointer, lfs_refusal, open_regular, unreadable

# The limit of one file, and of all files of a checkpoint. The largest known number is 208,000 in 62 files, in Kimi K2
# Thinking: 60 layers of 384 experts with nine tensors each. A single file has a few thousand. A tensor takes 5 us and
# 400 bytes here, so reading more would take over two seconds.
MAX_TENSORS = 250_000
MAX_HEADER = 48_000_000  # bytes: 190 for each of 250,000 tensors, which need 120. The format allows 100,000,000
METADATA = "__metadata__"
_INCOMPLETE = "download the file again: it is incomplete"
_PREFIX = 8
_ALIGNMENT = 8  # of the data; the writer of the safetensors package pads to it

MAX_MEMBER = 2 << 20  # characters; the longest known member, a __metadata__, has a tenth of this
MAX_BESIDE = 64  # members besides the requested one; an index has two in total
MAX_NAME = 1 << 10  # characters; the longest known tensor names have a tenth of this
_CHUNK = 1 << 16
_SPACE = re.compile(r"[ \t\n\r]*")
_SPACES = " \t\n\r"
_NAME = re.compile(r'"([^"\\\x00-\x1f]*)":')
# Bits of one element, by the spelling in the file (safetensors 0.8).
DTYPE_BITS: Mapping[str, int] = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


def header_bytes(tensors: Iterable[tuple[str, str, Sequence[int], int]], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes before the data for tensors in this order.

    tensors: for each a name, a type, a shape and a size in bytes.
    metadata: the content of __metadata__; omitted if empty.
    """
    entries: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    at = 0
    for name, dtype, shape, nbytes in tensors:
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_PREFIX, "little") + text


class SafetensorsInfo(NamedTuple):  # takes a third of the time of a frozen dataclass
    """A tensor with the bytes file[begin:end]."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """The header of a file.

    tensors: the tensors by name, in the order of the header.
    metadata: the content of __metadata__.
    data_start: the start of the data, in bytes.
    """

    path: Path
    tensors: Mapping[str, SafetensorsInfo]
    metadata: Mapping[str, str]
    data_start: int


def read_header(path: Path, most: int = MAX_TENSORS) -> Header:
    """Return the checked header of a file. Every byte of the data belongs to exactly one tensor.

    most: the largest allowed number of tensors.
    Raises: CorruptFile if it breaks a rule of the format; CheckpointError if it cannot be read.
    Source: github.com/huggingface/safetensors README.md "Format" and, for the dtypes, the 0.8.0 package.
    """
    path = Path(path)
    try:
        with open_regular(path) as file:
            return _read(file, path, most)
    except OSError as error:
        raise unreadable(error, str(path)) from error


def data_start(path: Path) -> int:
    """Return the start of the data in a file, from its first eight bytes.

    Raises: CorruptFile if they are invalid; CheckpointError if the file cannot be read.
    """
    try:
        with open_regular(path) as file:
            return _data_start(file, str(path))
    except OSError as error:
        raise unreadable(error, str(path)) from error


def _data_start(file: BinaryIO, where: str) -> int:
    return _PREFIX + _header_length(file.read(_PREFIX), os.fstat(file.fileno()).st_size, where)


def _read(file: BinaryIO, path: Path, most: int) -> Header:
    where = str(path)
    size = os.fstat(file.fileno()).st_size
    data_start = _data_start(file, where)
    tensors: dict[str, SafetensorsInfo] = {}
    metadata: dict[str, str] | None = None
    text = Members(file, data_start - _PREFIX, where, "the header ")
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}  # one object for all tensors of a shape
    with uncollected():
        for name, value in _entries(text):
            if name in tensors or (name == METADATA and metadata is not None):
                raise CorruptFile(f"the header contains {name!r} twice", where=where)
            if name == METADATA:
                metadata = _metadata(value, where)
            elif len(tensors) < most:
                tensors[name] = _tensor(name, value, data_start, shapes, where)
            else:
                raise CorruptFile(
                    f"with this file, the checkpoint has more than {MAX_TENSORS:,} tensors, the limit", where=where
                )
        _check_cover(tensors, data_start, size, where)
    return Header(path, tensors, metadata or {}, data_start)


def _header_length(prefix: bytes, size: int, where: str) -> int:
    if is_lfs_pointer(prefix, size):
        raise lfs_refusal(where)
    if len(prefix) < _PREFIX:
        raise CorruptFile(
            f"is {size} bytes long; a safetensors file begins with the 8-byte length of its header", where=where
        )
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER:
        raise CorruptFile(f"declares a header of {length:,} bytes; ropetool reads at most {MAX_HEADER:,}", where=where)
    if length > size - _PREFIX:
        raise CorruptFile(
            f"declares a header of {length:,} bytes, but only {size - _PREFIX:,} follow",
            where=where, try_=_INCOMPLETE,
        )  # fmt: skip
    return length


def _entries(text: Members) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the object in the header. Nothing else may be in the header."""
    if not text.begins_with("{"):
        raise text.error("does not begin with '{'")
    yield from text.members()
    text.end()


# --- checks of the entries


def _metadata(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise CorruptFile(f"__metadata__ is {shown(value)}; it must map names to text", where=where)
    return value


def _tensor(
    name: str, value: Any, data_start: int, shapes: dict[tuple[int, ...], tuple[int, ...]], where: str
) -> SafetensorsInfo:
    if not isinstance(value, dict):
        raise CorruptFile(f"tensor {name!r} is {shown(value)}; it needs dtype, shape and data_offsets", where=where)
    for key in ("dtype", "shape", "data_offsets"):
        if key not in value:
            raise CorruptFile(f"tensor {name!r} has no {key}", where=where)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CorruptFile(
            f"tensor {name!r} has dtype {shown(dtype)}; known types are {', '.join(DTYPE_BITS)}", where=where
        )
    if not _are_counts(shape):
        raise CorruptFile(
            f"tensor {name!r} has shape {shown(shape)}; a shape must list whole numbers of at least 0", where=where
        )
    if not _are_counts(offsets) or len(offsets) != 2:
        raise CorruptFile(
            f"tensor {name!r} has data_offsets {shown(offsets)}; they must be two whole numbers", where=where
        )
    begin, end = offsets
    if begin > end:
        raise CorruptFile(f"tensor {name!r} ends at {end}, before it begins at {begin}", where=where)
    _check_bytes(name, dtype, shape, end - begin, where)
    stored = tuple(shape)
    return SafetensorsInfo(
        name, _SPELLING[dtype], shapes.setdefault(stored, stored), data_start + begin, data_start + end
    )  # fmt: skip


_SPELLING = {dtype: dtype for dtype in DTYPE_BITS}  # one string object for all tensors of a type


def _are_counts(values: Any) -> bool:
    if not isinstance(values, list):
        return False
    return not [value for value in values if type(value) is not int or not 0 <= value < 2**64]


def _check_bytes(name: str, dtype: str, shape: list[int], nbytes: int, where: str) -> None:
    bits = DTYPE_BITS[dtype]
    for count in shape:
        bits *= count
        # In the loop, because the whole product of a long hostile shape would take minutes.
        if bits >= 2**64:
            raise CorruptFile(f"tensor {name!r} has shape {shown(shape)}, which is too large for a file", where=where)
    if bits % 8:
        raise CorruptFile(
            f"tensor {name!r} is {bits} bits long ({dtype} {shown(shape)}), not a whole number of bytes", where=where
        )
    if bits // 8 != nbytes:
        raise CorruptFile(
            f"tensor {name!r} spans {nbytes} bytes, but {dtype} {shown(shape)} needs {bits // 8}", where=where
        )


def _check_cover(tensors: Mapping[str, SafetensorsInfo], data_start: int, size: int, where: str) -> None:
    """Raise CorruptFile if the tensors, in the order of their positions, do not cover the data, or overlap."""
    reached = data_start
    for tensor in sorted(tensors.values(), key=attrgetter("begin", "end")):
        if tensor.begin != reached:
            problem = "leaves a hole" if tensor.begin > reached else "overlaps"
            raise CorruptFile(
                f"tensor {tensor.name!r} {problem}: it begins at {tensor.begin - data_start} of the data, "
                f"but the tensors before it end at {reached - data_start}", where=where,
            )  # fmt: skip
        reached = tensor.end
    if reached > size:
        raise CorruptFile(
            f"the tensors end at byte {reached:,}, but the file ends at byte {size:,}",
            where=where, try_=_INCOMPLETE,
        )  # fmt: skip
    if reached < size:
        raise CorruptFile(f"{size - reached:,} extra bytes follow the last tensor", where=where)


# --- JSON in pieces


class Members:
    """A JSON object in the next `length` bytes of a file, read one member at a time.

    Only one member is in memory. This is for the two files that may be large: the header of a safetensors file, and the
    index of shards.

    where: the file, for messages.
    what: the start of messages.

    Call `end` to check the end of the text.
    """

    def __init__(self, file: BinaryIO, length: int, where: str, what: str) -> None:
        self._file = file
        self._left = length
        self._where = where
        self._what = what
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        decoder: Any = json.JSONDecoder(object_pairs_hook=lambda pairs: unique(pairs, where))
        self._scan = decoder.scan_once
        self._text = ""
        self._at = 0
        self._passed = 0  # characters dropped before _text

    def begins_with(self, char: str) -> bool:
        """Return whether the text begins with this character."""
        return (bool(self._text) or self._more()) and self._text.startswith(char)

    def members(self) -> Iterator[tuple[str, Any]]:
        """Yield the names and values of the object at this position. The caller checks for duplicate names.

        Raises: CorruptFile.
        """
        for _ in self._opened():
            more = True
            while more:
                name, value, more = self._plain_member() or self._member()
                if len(name) > MAX_NAME:
                    raise self.error(f"has a name of {len(name):,} characters; ropetool reads at most {MAX_NAME:,}")
                yield name, value

    def members_of(self, member: str) -> Iterator[tuple[str, Any]]:
        """Yield the names and values of one member, which is an object, of the object at this position.

        Raises: CorruptFile.
        """
        seen: set[str] = set()
        for _ in self._opened():
            more = True
            while more:
                name = self._name()
                if name in seen:
                    raise self.error(f"names {name!r} twice")
                if len(seen) == MAX_BESIDE:
                    raise self.error(f"has more than {MAX_BESIDE} members besides {member!r}")
                seen.add(name)
                if name == member and self._peek() == "{":
                    yield from self.members()
                else:
                    self._value()
                more = self._ends_with_more()

    def end(self) -> None:
        """Raise CorruptFile if anything other than spaces follows."""
        if self._peek():
            raise self.error(f"has {self._peek()!r} after its object; only spaces may follow")

    def error(self, message: str) -> CorruptFile:
        """Return the error for the last position."""
        return CorruptFile(f"{self._what}{message}, at character {self._passed + self._at}", where=self._where)

    def _opened(self) -> Iterator[None]:
        """Step into an object. Yield once if it has members."""
        self._take("{")
        if self._peek() == "}":
            self._take("}")
        else:
            yield

    def _member(self) -> tuple[str, Any, bool]:
        """Return the next name and value, and True if more members follow."""
        name = self._name()
        return name, self._value(), self._ends_with_more()

    def _plain_member(self) -> tuple[str, Any, bool] | None:
        """Return the same as `_member` in half the time, or None if the loaded text is not plain or not long enough."""
        head = _NAME.match(self._text, self._at)
        if head is None:
            return None
        try:
            value, at = self._scan(self._text, head.end())
        except (ValueError, StopIteration, RecursionError):
            return None
        char = self._text[at : at + 1]
        if char not in (",", "}"):
            return None
        self._at = at + 1
        return head[1], value, char == ","

    def _name(self) -> str:
        if self._peek() != '"':
            raise self.error(f"has {self._peek()!r} instead of a name in quotes")
        name: str = self._value()
        self._take(":")
        return name

    def _ends_with_more(self) -> bool:
        more = self._peek() == ","
        self._take(",}")
        return more

    def _peek(self) -> str:
        """Return the next character that is not a space, or an empty text at the end."""
        while True:
            char = self._text[self._at : self._at + 1]
            if char in _SPACES:  # also at the end, where it is empty
                self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
                char = self._text[self._at : self._at + 1]
            if char or not self._more():
                return char

    def _take(self, allowed: str) -> None:
        char = self._peek()
        if char not in allowed or not char:
            raise self.error(f"has {char!r} where {' or '.join(map(repr, allowed))} belongs")
        self._at += 1

    def _value(self) -> Any:
        """Return the JSON value at this position."""
        self._peek()
        while True:
            try:
                value, at = self._scan(self._text, self._at)
                if at < len(self._text) or not isinstance(value, (int, float)) or not self._more():
                    self._at = at
                    return value  # otherwise a number at the end of the loaded text may continue
            except RecursionError:
                raise self.error("is nested too deeply") from None
            except (ValueError, StopIteration) as error:
                if len(self._text) - self._at >= MAX_MEMBER:
                    raise self.error(f"has an entry of more than {MAX_MEMBER:,} characters, or a broken one") from None
                if not self._more():
                    raise self.error(f"is not valid JSON ({getattr(error, 'msg', 'Expecting value')})") from None

    def _more(self) -> bool:
        if not self._left:
            return False
        waiting = len(self._text) - self._at
        # The size doubles, so that a long entry is parsed only log n times.
        piece = self._file.read(min(self._left, max(_CHUNK, min(waiting, MAX_MEMBER - waiting))))
        self._left = self._left - len(piece) if piece else 0
        try:
            text = self._utf8.decode(piece, final=not self._left)
        except UnicodeDecodeError as error:
            raise self.error(f"is not UTF-8 ({error.reason})") from None
        self._passed += self._at
        self._text = self._text[self._at :] + text
        self._at = 0
        return True
