"""llama.cpp's converter as a child process: offline, without the user's environment, within limits, killed as a group."""

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
LACKING = "ModuleNotFoundError"  # how the last words of a Python begin that lacks a package
_LAST_LINES = 64 << 10  # bytes of what it said that are looked at
_PAUSE = 0.05  # seconds between two looks at the child
# What the child needs of our environment: to find its packages' libraries, and how many threads to take.
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
class Limits:
    """What the child may take: bytes of address space and of one file, open files, seconds of the processor and in all."""

    memory: int
    file: int
    files: int
    processor: int
    seconds: float

    @classmethod
    def of(cls, nbytes: int, elements: int, weight_files: int) -> Limits:
        """Return those for a checkpoint with so many bytes and numbers in so many files.

        Importing torch and transformers takes 10 GB of addresses and half a minute; weights are mapped, and lie in
        memory in float32 a few at a time. A slow disk writes 10 MB a second.
        """
        seconds = 600 + nbytes // (10 << 20)
        return cls((24 << 30) + 3 * nbytes, (1 << 30) + 5 * elements, 1024 + weight_files, 4 * seconds, seconds)

    def of_process(self) -> dict[str, int]:
        """Return the limits that the system keeps, by their names there."""
        return {
            "RLIMIT_AS": self.memory, "RLIMIT_FSIZE": self.file, "RLIMIT_NOFILE": self.files,
            "RLIMIT_CPU": self.processor, "RLIMIT_CORE": 0,
        }  # fmt: skip


def convert(
    converter: Converter, stage: Path, target: Path, outtype: str, limits: Limits,
    *, rotary: tuple[int, int] = (1, 1), more: Sequence[str] = (), vocabulary: bool = True, progress: Progress = nobody,
) -> str:  # fmt: skip
    """Write the staged checkpoint as a GGUF file; return what stopped the converter, nothing if it did its work.

    rotary: how many channels of a head of how many turn. more: options beside these. vocabulary: whether it writes the tokenizer too.
    What it says, and whatever it writes besides, lies beside the target.
    Raises: MissingDependency where its Python cannot be started.
    """
    stage, target = stage.absolute(), target.absolute()  # the child works in a folder of its own
    home = target.parent / "home"
    home.mkdir(exist_ok=True)
    task = {
        "script": str(converter.script), "folder": str(target.parent), "limits": limits.of_process(),
        "arguments": [str(stage), "--outfile", str(target), "--outtype", outtype, *more], "vocabulary": vocabulary,
        "rotary": rotary,
    }  # fmt: skip
    command = [*_network(), str(converter.python), "-I", "-B", str(_LAUNCH), json.dumps(task)]
    said = target.parent / "said"
    with said.open("wb") as output:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, cwd=home,
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
    return _reason(child.returncode, late, limits, said)


def _environment(home: Path) -> dict[str, str]:
    """Return an environment in which nothing is fetched, and nothing but the folder is written."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    folders = dict.fromkeys(("HOME", "HF_HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR"), str(home))
    return {
        **kept, **folders, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONNOUSERSITE": "1", "CUDA_VISIBLE_DEVICES": "", "USE_TF": "0",
    }  # fmt: skip


@cache
def _network() -> tuple[str, ...]:
    """Return what in front of a command gives it a network of its own, without any other machine, where the system can.

    Elsewhere the child's own hook refuses connections.
    """
    if sys.platform != "linux" or shutil.which(_UNSHARED[0]) is None:
        return ()
    try:
        tried = subprocess.run([*_UNSHARED, "true"], capture_output=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return ()
    return _UNSHARED if tried.returncode == 0 else ()


def _waited(child: subprocess.Popen[bytes], target: Path, seconds: float, progress: Progress) -> bool:
    """Wait for the child's end, and return whether its time was up before."""
    end = time.monotonic() + seconds
    while child.poll() is None:
        if time.monotonic() > end:
            return True
        progress(CONVERTING, target.stat().st_size if target.is_file() else 0, 0)
        time.sleep(_PAUSE)
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and whatever it has started."""
    with suppress(OSError):  # it has ended, and nothing of its group is left
        if sys.platform == "win32":
            child.kill()
        else:
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin is not None:
        child.stdin.close()


def _reason(code: int, late: bool, limits: Limits, said: Path) -> str:
    last = _last_words(said)
    if late:
        return f"it did not end within {limits.seconds:g} seconds"
    if code < 0:
        name = signal.Signals(-code).name if -code in {*signal.Signals} else str(-code)
        return f"it was ended by {name}{'; its last line: ' + last if last else ''}"
    return last or f"it ended with exit code {code}"


def _last_words(said: Path) -> str:
    """Return the last line that says something; behind a traceback that is the error."""
    with said.open("rb") as file:
        file.seek(max(0, said.stat().st_size - _LAST_LINES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:400]
