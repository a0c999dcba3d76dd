"""Outputs appear whole or not at all, whatever happens: refusals, errors, interrupts, kills at every step."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ropetool.errors import CorruptFile, OutputError
from ropetool.formats import output
from ropetool.formats.output import check_output, staged


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "source"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def snapshot(root: Path) -> dict[str, str]:
    """Return every path under `root` with what it is and holds."""
    found = {}
    for path in sorted(root.rglob("*")):
        kind = f"-> {os.readlink(path)}" if path.is_symlink() else "folder" if path.is_dir() else path.read_text()
        found[str(path.relative_to(root))] = kind
    return found


def earlier_output(path: Path) -> Path:
    path.mkdir()
    (path / "ropetool.json").write_text("{}")
    (path / "old").write_text("old")
    return path


def fill(stage: Path) -> None:
    (stage / "inner").mkdir()
    (stage / "inner" / "a").write_text("new")
    (stage / "ropetool.json").write_text("new")


FILLED = {"inner": "folder", "inner/a": "new", "ropetool.json": "new"}


# --- what may be written


def arrange(work: Path) -> None:
    (work / "file").write_text("x")
    (work / "theirs").mkdir()
    (work / "theirs" / "thesis.tex").touch()
    earlier_output(work / "ours")
    (work / "link").symlink_to("theirs")
    (work / "to-source").symlink_to("source")
    (work / "dangling").symlink_to("nowhere")
    os.mkfifo(work / "pipe")
    (work / "named").mkdir()
    (work / "named" / "ropetool.json").mkdir()


APART = "; the source is never written"
NOT_OURS = "exists already and is a directory that ropetool did not write (it holds no ropetool.json)"
NOT_A_FILE = "exists already and is a file, where a directory is to be written"
NOT_A_FOLDER = "exists already and is a directory, where a file is to be written"
KEPT = "; --force does not replace it"
REFUSALS = [
    ("source", False, "is the source, {source}" + APART),
    ("source", True, "is the source, {source}" + APART),
    ("to-source", True, "is the source, {source}" + APART),
    ("to-source/new", True, "is inside the source, {source}" + APART),
    ("source/new", False, "is inside the source, {source}" + APART),
    ("source/config.json", True, "is inside the source, {source}" + APART),
    ("theirs/../source/new", True, "is inside the source, {source}" + APART),
    ("../work", True, "holds the source, {source}" + APART),
    ("file", False, NOT_A_FILE),
    ("file", True, NOT_A_FILE + KEPT),
    ("ours", False, "exists already"),
    ("theirs", False, NOT_OURS),
    ("theirs", True, NOT_OURS + KEPT),
    ("named", True, NOT_OURS + KEPT),
    ("link", True, "exists already and is a symbolic link" + KEPT),
    ("dangling", True, "exists already and is a symbolic link" + KEPT),
    ("pipe", True, "exists already and is neither a file nor a directory" + KEPT),
    ("none/new", False, "the directory {work}/none does not exist"),
    ("none/deep/new", False, "the directory {work}/none/deep does not exist"),
    ("file/new", False, "{work}/file is a file where a directory is needed"),
    ("file/deep/new", True, "{work}/file is a file where a directory is needed"),
    ("dangling/new", True, "{work}/dangling is a file where a directory is needed"),
    ("theirs/..", True, "ends in no name"),
    ("x" * 300, False, "file name too long"),
]


@pytest.mark.parametrize(("name", "force", "message"), REFUSALS)
def test_what_may_not_be_written_is_refused_before_anything_is(
    name: str, force: bool, message: str, source: Path
) -> None:
    work = source.parent
    arrange(work)
    before = sorted(work.rglob("*"))
    expected = message.format(source=source, work=work)
    for attempt in (partial(check_output, directory=True), enter):
        with pytest.raises(OutputError) as refused:
            attempt(work / name, source, force=force)
        assert (refused.value.message, refused.value.where) == (expected, str(work / name))
        assert refused.value.try_
    assert sorted(work.rglob("*")) == before


@pytest.mark.parametrize(("force", "kept"), [(False, ""), (True, KEPT)])
def test_a_file_never_takes_the_place_of_a_directory(force: bool, kept: str, source: Path) -> None:
    target = earlier_output(source.parent / "ours")
    before = snapshot(source.parent)
    with pytest.raises(OutputError) as refused, staged(target, source, force=force):
        pytest.fail("the body ran")
    assert refused.value.message == NOT_A_FOLDER + kept
    assert snapshot(source.parent) == before


def enter(target: Path, source: Path, *, force: bool) -> None:
    with staged(target, source, force=force, directory=True):
        pytest.fail("the body ran")


def test_the_next_step_is_force_only_where_force_helps(source: Path) -> None:
    arrange(source.parent)
    tries = {}
    for name in ("file", "ours", "theirs"):
        with pytest.raises(OutputError) as refused:
            check_output(source.parent / name, source, force=False, directory=name != "file")
        tries[name] = "--force" in refused.value.try_
    assert tries == {"file": True, "ours": True, "theirs": False}


@pytest.mark.parametrize(
    ("name", "force"), [("new", False), ("new", True), ("file", True), ("ours", True), ("source-2", False)]
)
def test_what_may_be_written_passes(name: str, force: bool, source: Path) -> None:
    arrange(source.parent)
    check_output(source.parent / name, source, force=force, directory=name == "ours")


def test_a_source_file_is_guarded_under_all_its_names(tmp_path: Path) -> None:
    source = tmp_path / "m.gguf"
    source.write_text("x")
    os.link(source, tmp_path / "twin.gguf")
    for name in ("m.gguf", "twin.gguf"):
        with pytest.raises(OutputError, match="is the source"):
            check_output(tmp_path / name, source, force=True)
    check_output(tmp_path / "other.gguf", source, force=False)


def test_relative_paths_and_a_bare_dot(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source.parent)
    check_output(Path("new"), Path("source"), force=False)
    with pytest.raises(OutputError, match="ends in no name"):
        check_output(Path("."), Path("source"), force=True)
    with pytest.raises(OutputError, match="is inside the source"):
        check_output(Path("source/new"), Path("source"), force=True)


# --- staging that succeeds


def renaming(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Let renames go the way of Linux, or the way of a system without renameat2."""
    if how == "plain":
        monkeypatch.setattr(output, "_renameat2", lambda *_: False)


