"""The system's calls that change a file where it lies, and the small files beside it. Knows nothing of GGUF.

A thin class, so that a test can stand a disk in its place that loses power.
"""

from __future__ import annotations

import errno
import os
import sys
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any

from ropetool.files.gguf.copying import copy_range
from ropetool.files.regular import read_regular
from ropetool.files.renames import sync

_COLLAPSE, _INSERT = 0x08, 0x20  # linux/falloc.h: FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE
# What fallocate says of a file system, a file or a range for which it has no such step.
_NOT_HERE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY, errno.EFBIG}
_MOST_BESIDE = 1 << 30  # bytes of a journal: the old and the new header, with the first tensors where they move
MOST_HOLES = 1 << 14  # ranges without data that are asked for; a file has none, a sparse one some


class NotHere(Exception):
    """The file system has no such step for this file."""


class Disk:
    """One file, open for writing, and the folder that it lies in. Whatever is written counts once it was synced."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self.path, self._file = path, file
        self._descriptor = file.fileno()

    @property
    def block(self) -> int:
        """The size of the file system's blocks in bytes."""
        return os.fstatvfs(self._descriptor).f_bsize if hasattr(os, "fstatvfs") else 4096

    @property
    def can_insert(self) -> bool:
        """Whether the system has a step that inserts ranges; the file system may not."""
        return _libc_fallocate() is not None

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, at: int, nbytes: int) -> bytes:
        """Return the bytes at a place, fewer where the file ends."""
        self._file.seek(at)
        parts = []
        while nbytes and (part := self._file.read(nbytes)):
            parts.append(part)
            nbytes -= len(part)
        return b"".join(parts)

    def write(self, at: int, data: bytes) -> None:
        self._file.seek(at)
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def copy(self, start: int, at: int, nbytes: int) -> None:
        """Copy bytes of the file to another place in it, which they do not overlap."""
        copy_range(self._file, self._file, start, at, nbytes)

    def truncate(self, size: int) -> None:
        """Cut the file, or lengthen it by zeros."""
        self._file.truncate(size)

    def reserve(self, at: int, nbytes: int) -> None:
        """Have the system keep room for bytes at a place, so that writing them cannot fail for want of it."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._descriptor, at, nbytes)

    def insert(self, at: int, nbytes: int) -> None:
        """Open a range of zeros; what lies behind moves. Not one step when the power fails: see `recovery`.

        Raises: NotHere.
        """
        self._fallocate(_INSERT, at, nbytes)

    def collapse(self, at: int, nbytes: int) -> None:
        """Take a range out; what lies behind moves. Raises: NotHere."""
        self._fallocate(_COLLAPSE, at, nbytes)

    def holes(self) -> list[tuple[int, int]]:
        """Return the ranges without data as the file system shows them, the first of them where there are very many."""
        found: list[tuple[int, int]] = []
        at, size = 0, self.size()
        while at < size and len(found) < MOST_HOLES:
            start = self._seek(at, "SEEK_HOLE", size)
            at = self._seek(start, "SEEK_DATA", size) if start < size else size
            if start < at:
                found.append((start, at))
        return found

    def sync(self) -> None:
        """Bring all that was written to the disk."""
        os.fsync(self._descriptor)

    # --- beside it

    def write_beside(self, name: str, data: bytes, at: int = 0) -> None:
        """Write to a file beside it, which is made if it is not there."""
        with FileIO(
            os.open(self.path.with_name(name), os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666), "w"
        ) as file:
            file.seek(at)
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            file.truncate(at + len(data))

    def read_beside(self, name: str) -> bytes:
        return read_regular(self.path.with_name(name), _MOST_BESIDE)

    def size_beside(self, name: str) -> int | None:
        """Return the size of a file beside it, or of what has its name now; None where there is none."""
        try:
            return self.path.with_name(name).stat().st_size
        except FileNotFoundError:
            return None

    def sync_beside(self, name: str) -> None:
        sync(self.path.with_name(name))

    def rename_beside(self, name: str, new: str) -> None:
        """Give a file beside it another name, in the place of what has it."""
        os.replace(self.path.with_name(name), self.path.with_name(new))

    def remove_beside(self, name: str) -> None:
        self.path.with_name(name).unlink(missing_ok=True)

    def sync_folder(self) -> None:
        """Bring names that were made, changed or removed to the disk."""
        sync(self.path.parent)

    def _seek(self, at: int, whence: str, end: int) -> int:
        if not hasattr(os, whence):  # Windows: all is data
            return end
        try:
            return os.lseek(self._descriptor, at, getattr(os, whence))
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data behind it
                return end
            raise

    def _fallocate(self, mode: int, at: int, nbytes: int) -> None:
        function = _libc_fallocate()
        if function is None:
            raise NotHere
        import ctypes

        if function(self._descriptor, mode, at, nbytes) != 0:
            code = ctypes.get_errno()
            if code in _NOT_HERE:
                raise NotHere
            raise OSError(code, os.strerror(code), str(self.path))


@cache
def _libc_fallocate() -> Any:
    """Return fallocate of libc, which Python's os does not have; None on another system."""
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate64  # with offsets of 64 bits everywhere; musl has it too
    except AttributeError:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function
