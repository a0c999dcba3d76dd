"""Programs in forks of a Python that has loaded what takes seconds: tests/fork_server.py."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from running import Done

LIMIT = 600  # seconds until a program counts as hung
COMMAND = "import sys; from ropetool.cli import main; main(sys.argv[1:])"  # the command line, as `python -m ropetool`


class Forked:
    """A program that runs in a fork. started: the line that the server gets."""

    def __init__(self, started: Mapping[str, object]) -> None:
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(started).encode() + b"\n")
        self._lines = server.stdout
        self._id = int(self._lines.readline())
        self._code: int | None = None

    def wait(self, timeout: float = 10) -> int:
        """Return the exit code. Its terminal is closed by then, or it was killed, or has `timeout` seconds."""
        if self._code is None:
            assert select.select([self._lines], [], [], timeout)[0], "it does not end"
            self._code = int(self._lines.readline())
        return self._code

    @property
    def has_ended(self) -> bool:
        """Whether `wait` returns at once."""
        return self._code is not None or bool(select.select([self._lines], [], [], 0)[0])

    def interrupt(self) -> None:
        os.kill(self._id, signal.SIGINT)

    def kill(self) -> None:
        if self._code is None:
            os.kill(self._id, signal.SIGKILL)


@cache
def _server() -> subprocess.Popen[bytes]:
    command = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    atexit.register(server.communicate)  # the end of its input is its end
    return server


def run_python(
    program: str, *arguments: str | Path, folder: Path | None = None, environment: Mapping[str, str] | None = None,
    together: bool = False,
) -> Done:  # fmt: skip
    """Run a Python program as a process of its own. together: errors stand between the rest of what it prints."""
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "out" if together else "err")
        for file in (out, err):
            file.touch()
        running = Forked({
            "program": program, "arguments": [*map(str, arguments)], "output": [str(out), str(err)],
            "folder": str(folder or Path.cwd()), "environment": {**os.environ, **(environment or {})},
        })  # fmt: skip
        try:
            code = running.wait(LIMIT)
        finally:
            running.kill()
        return Done(code, out.read_text(encoding="utf-8"), "" if together else err.read_text(encoding="utf-8"))
