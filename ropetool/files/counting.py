"""The number of written bytes, for progress displays, and byte sizes as text.

Writers report each write to a context variable. The alternative is a callback through a dozen functions, for every
format and every kind of change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Moved = Callable[[int], None]


def nobody(*_: object) -> None:
    """Ignore a progress report."""


_listener: ContextVar[Moved] = ContextVar("listener", default=nobody)


def moved(nbytes: int) -> None:
    """Report that this number of bytes of an output was written."""
    _listener.get()(nbytes)


@contextmanager
def counted(listener: Moved) -> Iterator[None]:
    """Report all bytes that are written in the body to the listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def byte_size(count: float) -> str:
    """Return a number of bytes as text, in the largest unit that gives at least 1.

    For example, 4096 GiB become 4.00 TiB.
    """
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if round(count / size, 2) >= 1:
            return f"{count / size:,.2f} {unit}"
    return f"{count:,.0f} bytes"
