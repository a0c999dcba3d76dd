"""What the default verification keeps on disk: the target's texts until it has decided, the source's for all targets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ropetool
from ropetool.plans.applying import apply
from ropetool.plans.search import make_plan
from ropetool.verification import journal
from ropetool.verification.readback.terms import Terms
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Piece, TokenFilter
from ropetool.verification.verdict import bounds

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
TEXTS = sorted((DEMO.parent / "text").iterdir())


@pytest.fixture
def extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "cache"))
    source = Path(shutil.copytree(DEMO, tmp_path / "model"))
    apply(make_plan(source, "yarn", factor=2), source, tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The rows that models read: the name of the folder and the length."""
    found: list[tuple[str, int]] = []
    own = TorchRunner.read

    def read(self: TorchRunner, ids: Sequence[int], wanted: TokenFilter) -> Iterator[Piece]:
        found.append((self.path.name, len(ids)))
        return own(self, ids, wanted)

    monkeypatch.setattr(TorchRunner, "read", read)
    return found


def kept() -> list[Path]:
    return sorted(journal.folder().glob("*.sqlite"))


def verify(path: Path, **options: Any) -> Any:
    return ropetool.verify(path, **{"texts": TEXTS, **options})


def test_a_decided_run_leaves_the_rows_of_its_source_alone(extended: Path, rows: list[tuple[str, int]]) -> None:
    # What a kept model uses of distant text: test_verdict_using.py.
    assert verify(extended, far_text=False).answers.verdict == bounds.KEEP
    assert len(kept()) == 1
    asked = len(rows)
    assert {name for name, _ in rows} == {"model", "out"}
    verify(extended, far_text=False)
    assert {name for name, _ in rows[asked:]} == {"out"}  # the source reads nothing again


def test_an_open_run_goes_on_where_it_ended(extended: Path, rows: list[tuple[str, int]]) -> None:
    first = verify(extended, texts=TEXTS[:1])
    assert first.answers.verdict == bounds.MEASURED
    assert len(kept()) == 2
    asked = len(rows)
    again = verify(extended, texts=TEXTS[:1], resume=True)
    assert rows[asked:] == []
    assert again.answers.texts == first.answers.texts
    assert any("saved rows" in note for note in again.notes)
    anew = verify(extended, texts=TEXTS[:1])
    assert {name for name, _ in rows[asked:]} == {"out"}
    assert not any("kept" in note for note in anew.notes)


def test_an_interruption_tells_the_rows_of_the_target(extended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, count = TorchRunner.read, [0]

    def read(self: TorchRunner, ids: Sequence[int], wanted: TokenFilter) -> Iterator[Piece]:
        count[0] += self.path.name == "out"
        if count[0] > 2:
            raise KeyboardInterrupt
        return own(self, ids, wanted)

    monkeypatch.setattr(TorchRunner, "read", read)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        verify(extended)
    assert interrupted.value.rows == 2  # type: ignore[attr-defined]
    assert interrupted.value.unkept == ""  # type: ignore[attr-defined]
    assert len(kept()) == 2


def test_a_cache_that_cannot_be_written_is_told_once(
    extended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "file"))
    found = verify(extended)
    assert found.answers.verdict == bounds.KEEP
    assert sum("they were not saved" in note for note in found.notes) == 1


def test_passes_depend_on_the_trained_length_and_the_source(extended: Path, rows: list[tuple[str, int]]) -> None:
    """A pass was scored for the lengths of its run, and its source decided where it was cut."""
    verify(extended, texts=TEXTS[:1])
    asked = len(rows)
    shorter = Terms(trained_length=128)
    verify(extended, texts=TEXTS[:1], resume=True, terms=shorter)
    assert {name for name, _ in rows[asked:]} == {"model", "out"}
    asked = len(rows)
    other = Path(shutil.copytree(extended.parent / "model", extended.parent / "other"))
    verify(extended, texts=TEXTS[:1], resume=True, terms=shorter, baseline=other)
    assert {name for name, _ in rows[asked:]} == {"other", "out"}
