"""System calls that change a file in place, and small files next to it.

A test replaces this class with a simulated disk that loses power.
"""

from __future__ import annotations

import errno
import os
import sys
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any

from ropetool.files.copying import copy_range
from ropetool.files.regular import read_regular
from ropetool.files.renames import sync

_COLLAPSE, _INSERT = 0x08, 0x20  # linux/falloc.h: FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE
# The errors of fallocate for a file system, a file or a range that does not support the step.
_NOT_HERE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY, errno.EFBIG}
_MOST_BESIDE = 1 << 30  # bytes of a journal: the old and the new header, and the first tensors if they move
MOST_HOLES = 1 << 14  # ranges without data to look for; only a sparse file has some


class NotHere(Exception):
    """The file system does not support this step for this file."""


class Disk:
    """One file that is open for writing, and its folder. A write is permanent after the next sync."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self.path, self._file = path, file
        self._descriptor = file.fileno()

    @property
    def block(self) -> int:
        """Return the size of the file system's blocks, in bytes."""
        return os.fstatvfs(self._descriptor).f_bsize if hasattr(os, "fstatvfs") else 4096

    @property
    def can_insert(self) -> bool:
        """Return whether the system can insert ranges. The file system may still refuse."""
        return _libc_fallocate() is not None

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, at: int, nbytes: int) -> bytes:
        """Return bytes from a position, fewer at the end of the file."""
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
        """Copy bytes of the file to a position elsewhere in it. The two ranges must not overlap."""
        copy_range(self._file, self._file, start, at, nbytes)

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        self._file.truncate(size)

    def reserve(self, at: int, nbytes: int) -> None:
        """Reserve disk space for a range, so that a write to it cannot fail because the disk is full."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._descriptor, at, nbytes)

    def insert(self, at: int, nbytes: int) -> None:
        """Insert a range of zeros, and move the bytes after it.

        A power failure can interrupt this step: see `recovery`.
        Raises: NotHere.
        """
        self._fallocate(_INSERT, at, nbytes)

    def collapse(self, at: int, nbytes: int) -> None:
        """Remove a range, and move the bytes after it. Raises: NotHere."""
        self._fallocate(_COLLAPSE, at, nbytes)

    def holes(self) -> list[tuple[int, int]]:
        """Return the ranges without data, as the file system reports them. Returns at most MOST_HOLES ranges."""
        ranges: list[tuple[int, int]] = []
        at, size = 0, self.size()
        while at < size and len(ranges) < MOST_HOLES:
            start = self._seek(at, "SEEK_HOLE", size)
            at = self._seek(start, "SEEK_DATA", size) if start < size else size
            if start < at:
                ranges.append((start, at))
        return ranges

    def sync(self) -> None:
        """Write all changes to the disk."""
        os.fsync(self._descriptor)

    # --- files next to it

    def write_beside(self, name: str, data: bytes, at: int = 0) -> None:
        """Write to a file next to this one. Creates the file if it does not exist."""
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
        """Return the size of the file with this name in the folder, or None if it does not exist.

        With the name of this file, the size of the file that has the name now.
        """
        try:
            return self.path.with_name(name).stat().st_size
        except FileNotFoundError:
            return None

    def sync_beside(self, name: str) -> None:
        sync(self.path.with_name(name))

    def rename_beside(self, name: str, new: str) -> None:
        """Rename a file next to this one. Replaces an existing file."""
        os.replace(self.path.with_name(name), self.path.with_name(new))

    def remove_beside(self, name: str) -> None:
        self.path.with_name(name).unlink(missing_ok=True)

    def sync_folder(self) -> None:
        """Write new, changed and removed names to the disk."""
        sync(self.path.parent)

    def _seek(self, at: int, whence: str, end: int) -> int:
        if not hasattr(os, whence):  # Windows: the whole file is data
            return end
        try:
            return os.lseek(self._descriptor, at, getattr(os, whence))
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data after it
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
    """Return fallocate of libc, which Python's os lacks, or None on other systems."""
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate64  # has 64-bit offsets on every system; musl also has it
    except AttributeError:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function
