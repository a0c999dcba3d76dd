"""Measures are found by discovery: one that is made up, in a file of its own, is chosen, measured, checked and shown."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields as fields_of
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
from ropetool.verification import measures, results, suites
from ropetool.verification.results import FAIL, NOT_ASKED, JsonPlace, VerifyResult, YardstickResult, json_places
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
    results._places_in.cache_clear()
    for name in ("made_up", "made_up.first_token"):
        sys.modules.pop(name, None)  # the next test has a file of its own


# The keys of measures in --json, by the field before them; in a reference attention variant; in a candidate.
KEYS = {
    "lengths": ["protocols", "position", "far", "retrieval"],
    "judge": ["key_tokens", "long_pass", "effective_length", "many_shot", "cache"],
    "lm_eval": ["needle_answers"],
}
OF_VARIANTS = [
    "protocols", "position", "far", "retrieval", "long_pass", "key_tokens", "needle_answers", "effective_length", "many_shot",
]  # fmt: skip
OF_CANDIDATES = [
    "verdict", "lengths", "protocols", "position", "far", "retrieval", "key_tokens", "needle_answers", "long_pass",
    "effective_length", "many_shot", "cache",
]  # fmt: skip
LISTS = {"protocols", "retrieval"}


def empty(**fields: Any) -> VerifyResult:
    values = dict.fromkeys((field.name for field in fields_of(VerifyResult)), None)
    values |= {"checks": (), "notes": (), "lengths": (), "documents": (), "measures": {}, "yardsticks": ()}
    return VerifyResult(**{**values, **fields})  # type: ignore[arg-type]


def test_keys_of_measures_without_a_result() -> None:
    variant = YardstickResult("rerope", "m", "", (), (), {})
    data = empty(yardsticks=(variant,)).to_json()
    keys = list(data)
    for field, following in KEYS.items():
        at = keys.index(field) + 1
        assert keys[at : at + len(following)] == following
        assert keys[at + len(following)] in [each.name for each in fields_of(VerifyResult)]
        assert {key: data[key] for key in following} == {key: [] if key in LISTS else None for key in following}
    assert list(data["yardsticks"][0]) == ["name", "on", "served", "lengths", "differences", *OF_VARIANTS]
    candidate = list(_candidate_json(CandidateResult("x", None, empty())))
    assert candidate[candidate.index("note") + 1 :] == [*OF_CANDIDATES, "checks"]


def test_every_file_of_measures_lists_its_places() -> None:
    known = {measure.key: measure for measure in measures.every()}
    listed = [JsonPlace(**place) for module in modules() for place in getattr(module, "JSON_PLACES", ())]
    assert sorted(listed, key=lambda place: place.order) == list(json_places())
    assert {place.key for place in listed} == known.keys() - {measures.LENGTHS}
    for place in listed:
        assert (place.several, place.of_variants) == (known[place.key].several, known[place.key].of_variants)


def modules() -> list[Any]:
    """Return the modules that define measures."""
    names = {each.prepare.__module__ for each in measures.every()}
    return [sys.modules[name] for name in sorted(names)]


def test_no_measure_is_imported_for_the_keys() -> None:
    script = (
        "import sys; from ropetool.verification.results import json_places; assert len(json_places()) == 10; "
        "print(*[name for name in sys.modules if 'measures' in name or name.startswith('ropetool.lab')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


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
def test_the_file_gives_its_key_a_place(tmp_path: Path) -> None:
    assert "first_token" not in empty().to_json()
    file = tmp_path / "made_up" / "first_token.py"
    file.write_text(f'{MADE_UP}\nJSON_PLACES = ({{"key": "first_token", "after": "judge", "order": 68}},)\n')
    results._places_in.cache_clear()
    data = empty().to_json()
    keys = list(data)
    assert (keys[keys.index("first_token") - 1], data["first_token"]) == ("long_pass", None)
    assert measured(3.5, "first-token").to_json()["first_token"] == {"documents": 8, "loss": 0.5}


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
