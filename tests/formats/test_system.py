"""Systems without locks, leases and clones: the same files come out, and the user learns what was not checked."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import gguf_files
import pytest

import ropetool
from ropetool.files import linking, system
from ropetool.verification.journal import Journal

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
# Calls and modules that Windows does not have, or not all systems, taken away before ropetool is imported.
WITHOUT = """
import os, sys
for name in ("fcntl", "resource"):
    sys.modules[name] = None
for name in ("sched_getaffinity", "posix_fallocate", "copy_file_range", "fork", "O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY"):
    if hasattr(os, name):
        delattr(os, name)
from ropetool.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without(*arguments: str) -> str:
    """Run a command of ropetool on a system without the calls of Linux."""
    done = subprocess.run([sys.executable, "-c", WITHOUT, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "fcntl", None)


@pytest.mark.usefixtures("nothing")
def test_without_its_calls_a_system_has_no_locks_leases_and_clones(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        assert system.lock(file.fileno()) is None
        assert system.lease(file.fileno()) == "this system has no leases"
        with pytest.raises(OSError, match="cannot clone files") as raised:
            system.clone(file.fileno(), file.fileno())
    assert raised.value.errno == errno.EOPNOTSUPP


@pytest.mark.usefixtures("nothing")
def test_files_are_linked_and_figures_are_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "source").write_bytes(b"content")
    assert linking.place(tmp_path / "source", tmp_path / "target") == "hard-linked"
    journal = Journal("run", resume=False)
    assert journal.problem == f"files in {tmp_path / 'cache' / 'verify'} cannot be locked"
    journal.close(remove=True)


def test_the_main_commands_run_without_the_calls_of_linux(tmp_path: Path) -> None:
    out, file = tmp_path / "out", gguf_files.model(tmp_path / "m.gguf")
    assert "256 -> 512 tokens" in without("extend", str(DEMO), "--factor", "2", "-o", str(out))
    assert "context length    512 tokens" in without("inspect", str(out))
    before, tensors = gguf_files.values(file), gguf_files.tensors(file)
    edited = without("extend", str(file), "--factor", "2", "--in-place")
    assert "could not check whether another program has the file open: this system has no leases" in edited
    without("restore", str(file))
    restored = {key: value for key, value in gguf_files.values(file).items() if key != "ropetool.filler"}
    assert (restored, gguf_files.tensors(file)) == (before, tensors)
