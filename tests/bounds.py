"""Commands run in a process of their own, with a bound on what they may cost."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

MEGABYTES = 200
SECONDS = 2
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


def bounded(*arguments: str | Path, program: str = COMMAND, seconds: int = SECONDS) -> tuple[int, str]:
    """Return the code and the errors of a command that may use 2 seconds of the processor and 200 MB.

    program: one line of Python instead of the command line. One that waits for ever ends after a minute.
    """

    def limit_time() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    command = [sys.executable, "-c", PROGRAM.replace("{}", program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit_time, timeout=60)
    assert done.returncode >= 0, f"killed by signal {-done.returncode}"
    *errors, peak = done.stderr.splitlines()
    assert int(peak) < MEGABYTES, f"{peak} MB"
    return done.returncode, "\n".join(errors)
