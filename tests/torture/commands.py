"""Runs ropetool's command line in forked children of a process that has imported it: milliseconds each, not a second."""

from __future__ import annotations

import fcntl
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

WIDTH = 1 << 20
PATIENCE = 60  # seconds, after which a command hangs
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, negative for the signal that killed it, and what it printed on both streams."""

    code: int
    text: str

    def expect(self, code: int) -> None:
        """Raise RuntimeError if it ended with another code."""
        if self.code != code:
            raise RuntimeError(f"exit code {self.code} where {code} was expected: {self.text}")


class Output:
    """A pipe for what a command prints; wide enough that nobody has to read it meanwhile."""

    def __init__(self) -> None:
        self._reading, self.descriptor = os.pipe()
        os.set_blocking(self._reading, False)
        fcntl.fcntl(self._reading, fcntl.F_SETPIPE_SZ, WIDTH)

    def text(self) -> str:
        """Return what was printed, and close the pipe."""
        os.close(self.descriptor)
        with open(self._reading, "rb") as file:
            return (file.read() or b"").decode(errors="replace")


@dataclass(frozen=True)
class Started:
    """A command that runs; it has to be ended with `finish`."""

    process: int
    output: Output

    def finish(self) -> Ended:
        """Return how it ended."""
        _, status = os.waitpid(self.process, 0)
        return Ended(os.waitstatus_to_exitcode(status), self.output.text())


def load() -> None:
    """Import what the commands need, so that children have it."""
    import gguf  # noqa: F401
    import numpy as np  # noqa: F401

    from ropetool import gguf_export  # noqa: F401
    from ropetool.cli import apply, bake, export, extend, inspect, recover  # noqa: F401
    from ropetool.plans import (
        flags,  # noqa: F401
        in_place,  # noqa: F401
    )

    gc.collect()
    gc.freeze()  # so that a child's collector does not touch, and thereby copy, the parent's pages


def body(
    arguments: Sequence[str], place: Path, output: Output, prepare: Callable[[], None] | None = None
) -> Callable[[], None]:
    """Return what a forked child has to do to be the command, run in the folder."""

    def work() -> None:
        signal.alarm(PATIENCE)
        for number in INTERRUPTIONS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.dup2(output.descriptor, 1)
        os.dup2(output.descriptor, 2)
        sys.stdin = io.StringIO()
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, "w"), "utf-8", line_buffering=True) for number in (1, 2)
        )
        os.chdir(place)
        if prepare is not None:
            prepare()
        os._exit(_called(arguments))

    return work


def _called(arguments: Sequence[str]) -> int:
    from ropetool.__main__ import main

    sys.argv = ["ropetool", *arguments]
    try:
        main()
    except SystemExit as done:
        sys.stdout.flush()
        return done.code if isinstance(done.code, int) else 1
    except BaseException:  # noqa: BLE001 - what the interpreter would do with it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def start(arguments: Sequence[str], place: Path, prepare: Callable[[], None] | None = None) -> Started:
    """Start a command in a forked child. prepare: what the child does first."""
    output = Output()
    child = os.fork()
    if child == 0:
        try:
            body(arguments, place, output, prepare)()
        except KeyboardInterrupt:  # between the end of the command and that of the process
            os._exit(130)
        finally:
            os._exit(98)
    return Started(child, output)


def run(arguments: Sequence[str], place: Path, prepare: Callable[[], None] | None = None) -> Ended:
    """Run a command to its end."""
    return start(arguments, place, prepare).finish()
