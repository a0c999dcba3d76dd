"""What is settled: a comparison with the inputs that it passed with, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import settled
from settled import Comparison


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record with nothing in it, while all comparisons are made."""
    monkeypatch.setattr(settled, "RESULT", tmp_path / "settled.json")
    known: dict[str, str] = {}
    monkeypatch.setattr(settled, "known", lambda: known)
    monkeypatch.setattr(settled, "ALL", True)
    return tmp_path / "settled.json"


def test_the_same_inputs_are_settled_and_others_are_not(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_bytes(b"1")

    def made(keys: bytes = b"keys", name: str = "one", package: str = "numpy") -> Comparison:
        return Comparison(name, {"keys": keys, "model": folder}, package)

    assert not made().settled
    made().passed()
    assert not made().settled  # all are made while they are written down
    monkeypatch.setattr(settled, "ALL", False)
    assert made().settled
    assert not any(other.settled for other in (made(b"other"), made(name="two"), made(package="gguf")))
    monkeypatch.setattr(settled, "version", lambda package: "99")
    assert not made().settled
    monkeypatch.undo()
    assert list(json.loads(result.read_text())) == ["one"]


def test_a_changed_file_is_not_settled(result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"1")
    Comparison("one", {"file": tmp_path / "a"}).passed()
    monkeypatch.setattr(settled, "ALL", False)
    assert Comparison("one", {"file": tmp_path / "a"}).settled
    (tmp_path / "a").write_bytes(b"2")
    assert not Comparison("one", {"file": tmp_path / "a"}).settled


def test_what_fails_is_not_written_down(result: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled, "ALL", False)
    Comparison("one", {"keys": b""}).passed()  # in a run that makes it in part
    assert not result.exists()
