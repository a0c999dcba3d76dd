"""Staged outputs appear whole or not at all, whatever happens: errors, interrupts, a full disk."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from placing import earlier_output, everything, small_source

from ropetool.errors import CorruptFile, OutputError
from ropetool.files import renames, transaction
from ropetool.files.renames import Order
from ropetool.files.transaction import staged


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return small_source(tmp_path)


def fill(stage: Path) -> None:
    (stage / "inner").mkdir()
    (stage / "inner" / "a").write_text("new")
    (stage / "ropetool.json").write_text("new")


FILLED = {"inner": "folder", "inner/a": "new", "ropetool.json": "new"}


# --- staging that succeeds


def renaming(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Let renames go the way of Linux, or the way of a system without renameat2."""
    if how == "plain":
        monkeypatch.setattr(renames, "_renameat2", lambda *_: False)


WAYS = pytest.mark.parametrize("way", ["renameat2", "plain"])


@WAYS
def test_a_directory_appears_at_the_end(way: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renaming(monkeypatch, way)
    target = source.parent / "new"
    with staged(target, source, directory=True) as stage:
        fill(stage)
        assert not target.exists()
        hidden = stage.relative_to(target.parent).parts[0]
        assert hidden.startswith(".new.ropetool-")
        assert len(hidden) == len(".new.ropetool-") + 6
    assert everything(target) == FILLED
    assert sorted(os.listdir(source.parent)) == ["new", "source"]
    assert target.stat().st_mode == source.stat().st_mode  # as any new directory, not the private mode of tempfile


@WAYS
def test_an_earlier_output_is_replaced_whole(way: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renaming(monkeypatch, way)
    target = earlier_output(source.parent / "ours")
    with staged(target, source, force=True, directory=True) as stage:
        fill(stage)
        assert (target / "old").read_text() == "old"
    assert everything(target) == FILLED
    assert sorted(os.listdir(source.parent)) == ["ours", "source"]


@WAYS
@pytest.mark.parametrize("existing", [None, "file"])
def test_a_file_appears_at_the_end(
    existing: str | None, way: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renaming(monkeypatch, way)
    target = source.parent / "m.gguf"
    if existing == "file":
        target.write_text("old")
    with staged(target, source, force=existing is not None) as stage:
        with stage.open("xb") as file:  # the name is free
            file.write(b"new")
        assert target.exists() == (existing is not None)
    assert target.read_text() == "new"
    assert sorted(os.listdir(source.parent)) == ["m.gguf", "source"]


def test_the_exchange_never_leaves_the_name_empty(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux an earlier directory is exchanged: neither of the two plain renames may run."""
    target = earlier_output(source.parent / "ours")
    monkeypatch.setattr(os, "rename", lambda *_: pytest.fail("a plain rename"))
    with staged(target, source, force=True, directory=True) as stage:
        fill(stage)
    assert everything(target) == FILLED


def test_all_that_was_written_is_on_the_disk_before_the_rename(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, events = source.parent / "new", []
    real = renames._renameat2
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    monkeypatch.setattr(renames, "_renameat2", lambda *args: (events.append("rename"), real(*args))[1])
    with staged(target, source, directory=True) as stage:
        fill(stage)
        os.link(source / "config.json", stage / "linked")  # the source's data is not ours to flush
    at = events.index("rename")
    written = {stage, stage / "inner", stage / "inner/a", stage / "ropetool.json"}
    assert {str(path) for path in written} <= set(events[:at])
    assert str(stage / "linked") not in events
    assert events[at + 1 :] == [str(source.parent)]


# --- staging that fails


class Odd(Exception):
    pass


@WAYS
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("failure", [Odd(), KeyboardInterrupt(), SystemExit(1), MemoryError(), GeneratorExit()])
def test_a_body_that_fails_leaves_everything_as_before(
    failure: BaseException, force: bool, way: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renaming(monkeypatch, way)
    target = earlier_output(source.parent / "ours") if force else source.parent / "new"
    before = everything(source.parent)

    def body() -> None:
        with staged(target, source, force=force, directory=True) as stage:
            fill(stage)
            raise failure

    with pytest.raises(type(failure)):
        body()
    assert everything(source.parent) == before


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "no space left: "),
        (errno.EDQUOT, "no space left: "),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only file system"),
        (errno.EIO, "input/output error"),
    ],
)
def test_what_the_system_says_names_the_file_by_its_final_name(code: int, message: str, source: Path) -> None:
    target = source.parent / "new"
    with pytest.raises(OutputError) as refused, staged(target, source, directory=True) as stage:
        raise OSError(code, os.strerror(code), str(stage / "model.safetensors"))
    assert refused.value.where == str(target / "model.safetensors")
    assert refused.value.message.startswith(message)
    assert os.listdir(source.parent) == ["source"]


def test_our_own_errors_name_the_final_file_too(source: Path) -> None:
    target = source.parent / "new"
    with pytest.raises(CorruptFile) as refused, staged(target, source, directory=True) as stage:
        raise CorruptFile("is broken", where=f"{stage}/a: key")
    assert refused.value.where == f"{target}/a: key"


def test_an_error_before_the_stage_exists(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "mkdir", full)
    target = source.parent / "new"
    with pytest.raises(OutputError, match="no space left") as refused, staged(target, source, directory=True):
        pytest.fail("the body ran")
    assert refused.value.where == str(target)


@WAYS
@pytest.mark.parametrize("force", [False, True])
def test_an_output_that_appears_meanwhile_is_not_replaced(
    force: bool, way: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renaming(monkeypatch, way)
    target = source.parent / "new"

    def body() -> None:
        rule = lambda _: "was written by others"  # noqa: E731
        with staged(target, source, force=force, directory=True, may_replace=rule) as stage:
            fill(stage)
            target.mkdir()
            (target / "thesis.tex").write_text("mine")

    with pytest.raises(OutputError, match="exists already"):
        body()
    assert everything(target) == {"thesis.tex": "mine"}
    assert sorted(os.listdir(source.parent)) == ["new", "source"]


def test_an_output_that_appears_at_the_last_moment_is_not_replaced(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = source.parent / "m.gguf"
    real = renames._renameat2

    def late(*args: Any) -> bool:
        target.write_text("mine")
        return real(*args)

    monkeypatch.setattr(renames, "_renameat2", late)
    with pytest.raises(OutputError, match="exists already"), staged(target, source) as stage:
        stage.write_text("new")
    assert target.read_text() == "mine"
    assert sorted(os.listdir(source.parent)) == ["m.gguf", "source"]


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("failure", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_two_renames_bring_the_old_one_back_when_they_fail(
    failing: int, failure: BaseException, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renaming(monkeypatch, "plain")
    target = earlier_output(source.parent / "ours")
    before = everything(source.parent)
    real, calls = os.rename, []

    def rename(name: Path, to: Path) -> None:
        calls.append(to)
        if len(calls) == failing:
            raise failure
        real(name, to)

    monkeypatch.setattr(os, "rename", rename)
    expected = OutputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected), staged(target, source, force=True, directory=True) as stage:
        fill(stage)
    assert everything(source.parent) == before
    assert len(calls) == (1 if failing == 1 else 3)


def test_a_kernel_that_does_not_know_the_exchange_is_worked_around(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real system call is asked with a flag that no kernel knows: it answers EINVAL."""
    target = earlier_output(source.parent / "ours")
    monkeypatch.setattr(renames, "_EXCHANGE", 1 << 30)
    with staged(target, source, force=True, directory=True) as stage:
        fill(stage)
    assert everything(target) == FILLED
    assert sorted(os.listdir(source.parent)) == ["ours", "source"]


# --- no room, for real

WRITER = """
import sys
from pathlib import Path
from ropetool.errors import OutputError
from ropetool.files.transaction import staged
try:
    with staged(Path(sys.argv[1]), Path(sys.argv[2]), directory=True) as stage:
        (stage / "weights").write_bytes(bytes(200_000))
except OutputError as error:
    print(error.where, error.message, sep="|")
"""


def write_too_much(target: Path, source: Path, limit: int | None) -> str:
    run = subprocess.run(
        [sys.executable, "-c", WRITER, str(target), str(source)],
        capture_output=True, text=True, check=True,
        preexec_fn=None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    return run.stdout


def test_a_limit_on_file_size_leaves_nothing(source: Path) -> None:
    target = source.parent / "new"
    # A failed write has no file name of its own, so the output is named.
    assert write_too_much(target, source, 65_536) == f"{target}|file too large\n"
    assert os.listdir(source.parent) == ["source"]


@pytest.fixture
def small_disk() -> Iterator[Path | None]:
    """Yield a file system of 64 KiB, or None where this user may not mount one."""
    with tempfile.TemporaryDirectory() as folder:
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
        yield Path(folder) if mount.returncode == 0 else None
        if mount.returncode == 0:
            subprocess.run(["umount", folder], check=True)


def test_a_full_disk_leaves_nothing(source: Path, small_disk: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real full disk where one can be mounted, the same answer from a write elsewhere."""
    if small_disk is not None:
        target = small_disk / "new"
        printed = write_too_much(target, source, None)
        assert printed.startswith(f"{target}|no space left: ")
        assert printed.endswith(f"{64 << 10:,} are free\n")  # that is, the rest is gone
        assert os.listdir(small_disk) == []
    target = source.parent / "new"

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OutputError, match="no space left"), staged(target, source, directory=True) as stage:
        fill(stage)
    assert os.listdir(source.parent) == ["source"]


@pytest.mark.parametrize(
    ("owner", "name"),
    [(transaction, "flush"), (Order, "write"), (Order, "replace"), (renames, "_renameat2"), (os, "fsync")],
)
def test_an_interrupt_at_the_end_leaves_the_old_output(
    owner: Any, name: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = earlier_output(source.parent / "ours")
    before = everything(source.parent)
    calls = []

    def interrupt(*_: Any) -> Any:
        calls.append(name)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupt)
    with pytest.raises(KeyboardInterrupt), staged(target, source, force=True, directory=True) as stage:
        fill(stage)
    assert calls
    assert everything(source.parent) == before


# --- what a rule says of an earlier output


def nothing_of_others(path: Path) -> str:
    return "holds thesis.tex" if (path / "thesis.tex").exists() else ""


@WAYS
@pytest.mark.parametrize("moment", ["before", "meanwhile", "at the last moment"])
def test_what_the_rule_refuses_is_there_as_before(
    moment: str, way: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even what comes between the last look and the exchange is not lost."""
    renaming(monkeypatch, way)
    target = earlier_output(source.parent / "ours")
    thesis = target / "thesis.tex"

    def add() -> None:
        thesis.write_text("mine")

    if moment == "before":
        add()
    if moment == "at the last moment":
        real = Order.write
        monkeypatch.setattr(Order, "write", lambda order: (real(order), add())[0])

    def body() -> None:
        with staged(target, source, force=True, directory=True, may_replace=nothing_of_others) as stage:
            assert moment != "before"
            fill(stage)
            if moment == "meanwhile":
                add()

    with pytest.raises(OutputError, match="exists already and holds thesis") as refused:
        body()
    assert refused.value.where == str(target)
    assert everything(target) == {"old": "old", "ropetool.json": "{}", "thesis.tex": "mine"}
    assert sorted(os.listdir(source.parent)) == ["ours", "source"]
