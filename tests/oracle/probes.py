"""Real transformers, asked in a process that stays: loading one takes seconds, and many tests ask."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import IO, Any

PROBE = Path(__file__).with_name("rotary_probe.py")


def probe(jobs: list[dict[str, Any]], python: str = sys.executable) -> list[dict[str, Any]]:
    """Return what the transformers of this interpreter answers."""
    process, log = _process(python)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(jobs) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        log.seek(0)
        raise AssertionError(f"{python} {PROBE.name} ended: {log.read()[-2000:]}")
    answers: list[dict[str, Any]] = json.loads(line)
    return answers


@cache
def _process(python: str) -> tuple[subprocess.Popen[str], IO[str]]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
    process = subprocess.Popen(
        [python, str(PROBE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
    )
    atexit.register(process.communicate)  # the end of its input is its end
    return process, log


def v4_python() -> str:
    """Return the interpreter of the virtual environment with transformers 4.57; scripts/test makes it."""
    default = Path(__file__).parents[2] / ".venv-v4" / "bin" / "python"
    return os.environ.get("ROPETOOL_V4_PYTHON", str(default))