WAYS = pytest.mark.parametrize("way", ["renameat2", "plain"])


@WAYS
def test_a_directory_appears_at_the_end(way: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renaming(monkeypatch, way)
    target = source.parent / "new"
    with staged(target, source, directory=True) as stage:
        fill(stage)
        assert not target.exists()
        assert stage.parent == target.parent
        assert stage.name.startswith(".new.ropetool-")
        assert len(stage.name) == len(".new.ropetool-") + 6
    assert snapshot(target) == FILLED
    assert sorted(os.listdir(source.parent)) == ["new", "source"]
    assert target.stat().st_mode == source.stat().st_mode  # as any new directory, not the private mode of tempfile


@WAYS
def test_an_earlier_output_is_replaced_whole(way: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renaming(monkeypatch, way)
    target = earlier_output(source.parent / "ours")
    with staged(target, source, force=True, directory=True) as stage:
        fill(stage)
        assert (target / "old").read_text() == "old"
    assert snapshot(target) == FILLED
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
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("a plain rename"))
    with staged(target, source, force=True, directory=True) as stage:
        fill(stage)
    assert snapshot(target) == FILLED


def test_all_that_was_written_is_on_the_disk_before_the_rename(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, events = source.parent / "new", []
    real = output._renameat2
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    monkeypatch.setattr(output, "_renameat2", lambda *args: (events.append("rename"), real(*args))[1])
    with staged(target, source, directory=True) as stage:
        fill(stage)
        os.link(source / "config.json", stage / "linked")  # the source's data is not ours to flush
    at = events.index("rename")
    written = {stage, stage / "inner", stage / "inner/a", stage / "ropetool.json"}
    assert set(events[:at]) == {str(path) for path in written}
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
    before = snapshot(source.parent)

    def body() -> None:
        with staged(target, source, force=force, directory=True) as stage:
            fill(stage)
            raise failure

    with pytest.raises(type(failure)):
        body()
    assert snapshot(source.parent) == before


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
        with staged(target, source, force=force, directory=True) as stage:
            fill(stage)
            target.mkdir()
            (target / "thesis.tex").write_text("mine")

    with pytest.raises(OutputError, match="exists already"):
        body()
    assert snapshot(target) == {"thesis.tex": "mine"}
    assert sorted(os.listdir(source.parent)) == ["new", "source"]


def test_an_output_that_appears_at_the_last_moment_is_not_replaced(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = source.parent / "m.gguf"
    real = output._renameat2

    def late(*args: Any) -> bool:
        target.write_text("mine")
        return real(*args)

    monkeypatch.setattr(output, "_renameat2", late)
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
    before = snapshot(source.parent)
    real, calls = Path.rename, []

    def rename(self: Path, to: Path) -> Path:
        calls.append(to)
        if len(calls) == failing:
            raise failure
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    expected = OutputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected), staged(target, source, force=True, directory=True) as stage:
        fill(stage)
    assert snapshot(source.parent) == before
    assert len(calls) == (1 if failing == 1 else 3)


def test_a_kernel_that_does_not_know_the_exchange_is_worked_around(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real system call is asked with a flag that no kernel knows: it answers EINVAL."""
    target = earlier_output(source.parent / "ours")
    monkeypatch.setattr(output, "_EXCHANGE", 1 << 30)
    with staged(target, source, force=True, directory=True) as stage:
        fill(stage)
    assert snapshot(target) == FILLED
    assert sorted(os.listdir(source.parent)) == ["ours", "source"]


# --- no room, for real

WRITER = """
import sys
from pathlib import Path
from ropetool.errors import OutputError
from ropetool.formats.output import staged
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


# --- kill -9 at every step

# Forks once per step; each child kills itself before its n-th call that touches the file system.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from ropetool.formats import output

root, way, earlier = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "earlier"
CALLS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "shutil.rmtree", "shutil.copytree", "ctypes.dlsym"}
if way != "renameat2":
    output._renameat2 = lambda *_: False
if way == "careless":
    output._put = lambda stage, target: (shutil.rmtree(target, ignore_errors=True), shutil.copytree(stage, target))


def work(place, step):
    left = step

    def watch(event, args):
        nonlocal left
        if event in CALLS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    with output.staged(place / "out", place / "source", force=earlier, directory=True) as stage:
        for name in ("a", "b", "ropetool.json"):
            (stage / name).write_text("new")
    left = -1


step = 0
while True:
    step += 1
    place = root / f"{step:03}"
    (place / "source").mkdir(parents=True)
    if earlier:
        (place / "out").mkdir()
        for name in ("old", "ropetool.json"):
            (place / "out" / name).write_text("old")
    child = os.fork()
    if child == 0:
        work(place, step)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
"""

OLD = {"old": "old", "ropetool.json": "old"}
NEW = {"a": "new", "b": "new", "ropetool.json": "new"}


def kill_at_every_step(root: Path, way: str, earlier: bool) -> list[str]:
    """Return what stood at the output's name after each kill: nothing, old, new or broken."""
    subprocess.run([sys.executable, "-c", KILLED, str(root), way, "earlier" if earlier else "none"], check=True)
    found = []
    for place in sorted(root.iterdir()):
        out = place / "out"
        content = snapshot(out) if out.exists() else None
        found.append("nothing" if content is None else {str(OLD): "old", str(NEW): "new"}.get(str(content), "broken"))
        rest = [path for path in place.iterdir() if path.name not in ("out", "source")]
        assert all(path.name.startswith(".out.ropetool-") for path in rest)
        if earlier and found[-1] == "nothing":
            assert OLD in [snapshot(path) for path in rest]  # set aside, whole
    assert rest == []  # the last one was not killed
    return found


def phases(found: list[str]) -> list[str]:
    return [state for i, state in enumerate(found) if i == 0 or state != found[i - 1]]


@pytest.mark.parametrize(
    ("way", "earlier", "expected"),
    [
        ("renameat2", False, ["nothing", "new"]),
        ("plain", False, ["nothing", "new"]),
        ("renameat2", True, ["old", "new"]),
        ("plain", True, ["old", "nothing", "new"]),
    ],
)
def test_killed_at_any_moment_the_output_is_absent_or_whole(
    way: str, earlier: bool, expected: list[str], tmp_path: Path
) -> None:
    found = kill_at_every_step(tmp_path, way, earlier)
    assert phases(found) == expected
    assert len(found) >= 11
    assert found.count("nothing") <= 1 or not earlier


@pytest.mark.parametrize("earlier", [False, True])
def test_a_writer_that_copies_into_place_would_be_caught(earlier: bool, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        assert "broken" not in kill_at_every_step(tmp_path, "careless", earlier)


@pytest.mark.parametrize(
    ("owner", "name"), [(output, "_flush"), (output, "_put"), (output, "_renameat2"), (os, "fsync")]
)
def test_an_interrupt_at_the_end_leaves_the_old_output(
    owner: Any, name: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = earlier_output(source.parent / "ours")
    before = snapshot(source.parent)

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupt)
    with pytest.raises(KeyboardInterrupt), staged(target, source, force=True, directory=True) as stage:
        fill(stage)
    assert snapshot(source.parent) == before
