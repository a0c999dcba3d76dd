"""The header of a GGUF file, checked by llama.cpp's rules for the container.

Reads no tensor data beyond one vector on demand, and knows no key by its meaning.
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
from ropetool.files.gguf.cursor import AGAIN, I64, U32, Cursor
from ropetool.files.gguf.journal import check_settled
from ropetool.files.gguf.kinds import F32, ValueType
from ropetool.files.gguf.metadata import alignment_of, read_values
from ropetool.files.gguf.tensors import TensorInfo, padded, read_tensors
from ropetool.files.regular import LFS_START, is_lfs_pointer, lfs_refusal, open_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # one layout; 3 only added big-endian files

# Bounds of our own, so that no file can take much memory or time: the largest headers known have about 60 keys,
# 2,000 tensors and 50 MB (a vocabulary of 262,144 tokens together with a copy of its tokenizer.json).
MAX_HEADER_BYTES = 96 * 2**20
MAX_KEYS = 2**14
MAX_TENSORS = 2**16
MAX_VECTOR = 2**20


@dataclass(frozen=True, eq=False)
class GgufHeader:
    """A parsed header; its values are views of the mapped file, so the file must not be cut while this lives.

    `infos` is the tensor table as stored, up to `header_end`; `data_start` is the next multiple of the alignment, or
    `header_end` itself in a file without tensors, which needs no padding. `values` lacks the filler, a key of ours that
    only keeps room for later edits; `filler` is how many bytes of it lie directly in front of the table, 0 without one.
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
        """Where the data ends with its last padding, which the file may lack; where it would begin without tensors."""
        last = self.tensors[-1].end if self.tensors else 0
        return self.data_start + padded(last, self.alignment)

    def tensor(self, name: str) -> TensorInfo | None:
        """Return the tensor of this name, or None."""
        return next((tensor for tensor in self.tensors if tensor.name == name), None)

    def get(self, key: str, type_: ValueType) -> Any:
        """Return the decoded value of a key, or None where the file does not have it.

        Raises: CorruptFile if it has another type; llama.cpp refuses to load such a file.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if value.type is not type_:
            raise CorruptFile(f"{key} has type {value.label}; llama.cpp requires {type_.label}", where=str(self.path))
        return value.decode()


def read_header(path: str | Path) -> GgufHeader:
    """Return the header of a GGUF file of version 2 or 3, little-endian.

    Raises: NotACheckpoint if there is no such file; CorruptFile if llama.cpp would not load the container; PlanMismatch if
    an edit of it in place was not finished.
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
    """Return what `read_header` does without keeping the file open or mapped, for a file that is about to be changed.

    A mapping counts as a reader of the file, and would show the bytes of the changed one under the old places.
    """
    header = read_header(path)
    with reading(header.path) as file:
        start = file.read(header.data_start)
    return parse_header(memoryview(start), header.path, header.file_size, header.mtime_ns)


def parse_header(start: memoryview, path: Path, file_size: int, mtime_ns: int = 0) -> GgufHeader:
    """Return the header of a file of this size from its first bytes, wherever they came from.

    Raises: HeaderGoesOn if it does not end within them; CorruptFile if llama.cpp would not load the container.
    """
    header = _parse(Cursor(start, file_size, path), path, file_size, mtime_ns)
    _check_data(header)
    return header


@contextmanager
def reading(path: Path) -> Iterator[FileIO]:
    """Open a file for unbuffered reading.

    Raises: NotACheckpoint if there is none, it is not a regular file, or the system refuses.
    """
    try:
        file = cast(FileIO, open_regular(path, buffering=0))
    except CheckpointError as error:
        raise NotACheckpoint(error.message, where=error.where, try_=error.try_) from None
    with file:
        yield file


def read_vector(header: GgufHeader, info: TensorInfo) -> npt.NDArray[np.float32]:
    """Return the data of a one-dimensional F32 tensor of the file.

    Raises: UnsupportedDtype if it has another type or shape; CorruptFile if the file became shorter.
    """
    check_vector(header, info)
    with reading(header.path) as file:
        file.seek(header.data_start + info.offset)
        raw = file.read(info.nbytes)
    if len(raw) < info.nbytes:
        raise CorruptFile(f"the file became shorter and ends inside tensor {info.name}", where=str(header.path))
    return np.frombuffer(raw, "<f4")


def check_vector(header: GgufHeader, info: TensorInfo) -> None:
    """Raise UnsupportedDtype unless the tensor is one-dimensional, F32, and of a size that a vector has."""
    if info.ggml_type != F32 or len(info.shape) != 1 or info.shape[0] > MAX_VECTOR:
        raise UnsupportedDtype(
            f"{info.name} is {info.type_name} of shape {list(info.shape)}; "
            f"it must be F32 with one dimension of at most {MAX_VECTOR}",
            where=str(header.path),
        )


def _map(file: FileIO, nbytes: int, path: Path) -> memoryview:
    try:
        return memoryview(mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # a file system without mmap; a file cut since its size was asked
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
    filler = _taken_out(values)
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


def _taken_out(values: dict[str, Value]) -> int:
    """Take the filler out of the keys, and return how many bytes of it lie directly in front of the tensor table."""
    is_last = bool(values) and list(values)[-1] == names.GGUF_FILLER  # another program may have put keys behind it
    found = values.pop(names.GGUF_FILLER, None)
    if found is None or not is_last:
        return 0
    return len(found.raw) - (ARRAY_HEAD.size if found.type is ValueType.ARR else 0)


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
    """Refuse a file that ends before its last tensor does; bytes after it are allowed."""
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
