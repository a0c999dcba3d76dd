"""An engine in a process of its own: jobs in, log probabilities out, and an end whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

START, JOB = 300, 240  # seconds at most to be there, and for one checkpoint


class Stopped(Exception):
    """The engine stopped at a checkpoint; what it said."""


class Engine:
    """The program of an engine, started when it is first needed and again after it had to be ended."""

    def __init__(self, python: str, program: Path, log: Path) -> None:
        self._command = [python, str(program)]
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def log_probs(self, folder: Path, ids: Sequence[int], out: Path) -> npt.NDArray[np.float64]:
        """Return the log probability of each token but the first.

        Raises: Stopped.
        """
        process = self._started()
        assert process.stdin is not None
        job = {"dir": str(folder), "ids": list(ids), "out": str(out)}
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            self._end()
            raise Stopped("its process ended") from None
        answer = self._answer(JOB)
        if "error" in answer:
            raise Stopped(" ".join(str(answer["error"]).split()))
        return np.asarray(np.load(out), dtype=np.float64)

    def start(self) -> dict[str, str]:
        """Return the versions of what the engine's environment holds, by package."""
        self._started()
        return self.versions

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            with self._log.open("a") as log:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                    start_new_session=True,
                )  # fmt: skip
            self._answers = queue.Queue()
            threading.Thread(target=_read, args=(self._process, self._answers), daemon=True).start()
            self.versions = self._answer(START)["versions"]
        return self._process

    def _answer(self, limit: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=limit)
        except queue.Empty:
            self._end()
            raise Stopped(f"no answer within {limit} seconds") from None
        if not line:
            self._end()
            last = (self._log.read_text(errors="replace").splitlines() or ["it printed nothing"])[-1]
            raise Stopped(f"its process ended without an answer: {last}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _end(self) -> None:
        """End the process and what it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it is gone by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def _read(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    """Pass the lines of a process on, and an empty one at its end."""
    assert process.stdout is not None
    for line in process.stdout:
        answers.put(line)
    answers.put("")
