"""A transaction killed, refused and interrupted at every step that touches the file system, and what the next run makes of it.

The steps are counted by Python's audit events and by calls of fsync, so that a new one is found by itself.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropetool.errors import OutputError
from ropetool.files import hidden, renames
from ropetool.files import transaction as transaction_module
from ropetool.files.transaction import staged, transaction

# What each kind of output consists of, the file that loaders open first; and what is written before its names change.
KINDS = {
    "directory": ["out"],
    "file": ["out"],
    "parts": ["out-1", "out-2", "out-3", "out.card", "out.json"],
}

# Forks once per step; each child ends itself before its n-th call that touches the file system. Then another runs on.
KILLED = """
import json, os, shutil, signal, sys
from pathlib import Path
from ropetool.files import renames
from ropetool.files.transaction import transaction

root, kind, way, earlier, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "earlier", sys.argv[5:]
EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "shutil.rmtree", "shutil.copytree", "ctypes.dlsym"}
if way != "renameat2":
    renames._renameat2 = lambda *_: False
if way == "careless":
    renames.Order.take_away = lambda order, names: None
    real = renames.os.rename
    renames._rename_new = lambda old, new: real(old, new)


def put(place, text):
    if kind == "directory":
        place.mkdir()
        for inner in ("a", "b"):
            (place / inner).write_text(text)
    else:
        place.write_text(text)


def work(place, step=-1):
    left = step

    def count():
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(lambda event, args: event in EVENTS and count())
    fsync = os.fsync
    os.fsync = lambda descriptor: (count(), fsync(descriptor))
    with transaction(place / "out", place / "source", force=earlier, directory=kind == "directory") as made:
        for name in names:
            put(made.stage(place / name), "new")
        if kind == "parts" and earlier:
            made.withdraw(place / "out.extra")
    left = -1
    (place / "notes").write_text(json.dumps(made.notes))


def state(place):
    found = {}
    for path in sorted(place.rglob("*")):
        if "source" not in path.name:
            found[str(path.relative_to(place))] = path.read_text() if path.is_file() else None
    return found


step, found = 0, []
while True:
    step += 1
    place = root / f"{step:03}"
    (place / "source").mkdir(parents=True)
    if earlier:
        for name in [*names, *(["out.extra"] if kind == "parts" else [])]:
            put(place / name, "old")
    child = os.fork()
    if child == 0:
        work(place, step)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    killed = state(place)
    if status:
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        child = os.fork()
        if child == 0:  # a run that only settles: it fails before anything is written
            try:
                with transaction(place / "out", place / "source", directory=kind == "directory", force=True) as made:
                    raise ZeroDivisionError
            except ZeroDivisionError:
                (place / "notes").write_text(json.dumps(made.notes))
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    notes = json.loads((place / "notes").read_text())
    (place / "notes").unlink()
    found.append({"killed": killed, "settled": state(place), "notes": notes})
    if not status:
        break
