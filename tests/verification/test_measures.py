"""Measures are found by discovery: one that is made up, in a file of its own, is chosen, measured, checked and shown."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import run
from verifying import verify

from ropetool import registry
from ropetool.choosing.results import CandidateResult, _candidate_json
from ropetool.errors import ConfigError
from ropetool.report.verdict import summary
from ropetool.report.verified import sections, verify_charts, verify_text
from ropetool.verification import measures, suites
from ropetool.verification.results import FAIL, NOT_ASKED
from ropetool.verification.scoring import Scores
from ropetool.verification.texts import Document

MADE_UP = '''
"""First token: what the first token of a document costs."""

from dataclasses import dataclass

from ropetool.charts import TARGET, Axis, Chart, Panel, Series
from ropetool.sections import Section, Table, number, row
from ropetool.verification.measure import Measure, VerdictSentence
from ropetool.verification.results import FAIL, NOT_ASKED, Check


@dataclass(frozen=True)
class FirstToken:
    documents: int
    loss: float


@dataclass(frozen=True)
class Rows:
    texts: tuple
    name: str = "first-token"

    def rows(self, role):
        return {8: len(self.texts)}

    def run(self, runner, role, done):
        return runner.score([list(text[:8]) for text in self.texts], 1, done).losses

    def result(self, target, baseline):
        return FirstToken(len(target), float(target.mean() - (0 if baseline is None else baseline.mean())))


def prepare(setting, made):
    return Rows(setting.corpus.tokens[: setting.suite.trials])


def checks(found, grading):
    return [Check("first token", found.loss, 1.0, FAIL if found.loss > 1 else NOT_ASKED, f"of {found.documents}")]


def sections(found, result):
    yield Section("first-token", "First tokens", Table(("documents", "loss"), (row(str(found.documents), number(found.loss)),)))


def charts(found, result):
    panel = Panel(Axis("document"), Axis("loss"), (Series("loss", TARGET, (0.0,), (found.loss,)),))
    yield Chart("first-token", "first-token", "First tokens", "The mean loss.", (panel,))


MEASURES = (
    Measure(
        "first-token", "first_token", 35, prepare, suites=("full",), checks=checks, sections=sections, charts=charts,
        words={"first token": {FAIL: VerdictSentence("its first tokens cost too much", "better ones")}},
    ),
)
'''


class Runner:
    """A checkpoint whose every token costs as much as its name says."""

    prefix = (0,)
    description = arithmetic = ""

    def __init__(self, path: Path, *, device: str, dtype: str, report: Callable[[str], None]) -> None:
        self.loss = float(path.name)

    def tokenize(self, text: str) -> list[int]:
        return list(range(1, int(text) + 1))

    def byte_lengths(self, text: str) -> list[int]:
        return [4] * int(text)

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Callable[[int], None]) -> Scores:
        losses = np.full((len(rows), scored), self.loss)
        return Scores(losses, losses < 0)

    def close(self) -> None: ...


def measured(target: float, *names: str) -> Any:
    return verify(
        Path(str(target)), baseline=Path("3.0"), texts=[Document(f"{i}.txt", str(300 + i)) for i in range(8)],
        lengths=[64, 256], trained_length=128, suite=suites.choose(None, names, None), runner=Runner, budget=math.inf,
    )  # fmt: skip


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "made_up").mkdir()
    (tmp_path / "made_up" / "__init__.py").touch()
    (tmp_path / "made_up" / "first_token.py").write_text(MADE_UP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "MEASURE_PACKAGES", (*registry.MEASURE_PACKAGES, "made_up"))
    measures.every.cache_clear()
    yield
    measures.every.cache_clear()
    for name in ("made_up", "made_up.first_token"):
        sys.modules.pop(name, None)  # the next test has a file of its own


@pytest.mark.usefixtures("made_up")
def test_a_file_is_a_measure() -> None:
    assert "first-token" in suites.named("full").measures
    assert "first-token" not in suites.named("standard").measures
    result = measured(3.5, "first-token")
    assert result.to_json()["first_token"] == {"documents": 8, "loss": 0.5}
    (check,) = result.checks
    assert (check.name, check.figure, check.verdict, check.detail) == ("first token", 0.5, NOT_ASKED, "of 8")
    assert [section.title for section in sections(result)] == ["First tokens"]
    assert "First tokens" in verify_text(result)
    assert [(chart.name, chart.section) for chart in verify_charts(result)] == [("first-token", "first-token")]
    assert _candidate_json(CandidateResult("x", None, result))["first_token"] == {"documents": 8, "loss": 0.5}


@pytest.mark.usefixtures("made_up")
def test_its_check_counts_and_has_words() -> None:
    result = replace(measured(5.0, "first-token"), baseline="3.0")
    assert result.verdict == FAIL
    assert summary(result).endswith("fails: its first tokens cost too much; next: better ones.")


@pytest.mark.usefixtures("made_up")
def test_it_is_null_where_it_is_not_measured() -> None:
    result = measured(3.0, "last-segment").to_json()
    assert (result["first_token"], list(result)[-1]) == (None, "first_token")


def test_without_the_file_there_is_no_such_measure() -> None:
    with pytest.raises(ConfigError, match="'first-token' is not one of last-segment, position, far, retrieval"):
        suites.choose(None, ("first-token",), None)


def test_names_keys_and_orders_are_clear() -> None:
    names = [measure.name for measure in measures.every()]
    assert len(set(names)) == len(names)
    assert len({measure.order for measure in measures.every()}) == len(names)
    shared = {
        key for key in (measure.key for measure in measures.every()) if sum(m.key == key for m in measures.every()) > 1
    }
    assert shared == {measure.key for measure in measures.every() if measure.several}
    assert {each for measure in measures.every() for each in measure.suites} == set(suites.SUITES)


def test_the_command_line_lists_every_measure() -> None:
    listed = run("verify", "--measure", "list")
    assert (listed.code, listed.out.split()) == (0, list(measures.offered()))
