"""A small disk that only this process sees: a tmpfs in a mount namespace of its own, gone when the process ends."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from torture.findings import Skipped

_NEWNS, _NEWUSER = 0x00020000, 0x10000000  # linux/sched.h
_REC, _PRIVATE = 0x4000, 1 << 18  # linux/mount.h


def mount_small(folder: Path, size: int) -> None:
    """Mount a disk of this many bytes for this process alone, which should be a forked child.

    Raises: Skipped where the system does not permit it.
    """
    if sys.platform != "linux":
        raise Skipped(f"needs Linux, this is {sys.platform}")
    user, group = os.getuid(), os.getgid()
    _call("unshare", _NEWNS if user == 0 else _NEWNS | _NEWUSER)
    if user != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)
    _call("mount", b"none", b"/", None, _REC | _PRIVATE, None)
    _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode())


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise Skipped(f"{name} is not permitted here: {os.strerror(ctypes.get_errno())}")
