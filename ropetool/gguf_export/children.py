"""Python in a process of its own: with the packages of this one, and nothing from the folder that it is started in."""

from __future__ import annotations

import os
import sys

# `python -c` looks for every module in the working folder first, which may be somebody's download.
_ELSEWHERE = "import sys; sys.path[:] = [place for place in sys.path if place]\n"


def python(code: str, argument: str) -> list[str]:
    """Return the command line that runs the code, with `argument` as sys.argv[1]."""
    return [sys.executable, "-c", _ELSEWHERE + code, argument]


def environment() -> dict[str, str]:
    """Return what it finds the same packages by, wherever this process found them."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
