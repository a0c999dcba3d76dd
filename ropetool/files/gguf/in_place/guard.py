"""Holding a file for an in-place edit, so that no other process edits or reads it, if the system supports this."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from ropetool.errors import OutputError
from ropetool.escaping import command
from ropetool.files import system
from ropetool.files.gguf.in_place.disk import Disk
from ropetool.files.output import output_error

COPY_INSTEAD = "pass -o to write a copy"
UNCHECKED = "ropetool could not check whether another program has the file open: {}"


@dataclass(frozen=True)
class Held:
    """A file that is open for writing.

    disk: the file.
    notes: checks of readers that were not possible.
    let_read: ends the lease, so that other processes can open the file. The lock against other edits stays.
    """

    disk: Disk
    notes: tuple[str, ...]
    let_read: Callable[[], None]


@contextmanager
def held(path: Path) -> Iterator[Held]:
    """Hold a file. The path must not be a link.

    Other processes that open the file wait, because they would read old keys and new data.
    Raises: OutputError if the file has hard links, is not writable, or is in use.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise _read_only(path) from None
        raise output_error(error, path) from error
    with FileIO(descriptor, "r+") as file:
        _check_editable(os.fstat(descriptor), path)
        locked = _lock(descriptor, path)
        notes = (
            ()
            if locked
            else (
                "ropetool could not lock the file: the file system has no locks; do not edit it with a second command",
            )
        )
        with ExitStack() as lease:
            unchecked = lease.enter_context(_leased(descriptor, path))
            yield Held(Disk(path, file), (*notes, *unchecked), lease.close)


def _check_editable(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OutputError("is not a regular file", where=str(path))
    others = status.st_nlink - 1
    if others > 0:
        names = "a second name (a hard link)" if others == 1 else f"{others} other names (hard links)"
        raise OutputError(
            f"has {names}: an edit would change it there too", where=str(path),
            try_=COPY_INSTEAD,
        )  # fmt: skip
    if not status.st_mode & 0o222:
        raise _read_only(path)


def _read_only(path: Path) -> OutputError:
    return OutputError("is read-only", where=str(path), try_=command("chmod", "u+w", path))


def _lock(descriptor: int, path: Path) -> bool:
    locked = system.lock(descriptor)
    if locked is False:
        raise OutputError("another process has it locked, or is editing it", where=str(path), try_="run again later")
    return locked is True


@contextmanager
def _leased(descriptor: int, path: Path) -> Iterator[tuple[str, ...]]:
    """Take a write lease. The system gives it only for a file that no other process has open or mapped."""
    try:
        reason = system.lease(descriptor)
    except BlockingIOError:
        raise _in_use(path) from None
    if reason:
        yield (UNCHECKED.format(reason),)
        return
    try:
        yield ()
    finally:
        system.end_lease(descriptor)


def _in_use(path: Path) -> OutputError:
    users = _users(path)
    by = f" by {', '.join(users)}" if users else ""
    return OutputError(
        f"is in use{by}: that program would read a mix of the old and the new file", where=str(path),
        try_=f"stop that program, or {COPY_INSTEAD}",
    )  # fmt: skip


def _users(path: Path) -> list[str]:
    """Return the processes that have a file open or mapped, as far as this user may see them."""
    users = []
    status = os.stat(path)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            links = [*folder.glob("fd/*"), *folder.glob("map_files/*")]
            if folder.name == str(os.getpid()):
                own = f" {path}\n" in (folder / "maps").read_text(errors="replace")
                users += ["this process itself"] if own else []
            elif f" {path}\n" in (folder / "maps").read_text(errors="replace") or any(
                _is(link, status) for link in links
            ):
                users.append(f"{(folder / 'comm').read_text(errors='replace').strip()} (process {folder.name})")
        except OSError:  # the process has ended, or belongs to a different user
            continue
    return users


def _is(link: Path, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(link), status)
    except OSError:
        return False
