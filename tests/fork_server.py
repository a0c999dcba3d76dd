"""A Python that has loaded what commands need, and runs each program of a line of stdin in a fork of itself.

A line is {"program", "arguments", "terminal", "folder", "environment"}; the answers are two lines, the fork's process id and,
when it has ended, its exit code. The terminal is the fork's own: its keys send signals to it.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import json
import os
import signal
import sys
import termios
import traceback
from typing import Any

LOADED = ("numpy", "gguf", "rich.progress", "ropetool.cli", "torch", "transformers.models.llama.modeling_llama")


def main() -> None:
    for module in LOADED:
        importlib.import_module(module)
    for line in iter(sys.stdin.readline, ""):
        job = json.loads(line)
        terminal = os.open(job["terminal"], os.O_RDWR | os.O_NOCTTY)
        child = os.fork()
        if child == 0:
            _run(job, terminal)
        os.close(terminal)
        print(child, flush=True)  # noqa: T201
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


def _run(job: dict[str, Any], terminal: int) -> None:
    """Do as a new process does, and end."""
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for standard in range(3):
        os.dup2(terminal, standard)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.argv = ["-c", *job["arguments"]]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", 1), open(2, "w", 1)  # noqa: SIM115 - as long as the process
    code: object = 0
    try:
        exec(compile(job["program"], "-c", "exec"), {"__name__": "__main__"})
    except SystemExit as done:
        code = done.code or 0
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
