"""Renames of an output's files in an order that is first written to a journal, so that they can be reverted.

Only this module gives or removes the name of an output's file.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ropetool.errors import CorruptFile, MissingFile
from ropetool.files.regular import read_regular

NEW, OLD = "new", "old"  # subfolders of a hidden folder: of the staged files, and of the earlier files
JOURNAL = "order.json"
_MAX_JOURNAL = 4 << 20  # bytes: 20,000 parts, with names of 40 letters
_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2  # linux/fs.h: flags of renameat2


FileKey = tuple[int, int, int]
"""Inode, size and modification time in nanoseconds, which a rename does not change. For a directory, only the inode."""


@dataclass(frozen=True)
class Order:
    """A journal of renames.

    hidden: the hidden folder with the staged files.
    put: the key of each staged file by name, in order.
    earlier: the names of the earlier files that are moved away first.
    """

    hidden: Path
    put: Mapping[str, FileKey]
    earlier: tuple[str, ...]

    @classmethod
    def read(cls, hidden: Path) -> Order | None:
        """Return the journal of a hidden folder, or None if no rename had begun, or all were done.

        Raises: CheckpointError if it cannot be read; CorruptFile if it is invalid, but there are earlier files to
        restore.
        """
        try:
            raw = read_regular(hidden / JOURNAL, _MAX_JOURNAL)
        except MissingFile:
            return None
        order = cls._parsed(hidden, raw)
        if order is None and earlier_files(hidden):  # no file is moved before the journal is complete
            raise CorruptFile("is not a ropetool journal", where=str(hidden / JOURNAL))
        return order

    @classmethod
    def _parsed(cls, hidden: Path, raw: bytes) -> Order | None:
        try:
            data = json.loads(raw)
            put = {name: (int(inode), int(size), int(time)) for name, (inode, size, time) in data["put"].items()}
            earlier = tuple(data["earlier"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return None
        return cls(hidden, put, earlier) if put and all(map(_is_name, (*put, *earlier))) else None

    def write(self) -> None:
        """Write the journal to the disk."""
        path = self.hidden / JOURNAL
        path.write_text(json.dumps({"put": dict(self.put), "earlier": self.earlier}), encoding="ascii")
        sync(path)
        sync(self.hidden)

    @property
    def folder(self) -> Path:
        return self.hidden.parent

    def is_done(self) -> bool:
        """Return whether the last file has its name. Then the new output counts.

        This is known from the staging folder, because another program may since have changed the file with this name.
        """
        last = list(self.put)[-1]
        stage = self.hidden / NEW / last
        if not os.path.lexists(stage):
            return True
        exchanged = file_key(stage)[0] != self.put[last][0]  # the stage has the earlier file
        return exchanged and not earlier_files(self.hidden)

    def take_away(self, names: Sequence[str]) -> None:
        """Move files of the earlier output into the hidden folder."""
        if not names:
            return
        (self.hidden / OLD).mkdir(exist_ok=True)
        for name in names:
            os.rename(self.folder / name, self.hidden / OLD / name)
        sync(self.folder)

    def put_all(self) -> None:
        """Give the staged files their names. The last one gets its name when all others are on the disk."""
        *others, last = self.put
        for name in others:
            _rename_new(self.hidden / NEW / name, self.folder / name)
        sync(self.folder)
        _rename_new(self.hidden / NEW / last, self.folder / last)
        sync(self.folder)

    def replace(self) -> Path | None:
        """Put the only file or directory in the place of an earlier one, and return the new path of the earlier one.

        Returns None if the earlier file no longer exists. The replacement is one step, except for a directory on a
        system without an exchange of names.
        """
        (name,) = self.put
        stage, place = self.hidden / NEW / name, self.folder / name
        if _exchange(stage, place):
            sync(self.folder)
            return stage
        if place.is_file():
            os.replace(stage, place)
            with suppress(OSError):  # the rename is done and cannot be reverted
                sync(self.folder)
            return None
        self.take_away(self.earlier)
        self.put_all()
        return self.hidden / OLD / name

    def roll_back(self) -> list[str]:
        """Move the new files back, and return the names of the restored earlier files.

        A file that another program has since changed or written stays unchanged.
        """
        for name in reversed(list(self.put)):
            stage, place = self.hidden / NEW / name, self.folder / name
            if not os.path.lexists(place) or file_key(place) != self.put[name]:
                continue
            if os.path.lexists(stage):
                _exchange(stage, place)  # it was put by an exchange
            # If an earlier file was not moved away, the new file replaced it. The earlier file is then gone.
            elif name not in self.earlier or os.path.lexists(self.hidden / OLD / name):
                os.rename(place, stage)
        returned = []
        for name in reversed(self.earlier):
            if os.path.lexists(self.hidden / OLD / name):
                _rename_new(self.hidden / OLD / name, self.folder / name)
                returned.append(name)
        sync(self.folder)
        self.forget()
        return returned

    def forget(self) -> None:
        """Remove the journal, so that there is nothing to roll back."""
        (self.hidden / JOURNAL).unlink(missing_ok=True)


def file_key(path: Path) -> FileKey:
    """Return the key of a file or link, which does not depend on its name."""
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode):  # its size and time change with each file in it
        return status.st_ino, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


def earlier_files(hidden: Path) -> list[Path]:
    """Return the earlier files that were moved into a hidden folder.

    Raises: OSError if the folder cannot be read.
    """
    try:
        return sorted((hidden / OLD).iterdir())
    except FileNotFoundError:
        return []


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name != ".." and "\0" not in name and Path(name).name == name


def _rename_new(old: Path, new: Path) -> None:
    """Rename a file to an unused name.

    Raises: FileExistsError.
    """
    if _renameat2(old, new, _NOREPLACE):
        return
    if os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new))
    os.rename(old, new)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two files or directories in one step. Return False if the system cannot do this."""
    return _renameat2(one, other, _EXCHANGE)


def _renameat2(old: Path, new: Path, flag: int) -> bool:
    """Rename with a flag that plain rename lacks.

    Return False if libc, the kernel or the file system does not support it.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # glibc before 2.28
        return False
    if function(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(new))


def flush(folder: Path) -> None:
    """Write a folder's files to the disk, so that no rename takes effect before the data."""
    for inner, _, files in os.walk(folder):
        for name in files:
            sync(Path(inner, name))
        sync(Path(inner))


def sync(path: Path) -> None:
    # A linked file belongs to the source, and flushing it could write gigabytes. Windows cannot sync a directory.
    if os.name != "posix" or (path.is_file() and path.stat().st_nlink > 1):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a directory
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)
