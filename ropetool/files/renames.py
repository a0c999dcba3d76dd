"""The names of an output's files, changed in a declared order that is written down first, so that it can be undone.

The only module that gives a file of an output its name, or takes it away. Knows paths, not what is written.
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

NEW, OLD = "new", "old"  # folders inside a hidden one: what is going to be put, what was taken away
JOURNAL = "order.json"
_MAX_JOURNAL = 4 << 20  # bytes: 20,000 parts, with names of 40 letters
_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2  # linux/fs.h: flags of renameat2


FileKey = tuple[int, int, int]
"""What a file keeps when it is renamed: inode, size and time of change in nanoseconds. Of a directory the inode alone."""


@dataclass(frozen=True)
class Order:
    """A journal. put: the key of each staged file by name, in order. earlier: what is taken away before, by name."""

    hidden: Path
    put: Mapping[str, FileKey]
    earlier: tuple[str, ...]

    @classmethod
    def read(cls, hidden: Path) -> Order | None:
        """Return the journal of a hidden folder, or None if no name had changed yet, or all of them had.

        Raises: CheckpointError if it cannot be read; CorruptFile if it is none, and there are earlier files to put back.
        """
        try:
            raw = read_regular(hidden / JOURNAL, _MAX_JOURNAL)
        except MissingFile:
            return None
        order = cls._parsed(hidden, raw)
        if order is None and earlier_files(hidden):  # one that was being written has taken nothing away
            raise CorruptFile("is not a ropetool journal", where=str(hidden / JOURNAL))
        return order

    @classmethod
    def _parsed(cls, hidden: Path, raw: bytes) -> Order | None:
        try:
            data = json.loads(raw)
            put = {name: (int(inode), int(size), int(time)) for name, (inode, size, time) in data["put"].items()}
            earlier = tuple(data["earlier"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return cls(hidden, put, earlier) if put and all(map(_is_name, (*put, *earlier))) else None

    def write(self) -> None:
        """Bring the journal to the disk."""
        path = self.hidden / JOURNAL
        path.write_text(json.dumps({"put": dict(self.put), "earlier": self.earlier}), encoding="ascii")
        sync(path)
        sync(self.hidden)

    @property
    def folder(self) -> Path:
        return self.hidden.parent

    def is_done(self) -> bool:
        """Return whether the last file has got its name, which makes the others count.

        It is no longer where it was staged then, whatever has become of that name since.
        """
        last = list(self.put)[-1]
        stage = self.hidden / NEW / last
        if not os.path.lexists(stage):
            return True
        exchanged = file_key(stage)[0] != self.put[last][0]  # the one whose place it has lies there
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
        """Give the staged files their names, the last when all others are on the disk."""
        *others, last = self.put
        for name in others:
            _rename_new(self.hidden / NEW / name, self.folder / name)
        sync(self.folder)
        _rename_new(self.hidden / NEW / last, self.folder / last)
        sync(self.folder)

    def replace(self) -> Path | None:
        """Put the only file or directory in the place of an earlier one; return where that is now, None if it is gone.

        One step, but for a directory where the system has no such step for them.
        """
        (name,) = self.put
        stage, place = self.hidden / NEW / name, self.folder / name
        if _exchange(stage, place):
            sync(self.folder)
            return stage
        if place.is_file():
            os.replace(stage, place)
            with suppress(OSError):  # it has its place, and nothing is left that could be taken back
                sync(self.folder)
            return None
        self.take_away(self.earlier)
        self.put_all()
        return self.hidden / OLD / name

    def roll_back(self) -> list[str]:
        """Take back what was put and return the names of the earlier files that are in their places again.

        A file that somebody has changed or written since, under a name of ours, is left alone.
        """
        for name in reversed(list(self.put)):
            stage, place = self.hidden / NEW / name, self.folder / name
            if not os.path.lexists(place) or file_key(place) != self.put[name]:
                continue
            if os.path.lexists(stage):
                _exchange(stage, place)  # as it was put
            elif name not in self.earlier or os.path.lexists(self.hidden / OLD / name):  # else it has replaced a file
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
        """Remove the journal: there is nothing to roll back."""
        (self.hidden / JOURNAL).unlink(missing_ok=True)


def file_key(path: Path) -> FileKey:
    """Return what tells a file, or a link, under whatever name."""
    found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode):  # its size and time are those of the last file that came or went in it
        return found.st_ino, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


def earlier_files(hidden: Path) -> list[Path]:
    """Return the files in a hidden folder that were taken away from their places.

    Raises: OSError if that cannot be seen.
    """
    try:
        return sorted((hidden / OLD).iterdir())
    except FileNotFoundError:
        return []


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name != ".." and "\0" not in name and Path(name).name == name


def _rename_new(old: Path, new: Path) -> None:
    """Rename to a name that is free.

    Raises: FileExistsError.
    """
    if _renameat2(old, new, _NOREPLACE):
        return
    if os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new))
    os.rename(old, new)


def _exchange(one: Path, other: Path) -> bool:
    """Let two files or directories have each other's name, in one step; return False where there is no such step."""
    return _renameat2(one, other, _EXCHANGE)


def _renameat2(old: Path, new: Path, flag: int) -> bool:
    """Rename with a flag that plain rename lacks; return False where libc, kernel or file system does not have it."""
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
    """Bring everything that was written to the disk, so that no rename can overtake its data."""
    for inner, _, files in os.walk(folder):
        for name in files:
            sync(Path(inner, name))
        sync(Path(inner))


def sync(path: Path) -> None:
    # A linked file is the source's: flushing it could mean gigabytes that are not ours. Windows syncs no directory.
    if os.name != "posix" or (path.is_file() and path.stat().st_nlink > 1):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems sync no directory
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)
