"""The table of measured records: what it names is there, what changed is named, and a record is stamped when it was made."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loading import SCRIPTS, script

record, records = script("record"), script("records.py")
ROOT = SCRIPTS.parent
Record = records.Record


@pytest.mark.parametrize("entry", records.RECORDS, ids=lambda entry: entry.name)
def test_what_the_table_names_is_there(entry: Any) -> None:
    assert (SCRIPTS / entry.command[0]).is_file()
    assert [pattern for pattern in entry.inputs if not [*ROOT.glob(pattern)]] == []
    assert [output for output in entry.outputs if not (ROOT / output).is_file()] == []
    assert not entry.page or (ROOT / "docs" / entry.page).is_file()
    assert entry.outputs or entry.page
    assert entry.minutes > 0


@pytest.mark.parametrize("entry", records.RECORDS, ids=lambda entry: entry.name)
def test_the_folder_of_a_record_explains_it(entry: Any) -> None:
    folder = "conformance_kit" if entry.name == "conformance-kit" else Path(entry.command[0]).parent
    readme = (SCRIPTS / folder / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"scripts/record [\w. -]*{re.escape(entry.name)}\b", readme)
    assert len(readme.splitlines()) <= 12


def test_every_record_has_a_name_and_a_stamp() -> None:
    names = [entry.name for entry in records.RECORDS]
    assert len({*names}) == len(names)
    assert {*records.stamps()} == {*names}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one record, whose script adds a line to its output."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.py").write_text("x = 1\n")
    (tmp_path / "scripts" / "make.py").write_text("open('out.txt', 'a').write('made\\n')\n")
    one = Record("one", ("in/*",), ("make.py",), 3, ("out.txt",))
    longer = replace(one, name="longer", minutes=30)
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setattr(records, "STAMPS", tmp_path / "records.json")
    monkeypatch.setattr(records, "RECORDS", (one, longer))
    monkeypatch.setattr(records, "BY_NAME", {"one": one, "longer": longer})
    monkeypatch.setattr(record, "records", records)
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["record", *arguments])
    code: int = record.main()
    return code


def made(tree: Path) -> int:
    place = tree / "out.txt"
    return place.read_text().count("made") if place.exists() else 0


def test_a_changed_input_is_named(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (run(monkeypatch, "--due"), capsys.readouterr().out) == (
        1,
        "one: 3 min\n    it has no stamp\nlonger: 30 min\n    it has no stamp\n",
    )
    assert run(monkeypatch, "one", "longer") == 0
    capsys.readouterr()
    assert (run(monkeypatch, "--due"), capsys.readouterr().out) == (0, "")
    (tree / "in" / "one.py").write_text('"""A number."""\n\nimport os\n\nx = 1  # one\n')
    assert run(monkeypatch, "--due") == 0
    (tree / "in" / "one.py").write_text("x = 2\n")
    (tree / "in" / "two.json").write_text("{}")
    assert run(monkeypatch, "--due") == 1
    assert capsys.readouterr().out.startswith("one: 3 min\n    changed: in/one.py\n    new: in/two.json\n")
    (tree / "in" / "one.py").unlink()
    (tree / "in" / "two.json").unlink()
    run(monkeypatch, "--due")
    assert "    gone: in/one.py\n" in capsys.readouterr().out


MEANING = script("code_meaning.py").meant


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ("def f(a):\n    total = a + 1\n    return [total for other in a]\n", True),
        ("def f(a):\n    other = a + 1\n    return [other for a in a]\n", False),
        ("def f(b):\n    found = b + 1\n    return [found for one in b]\n", False),
        ("def f(a):\n    found = a + 2\n    return [found for one in a]\n", False),
        ("def f(a):\n    found = a + 1\n    return [one for one in a]\n", False),
        ("def g(a):\n    found = a + 1\n    return [found for one in a]\n", False),
    ],
)
def test_names_of_local_variables_mean_nothing(changed: str, is_same: bool, tmp_path: Path) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text("def f(a):\n    found = a + 1\n    return [found for one in a]\n")
    after.write_text(changed)
    assert (MEANING(before) == MEANING(after)) is is_same


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f():\n    global x\n    x = 1\n", "def f():\n    global y\n    y = 1\n"),
        ("def f():\n    class A:\n        x = 1\n", "def f():\n    class A:\n        y = 1\n"),
        ("class A:\n    x = 1\n", "class A:\n    y = 1\n"),
        ("x = 1\n", "y = 1\n"),
    ],
)
def test_names_that_others_see_mean_something(before: str, after: str, tmp_path: Path) -> None:
    (tmp_path / "before.py").write_text(before)
    (tmp_path / "after.py").write_text(after)
    assert MEANING(tmp_path / "before.py") != MEANING(tmp_path / "after.py")


def test_another_release_makes_a_record_stale() -> None:
    entry = replace(records.BY_NAME["golden"], versions=("numpy", "no-such-package"))
    stamp = {"inputs": entry.inputs_now(), "versions": {"numpy": "0.1", "no-such-package": "1.0"}}
    (reason,) = entry.reasons(stamp)
    assert reason.startswith("numpy ")
    assert reason.endswith(", made with 0.1")


def test_what_fits_into_the_minutes_is_made_in_order(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--all", "--minutes", "20") == 0
    assert (made(tree), [*json.loads(records.STAMPS.read_text())]) == (1, ["one"])
    assert run(monkeypatch, "--all", "--minutes", "20") == 0
    assert made(tree) == 1
    assert run(monkeypatch, "--all", "--minutes", "30") == 0
    assert (made(tree), run(monkeypatch, "--due")) == (2, 0)


@pytest.mark.parametrize("source", ["raise SystemExit(4)", "open('in/one.py', 'a').write('y = 2\\n')"])
def test_a_record_that_was_not_made_whole_has_no_stamp(
    source: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "scripts" / "make.py").write_text(source)
    assert run(monkeypatch, "one") == 1
    assert not records.STAMPS.exists()


@pytest.mark.parametrize("arguments", [[], ["--due", "one"], ["two"]])
def test_what_the_command_refuses(arguments: list[str], tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, *arguments)
