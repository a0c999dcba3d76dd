"""The header of a GGUF file, checked by llama.cpp's rules for the container.

The only tensor data that it reads are single vectors on request.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ropetool import names
from ropetool.errors import CheckpointError, CorruptFile, NotACheckpoint, UnsupportedDtype
from ropetool.files.gguf.codec import ARRAY_HEAD, Buffer, Value, shown
from ropetool.files.gguf.entries import (
    AGAIN,
    I64,
    U32,
    Cursor,
    TensorInfo,
    alignment_of,
    padded,
    read_tensors,
    read_values,
)
from ropetool.files.gguf.journal import check_settled
from ropetool.files.gguf.kinds import F32, ValueType
from ropetool.files.regular import LFS_START, is_lfs_pointer, lfs_refusal, open_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # one layout; 3 only added big-endian files

# ropetool's own limits, so that no file can use much memory or time. The largest known headers have about 60 keys,
# 2,000 tensors and 50 MB (a vocabulary of 262,144 tokens and a copy of its tokenizer.json).
MAX_HEADER_BYTES = 96 * 2**20
MAX_KEYS = 2**14
MAX_TENSORS = 2**16
MAX_VECTOR = 2**20


@dataclass(frozen=True, eq=False)
class GgufHeader:
    """A parsed header.

    path: the file.
    version: 2 or 3.
    alignment: the alignment of the data, in bytes.
    values: the metadata without the filler, a key of ropetool that reserves space for later edits.
    tensors: the tensor table.
    infos: the bytes of the tensor table, which ends at `header_end`.
    header_end: the end of keys and table, in bytes.
    data_start: the next multiple of the alignment. In a file without tensors, `header_end`, because it needs no
      padding.
    file_size: in bytes.
    mtime_ns: the modification time, in nanoseconds.
    filler: the number of filler bytes directly before the table; 0 without a filler.

    The values are views of the mapped file. Do not shorten the file while the header is in use.
    """

    path: Path
    version: int
    alignment: int
    values: Mapping[str, Value] = field(repr=False)
    tensors: tuple[TensorInfo, ...] = field(repr=False)
    infos: Buffer = field(repr=False)
    header_end: int
    data_start: int
    file_size: int
    mtime_ns: int
    filler: int = 0

    @property
    def data_end(self) -> int:
        """Return the end of the data with its last padding, which the file may lack.

        Without tensors, return the start of the data.
        """
        last = self.tensors[-1].end if self.tensors else 0
        return self.data_start + padded(last, self.alignment)

    def tensor(self, name: str) -> TensorInfo | None:
        """Return the tensor of this name, or None."""
        return next((tensor for tensor in self.tensors if tensor.name == name), None)

    def get(self, key: str, type_: ValueType) -> Any:
        """Return the decoded value of a key, or None if the file does not have the key.

        Raises: CorruptFile if the value has a different type. llama.cpp does not load such a file.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if value.type is not type_:
            raise CorruptFile(f"{key} has type {value.label}; llama.cpp requires {type_.label}", where=str(self.path))
        return value.decode()


def read_header(path: str | Path) -> GgufHeader:
    """Return the header of a little-endian GGUF file of version 2 or 3.

    Raises: NotACheckpoint if the file does not exist; CorruptFile if llama.cpp would not load the container.
    Raises: PlanMismatch if an in-place edit of the file is not finished.
    """
    path = Path(path)
    check_settled(path)
    with reading(path) as file:
        status = os.fstat(file.fileno())
        if status.st_size == 0:
            raise CorruptFile(
                "the file is empty; a GGUF file starts with the letters GGUF", where=str(path), try_=AGAIN
            )
        view = _map(file, min(status.st_size, MAX_HEADER_BYTES), path)
    return parse_header(view, path, status.st_size, status.st_mtime_ns)


def read_unmapped(path: str | Path) -> GgufHeader:
    """Return the same as `read_header`, but do not keep the file open or mapped. Use this before an in-place edit.

    A mapping counts as a reader of the file, and would show the changed bytes at the old positions.
    """
    header = read_header(path)
    with reading(header.path) as file:
        start = file.read(header.data_start)
    return parse_header(memoryview(start), header.path, header.file_size, header.mtime_ns)


def parse_header(start: memoryview, path: Path, file_size: int, mtime_ns: int = 0) -> GgufHeader:
    """Return the header of a file of this size from its first bytes.

    Raises: HeaderGoesOn if the header is longer than these bytes; CorruptFile if llama.cpp would not load the
    container.
    """
    header = _parse(Cursor(start, file_size, path), path, file_size, mtime_ns)
    _check_data(header)
    return header


