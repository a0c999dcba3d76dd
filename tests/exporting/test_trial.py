"""The trial of a converter's file in a process of its own ends, whatever llama.cpp does there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ropetool.errors import CorruptFile
from ropetool.gguf_export.converter import child, trial

HANGS = "import threading\nthreading.Event().wait(600)\n"


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(trial, "find_spec", lambda name: True)
    monkeypatch.setattr(trial, "_CHILD", HANGS)
    monkeypatch.setattr(trial, "SECONDS", 0.5)
    with pytest.raises(CorruptFile, match=r"did not run one token of the converter's file within 0\.5 seconds") as late:
        trial.check_runs(file)
    assert (late.value.where, bool(late.value.try_)) == (str(file), True)


def test_a_large_file_has_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.gguf"
    with file.open("wb") as opened:
        opened.truncate(40 << 30)  # a hole of 40 GiB
    given: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        given.update(options)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(trial, "find_spec", lambda name: True)
    monkeypatch.setattr(trial.subprocess, "run", run)
    trial.check_runs(file)
    assert given["timeout"] == 600 + 4096


def test_a_network_that_is_not_given_in_time_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(child.subprocess, "run", run)
    assert child._network.__wrapped__() == ()
