"""The names of an output's files, changed in a declared order that is written down first, so that it can be undone.

The only module that gives a file of an output its name, or takes it away. Knows paths, not what is written.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NEW, OLD = "new", "old"  # folders inside a hidden one: what is going to be put, what was taken away
JOURNAL = "order.json"
_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2  # linux/fs.h: flags of renameat2


@dataclass(frozen=True)
class Order:
    """A journal. put: the inode of each staged file by name, in order. earlier: what is taken away before, by name."""

    hidden: Path
    put: Mapping[str, int]
    earlier: tuple[str, ...]

    @classmethod
    def read(cls, hidden: Path) -> Order | None:
        """Return the journal of a hidden folder, or None if no name had changed yet."""
        try:
            data = json.loads((hidden / JOURNAL).read_text(encoding="ascii"))
            put, earlier = dict(data["put"]), tuple(data["earlier"])
        except (OSError, ValueError, KeyError, TypeError):  # it was being written
            return None
        if not put or not all(isinstance(name, str) and Path(name).name == name for name in (*put, *earlier)):
            return None
        return cls(hidden, put, earlier)

    def write(self) -> None:
        """Bring the journal to the disk."""
        path = self.hidden / JOURNAL
        path.write_text(json.dumps({"put": dict(self.put), "earlier": list(self.earlier)}), encoding="ascii")
        sync(path)
        sync(self.hidden)

    @property
    def folder(self) -> Path:
        return self.hidden.parent

    def is_done(self) -> bool:
        """Return whether the last file has its name, which makes the others count."""
        last = list(self.put)[-1]
        return inode(self.folder / last) == self.put[last]

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
        """Take back what was put and return the names of the earlier files that are in their places again."""
        for name in reversed(list(self.put)):
            stage, place = self.hidden / NEW / name, self.folder / name
            if inode(place) != self.put[name]:
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


def inode(path: Path) -> int:
    """Return what tells a file under whatever name, 0 if there is none."""
    return os.lstat(path).st_ino if os.path.lexists(path) else 0


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
