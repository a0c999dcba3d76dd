"""The command line in-process, and what a command left behind."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ropetool.cli import main
from ropetool.errors import RopetoolError


@dataclass(frozen=True)
class Done:
    """What a command left behind: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


_MEASURED = (
    "Measured cost: SmolLM2 135M at 4 times has 1.08 times the perplexity at 2,048 tokens and 1.16 times at 32,768"
)
# The notes on what an extension by yarn costs, at 4 and at 8 times the trained length.
COST_AT_4 = f"4 times the trained length. {_MEASURED}. `ropetool verify` measures this model"
COST_AT_8 = (
    f"8 times the trained length. {_MEASURED} and our demo model at 8 times has 1.15 times the perplexity at 256 tokens and at "
    "2,048, on texts like its training data. `ropetool verify` measures this model"
)


def run(*arguments: str | Path) -> Done:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as done:
            code = done.code
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def refusal(error: type[RopetoolError], words: str) -> Iterator[pytest.ExceptionInfo[RopetoolError]]:
    """Expect this error, with a sentence that contains these words (a pattern), with the names of options."""
    with pytest.raises(error) as caught:
        yield caught
    assert re.search(words, caught.value.sentence), caught.value.sentence


def snapshot(directory: Path) -> dict[str, tuple[bytes | None, int]]:
    """Return the content and the modification time of everything in a directory."""
    entries = {}
    for path in sorted(directory.rglob("*")):
        status = os.lstat(path)
        entries[str(path.relative_to(directory))] = (path.read_bytes() if path.is_file() else None, status.st_mtime_ns)
    return entries


def refused(root: Path, error: str, try_: str, *arguments: str | Path, code: int = 1) -> None:
    """Assert that the command prints exactly this, ends with the code, and changes nothing below `root`.

    `{m}` in a text stands for the path of the model below `root`.
    """
    before = snapshot(root)
    done = run(*arguments)
    after = snapshot(root)
    lines = [f"Error: {error}", *([f"Try: {try_}"] if try_ else [])]
    model = str(root / "model")
    assert done.err.splitlines() == [line.replace("{m}", model) for line in lines]
    assert (done.code, done.out) == (code, "")
    assert after == before


# --- in a process of its own, with a bound on what it may cost

MEGABYTES = 200
SECONDS = 2  # of a processor that does `work` in WORK seconds
WORK = 0.02  # the dearest command here takes half of its seconds on such a processor
# The peak is read from /proc: the one of getrusage would count the memory of this process too, from before the exec.
COMMAND = "from ropetool.cli import main; main(sys.argv[1:])"
PROGRAM = """
import atexit, sys
def tell():
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(int(peak.split()[1]) // 1024, file=sys.stderr)
atexit.register(tell)
{}
"""


def work() -> float:
    """Return the processor's seconds for a fixed piece of work: reading JSON and adding numbers."""
    before = time.process_time()
    json.loads("[" + '{"a":1},' * 60_000 + "1]")
    sum(number * number for number in range(150_000))
    return time.process_time() - before


def bounded(*arguments: str | Path, program: str = COMMAND, seconds: int = SECONDS) -> tuple[int, str]:
    """Return the code and the errors of a command that may use 2 seconds of the processor and 200 MB.

    A slow or busy processor gets as much more as it takes longer for `work`.

    program: one line of Python instead of the command line. One that waits for ever ends after a minute.
    """
    limit = math.ceil(seconds * max(1.0, work() / WORK))

    def limit_time() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))

    command = [sys.executable, "-c", PROGRAM.replace("{}", program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit_time, timeout=60)
    assert done.returncode >= 0, f"killed by signal {-done.returncode}"
    *errors, peak = done.stderr.splitlines()
    assert int(peak) < MEGABYTES, f"{peak} MB"
    return done.returncode, "\n".join(errors)
