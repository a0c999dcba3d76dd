"""What the commands that measure do before and after it: places that are refused at once, files that appear whole, and who is tuned."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from running import run

import ropetool
from ropetool.choosing.choice import Choice
from ropetool.cli.named_files import write_new
from ropetool.errors import ConfigError

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
AUTO = ("extend", "model", "--method", "auto", "--factor", "2")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the demo checkpoint, where nothing may be measured."""

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it was measured")

    shutil.copytree(DEMO, tmp_path / "model")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ropetool.choosing.comparing.compare_candidates", never)
    monkeypatch.setattr("ropetool.lab.tuning.tuning.tune_source", never)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ((*AUTO, "-o", "there"), "there: exists already"),
        ((*AUTO, "-o", "nowhere/out"), "nowhere does not exist"),
        ((*AUTO, "--plan-out", "there/notes.txt"), "--plan-out there/notes.txt: exists already"),
        (("compare", "model", "--factors", "2", "--csv", "nowhere/x.csv"), "--csv nowhere/x.csv: cannot be written"),
        (("compare", "model", "--factors", "2", "--csv", "there"), "--csv there: exists already"),
        (
            ("tune", "model", "--target-length", "512", "--plan-out", "nowhere/x.json"),
            "--plan-out nowhere/x.json: cannot",
        ),
    ],
)
def test_a_place_is_refused_before_anything_is_measured(line: tuple[str, ...], words: str) -> None:
    done = run(*line)
    assert done.code == 1
    assert words in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--config-style", "v5"), "--method auto does not accept --config-style"),
        (("--as", "llama"), "--method auto does not accept --as"),
        (("--tune-minutes", "3", "--original-length", "128"), "leave out --original-length"),
    ],
)
def test_what_is_not_measured_is_not_said_to_be(options: tuple[str, ...], words: str) -> None:
    done = run(*AUTO, *options)
    assert done.code == 2
    assert words in " ".join(done.err.split())


def test_a_full_disk_leaves_no_half_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(folder.iterdir())

    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(ConfigError, match="no space left") as refused:
            write_new("--csv", folder / "x.csv", "a,b\n")
    assert refused.value.where == f"--csv {folder / 'x.csv'}"
    assert sorted(folder.iterdir()) == before
    write_new("--csv", folder / "x.csv", "a,b\n")
    assert (folder / "x.csv").read_bytes() == b"a,b\n"


@pytest.mark.parametrize("method", ["llama3", "yarn"])
def test_only_yarn_is_tuned(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning is judged against YaRN, and says nothing of a method that was chosen over it."""
    chosen = ropetool.plan("model", method, factor=2)
    tuned = SimpleNamespace(is_better=True, plan=ropetool.plan("model", "linear", factor=2), winner="a point")
    choice = Choice(SimpleNamespace(name=f"{method} x2"), chosen, "measured so")  # type: ignore[arg-type]
    monkeypatch.setattr("ropetool.cli.compare.compared", lambda *_, **__: None)
    monkeypatch.setattr("ropetool.choosing.choice.choose", lambda _: choice)
    monkeypatch.setattr("ropetool.lab.tuning.tuning.tune", lambda *_, **__: tuned)
    done = run(*AUTO, "--tune-minutes", "3", "--dry-run", "--json")
    assert done.code == 0, done.err
    assert done.json["plan"]["method"] == ("linear" if method == "yarn" else method)
    assert ("not tuned" in done.err) == (method != "yarn")
