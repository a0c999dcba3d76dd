"""Locks, leases and clones of files, which only some systems and file systems have."""

from __future__ import annotations

import errno
import os
import struct
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # Windows does not have it
_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_FIDEDUPERANGE = 0xC0189436  # linux/fs.h: _IOWR(0x94, 54, struct file_dedupe_range)
_DEDUPE_RANGE = struct.Struct("=QQHHIqQQiI")  # with a single struct file_dedupe_range_info


def lock(descriptor: int) -> bool | None:
    """Lock a file for this process. Return False if another process has locked it, None if the system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems
        return None
    return True


def lease(descriptor: int) -> str:
    """Take a write lease: until `end_lease`, a process that opens the file waits.

    Returns the reason if a lease is not possible, else an empty text.
    Raises: BlockingIOError if any process has the file open or mapped, also this one with a second descriptor.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return "this system has no leases"
    import signal

    try:
        # A waiting process sends the holder a signal. SIGURG is ignored by default; the usual SIGIO would end ropetool.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EBUSY):
            raise BlockingIOError(error.errno, "in use") from None
        return (
            "the file belongs to a different user" if error.errno == errno.EACCES else "its file system has no leases"
        )
    return ""


def end_lease(descriptor: int) -> None:
    """End a lease from `lease`."""
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def clone(source: int, destination: int) -> None:
    """Make an empty file share the blocks of the source file, as btrfs, xfs and bcachefs can.

    source, destination: descriptors.
    Raises: OSError, with EOPNOTSUPP if the system cannot clone files.
    """
    if fcntl is None or sys.platform != "linux":
        raise OSError(errno.EOPNOTSUPP, "this system cannot clone files")
    fcntl.ioctl(destination, _FICLONE, source)


def share(source: int, target: int, start: int, nbytes: int) -> int:
    """Make two files share the blocks of a range, as btrfs and xfs can, if the kernel finds equal bytes in both.

    source, target: descriptors.
    start, nbytes: the range in both files. It consists of whole blocks, or ends with both files.
    Returns the number of shared bytes: 0 if the bytes differ. Raises: OSError if the system cannot share them.
    """
    if fcntl is None or sys.platform != "linux":
        raise OSError(errno.EOPNOTSUPP, "this system cannot share blocks")
    request = bytearray(_DEDUPE_RANGE.pack(start, nbytes, 1, 0, 0, target, start, 0, 0, 0))
    fcntl.ioctl(source, _FIDEDUPERANGE, request)
    *_, shared, status, _ = _DEDUPE_RANGE.unpack(request)
    if status < 0:
        raise OSError(-status, os.strerror(-status))
    return int(shared) if status == 0 else 0
