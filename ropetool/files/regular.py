"""Opening of regular files only, because a pipe would block and a device has no end.

Every path from a user or another file passes through this module. It also recognises Git LFS pointers: short texts that
a clone without Git LFS has in place of large files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ropetool.errors import CheckpointError, CorruptFile, MissingFile

LFS_START = b"version https://git-lfs.github.com/spec/"
_SHORTEST = 8  # bytes of the start that suffice, because no safetensors, GGUF or JSON file begins with them
_MAX_POINTER = 1023  # bytes of a pointer, from the specification of Git LFS
LFS_TRY = "git lfs pull"
_FILE_TYPES = {
    stat.S_IFDIR: "directory", stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}  # fmt: skip
_PART = 1 << 20
# The file can become a pipe between the check and the opening. Then the opening must not block either.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: Path, *, buffering: int = -1) -> BinaryIO:
    """Return the file, open for reading. Follows links.

    Raises: MissingFile if it does not exist; CorruptFile if it is not a regular file; CheckpointError if the system
    does not open it.
    """
    where = str(path)
    try:
        _check_regular(os.stat(path), where)  # first, because opening a device can have effects
        file = os.fdopen(os.open(path, _FLAGS), "rb", buffering)
    except FileNotFoundError:
        problem = "is a link to a file that does not exist" if os.path.islink(path) else "does not exist"
        raise MissingFile(problem, where=where) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise unreadable(error, where) from error
    try:
        _check_regular(os.fstat(file.fileno()), where)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a file.

    Raises: CorruptFile if it is longer than `most` bytes; the errors of `open_regular`.
    """
    where = str(path)
    with open_regular(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            # Not `most` bytes, because a read allocates all its memory before it reads.
            raw = file.read(size + 1) if size <= most else b""
            if len(raw) > size:  # some files in /proc have size 0 and are longer
                raw += file.read(most)
        except OSError as error:
            raise unreadable(error, where) from error
    if size > most or len(raw) > most:
        raise too_long(max(size, len(raw)), most, where)
    return raw


def too_long(size: int, most: int, where: str) -> CorruptFile:
    """Return the error about a file that is longer than the limit."""
    return CorruptFile(f"is {size:,} bytes long; ropetool reads at most {most:,}", where=where)


def _check_regular(status: os.stat_result, where: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        file_type = _FILE_TYPES.get(stat.S_IFMT(status.st_mode), "special file")
        raise CorruptFile(f"is a {file_type}, not a regular file", where=where)


def unreadable(error: OSError | ValueError | RuntimeError, where: str) -> CheckpointError:
    """Return the error about a file or directory that the system does not open or read."""
    if isinstance(error, BlockingIOError):  # a lease, as in-place edits take
        return CheckpointError(
            "another process is editing it and has locked it",
            where=where,
            try_="run again later",
        )
    return CheckpointError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=where)


def same_content(a: Path, b: Path) -> bool:
    """Return whether two files have the same bytes.

    Raises: the errors of `open_regular`.
    """
    if os.path.samefile(a, b):
        return True
    if a.stat().st_size != b.stat().st_size:
        return False
    with open_regular(a) as first, open_regular(b) as second:
        while part := first.read(_PART):
            if part != second.read(len(part)):
                return False
    return True


def is_lfs_pointer(start: bytes, size: int) -> bool:
    """Return whether a file of this size that starts with these bytes is a Git LFS pointer."""
    return len(start) >= _SHORTEST and size <= _MAX_POINTER and start[: len(LFS_START)] == LFS_START[: len(start)]


def lfs_refusal(where: str, what: str = "weights") -> CorruptFile:
    """Return the error about a Git LFS pointer in place of a file."""
    return CorruptFile(f"is a Git LFS pointer, not the {what}", where=where, try_=LFS_TRY)


def lfs_pointers(folder: Path, known: Container[str] = ()) -> Iterator[str]:
    """Yield the names of the Git LFS pointers directly in a folder, sorted. known: names to skip."""
    for path in sorted(folder.iterdir()):
        with suppress(CheckpointError, OSError):
            if path.name not in known and path.is_file() and path.stat().st_size <= _MAX_POINTER:
                with open_regular(path) as file:
                    start = file.read(len(LFS_START))
                if is_lfs_pointer(start, len(start)):
                    yield path.name
