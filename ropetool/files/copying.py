"""Copying of byte ranges between open files, in the kernel if possible."""

from __future__ import annotations

import errno
import os
from io import FileIO
from typing import BinaryIO

from ropetool.errors import PlanMismatch
from ropetool.files.counting import moved
from ropetool.files.digests import wrote

CHUNK = 1 << 20
RANGE = 64 << 20  # bytes per call of the kernel: small enough for interrupts and progress reports

# The errors of copy_file_range for unsupported files: on two file systems, an old kernel, or a special file system.
_NOT_HERE = frozenset({
    errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.ENOTTY, errno.EBADF,
    errno.ETXTBSY,
})  # fmt: skip


def copy_range(source: FileIO, target: FileIO, start: int, at: int, nbytes: int) -> None:
    """Copy `nbytes` from `start` in the source to `at` in the target.

    Raises: PlanMismatch if the source is shorter; OSError if the target cannot be written.
    """
    done = copy_in_kernel(source, target, start, at, nbytes)
    _copy_in_chunks(source, target, start + done, at + done, nbytes - done)


def write_all(target: FileIO, at: int, data: bytes | memoryview) -> None:
    """Write all of `data` at a position. A single call of `write` may write only a part."""
    target.seek(at)
    rest = memoryview(data)
    while rest:
        step = target.write(rest)
        rest = rest[step:]
        wrote(target, at, step)
        at += step
        moved(step)


def copy_in_kernel(source: BinaryIO | FileIO, target: FileIO, start: int, at: int, nbytes: int) -> int:
    """Return the number of bytes that the kernel copied. It copies fewer bytes if it does not support these files."""
    done = 0
    if not hasattr(os, "copy_file_range"):  # Linux only
        return done
    while done < nbytes:
        try:
            step = os.copy_file_range(
                source.fileno(), target.fileno(), min(RANGE, nbytes - done), start + done, at + done
            )
        except OSError as error:
            if error.errno in _NOT_HERE:
                break
            raise
        if step == 0:
            break
        wrote(target, at + done, step)
        done += step
        moved(step)
    return done


def _copy_in_chunks(source: FileIO, target: FileIO, start: int, at: int, nbytes: int) -> None:
    buffer = memoryview(bytearray(min(CHUNK, nbytes)))
    done = 0
    while done < nbytes:
        source.seek(start + done)
        step = source.readinto(buffer[: nbytes - done])
        if not step:
            message = f"the file became shorter than {start + nbytes} bytes while it was copied"
            raise PlanMismatch(message, where=str(source.name))
        write_all(target, at + done, buffer[:step])
        done += step
