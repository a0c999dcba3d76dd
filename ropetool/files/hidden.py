"""Hidden folders for staged outputs: creating them, finding the folders of dead processes, and removing these.

A process locks its hidden folder during its whole life. The system releases the lock when the process ends.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from ropetool.errors import CheckpointError, OutputError
from ropetool.files import system
from ropetool.files.renames import JOURNAL, OLD, Order, earlier_files

_LOCK = "lock"
_HIDDEN = re.compile(r"\..+\.ropetool-[0-9a-f]{6}")
_PATIENCE = 60  # seconds to wait for another process that renames files, which takes milliseconds


def hidden_start(output: Path) -> Path:
    """Return the start of the names of an output's hidden folders. Six hexadecimal digits follow it."""
    return output.with_name(f".{output.name}.ropetool-")


def settle(output: Path) -> list[str]:
    """Roll back unfinished changes by dead processes to this output, remove their files, and return notes on this.

    The folders of living processes, and folders that cannot be rolled back, stay unchanged.
    Raises: the errors of `alone_in`.
    """
    notes = []
    with alone_in(output.parent):
        for hidden in sorted(output.parent.glob(escape(hidden_start(output).name) + "??????")):
            if _HIDDEN.fullmatch(hidden.name):
                with _taken_over(hidden) as dead:
                    notes += _settled(hidden) if dead else []
    return notes


def _settled(hidden: Path) -> list[str]:
    try:
        returned = clear(hidden)
    except (OSError, CheckpointError) as error:
        return [f"{hidden} of an interrupted command {why_kept(hidden, error)}"]
    removed = f"removed {hidden}, which an interrupted command had left"
    return [removed, *([f"put back {', '.join(returned)}, which that command had moved away"] if returned else [])]


def set_aside(path: Path) -> list[Path] | None:
    """Return the earlier files in a hidden folder of a dead process, or None for any other path.

    They may be the only copies until `settle` runs.
    """
    if not _HIDDEN.fullmatch(path.name):
        return None
    with _taken_over(path) as dead:
        return earlier_files(path) if dead else None


def why_kept(hidden: Path, error: OSError | CheckpointError) -> str:
    """Return the reason why `clear` kept a hidden folder, as the end of a sentence.

    It mentions earlier files in the folder.
    """
    if isinstance(error, FileExistsError):
        return f"was not removed: {hidden / OLD} contains the earlier files, and new files now use their names"
    reason = error.strerror if isinstance(error, OSError) else error.sentence
    earlier = "; it contains the earlier files, which the next run puts back" if _may_hold_earlier(hidden) else ""
    return f"could not be removed ({reason}){earlier}"


def _may_hold_earlier(hidden: Path) -> bool:
    try:
        return bool(earlier_files(hidden))
    except OSError:
        return True


def clear(hidden: Path) -> list[str]:
    """Roll back an unfinished order, remove the folder, and return the names of the restored files.

    Raises: OSError or CheckpointError if the rollback fails. Then every file that may be the only copy stays.
    """
    order = Order.read(hidden)
    returned = order.roll_back() if order is not None and not order.is_done() else []
    for path in hidden.iterdir():
        if path.name not in (_LOCK, JOURNAL):
            _remove(path)
    for name in (JOURNAL, _LOCK):  # last, because the next run recognises the folder by these files
        (hidden / name).unlink(missing_ok=True)
    with suppress(FileNotFoundError):  # another run has removed the empty folder
        hidden.rmdir()
    return returned


def hidden_name(output: Path) -> Path:
    """Return an unused name for a new hidden folder next to the output."""
    while True:
        hidden = Path(f"{hidden_start(output)}{secrets.token_hex(3)}")
        if not os.path.lexists(hidden):
            return hidden


def make_hidden(hidden: Path) -> tuple[bool, int | None]:
    """Create a hidden folder and lock it.

    Returns whether it exists and belongs to this process, and the descriptor of its lock, or None if the system has no
    locks.
    """
    hidden.mkdir()
    try:
        lock = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:  # before the folder had a lock, another process removed it as one of a dead process
        return False, None
    held = system.lock(lock)
    if held and is_open_as(lock, hidden / _LOCK):
        return True, lock
    os.close(lock)
    return held is None, None


@contextmanager
def hidden_folder(output: Path) -> Iterator[Path]:
    """Yield a new hidden folder of this process next to an output. The folder is removed at the end of the body."""
    own, lock = False, None
    while not own:
        hidden = hidden_name(output)
        own, lock = make_hidden(hidden)
    try:
        yield hidden
    finally:
        clear(hidden)
        if lock is not None:
            os.close(lock)


@contextmanager
def _taken_over(hidden: Path) -> Iterator[bool]:
    """Yield whether the process that made a hidden folder is dead. If so, the folder belongs to this process."""
    if hidden.is_symlink() or not hidden.is_dir():
        yield False
        return
    try:
        lock = os.open(hidden / _LOCK, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        # Without a lock and empty: its process was killed before the lock, or after it had removed everything else.
        yield isinstance(error, FileNotFoundError) and _is_empty(hidden)
        return
    try:
        yield system.lock(lock) is True and is_open_as(lock, hidden / _LOCK)
    finally:
        os.close(lock)


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:  # the folder no longer exists
        return False


def is_open_as(descriptor: int, path: Path) -> bool:
    """Return whether a path is still the file of this descriptor.

    A process can remove a lock file before another locks it.
    """
    return os.path.lexists(path) and os.path.samestat(os.fstat(descriptor), os.lstat(path))


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Prevent other ropetool processes from renaming files in a folder during the body, if the system has locks.

    Raises: OutputError if another process takes longer than a minute.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open a directory
        yield
        return
    try:
        end = time.monotonic() + _PATIENCE
        while system.lock(descriptor) is False:
            if time.monotonic() > end:
                raise OutputError(
                    "another process keeps renaming files in it", where=str(folder), try_="run again later"
                )
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
