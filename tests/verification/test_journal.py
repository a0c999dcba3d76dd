"""The journal: rows that were computed are not computed again, an interrupted run goes on, and nothing is mixed up."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ropetool.verification import journal as journals
from ropetool.verification.journal import Journal, JournaledRunner
from ropetool.verification.scoring import Predictions, Scores, ignore

ROWS = [[1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7], [3, 4, 5, 6, 7, 8], [4, 5, 6, 7, 8, 9]]


class Counting:
    """A runner whose figures follow from the ids alone; it stops after so many rows."""

    prefix = (0,)
    description = "counting"

    def __init__(self, most: int = 100) -> None:
        self.most, self.computed = most, 0

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Callable[[int], None]) -> Scores:
        self.count(len(rows))
        done(sum(map(len, rows)))
        losses = np.array([[token / 7 for token in row[-scored:]] for row in rows])
        return Scores(losses, losses > 1)

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Callable[[int], None]
    ) -> Predictions:
        self.count(len(rows))
        return Predictions(-np.array(candidates) / 3, np.array([row[-1] for row in rows]))

    def count(self, rows: int) -> None:
        if self.computed + rows > self.most:
            raise KeyboardInterrupt
        self.computed += rows


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path))
    monkeypatch.setattr(journals, "STEP_TOKENS", 12)  # two rows


def test_an_interrupted_run_goes_on_where_it_stopped() -> None:
    first = Journal("run", resume=False)
    with pytest.raises(KeyboardInterrupt):
        JournaledRunner(Counting(most=3), first, "target").score(ROWS, 2)
    assert first.rows == 2
    first.close(remove=False)

    second = Journal("run", resume=True)
    runner = Counting()
    told: list[int] = []
    found = JournaledRunner(runner, second, "target").score(ROWS, 2, told.append)
    expected = Counting().score(ROWS, 2, ignore)
    assert runner.computed == 2
    assert (found.losses == expected.losses).all()
    assert (found.hits == expected.hits).all()
    assert found.hits.dtype == np.bool_
    assert sum(told) == 24
    second.close(remove=True)
    assert not second.path.exists()


def test_without_resume_everything_is_computed_anew() -> None:
    for _ in range(2):
        runner = Counting()
        journal = Journal("run", resume=False)
        JournaledRunner(runner, journal, "target").score(ROWS, 2)
        journal.close(remove=False)
        assert runner.computed == 4


def test_figures_of_other_conditions_are_not_taken_over() -> None:
    before = {"ropetool": "1", "the content of the target": "a" * 70, "the texts": "b" * 70}
    for now, named in (
        ({**before, "ropetool": "2"}, "ropetool (1 before, 2 now)"),
        ({**before, "the texts": "c" * 70, "torch": "2"}, "the texts, torch (none before, 2 now)"),
        ({"ropetool": "1", "the texts": "b" * 70}, "the content of the target"),
        ({f"file {number}": "d" * 70 for number in range(8)}, "file 0, file 1, file 2, file 3, 7 more"),
    ):
        first = Journal("run", before, resume=False)
        JournaledRunner(Counting(), first, "target").score(ROWS, 2)
        first.close(remove=False)
        same = Journal("run", before, resume=True)
        assert same.resumed == "4 saved rows will be used again"
        same.close(remove=False)
        other, runner = Journal("run", now, resume=True), Counting()
        assert other.resumed == f"the run starts from the beginning, because these changed: {named}"
        JournaledRunner(runner, other, "target").score(ROWS, 2)
        assert (runner.computed, other.rows) == (4, 4)
        other.close(remove=False)
        assert Journal("run", now, resume=True).rows == 4


def test_figures_of_another_runtime_are_not_taken_over() -> None:
    journal, runner = Journal("run", resume=False), Counting()
    JournaledRunner(runner, journal, "target").score(ROWS, 2)
    runner.description = "counting, version 2"
    JournaledRunner(runner, journal, "target").score(ROWS, 2)
    assert runner.computed == 8


@pytest.mark.parametrize("content", [b"[]", b'{"ropetool": 1}', b"no json", b"[" * 100_000, b""])
def test_a_journal_without_readable_conditions_is_begun_anew(content: bytes) -> None:
    first = Journal("run", resume=False)
    JournaledRunner(Counting(), first, "target").score(ROWS, 2)
    first.close(remove=False)
    key = journals.CONDITIONS
    with closing(sqlite3.connect(first.path)) as base, base:
        base.execute("update found set figures = ? where key = ?", (journals._sealed(key, content), key))
    second = Journal("run", resume=True)
    assert (second.rows, second.lost) == (0, "the saved results are damaged (the conditions of the run cannot be read)")


def test_a_journal_of_rows_without_conditions_is_begun_anew() -> None:
    first = Journal("run", resume=False)
    JournaledRunner(Counting(), first, "target").score(ROWS, 2)
    first.close(remove=False)
    with closing(sqlite3.connect(first.path)) as base, base:
        base.execute("delete from found where key = ?", (journals.CONDITIONS,))
    assert Journal("run", resume=True).lost == "the saved results are damaged (the conditions of the run are missing)"


def test_figures_belong_to_one_run_one_role_and_one_question() -> None:
    journal = Journal("run", resume=False)
    runner = Counting()
    JournaledRunner(runner, journal, "target").score(ROWS, 2)
    for ask in (
        lambda: JournaledRunner(runner, journal, "baseline").score(ROWS, 2),
        lambda: JournaledRunner(runner, journal, "target").score(ROWS, 3),
        lambda: JournaledRunner(runner, journal, "target").predict(ROWS, [[1, 2]] * 4),
        lambda: JournaledRunner(runner, journal, "target").predict(ROWS, [[1, 3]] * 4),
        lambda: JournaledRunner(runner, Journal("other run", resume=True), "target").score(ROWS, 2),
    ):
        before = runner.computed
        ask()
        assert runner.computed == before + 4
    before = runner.computed
    found = JournaledRunner(runner, journal, "target").predict(ROWS, [[1, 3]] * 4)
    assert runner.computed == before
    assert (found.log_probs == -np.array([[1, 3]] * 4) / 3).all()
    assert found.top.tolist() == [6, 7, 8, 9]


def test_a_second_run_of_the_same_kind_leaves_the_first_ones_figures_alone(tmp_path: Path) -> None:
    first = Journal("run", resume=False)
    JournaledRunner(Counting(), first, "target").score(ROWS[:2], 2)
    second = Journal("run", resume=False)  # would have removed the file
    found = JournaledRunner(Counting(), second, "target").score(ROWS, 2)
    second.close(remove=True)
    assert (found.losses == Counting().score(ROWS, 2, ignore).losses).all()
    JournaledRunner(Counting(), first, "target").score(ROWS, 2)
    assert first.rows == 4
    first.close(remove=False)
    assert Journal("run", resume=True).rows == 4


@pytest.mark.parametrize("remove", [False, True])
def test_no_lock_stays(remove: bool, tmp_path: Path) -> None:
    journal = Journal("run", resume=False)
    (lock,) = tmp_path.rglob("*.lock")
    assert lock.exists()
    journal.close(remove=remove)
    assert [path.suffix for path in tmp_path.rglob("*.*")] == ([] if remove else [".sqlite"])


def test_a_lock_that_is_removed_before_it_is_taken_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a run that ends at this moment: two more must not both believe that they are alone."""
    real, removed = fcntl.flock, list[Path]()

    def late(lock: int, flags: int) -> None:
        if not removed:
            removed.append(Path(os.readlink(f"/proc/self/fd/{lock}")))
            removed[0].unlink()
        real(lock, flags)

    monkeypatch.setattr(fcntl, "flock", late)
    first = Journal("run", resume=False)
    assert (first.problem, removed[0].exists()) == ("", True)
    second = Journal("run", resume=False)
    assert second.problem == "another process measures the same run"
    second.close(remove=True)
    first.close(remove=True)
    assert not list(tmp_path.rglob("*.*"))


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "file"))
    journal = Journal("run", resume=False)
    assert JournaledRunner(Counting(), journal, "target").score(ROWS, 2).losses.shape == (4, 2)
    journal.close(remove=True)


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "turned":  # a bit within a figure
        at = content.index(np.array([ROWS[0][-1] / 7]).tobytes())
        content = content[: at + 3] + bytes([content[at + 3] ^ 1]) + content[at + 4 :]
    if how == "foreign":
        path.unlink()
        with closing(sqlite3.connect(path)) as base, base:
            base.execute("create table others (a)")
        return
    path.write_bytes({"cut": content[:5000], "empty": b"", "text": b"no database"}.get(how, content))