@contextmanager
def reading(path: Path) -> Iterator[FileIO]:
    """Open a file for unbuffered reading.

    Raises: NotACheckpoint if it does not exist, is not a regular file, or is not readable.
    """
    try:
        file = cast(FileIO, open_regular(path, buffering=0))
    except CheckpointError as error:
        raise NotACheckpoint(error.message, where=error.where, try_=error.try_) from None
    with file:
        yield file


def read_vector(header: GgufHeader, info: TensorInfo) -> npt.NDArray[np.float32]:
    """Return the data of a one-dimensional F32 tensor of the file.

    Raises: UnsupportedDtype if it has a different type or shape; CorruptFile if the file became shorter.
    """
    check_vector(header, info)
    with reading(header.path) as file:
        file.seek(header.data_start + info.offset)
        raw = file.read(info.nbytes)
    if len(raw) < info.nbytes:
        raise CorruptFile(f"the file became shorter and ends inside tensor {info.name}", where=str(header.path))
    return np.frombuffer(raw, "<f4")


def check_vector(header: GgufHeader, info: TensorInfo) -> None:
    """Raise UnsupportedDtype if the tensor is not one-dimensional, not F32, or too large for a vector."""
    if info.ggml_type != F32 or len(info.shape) != 1 or info.shape[0] > MAX_VECTOR:
        raise UnsupportedDtype(
            f"{info.name} is {info.type_name} of shape {list(info.shape)}; "
            f"it must be F32 with one dimension of at most {MAX_VECTOR}",
            where=str(header.path),
        )


def _map(file: FileIO, nbytes: int, path: Path) -> memoryview:
    try:
        return memoryview(mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # a file system without mmap, or a file shortened since fstat
        raise NotACheckpoint(f"cannot be mapped into memory: {error}", where=str(path)) from None


def _parse(cursor: Cursor, path: Path, file_size: int, mtime_ns: int) -> GgufHeader:
    if is_lfs_pointer(bytes(cursor.view[: len(LFS_START)]), file_size):
        raise lfs_refusal(str(path))
    version = _version(cursor)
    n_tensors = _count(cursor, "tensors", MAX_TENSORS)
    n_keys = _count(cursor, "keys", MAX_KEYS)
    values = read_values(cursor, n_keys)
    alignment = alignment_of(cursor, values)
    infos_start = cursor.position
    filler = _without_filler(values)
    tensors = read_tensors(cursor, n_tensors, alignment)
    return GgufHeader(
        path=path,
        version=version,
        alignment=alignment,
        values=values,
        tensors=tensors,
        infos=cursor.view[infos_start : cursor.position],
        header_end=cursor.position,
        data_start=padded(cursor.position, alignment) if tensors else cursor.position,
        file_size=file_size,
        mtime_ns=mtime_ns,
        filler=filler,
    )


def _without_filler(values: dict[str, Value]) -> int:
    """Remove the filler from the keys. Return the number of its bytes directly before the tensor table."""
    is_last = bool(values) and list(values)[-1] == names.GGUF_FILLER  # another program may have added keys after it
    filler = values.pop(names.GGUF_FILLER, None)
    if filler is None or not is_last:
        return 0
    return len(filler.raw) - (ARRAY_HEAD.size if filler.type is ValueType.ARR else 0)


def _version(cursor: Cursor) -> int:
    magic = bytes(cursor.view[: len(MAGIC)])
    if magic != MAGIC[: len(magic)]:
        raise cursor.error(f"starts with {magic!r}; a GGUF file starts with {MAGIC!r}")
    cursor.skip(len(MAGIC))
    version = cursor.number(U32)
    if version and version & 0xFFFF == 0:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise cursor.error(
            f"is big-endian (its version reads {version}, which is {swapped} with the bytes swapped); "
            "ropetool reads only little-endian files",
            try_="gguf-convert-endian FILE little",
        )
    if version not in VERSIONS:
        raise cursor.error(
            f"has version {version}; ropetool reads versions 2 and 3",
            try_="convert the model again with a current llama.cpp",
        )
    return version


def _count(cursor: Cursor, what: str, most: int) -> int:
    count = cursor.number(I64)
    if not 0 <= count <= most:
        raise cursor.error(f"declares {count} {what}; ropetool reads 0 to {most}")
    return count


def _check_data(header: GgufHeader) -> None:
    """Raise CorruptFile if the file ends before its last tensor. Bytes after the last tensor are allowed."""
    if not header.tensors:
        return
    last = header.tensors[-1]
    end = header.data_start + last.end
    if end > header.file_size:
        raise CorruptFile(
            f"the data of tensor {shown(last.name)} ends at byte {end}, but the file ends at byte {header.file_size}",
            where=str(header.path),
            try_=AGAIN,
        )
