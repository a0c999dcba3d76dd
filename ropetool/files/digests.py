"""SHA-256 of files. A new file is hashed during the write, so that its bytes are not read from the disk again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.files.regular import open_regular, unreadable

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_CHUNK = 1 << 20
_BATCH = 8 << 20  # bytes between two reads after the writer, small enough to be still in memory
_PADDING = 64 << 10  # bytes: a longer gap is a hole that the writer fills later
_SETTLED = 2 * 10**9  # nanoseconds: a change within one tick of the file system's clock would go unseen
_Key = tuple[int, ...]
_Digests = dict[str, tuple[_Key, str]]
_taken: ContextVar[_Digests | None] = ContextVar("taken", default=None)  # of new files, by path
_known: dict[_Key, str] = {}


class NewFile(FileIO):
    """A file during the write. A thread follows the writer, and reads and hashes the written bytes.

    The writers call `wrote`. If a writer changes bytes that the thread has read, the file is read again at the end.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x")
        self._path = path
        self._digest = hashlib.sha256()
        self._read = self._end = 0  # up to where the thread reads, and up to where the file is written without a hole
        self._again = False
        self._pool: ThreadPoolExecutor | None = None
        self._parts: list[Future[None]] = []

    def wrote(self, at: int, nbytes: int) -> None:
        """Note that bytes were written."""
        self._again |= at < self._read
        if at <= self._end + _PADDING:
            self._end = max(self._end, at + nbytes)
        if self._end - self._read >= _BATCH:
            self._parts.append(self._thread().submit(self._add, self._read, self._end))
            self._read = self._end

    def sha256(self) -> str:
        """Return the digest of the complete file. Raises: OSError."""
        for part in self._parts:
            part.result()
        if self._again:
            self._digest, self._read = hashlib.sha256(), 0
        self._add(self._read, os.fstat(self.fileno()).st_size)
        return self._digest.hexdigest()

    def let_go(self) -> None:
        """Stop the thread, even if it has bytes left to read."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _thread(self) -> ThreadPoolExecutor:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # most files are too small to need one

            self._pool = ThreadPoolExecutor(1)
        return self._pool

    def _add(self, begin: int, end: int) -> None:
        with open(self._path, "rb", buffering=0) as file:
            file.seek(begin)
            _feed(self._digest, file, end - begin)


@contextmanager
def taken() -> Iterator[None]:
    """Record the digests of all new files that are written in the body, for `of_new`."""
    token = _taken.set({})
    try:
        yield
    finally:
        _taken.reset(token)


@contextmanager
def new_file(path: Path) -> Iterator[FileIO]:
    """Yield a new file for writing. Raises: OSError; FileExistsError, without a change to the existing file."""
    digests = _taken.get()
    if digests is None:
        with FileIO(path, "x") as plain:
            yield plain
        return
    with NewFile(path) as file:
        try:
            yield file
            digest = file.sha256()
        finally:
            file.let_go()
    digests[str(path)] = (_key(path), digest)


def wrote(file: FileIO, at: int, nbytes: int) -> None:
    """Note that bytes of a file were written. Does nothing if the digest of the file is not recorded."""
    if isinstance(file, NewFile):
        file.wrote(at, nbytes)


def forget(path: Path) -> None:
    """Forget the digest of a new file. Call this before a change to the file."""
    (_taken.get() or {}).pop(str(path), None)


def of_new(path: Path) -> str:
    """Return the digest of a file of this process, in hexadecimal: from its write, or by reading it.

    Raises: CheckpointError.
    """
    key, digest = (_taken.get() or {}).get(str(path), ((), ""))
    return digest if key == _key(path) else of_file(path)


def of_file(path: Path) -> str:
    """Return the digest of a file, in hexadecimal. A file that stays unchanged for some seconds is read only once.

    Raises: CheckpointError.
    """
    try:
        status = os.stat(path)
        key = (*_key(path), status.st_ctime_ns)  # programs can set the modification time, but not this time
        if key in _known:
            return _known[key]
        digest = hashlib.sha256()
        with open_regular(path, buffering=0) as file:
            _feed(digest, file, status.st_size)
        if time.time_ns() - max(status.st_ctime_ns, status.st_mtime_ns) > _SETTLED and _is_still(path, key):
            _known[key] = digest.hexdigest()
    except OSError as error:
        raise unreadable(error, str(path)) from error
    return digest.hexdigest()


def _feed(digest: Any, file: Any, nbytes: int) -> None:
    buffer = memoryview(bytearray(min(_CHUNK, nbytes)))
    while nbytes > 0 and (step := file.readinto(buffer[:nbytes])):
        digest.update(buffer[:step])
        nbytes -= step


def _key(path: Path) -> _Key:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_still(path: Path, key: _Key) -> bool:
    return (*_key(path), os.stat(path).st_ctime_ns) == key
