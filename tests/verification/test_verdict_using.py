"""Whether distant text is used, in the time that is left after a model was kept."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from test_verdict_run import FREE, LENGTH, TRAINED, run_of

import ropetool
from ropetool.errors import ConfigError
from ropetool.verification import measures
from ropetool.verification.checkpoints import verify_target
from ropetool.verification.measure import Grading, Measure, Setting
from ropetool.verification.measures.retrieval import RetrievalPair, RetrievalResult
from ropetool.verification.options import VerifyOptions
from ropetool.verification.results import FAIL, NOT_ASKED, NOT_RUN, PASS, Check, VerifyResult
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import BASELINE, TARGET
from ropetool.verification.verdict import bounds, using
from ropetool.verification.verdict.pacing import Pace
from ropetool.verification.verdict.places import Place

DEMO = Path(ropetool.__file__).parent / "demo" / "model"


@dataclass
class Rows:
    """A measurement of some rows of the longest length. ran: measures and roles, as they were asked."""

    name: str
    length: int
    count: int
    ran: list[tuple[str, str]]
    takes: Callable[[], None] = lambda: None

    def rows(self, role: str) -> Mapping[int, int]:
        return {self.length: self.count}

    def run(self, runner: Any, role: str, done: Any) -> str:
        self.ran.append((self.name, role))
        self.takes()
        done(self.length)
        return role

    def result(self, target: Any, baseline: Any) -> Any:
        return target, baseline


@dataclass
class Planted:
    """Measures with these verdicts in place of the real ones."""

    verdicts: Mapping[str, str]
    count: int = 1
    takes: Callable[[], None] = lambda: None
    ran: list[tuple[str, str]] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)

    def measure(self, order: int, name: str) -> Measure:
        def prepare(setting: Setting, made: Any) -> Rows:
            if name not in self.verdicts:
                raise ConfigError("the texts are too few")
            self.settings.append(setting)
            return Rows(name, setting.lengths[-1], self.count, self.ran, self.takes)

        def checks(result: Any, grading: Grading) -> list[Check]:
            assert result == (TARGET, BASELINE)
            return [Check(name, 0.1, 0.5, self.verdicts[name], "3 of 25 right")]

        return Measure(name, name, order, prepare, checks=checks)

    def put(self, monkeypatch: pytest.MonkeyPatch) -> Planted:
        made = [self.measure(order, name) for order, name in enumerate(("position", "retrieval", "far"))]
        monkeypatch.setattr(measures, "of", lambda names: made)
        return self


def kept_run(minutes: float = math.inf) -> tuple[Any, Any, Any, int]:
    run, answers, target, source = run_of(FREE, minutes=minutes)
    assert answers.verdict == bounds.KEEP
    places = [Place(author, str(author), "prose", 0, (0,), tuple(range(LENGTH)), 4.0) for author in range(4)]
    return run, {TARGET: target, BASELINE: source}, places, 3


ALL = {"far": PASS, "retrieval": PASS, "position": PASS}


def test_a_loss_is_named_and_informs(monkeypatch: pytest.MonkeyPatch) -> None:
    Planted({"far": PASS, "retrieval": FAIL, "position": NOT_RUN}).put(monkeypatch)
    use = using.measured_use(*kept_run())
    assert [check.verdict for check in use.checks] == [PASS, NOT_ASKED, NOT_ASKED]
    assert use.lost == ("fewer questions about distant text are answered: 3 of 25 right",)


def test_passages_behind_distant_text_lower_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Planted({**ALL, "position": FAIL}).put(monkeypatch)
    assert using.measured_use(*kept_run()).lost == ()


def test_what_may_lower_the_verdict_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted(ALL).put(monkeypatch)
    use = using.measured_use(*kept_run())
    assert ([check.verdict for check in use.checks], use.lost, use.notes) == ([PASS] * 3, (), [])
    names = [name for name, role in planted.ran if role == TARGET]
    assert names == ["far", "retrieval", "position"]
    assert [role for _, role in planted.ran] == [TARGET, BASELINE] * 3
    assert planted.settings[0].lengths == (TRAINED, LENGTH)
    assert planted.settings[0].seed == 3


def test_what_does_not_fit_the_time_is_not_begun_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted(ALL, count=2).put(monkeypatch)
    use = using.measured_use(*kept_run(minutes=20))
    assert (planted.ran, use.checks, use.lost) == ([], [], ())
    assert [note.partition(":")[0] for note in use.notes] == [f"{name} was not measured" for name in using.LOST]
    assert len(using.measured_use(*kept_run(minutes=120)).checks) == 3


def test_what_runs_over_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    run, *rest = kept_run(minutes=120)
    planted = Planted(ALL)
    planted.takes = lambda: setattr(run.target.reader.ticks, "now", 60 * 121.0)
    planted.put(monkeypatch)
    use = using.measured_use(run, *rest)
    assert use.notes[0] == "far was not measured: the time ended"
    assert (use.checks, planted.ran) == ([], [("far", TARGET)])


def test_a_run_whose_rows_were_kept_is_timed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pace everything would seem to take no time."""
    run, runners, *rest = kept_run(minutes=20)
    run.target.pace, run.source.pace = Pace(), Pace()
    planted = Planted(ALL, count=2).put(monkeypatch)
    use = using.measured_use(run, runners, *rest)
    assert (planted.ran, len(use.notes)) == ([], 3)
    assert runners[TARGET].rows[-1] == run.shape.short


