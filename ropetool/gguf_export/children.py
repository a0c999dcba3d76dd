"""Run Python code in a child process, with this process's packages but without modules from the working folder."""

from __future__ import annotations

import os
import sys

# `python -c` first searches every module in the working folder, which may contain downloaded files.
_ELSEWHERE = "import sys; sys.path[:] = [place for place in sys.path if place]\n"


def python(code: str, argument: str) -> list[str]:
    """Return the command line that runs the code. sys.argv[1] is `argument`."""
    return [sys.executable, "-c", _ELSEWHERE + code, argument]


def environment() -> dict[str, str]:
    """Return the environment of the child. It finds the packages in the same folders as this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
