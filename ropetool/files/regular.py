"""Files opened for reading: only regular ones. A pipe would be waited for without end, and a device has none.

The one door for any path that a user or another file names. It knows no format but the pointers of Git LFS: short texts that
a clone without Git LFS leaves in place of large files.
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
_TOLD_BY = 8  # bytes of the start; no safetensors, GGUF or JSON file begins with them
_MAX_POINTER = 1023  # of a Git LFS pointer, by the specification of Git LFS
LFS_TRY = "git lfs pull"
_KINDS = {
    stat.S_IFDIR: "directory", stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}  # fmt: skip
# What stands there can change between the look and the opening: then too the open must not wait.
_PART = 1 << 20
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: Path, *, buffering: int = -1) -> BinaryIO:
    """Return the file, open for reading; links are followed.

    Raises: MissingFile if there is none; CorruptFile if it is another kind of file, by its name; CheckpointError if the
    system refuses.
    """
    where = str(path)
    try:
        _check_kind(os.stat(path), where)  # to open a device may do something already
        file = os.fdopen(os.open(path, _FLAGS), "rb", buffering)
    except FileNotFoundError:
        what = "is a link to a file that does not exist" if os.path.islink(path) else "does not exist"
        raise MissingFile(what, where=where) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise _unreadable(error, where) from error
    try:
        _check_kind(os.fstat(file.fileno()), where)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a file.

    Raises: CorruptFile if it is longer than `most` bytes; what open_regular raises.
    """
    where = str(path)
    with open_regular(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            # No more than it says: a read of `most` bytes claims as much memory before the first byte is there.
            raw = file.read(size + 1) if size <= most else b""
            if len(raw) > size:  # some of /proc say 0 and hold more
                raw += file.read(most)
        except OSError as error:
            raise _unreadable(error, where) from error
    if size > most or len(raw) > most:
        raise too_long(max(size, len(raw)), most, where)
    return raw


def too_long(size: int, most: int, where: str) -> CorruptFile:
    """Return the error about a file that is too long to be read."""
    return CorruptFile(f"is {size:,} bytes long; ropetool reads at most {most:,}", where=where)


def _check_kind(status: os.stat_result, where: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "special file")
        raise CorruptFile(f"is a {kind}, not a regular file", where=where)


def _unreadable(error: OSError | ValueError, where: str) -> CheckpointError:
    if isinstance(error, BlockingIOError):  # a lease, as edits in place hold one
        return CheckpointError(
            "another process is editing it and has locked it",
            where=where,
            try_="run again later",
        )
    return CheckpointError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=where)


def same_content(a: Path, b: Path) -> bool:
    """Return whether two files hold the same bytes.

    Raises: what open_regular raises.
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
    return len(start) >= _TOLD_BY and size <= _MAX_POINTER and start[: len(LFS_START)] == LFS_START[: len(start)]


def lfs_refusal(where: str, what: str = "weights") -> CorruptFile:
    """Return the error about a pointer in place of a file."""
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
