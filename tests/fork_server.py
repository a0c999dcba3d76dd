"""A Python that has loaded what commands need, and runs each program of a line of stdin in a fork of itself.

A line is {"program", "arguments", "folder", "environment"} and "terminal" or "output"; the answers are two lines, the fork's
process id and, when it has ended, its exit code. A terminal is the fork's own: its keys send signals to it. Output is the paths
of two files, for what the fork prints and for its errors; it then has nothing to read.
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
        opened = _opened(job)  # now: a terminal that nobody has open is gone
        child = os.fork()
        if child == 0:
            _run(job, opened)
        for descriptor in {*opened}:
            os.close(descriptor)
        print(child, flush=True)  # noqa: T201
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


def _opened(job: dict[str, Any]) -> list[int]:
    """Return what stands for the three standard streams."""
    if "terminal" in job:
        return [os.open(job["terminal"], os.O_RDWR | os.O_NOCTTY)] * 3
    return [os.open(os.devnull, os.O_RDONLY), *(os.open(path, os.O_RDWR | os.O_APPEND) for path in job["output"])]


def _run(job: dict[str, Any], opened: list[int]) -> None:
    """Do as a new process does, and end."""
    os.setsid()
    if "terminal" in job:
        fcntl.ioctl(opened[0], termios.TIOCSCTTY, 0)
    for standard, descriptor in enumerate(opened):
        os.dup2(descriptor, standard)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.argv = ["-c", *job["arguments"]]
    lines = 1 if "terminal" in job else -1  # an interpreter writes lines to a terminal at once, and blocks to a file
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", lines), open(2, "w", 1)  # noqa: SIM115 - as long as the process
    code: object = 0
    try:
        exec(compile(job["program"], "-c", "exec"), {"__name__": "__main__"})
    except SystemExit as done:
        code = done.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)  # noqa: T201
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