def test_texts_of_few_authors_leave_the_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted(ALL).put(monkeypatch)
    run, runners, places, seed = kept_run()
    use = using.measured_use(run, runners, places[:3], seed)
    assert {name for name, _ in planted.ran} == {"retrieval"}
    assert "far was not measured: it needs texts of 4 authors" in use.notes


def test_places_of_one_author_are_one_document() -> None:
    places = [
        Place(author, name, "prose", 0, (0,), (author,) * 3, 4.0) for author, name in ((1, "a"), (2, "b"), (1, "c"))
    ]
    corpus = using.corpus_of(places)
    assert (corpus.names, [list(tokens) for tokens in corpus.tokens]) == (("a", "b"), [[1] * 6, [2] * 3])


def test_answers_within_the_trained_length_count_for_short_texts() -> None:
    pairs = [RetrievalPair(length, None, False, 25, 5, 20, 0, 15, -0.6, -0.8, -0.3) for length in (TRAINED, LENGTH)]
    grid = RetrievalResult("keys", 8, 0.1, (), (), "", tuple(pairs))
    assert [pair.length for pair in using._beyond(grid, TRAINED).pairs] == [LENGTH]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo extended twice. It is kept on these texts."""
    folder = tmp_path_factory.mktemp("twice")
    return ropetool.apply(ropetool.plan(DEMO, "yarn", factor=2), DEMO, folder / "twice").output


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "cache"))


WHOLE = VerifyOptions(baseline=DEMO, device="cpu", budget=8.0)


@pytest.fixture(scope="module")
def kept(twice: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[VerifyResult, Path]:
    """The result of a first run, and the cache that it leaves."""
    cache = tmp_path_factory.mktemp("kept") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROPETOOL_CACHE", str(cache))
        return verify_target(twice, WHOLE), cache


def test_a_kept_model_is_asked_what_it_uses(kept: tuple[VerifyResult, Path]) -> None:
    result = kept[0]
    assert result.answers is not None
    assert (result.answers.verdict, result.answers.lost, result.exit_code) == (bounds.KEEP, (), 0)
    copies = next(check for check in result.checks if check.name == "copies")
    assert (copies.verdict, copies.figure is not None) == (PASS, True)
    assert result.measures["retrieval"][0].pairs
    assert not any("was not measured" in note for note in result.notes)


def test_a_second_run_asks_the_source_nothing(
    twice: Path, kept: tuple[VerifyResult, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(kept[1], tmp_path / "cache")
    another = Path(shutil.copytree(twice, tmp_path / "another"))
    (another / "ropetool.json").unlink()
    asked: list[Path] = []
    for name in ("score", "predict"):
        real = getattr(TorchRunner, name)

        def watched(self: TorchRunner, *arguments: Any, real: Any = real) -> Any:
            asked.append(self.path)
            return real(self, *arguments)

        monkeypatch.setattr(TorchRunner, name, watched)
    assert verify_target(another, WHOLE).answers is not None
    assert {path.name for path in asked} == {"another"}


def test_an_export_does_not_ask(twice: Path) -> None:
    result = verify_target(twice, VerifyOptions(baseline=DEMO, device="cpu", budget=8.0, far_text=False))
    assert "copies" not in {check.name for check in result.checks}
    assert json.dumps(result.to_json())
