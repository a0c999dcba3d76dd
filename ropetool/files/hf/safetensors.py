"""The header of a safetensors file: names, types, shapes and positions of its tensors, within limits.

It reads only the header, and checks all declared sizes before use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ropetool.errors import CheckpointError, CorruptFile
from ropetool.files.hf.jsontext import shown, uncollected
from ropetool.files.hf.members import Members
from ropetool.files.regular import is_lfs_pointer, lfs_refusal, open_regular

# The limit of one file, and of all files of a checkpoint. The largest known number is 208,000 in 62 files, in Kimi K2
# Thinking: 60 layers of 384 experts with nine tensors each. A single file has a few thousand. A tensor takes 5 us and
# 400 bytes here, so reading more would take over two seconds.
MAX_TENSORS = 250_000
MAX_HEADER = 48_000_000  # bytes: 190 for each of 250,000 tensors, which need 120. The format allows 100,000,000
METADATA = "__metadata__"
_INCOMPLETE = "download the file again: it is incomplete"
_PREFIX = 8
_ALIGNMENT = 8  # of the data; the writer of the safetensors package pads to it

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
        raise CheckpointError(f"cannot be read: {error.strerror}", where=str(path)) from error


def data_start(path: Path) -> int:
    """Return the start of the data in a file, from its first eight bytes.

    Raises: CorruptFile if they are invalid; CheckpointError if the file cannot be read.
    """
    try:
        with open_regular(path) as file:
            return _data_start(file, str(path))
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=str(path)) from error


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
