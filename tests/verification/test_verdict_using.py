"""Whether far text is used, in the time that is left after a model was kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_verdict_run import FREE, run_of

import ropetool
from ropetool.verification import measures
from ropetool.verification.checkpoints import verify_checkpoint
from ropetool.verification.measure import Grading, Measure, Setting
from ropetool.verification.results import FAIL, NOT_ASKED, NOT_RUN, PASS, Check
from ropetool.verification.scoring import BASELINE, TARGET
from ropetool.verification.verdict import bounds, using

DEMO = Path(ropetool.__file__).parent / "demo" / "model"


@dataclass
class Rows:
    """A measurement of some rows of the longest length. done: the roles that it was run with."""

    length: int
    count: int
    done: list[str]
    name: str = "far"

    def rows(self, role: str) -> Mapping[int, int]:
        return {self.length: self.count}

    def run(self, runner: Any, role: str, done: Any) -> str:
        self.done.append(role)
        return role

    def result(self, target: Any, baseline: Any) -> Any:
        return target, baseline


def planted(
    monkeypatch: pytest.MonkeyPatch, verdicts: Mapping[str, str], count: int = 1
) -> tuple[list[str], list[Setting]]:
    """Put measures with these verdicts in place of the real ones; return the roles that were asked, and the settings."""
    done: list[str] = []
    settings: list[Setting] = []

    def measure(order: int, name: str) -> Measure:
        def prepare(setting: Setting, made: Any) -> Rows:
            settings.append(setting)
            return Rows(setting.lengths[-1], count, done, name)

        def checks(result: Any, grading: Grading) -> list[Check]:
            assert result == (TARGET, BASELINE)
            return [Check(name, 0.1, 0.5, verdicts[name], "3 of 25 right")]

        return Measure(name, name, order, prepare, checks=checks)

    made = [measure(order, name) for order, name in enumerate(verdicts)]
    monkeypatch.setattr(measures, "of", lambda names: made)
    return done, settings


def kept_run(minutes: float = math.inf) -> tuple[Any, Any]:
    run, answers, target, source = run_of(FREE, minutes=minutes)
    assert answers.verdict == bounds.KEEP
    return run, {TARGET: target, BASELINE: source}


def test_a_loss_is_named_and_informs(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, {"far": PASS, "retrieval": FAIL, "position": NOT_RUN})
    _, checks, lost = using.used(*kept_run(), seed=0)
    assert [check.verdict for check in checks] == [PASS, NOT_ASKED, NOT_ASKED]
    assert lost == ("fewer questions about far text are answered: 3 of 25 right",)


def test_nothing_is_lost_where_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    done, settings = planted(monkeypatch, {"far": PASS, "retrieval": PASS})
    run, runners = kept_run()
    _, checks, lost = using.used(run, runners, seed=3)
    assert ([check.verdict for check in checks], lost) == ([PASS, PASS], ())
    assert done == [TARGET, BASELINE] * 2
    assert settings[0].lengths == (8192, 16384)
    assert settings[0].corpus.names == tuple(text.document for text in run.answers)
    assert settings[0].seed == 3


def test_what_does_not_fit_the_time_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 16,384 tokens takes 167 s, and three texts of such a model take 15 minutes."""
    done, _ = planted(monkeypatch, {"far": FAIL}, count=2)
    assert using.used(*kept_run(minutes=20), seed=0)[1:] == ([], ())
    assert done == []
    assert using.used(*kept_run(minutes=60), seed=0)[2]
    assert done == [TARGET, BASELINE]


def test_a_kept_model_is_asked_what_it_uses(tmp_path: Path) -> None:
    """On the real demo: yarn to twice its length is kept or works; what is kept has the checks, and no failed one."""
    plan = ropetool.plan(DEMO, "yarn", factor=2)
    output = ropetool.apply(plan, DEMO, tmp_path / "twice").output
    result = verify_checkpoint(output, baseline=DEMO, device="cpu", budget=4.0)
    assert result.answers is not None
    assert result.answers.verdict in (bounds.KEEP, bounds.WORKS)
    names = {check.name for check in result.checks}
    asked = result.answers.verdict == bounds.KEEP or bool(result.answers.lost)
    assert ("copies" in names) == asked
    assert result.exit_code == 0
