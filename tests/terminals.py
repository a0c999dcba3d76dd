"""A command on a pseudo-terminal of a given size, and what is then on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forks import Forked

LIMIT = 300  # seconds until a command counts as hung
INTERRUPT = b"\x03"  # what Ctrl-C types
# Progress is shown at once, and each step of it; {before} is put in front of the command line.
PROGRAM = """
import sys
from rich.progress import Progress
from ropetool.cli import progress
class Now:
    def __init__(self, delay, function):
        self.start = function
    def cancel(self):
        pass
    join = cancel
Timer, progress.Timer = progress.Timer, Now
update = Progress.update
Progress.update = lambda *arguments, **options: update(*arguments, refresh=True, **options)
{before}
from ropetool.cli import main
main(sys.argv[1:])
"""
_PIECE = re.compile(r"\x1b\[(?P<number>[0-9;?]*)(?P<control>[A-Za-z])|(?P<text>.)", re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """A command that has ended: its exit code, all that it wrote, the screen as it stood at the end.

    drawn: each line as it stood whenever the cursor left it. broken: the lines that ran over the right edge.
    """

    code: int
    written: str
    screen: list[str]
    drawn: list[str]
    broken: list[str]


def on_terminal(
    *arguments: str | Path, columns: int = 80, before: str = "", cwd: Path | None = None,
    environment: dict[str, str] | None = None, interrupt_at: str = "", program: Sequence[str] = (),
) -> Shown:  # fmt: skip
    """Run the command line on a terminal of its own; type Ctrl-C as soon as `interrupt_at` has been written."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    made = {"TERM": "xterm-256color", **(environment or {})}
    kept = {k: v for k, v in os.environ.items() if k not in ("TERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")}
    started = {
        "program": PROGRAM.format(before=before), "arguments": [*map(str, arguments)], "terminal": os.ttyname(slave),
        "folder": str(cwd or Path.cwd()), "environment": {**kept, **made},
    }  # fmt: skip
    process = Forked(started) if not program else subprocess.Popen(
        [*program, *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env={**kept, **made},
        start_new_session=True, preexec_fn=_take_terminal,
    )  # fmt: skip
    os.close(slave)
    written = b""
    try:
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            if not select.select([master], [], [], 1.0)[0]:
                continue
            try:
                written += os.read(master, 65536)
            except OSError:  # the last process that had it has closed it
                break
            if interrupt_at and interrupt_at.encode() in written:
                os.write(master, INTERRUPT)
                interrupt_at = ""
        code = process.wait(timeout=10)
    finally:
        process.kill()
        process.wait()
        os.close(master)
    text = written.decode("utf-8", "replace")
    return Shown(code, text, *_played(text, columns))


def _take_terminal() -> None:
    """Make the terminal the one whose keys send signals, and have those arrive."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _played(text: str, columns: int) -> tuple[list[str], list[str], list[str]]:
    """Return the screen that the text leaves, endlessly high, each line that was drawn, and the lines that were broken."""
    cells: list[list[str]] = [[]]
    drawn: list[str] = []
    broken: list[str] = []
    row, column = 0, 0
    for piece in _PIECE.finditer(text):
        control, char = piece["control"], piece["text"]
        if control == "K":
            cells[row] = cells[row][:column] if piece["number"] in ("", "0") else []
        elif control == "A":
            row = max(0, row - int(piece["number"] or 1))
        elif control is not None:
            assert control in "mhl", f"a sequence that this terminal does not know: {piece[0]!r}"
        elif char in "\r\n":
            drawn.append("".join(cells[row]))
            row, column = row + (char == "\n"), 0
            cells += [[] for _ in range(row + 1 - len(cells))]
        else:
            assert char.isprintable(), f"a control character: {char!r}"
            taken = [char, ""] if unicodedata.east_asian_width(char) in "WF" else [char]
            if column + len(taken) > columns:
                broken.append("".join(cells[row]))
                row, column = row + 1, 0
                cells.insert(row, [])
            cells[row] += [" "] * (column - len(cells[row]))
            cells[row][column : column + len(taken)] = taken
            column += len(taken)
    return ["".join(line).rstrip() for line in cells], drawn, broken
