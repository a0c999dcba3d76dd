"""Hidden folders in which outputs are staged: who holds one, which of them are of dead processes, and clearing those.

A process holds a lock on its hidden folder while it lives, which the system lets go however it ends.
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
_PATIENCE = 60  # seconds to wait for another process that changes names, which takes milliseconds


def hidden_start(output: Path) -> Path:
    """Return how the names of the hidden folders of an output begin; six hexadecimal digits follow."""
    return output.with_name(f".{output.name}.ropetool-")


def settle(output: Path) -> list[str]:
    """Roll back what dead processes began on this output, remove what they left, and return notes of it.

    The folder of a living process, of this one too, is left alone, and so is one that cannot be rolled back.
    Raises: what alone_in does.
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
    """Return the earlier files in a hidden folder that a dead process left; None for any other path.

    They may be the only copy, until the output is settled.
    """
    if not _HIDDEN.fullmatch(path.name):
        return None
    with _taken_over(path) as dead:
        return earlier_files(path) if dead else None


def why_kept(hidden: Path, error: OSError | CheckpointError) -> str:
    """Return why `clear` has left a hidden folder, and whether earlier files are in it, as the end of a sentence."""
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
    """Roll back what is not done, remove the folder, and return the names of what has its place again.

    Raises: OSError or CheckpointError, and all is left that may be the only copy, if that cannot be rolled back.
    """
    order = Order.read(hidden)
    returned = order.roll_back() if order is not None and not order.is_done() else []
    for path in hidden.iterdir():
        if path.name not in (_LOCK, JOURNAL):
            _remove(path)
    for name in (JOURNAL, _LOCK):  # last: as long as they are there, a next run can tell what this is
        (hidden / name).unlink(missing_ok=True)
    with suppress(FileNotFoundError):  # another run took it for an empty one
        hidden.rmdir()
    return returned


def hidden_name(output: Path) -> Path:
    """Return a name for a new hidden folder beside the output, which nothing has."""
    while True:
        hidden = Path(f"{hidden_start(output)}{secrets.token_hex(3)}")
        if not os.path.lexists(hidden):
            return hidden


def make_hidden(hidden: Path) -> tuple[bool, int | None]:
    """Return whether the folder is made and this process's own, and the descriptor of its lock, None without locks."""
    hidden.mkdir()
    try:
        lock = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:  # a process that settles took it for that of a dead one, before it had a lock
        return False, None
    held = system.lock(lock)
    if held and is_open_as(lock, hidden / _LOCK):
        return True, lock
    os.close(lock)
    return held is None, None


@contextmanager
def hidden_folder(output: Path) -> Iterator[Path]:
    """Yield a new hidden folder of this process beside an output, which is gone with everything in it afterwards."""
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
    """Yield whether the process that made a hidden folder is gone; then it belongs to this one."""
    if hidden.is_symlink() or not hidden.is_dir():
        yield False
        return
    try:
        lock = os.open(hidden / _LOCK, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        # Without a lock and empty: it was killed before it had one, or when it had removed all else.
        yield isinstance(error, FileNotFoundError) and _is_empty(hidden)
        return
    try:
        yield system.lock(lock) is True and is_open_as(lock, hidden / _LOCK)
    finally:
        os.close(lock)


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:  # it is gone
        return False


def is_open_as(descriptor: int, path: Path) -> bool:
    """Return whether a path still is the file of this descriptor: whoever removes a lock may do so before it is taken."""
    return os.path.lexists(path) and os.path.samestat(os.fstat(descriptor), os.lstat(path))


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Let no other process of ropetool change names in a folder meanwhile, where the system has locks.

    Raises: OutputError if one has not ended after a minute.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no directory
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
