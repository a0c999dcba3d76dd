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
