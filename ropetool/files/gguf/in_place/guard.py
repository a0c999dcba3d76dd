"""A file held for an edit in place: nobody else may edit it, and nobody may have it open, as far as the system tells."""

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
    """A file open for writing, and what could not be checked of its readers.

    let_read: ends that those who open it wait; nobody else may edit it all the same.
    """

    disk: Disk
    notes: tuple[str, ...]
    let_read: Callable[[], None]


@contextmanager
def held(path: Path) -> Iterator[Held]:
    """Hold a file, by its own path and not that of a link to it.

    While it is held, whoever opens it waits: a reader would see keys of one moment and data of another.
    Raises: OutputError if it has other names, may not be written, or is in use.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise _read_only(path) from None
        raise output_error(error, path) from error
    with FileIO(descriptor, "r+") as file:
        _check_kind(os.fstat(descriptor), path)
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


def _check_kind(status: os.stat_result, path: Path) -> None:
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
    """Take a write lease, which the system gives only for a file that nobody else has open or mapped."""
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
    found = _users(path)
    by = f" by {', '.join(found)}" if found else ""
    return OutputError(
        f"is in use{by}: that program would read a mix of the old and the new file", where=str(path),
        try_=f"stop that program, or {COPY_INSTEAD}",
    )  # fmt: skip


def _users(path: Path) -> list[str]:
    """Return the processes that have a file open or mapped, as far as this user may look into them."""
    found = []
    wanted = os.stat(path)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            links = [*folder.glob("fd/*"), *folder.glob("map_files/*")]
            if folder.name == str(os.getpid()):
                own = f" {path}\n" in (folder / "maps").read_text(errors="replace")
                found += ["this process itself"] if own else []
            elif f" {path}\n" in (folder / "maps").read_text(errors="replace") or any(
                _is(link, wanted) for link in links
            ):
                found.append(f"{(folder / 'comm').read_text(errors='replace').strip()} (process {folder.name})")
        except OSError:  # it has ended, or is another user's
            continue
    return found


def _is(link: Path, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(link), wanted)
    except OSError:
        return False