print(json.dumps(found))
"""


def whole(kind: str, text: str) -> dict[str, str | None]:
    """Return what stands on the disk of a whole output: names and contents."""
    if kind == "directory":
        return {"out": None, "out/a": text, "out/b": text}
    extra = {"out.extra": "old"} if kind == "parts" and text == "old" else {}
    return dict.fromkeys(sorted(KINDS[kind]), text) | extra


def kill_at_every_step(root: Path, kind: str, way: str, earlier: bool) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, root, kind, way, "earlier" if earlier else "none", *KINDS[kind]],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(found) > 15
    return found


def check_kills(found: list[dict[str, Any]], kind: str, earlier: bool) -> list[str]:
    """Hold each state against the invariant; return what a loader found at the first name after each kill."""
    first, seen = KINDS[kind][0], []
    old, new = whole(kind, "old"), whole(kind, "new")
    for number, step in enumerate(found):
        visible = {name: text for name, text in step["killed"].items() if ".ropetool-" not in name and name != "notes"}
        if first not in visible:
            seen.append("nothing")
        elif visible == new:
            seen.append("new")
        else:
            assert visible == old, (number, visible)
            seen.append("old")
        # The next run leaves no trace but the whole earlier output, or the whole new one.
        assert step["settled"] in ((old, new) if earlier else ({}, new)), (number, step["settled"])
        left = any(".ropetool-" in name for name in step["killed"])
        assert left == any("which an interrupted command had left" in note for note in step["notes"]), (number, step)
        if seen[-1] == "nothing" and earlier:
            assert step["settled"] == old
            assert any(note.startswith("put back") and first in note for note in step["notes"]), step["notes"]
    assert seen[-1] == "new"
    return seen


def phases(found: list[str]) -> list[str]:
    return [state for i, state in enumerate(found) if i == 0 or state != found[i - 1]]


@pytest.mark.parametrize("way", ["renameat2", "plain"])
@pytest.mark.parametrize("earlier", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_step_the_output_is_absent_or_whole_and_the_next_run_settles_it(
    kind: str, earlier: bool, way: str, tmp_path: Path
) -> None:
    seen = check_kills(kill_at_every_step(tmp_path, kind, way, earlier), kind, earlier)
    at_once = kind == "file" or (kind == "directory" and way == "renameat2")
    assert phases(seen) == (
        ["nothing", "new"] if not earlier else ["old", "new"] if at_once else ["old", "nothing", "new"]
    )


def test_a_writer_that_only_renames_one_after_the_other_would_be_caught(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check_kills(kill_at_every_step(tmp_path, "parts", "careless", True), "parts", True)


# --- errors and interrupts


def put(stage: Path, kind: str, text: str) -> None:
    if kind == "directory":
        stage.mkdir()
        stage = stage / "a"
    stage.write_text(text)


def snapshot(folder: Path) -> dict[str, str | None]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def attempt(folder: Path, kind: str, before_commit: Callable[[], None] = lambda: None) -> None:
    """Write an output over an earlier one."""
    with transaction(folder / "out", folder / "source", force=True, directory=kind == "directory") as made:
        for name in KINDS[kind]:
            put(made.stage(folder / name), kind, "new")
        before_commit()


def outcome(folder: Path, kind: str) -> BaseException | None:
    """Return what an attempt raises."""
    try:
        attempt(folder, kind)
    except (OutputError, KeyboardInterrupt) as error:
        return error
    return None


def failing_at(step: int, failure: BaseException, patch: pytest.MonkeyPatch, *, again: int = 1) -> list[str]:
    """Let the n-th change of a name, and the n-th flush, fail; return the calls so far."""
    calls: list[str] = []

    def counted(name: str, real: Any) -> Any:
        def call(*args: Any) -> Any:
            calls.append(name)
            if step <= len(calls) < step + again:
                raise failure
            return real(*args)

        return call

    for owner, name in ((os, "rename"), (os, "replace"), (os, "fsync"), (renames, "_renameat2")):
        patch.setattr(owner, name, counted(name, getattr(owner, name)))
    return calls


@pytest.mark.parametrize("way", ["renameat2", "plain"])
@pytest.mark.parametrize("failure", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()], ids=["EIO", "^C"])
@pytest.mark.parametrize("earlier", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_at_any_step_is_taken_back(
    kind: str, earlier: bool, way: str, failure: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "plain":
        monkeypatch.setattr(renames, "_renameat2", lambda *_: False)
    at_once = way == "plain" and kind == "file" and earlier  # then nothing is left that could be taken back
    steps = failures = 0
    while True:
        steps += 1
        folder = tmp_path / f"{steps:03}"
        (folder / "source").mkdir(parents=True)
        for name in KINDS[kind] if earlier else ():
            put(folder / name, kind, "old")
        before = snapshot(folder)
        with monkeypatch.context() as patch:
            calls = failing_at(steps, failure, patch)
            raised = outcome(folder, kind)
        if raised is not None:
            failures += 1
            assert isinstance(raised, KeyboardInterrupt) == isinstance(failure, KeyboardInterrupt)
            assert snapshot(folder) == before or (at_once and "replace" in calls), calls
            assert not isinstance(raised, OutputError) or ".ropetool-" not in raised.where
            continue
        if at_once and len(calls) >= steps:  # the flush of the folder
            continue
        assert all("old" not in (text or "") for text in snapshot(folder).values())
        assert not list(folder.glob(".out*"))
        break
    assert failures >= steps - 1 - at_once > 4


def test_where_even_taking_back_fails_the_next_run_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk goes bad in the middle of the renames and stays so; nothing is lost, and the error says where it is."""
    (tmp_path / "source").mkdir()
    for name in KINDS["parts"]:
        put(tmp_path / name, "parts", "old")
    before = snapshot(tmp_path)
    with monkeypatch.context() as patch:
        real = renames.Order.put_all

        def broken(order: renames.Order) -> None:
            failing_at(2, OSError(errno.EIO, "Input/output error"), patch, again=1000)
            real(order)

        patch.setattr(renames.Order, "put_all", broken)
        refused = outcome(tmp_path, "parts")
    assert isinstance(refused, OutputError)
    assert refused.message == "input/output error"
    (note,) = refused.notes
    assert "could not be removed" in note
    assert "it contains the earlier files, which the next run puts back" in note
    assert not (tmp_path / "out-1").exists()
    with pytest.raises(ZeroDivisionError):
        attempt(tmp_path, "parts", lambda: 1 // 0)  # type: ignore[arg-type]
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["mkdir", "rmdir", "unlink"])
def test_an_interrupt_while_the_hidden_folder_comes_or_goes_leaves_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal is told when the call has returned, so it is as if the call itself had raised."""
    (tmp_path / "source").mkdir()
    real, step, interrupted = getattr(os, name), 0, True
    while interrupted:
        step += 1
        calls = 0

        def call(*args: Any, at: int = step, **options: Any) -> Any:
            nonlocal calls
            done = real(*args, **options)
            calls += 1
            if calls == at:
                raise KeyboardInterrupt
            return done

        with monkeypatch.context() as patch:
            patch.setattr(os, name, call)
            interrupted = isinstance(outcome(tmp_path, "parts"), KeyboardInterrupt)
        assert not list(tmp_path.glob(".out*"))
    assert step > 1 + (name == "unlink")


# --- processes that live, and what only looks like a hidden folder


def test_the_folder_of_a_living_process_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with transaction(tmp_path / "out", tmp_path / "source") as first:
        one = first.stage(tmp_path / "out")
        one.write_text("first")
        with transaction(tmp_path / "out", tmp_path / "source") as second:
            second.stage(tmp_path / "out").write_text("second")
            assert one.read_text() == "first"
        assert (second.notes, (tmp_path / "out").read_text()) == ([], "second")
        (tmp_path / "out").unlink()
    assert (tmp_path / "out").read_text() == "first"
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_of_two_that_write_the_same_new_output_the_second_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()

    def both() -> None:
        with transaction(tmp_path / "out-1", tmp_path / "source") as first:
            for name in KINDS["parts"]:
                put(first.stage(tmp_path / name), "parts", "first")
            with transaction(tmp_path / "out-1", tmp_path / "source") as second:
                for name in KINDS["parts"]:
                    put(second.stage(tmp_path / name), "parts", "second")

    with pytest.raises(OutputError, match="exists already"):
        both()
    assert snapshot(tmp_path) == {"source": None, **dict.fromkeys(sorted(KINDS["parts"]), "second")}


def test_names_change_in_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    monkeypatch.setattr(hidden, "_PATIENCE", 0.05)
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with pytest.raises(OutputError, match="another process keeps renaming files in it") as refused:
            attempt(tmp_path, "parts")
    finally:
        os.close(lock)
    assert refused.value.where == str(tmp_path)
    attempt(tmp_path, "parts")
    assert (tmp_path / "out-3").read_text() == "new"


def test_what_the_dead_left_is_settled_by_one_process_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = killed_between(tmp_path, KINDS["parts"])
    monkeypatch.setattr(hidden, "_PATIENCE", 0.05)
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with pytest.raises(OutputError, match="another process keeps renaming files in it"):
            hidden.settle(tmp_path / "out")
    finally:
        os.close(lock)
    assert left.is_dir()


@pytest.mark.parametrize("name", [".out.ropetool-notes1", ".out.ropetool-abcdef", ".other.ropetool-abcdef"])
def test_what_only_has_such_a_name_is_left_alone(name: str, tmp_path: Path) -> None:
    """A file, a folder without our lock, the folder of another output."""
    (tmp_path / "source").mkdir()
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.tex").write_text("mine")
    (tmp_path / ".out.ropetool-123456").write_text("a file")
    (tmp_path / ".out.ropetool-654321").symlink_to(name)
    before = snapshot(tmp_path)
    with staged(tmp_path / "out", tmp_path / "source") as stage:
        stage.write_text("new")
    assert snapshot(tmp_path) == {**before, "out": "new"}


def killed_between(folder: Path, names: list[str]) -> Path:
    """Replace an earlier output of these names, killed when it was taken away and one part put; return what was left."""
    for name in names:
        put(folder / name, "parts", "old")
    program = """
