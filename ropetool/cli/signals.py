"""Signals that end a command: they unwind it as Ctrl-C does, so that nothing half done stays on the disk."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

TOGETHER = 1.0  # seconds: a terminal that closes sends SIGHUP twice, and a hand on Ctrl-C does not press once
_AGAIN = 0.05  # seconds until a signal that was lost is sent again
# What each does while nobody has changed it; one that is ignored, as SIGHUP is under nohup, stays ignored.
_UNTOUCHED: dict[str, Any] = {
    "SIGINT": signal.default_int_handler, "SIGTERM": signal.SIG_DFL, "SIGHUP": signal.SIG_DFL,
}  # fmt: skip


class Ended(KeyboardInterrupt):
    """A signal has asked the command to end. Whoever cleans up after Ctrl-C cleans up after this."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What a shell reports of a process that the signal ended."""
        return 128 + self.number

    def __str__(self) -> str:
        return "Interrupted." if self.number == signal.SIGINT else f"Ended by {signal.Signals(self.number).name}."


@contextmanager
def raised() -> Iterator[None]:
    """Raise Ended in the body when SIGINT, SIGTERM or SIGHUP arrives, but for those that somebody handles or ignores.

    One that follows within a second is the same one: it must not break the cleaning up. Elsewhere than in the main
    thread nothing is changed, as signals are for that one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -TOGETHER

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= TOGETHER:
            last = now
            raise Ended(number)

    def lost(info: sys.UnraisableHookArgs) -> None:
        """Send the signal again: it came inside a callback or a destructor, from where no exception gets out."""
        nonlocal last
        if not isinstance(info.exc_value, Ended):
            hook(info)
            return
        last = -TOGETHER
        again = threading.Timer(_AGAIN, os.kill, [os.getpid(), info.exc_value.number])
        again.daemon = True
        again.start()

    known = {getattr(signal, name): handler for name, handler in _UNTOUCHED.items() if hasattr(signal, name)}
    taken = {number: handler for number, handler in known.items() if signal.getsignal(number) == handler}
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = lost
        for number in taken:
            signal.signal(number, end)
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
