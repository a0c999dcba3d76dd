"""Bytes counted as they are written, for whoever shows how far a command is.

The writers tell how much they have written, and know nobody who looks: between them and the one who asks lie a dozen
functions, for every format and every kind of change, that need not carry a callback for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Moved = Callable[[int], None]


def nobody(*_: object) -> None:
    """Be told of progress, and do nothing."""


_listener: ContextVar[Moved] = ContextVar("listener", default=nobody)


def moved(nbytes: int) -> None:
    """Say that so many bytes of an output have been written."""
    _listener.get()(nbytes)


@contextmanager
def counted(listener: Moved) -> Iterator[None]:
    """Have the listener told of all bytes that are written in the body."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def byte_size(count: float) -> str:
    """Return a number of bytes in words, in the largest unit that gives 1 or more: 4096.00 GiB are 4.00 TiB."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if round(count / size, 2) >= 1:
            return f"{count / size:,.2f} {unit}"
    return f"{count:,.0f} bytes"
