"""Runs llama.cpp's converter as a child process: offline, with a clean environment, within limits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ropetool.errors import MissingDependency
from ropetool.files.counting import nobody
from ropetool.gguf_export.container import Progress
from ropetool.gguf_export.converter import launch
from ropetool.gguf_export.converter.finding import OPTION, Converter

CONVERTING = "converting with llama.cpp's converter"
_LAUNCH = Path(launch.__file__)
LACKING = "ModuleNotFoundError"  # the beginning of the last line if a package is missing
OUTPUT = "said"  # the file with the converter's stdout and stderr
_LAST_LINES = 64 << 10  # bytes at the end of the output that are searched for the error
_PAUSE = 0.05  # seconds between two looks at the child
# The variables that the child needs: for the libraries of its packages, and for its number of threads.
_KEPT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "SYSTEMROOT",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "VIRTUAL_ENV",
)
_UNSHARED = ("unshare", "--user", "--map-root-user", "--net", "--")


@dataclass(frozen=True)
class ProcessLimits:
    """The resources that the converter's process may use.

    memory: bytes of address space.
    file: bytes of a single file.
    files: number of open files.
    processor: seconds of processor time.
    seconds: seconds from start to end.
    """

    memory: int
    file: int
    files: int
    processor: int
    seconds: float

    @classmethod
    def of(cls, nbytes: int, elements: int, weight_files: int) -> ProcessLimits:
        """Return the limits for a checkpoint with this many bytes, numbers and weight files.

        Importing torch and transformers takes 10 GB of addresses and half a minute. The converter maps the weights, and
        holds a few tensors at a time in memory as float32. A slow disk writes 10 MB a second.
        """
        seconds = 600 + nbytes // (10 << 20)
        return cls((24 << 30) + 3 * nbytes, (1 << 30) + 5 * elements, 1024 + weight_files, 4 * seconds, seconds)

    def of_process(self) -> dict[str, int]:
        """Return the limits that the system enforces, by the names of its resources."""
        return {
            "RLIMIT_AS": self.memory, "RLIMIT_FSIZE": self.file, "RLIMIT_NOFILE": self.files,
            "RLIMIT_CPU": self.processor, "RLIMIT_CORE": 0,
        }  # fmt: skip


@dataclass(frozen=True)
class Conversion:
    """A run of the converter on a staged checkpoint.

    stage: the folder with the staged checkpoint.
    target: the GGUF file. The converter may write only into its folder.
    outtype: the converter's --outtype.
    rotary: the number of channels of a head that rotate, and of all its channels.
    options: more options of the converter.
    vocabulary: also write the tokenizer.
    """

    stage: Path
    target: Path
    outtype: str
    rotary: tuple[int, int] = (1, 1)
    options: Sequence[str] = ()
    vocabulary: bool = True

    def task(self, script: Path, limits: ProcessLimits) -> str:
        """Return the argument of `launch.py`, as JSON. The paths are absolute, because the process has another folder."""
        stage, target = self.stage.absolute(), self.target.absolute()
        task = {
            "script": str(script), "folder": str(target.parent), "limits": limits.of_process(),
            "arguments": [str(stage), "--outfile", str(target), "--outtype", self.outtype, *self.options],
            "vocabulary": self.vocabulary, "rotary": self.rotary,
        }  # fmt: skip
        return json.dumps(task)


def convert(converter: Converter, conversion: Conversion, limits: ProcessLimits, *, progress: Progress = nobody) -> str:
    """Write the staged checkpoint as a GGUF file. Return why the converter stopped, or an empty string on success.

    The converter's output, and every other file that it writes, is in the folder of the target.
    Raises: MissingDependency if the converter's Python cannot start.
    """
    target = conversion.target.absolute()
    home = target.parent / "home"
    home.mkdir(exist_ok=True)
    task = conversion.task(converter.script, limits)
    command = [*_network(), str(converter.python), "-I", "-B", str(_LAUNCH), task]
    output = target.parent / OUTPUT
    with output.open("wb") as stream:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=stream, stderr=subprocess.STDOUT, cwd=home,
                env=_environment(home), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise MissingDependency(
                f"cannot start its Python, {converter.python}: {error.strerror}", where=OPTION
            ) from None
    try:
        late = _waited(child, target, limits.seconds, progress)
    finally:
        _end(child)
    if child.returncode == 0 and not late:
        return "" if target.is_file() else "it ended without writing a file"
    return _reason(child.returncode, late, limits, output)


def _environment(home: Path) -> dict[str, str]:
    """Return an environment without downloads. All caches and temporary files go to the folder."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    folders = dict.fromkeys(("HOME", "HF_HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR"), str(home))
    return {
        **kept, **folders, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONNOUSERSITE": "1", "CUDA_VISIBLE_DEVICES": "", "USE_TF": "0",
    }  # fmt: skip


@cache
def _network() -> tuple[str, ...]:
    """Return the words before a command that isolate its network, or nothing if the system cannot do that.

    Without them, the hook in `launch.py` refuses connections.
    """
    if sys.platform != "linux" or shutil.which(_UNSHARED[0]) is None:
        return ()
    try:
        trial = subprocess.run([*_UNSHARED, "true"], capture_output=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return ()
    return _UNSHARED if trial.returncode == 0 else ()


def _waited(child: subprocess.Popen[bytes], target: Path, seconds: float, progress: Progress) -> bool:
    """Wait until the child ends, and return whether it exceeded its time."""
    end = time.monotonic() + seconds
    while child.poll() is None:
        if time.monotonic() > end:
            return True
        progress(CONVERTING, target.stat().st_size if target.is_file() else 0, 0)
        time.sleep(_PAUSE)
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and every process that it has started."""
    with suppress(OSError):  # the whole group has ended already
        if sys.platform == "win32":
            child.kill()
        else:
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin is not None:
        child.stdin.close()


def _reason(code: int, late: bool, limits: ProcessLimits, output: Path) -> str:
    last = last_line(output)
    if late:
        return f"it did not end within {limits.seconds:g} seconds"
    if code < 0:
        name = signal.Signals(-code).name if -code in {*signal.Signals} else str(-code)
        return f"it was ended by {name}{'; its last line: ' + last if last else ''}"
    return last or f"it ended with exit code {code}"


def last_line(output: Path) -> str:
    """Return the last line of the converter's output that is not blank, which after a traceback is the error."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - _LAST_LINES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:400]
