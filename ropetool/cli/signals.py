"""Signals that end a command. They raise an exception, as Ctrl-C does, so that the command removes unfinished files."""

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

FIRST_CODE = 128  # exit codes above it are of signals, as in a shell
TOGETHER = 1.0  # seconds: a closing terminal sends SIGHUP twice, and users press Ctrl-C several times
_AGAIN = 0.05  # seconds until a signal that was lost is sent again
# The default handlers. A signal with another handler keeps it: under nohup, SIGHUP stays ignored.
_DEFAULTS: dict[str, Any] = {
    "SIGINT": signal.default_int_handler, "SIGTERM": signal.SIG_DFL, "SIGHUP": signal.SIG_DFL,
}  # fmt: skip


class Ended(KeyboardInterrupt):
    """A signal ends the command. It is a KeyboardInterrupt, so code that cleans up after Ctrl-C cleans up after it too."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """The code that a shell reports for a process that the signal ended."""
        return FIRST_CODE + self.number

    def __str__(self) -> str:
        return "Interrupted." if self.number == signal.SIGINT else f"Ended by {signal.Signals(self.number).name}."


def behind(error: BaseException | None) -> Ended | None:
    """Return the signal that led to an exception, or None.

    Python before 3.12 raises RuntimeError from it if the signal comes while a class gets its fields.
    """
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return error if isinstance(error, Ended) else Ended(signal.SIGINT)
        error = error.__cause__
    return None


@contextmanager
def raised() -> Iterator[None]:
    """Raise Ended in the body when SIGINT, SIGTERM or SIGHUP arrives, unless the signal has its own handler or is ignored.

    A second signal within a second is ignored, because it must not interrupt the removal of unfinished files. In other
    threads than the main thread this does nothing, because Python delivers signals only to the main thread.
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
        """Send the signal again if it arrived in a callback or a destructor, because Python drops their exceptions."""
        nonlocal last
        if not isinstance(info.exc_value, Ended):
            hook(info)
            return
        last = -TOGETHER
        again = threading.Timer(_AGAIN, os.kill, [os.getpid(), info.exc_value.number])
        again.daemon = True
        again.start()

    defaults = {getattr(signal, name): handler for name, handler in _DEFAULTS.items() if hasattr(signal, name)}
    replaced = {number: handler for number, handler in defaults.items() if signal.getsignal(number) == handler}
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = lost
        for number in replaced:
            signal.signal(number, end)
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