@pytest.mark.parametrize("how", ["turned", "foreign", "cut", "empty", "text"])
def test_a_damaged_journal_is_measured_again(how: str) -> None:
    first = Journal("run", resume=False)
    JournaledRunner(Counting(), first, "target").score(ROWS, 2)
    first.close(remove=False)
    spoil(first.path, how)

    second, runner = Journal("run", resume=True), Counting()
    found = JournaledRunner(runner, second, "target").score(ROWS, 2)
    assert runner.computed == (2 if how == "turned" else 4)  # rows are computed two at a time
    assert (found.losses == Counting().score(ROWS, 2, ignore).losses).all()
    assert second.rows == 4
    second.close(remove=False)
    assert Journal("run", resume=True).rows == 4


def test_a_journal_that_breaks_on_the_way_is_begun_anew() -> None:
    journal, runner = Journal("run", resume=False), Counting()
    JournaledRunner(runner, journal, "target").score(ROWS[:2], 2)
    journal.path.write_bytes(b"x" * 9000)
    JournaledRunner(runner, journal, "target").score(ROWS, 2)
    assert journal.rows == 4
    journal.close(remove=True)
    assert not journal.path.exists()


# --- where nothing can be kept


def full(monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
    """Let the disk be full after so many pages of a journal."""
    opened = journals._opened

    def limited(place: Path) -> sqlite3.Connection:
        base = opened(place)
        base.execute(f"pragma max_page_count = {pages}")
        return base

    monkeypatch.setattr(journals, "_opened", limited)


def test_a_disk_that_fills_up_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Journal("run", resume=False)
    JournaledRunner(Counting(), first, "target").score(ROWS[:2], 2)
    first.close(remove=False)
    full(monkeypatch, 1)  # no more than there is

    second, runner = Journal("run", resume=True), Counting()
    runner.most = 1000
    many = [[row[0] + shift, *row[1:]] for shift in range(200) for row in ROWS]
    found = JournaledRunner(runner, second, "target").score(many, 2)
    assert "full" in second.problem
    assert runner.computed == 798
    assert (found.losses == Counting(1000).score(many, 2, ignore).losses).all()
    assert second.rows == 800
    JournaledRunner(runner, second, "target").score(many, 2)
    assert runner.computed == 798  # memory serves
    second.close(remove=False)
    assert Journal("run", resume=True).rows >= 2


def test_why_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Journal("run", resume=False)
    assert first.problem == first.lost == ""
    assert Journal("run", resume=False).problem == "another process measures the same run"
    first.close(remove=True)
    first.path.write_text("no database")
    again = Journal("run", resume=True)
    assert again.lost.startswith("the saved results are damaged (")
    assert again.problem == ""
    again.close(remove=True)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "file"))
    assert "cannot write to " in Journal("run", resume=False).problem


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("ROPETOOL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    journal, runner = Journal("run", resume=True), Counting()
    assert "cannot write to" in journal.problem
    assert JournaledRunner(runner, journal, "target").score(ROWS, 2).losses.shape == (4, 2)
    journal.close(remove=True)


def test_a_path_that_is_a_folder_serves_memory(tmp_path: Path) -> None:
    place = Journal("run", resume=False)
    place.close(remove=True)
    place.path.mkdir()
    for resume in (True, False):
        journal = Journal("run", resume=resume)
        assert str(place.path) in journal.problem
        assert JournaledRunner(Counting(), journal, "target").score(ROWS, 2).losses.shape == (4, 2)
        assert journal.rows == 4
        journal.close(remove=True)