import os, sys
from pathlib import Path
from ropetool.files import renames
from ropetool.files.transaction import transaction
real = renames._rename_new
renames._rename_new = lambda old, new: (real(old, new), os._exit(9))
folder = Path(sys.argv[1])
with transaction(folder / "out", folder / "source", force=True) as made:
    for name in sys.argv[2:]:
        made.stage(folder / name).write_text("new")
"""
    (folder / "source").mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, "-c", program, folder, *KINDS["parts"]])
    assert done.returncode == 9
    (left,) = folder.glob(".out.ropetool-*")
    return left


UNREADABLE = {
    "EIO": errno.EIO, "EMFILE": errno.EMFILE, "EACCES": errno.EACCES,
}  # fmt: skip


@pytest.mark.parametrize("code", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_where_a_journal_cannot_be_read_the_earlier_files_are_kept_for_a_run_that_can(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = killed_between(tmp_path, KINDS["parts"])
    before = snapshot(tmp_path)
    real = os.open

    def failing(path: Any, *args: Any, **options: Any) -> int:
        if os.fspath(path) == str(left / "order.json"):
            raise OSError(code, os.strerror(code), os.fspath(path))
        return real(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        notes = hidden.settle(tmp_path / "out")
    assert notes == [
        f"{left} of an interrupted command could not be removed ({left / 'order.json'}: cannot be read: "
        f"{os.strerror(code)}); it contains the earlier files, which the next run puts back"
    ]
    assert snapshot(tmp_path) == before
    hidden.settle(tmp_path / "out")
    assert snapshot(tmp_path) == {"source": None, **dict.fromkeys(sorted(KINDS["parts"]), "old")}


def test_earlier_files_whose_names_are_taken_stay_and_are_named(tmp_path: Path) -> None:
    """Written by a run that could not read the journal, say, or by the user."""
    left = killed_between(tmp_path, KINDS["parts"])
    put(tmp_path / "out-1", "parts", "mine")
    for _ in range(2):
        assert hidden.settle(tmp_path / "out") == [
            f"{left} of an interrupted command was not removed: {left / 'old'} contains the earlier files, and new files now "
            "use their names"
        ]
    assert (tmp_path / "out-1").read_text() == "mine"
    assert (left / "old" / "out-1").read_text() == "old"


def a_pipe(journal: Path) -> None:
    journal.unlink()
    os.mkfifo(journal)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut off": lambda journal: journal.write_text(journal.read_text()[:-9]),
    "nested": lambda journal: journal.write_text("[" * 200_000),
    "long": lambda journal: os.truncate(journal, 5 << 20),
    "of an earlier version": lambda journal: journal.write_text('{"put": {"out-1": 7}, "earlier": ["out-1"]}'),
    "a number without end": lambda journal: journal.write_text(
        '{"put": {"out-1": [Infinity, 2, 3]}, "earlier": ["out-1"]}'
    ),
    "a number for a list": lambda journal: journal.write_text('{"put": {"out-1": [1, 2, 3]}, "earlier": 7}'),
    "a folder above": lambda journal: journal.write_text('{"put": {"out-1": [1, 2, 3]}, "earlier": [".."]}'),
    "a name that is none": lambda journal: journal.write_text('{"put": {"out-1": [1, 2, 3]}, "earlier": ["a\\u0000"]}'),
    "a pipe": a_pipe,
    "a folder": lambda journal: (journal.unlink(), journal.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_journal_ends_nothing_and_the_earlier_files_stay(damage: str, tmp_path: Path) -> None:
    left = killed_between(tmp_path, KINDS["parts"])
    DAMAGE[damage](left / "order.json")
    put(tmp_path / "out-2", "parts", "mine")
    before = {name: text for name, text in snapshot(tmp_path).items() if "/old" in name or name == "out-2"}
    with transaction(tmp_path / "other", tmp_path / "source", hidden_name="out") as made:
        made.stage(tmp_path / "other").write_text("new")
    (note,) = made.notes
    assert "the earlier files" in note
    assert str(left / "order.json") in note
    assert before.items() <= snapshot(tmp_path).items()
    assert (tmp_path / "other").read_text() == "new"


@pytest.mark.parametrize("change", ["other content", "same size"])
def test_a_file_of_the_user_with_the_inode_of_a_staged_one_is_left_alone(change: str, tmp_path: Path) -> None:
    """The system gives the inode of a removed file to the next one; here it is kept by writing in place."""
    left = killed_between(tmp_path, [])
    (placed,) = (tmp_path / name for name in KINDS["parts"] if (tmp_path / name).exists())
    inode = placed.stat().st_ino
    placed.write_text("mine, and long" if change == "other content" else "own")
    os.utime(placed, ns=(10**18, 10**18))
    assert placed.stat().st_ino == inode
    notes = hidden.settle(tmp_path / "out")
    assert notes == [f"removed {left}, which an interrupted command had left"]
    assert snapshot(tmp_path) == {"source": None, placed.name: placed.read_text()}
    assert placed.read_text() in ("mine, and long", "own")


def test_what_was_done_stays_done_whatever_became_of_it(tmp_path: Path) -> None:
    """Killed when all had its name: a later change of the last file is not a reason to take the others back."""
    (tmp_path / "source").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renames.Order, "forget", lambda order: (_ for _ in ()).throw(ZeroDivisionError))
        patch.setattr(renames.Order, "roll_back", lambda order: [])
        patch.setattr(transaction_module.Transaction, "close", lambda made: os.close(made._lock))
        with pytest.raises(ZeroDivisionError):
            attempt(tmp_path, "parts")
    (tmp_path / "out-1").write_text("mine")
    (tmp_path / "out-3").unlink()
    before = {name: text for name, text in snapshot(tmp_path).items() if not name.startswith(".")}
    hidden.settle(tmp_path / "out")
    assert snapshot(tmp_path) == before
    assert before["out-1"] == "mine"
    assert before["out.json"] == "new"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"put": {"../thesis.tex": [1, 1, 1]}, "earlier": []}', '{"put": 3, "earlier": []}']
)
def test_a_journal_that_is_none_moves_nothing(text: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "source").mkdir(parents=True)
    left = work / ".out.ropetool-abcdef"
    (left / "old").mkdir(parents=True)
    (left / "lock").touch()
    (left / "order.json").write_text(text)
    (tmp_path / "thesis.tex").write_text("mine")
    with staged(work / "out", work / "source") as stage:
        stage.write_text("new")
    assert snapshot(tmp_path) == {"thesis.tex": "mine", "work": None, "work/out": "new", "work/source": None}


def test_a_system_without_locks_writes_and_leaves_what_others_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    left = tmp_path / ".out.ropetool-abcdef"
    left.mkdir()
    (left / "lock").touch()

    def without(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without)
    with staged(tmp_path / "out", tmp_path / "source") as stage:
        stage.write_text("new")
    assert sorted(os.listdir(tmp_path)) == [left.name, "out", "source"]
