"""What may be written where: every refusal, before anything is written."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from placing import earlier_output, everything, small_source

from ropetool.errors import OutputError
from ropetool.files.output import check_output
from ropetool.files.transaction import staged


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return small_source(tmp_path)


def others(path: Path) -> str:
    return "" if path.is_file() or (path / "ropetool.json").is_file() else "was written by others"


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


APART = "; ropetool never writes to the source"
NOT_OURS = "exists already and was written by others"
NOT_A_FILE = "exists already and is a file; the output must be a directory"
NOT_A_FOLDER = "exists already and is a directory; the output must be a file"
KEPT = "; --force does not replace it"
REFUSALS = [
    ("source", False, "is the source, {source}" + APART),
    ("source", True, "is the source, {source}" + APART),
    ("to-source", True, "is the source, {source}" + APART),
    ("to-source/new", True, "is inside the source, {source}" + APART),
    ("source/new", False, "is inside the source, {source}" + APART),
    ("source/config.json", True, "is inside the source, {source}" + APART),
    ("theirs/../source/new", True, "is inside the source, {source}" + APART),
    ("../work", True, "contains the source, {source}" + APART),
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
    ("file/new", False, "{work}/file is a file, not a directory"),
    ("file/deep/new", True, "{work}/file is a file, not a directory"),
    ("dangling/new", True, "{work}/dangling is a file, not a directory"),
    ("theirs/..", True, "does not end in a file name"),
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
    for attempt in (partial(check_output, directory=True, may_replace=others), enter):
        with pytest.raises(OutputError) as refused:
            attempt(work / name, source, force=force)
        assert (refused.value.message, refused.value.where) == (expected, str(work / name))
        assert refused.value.try_
    assert sorted(work.rglob("*")) == before


@pytest.mark.parametrize(("force", "kept"), [(False, ""), (True, KEPT)])
def test_a_file_never_takes_the_place_of_a_directory(force: bool, kept: str, source: Path) -> None:
    target = earlier_output(source.parent / "ours")
    before = everything(source.parent)
    with pytest.raises(OutputError) as refused, staged(target, source, force=force):
        pytest.fail("the body ran")
    assert refused.value.message == NOT_A_FOLDER + kept
    assert everything(source.parent) == before


def enter(target: Path, source: Path, *, force: bool) -> None:
    with staged(target, source, force=force, directory=True, may_replace=others):
        pytest.fail("the body ran")


def test_the_next_step_is_force_only_where_force_helps(source: Path) -> None:
    arrange(source.parent)
    tries = {}
    for name in ("file", "ours", "theirs"):
        with pytest.raises(OutputError) as refused:
            check_output(source.parent / name, source, force=False, directory=name != "file", may_replace=others)
        tries[name] = "--force" in refused.value.try_
    assert tries == {"file": True, "ours": True, "theirs": False}


@pytest.mark.parametrize(
    ("name", "force"), [("new", False), ("new", True), ("file", True), ("ours", True), ("source-2", False)]
)
def test_what_may_be_written_passes(name: str, force: bool, source: Path) -> None:
    arrange(source.parent)
    check_output(source.parent / name, source, force=force, directory=name == "ours", may_replace=others)


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
    with pytest.raises(OutputError, match="does not end in a file name"):
        check_output(Path("."), Path("source"), force=True)
    with pytest.raises(OutputError, match="is inside the source"):
        check_output(Path("source/new"), Path("source"), force=True)
