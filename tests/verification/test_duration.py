"""How long a run may take: what is refused, the smaller run that is named, and that it is not refused itself."""

from __future__ import annotations

import random
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from running import run
from verifying import answer_at_once

import ropetool
from ropetool.errors import ConfigError
from ropetool.escaping import with_options
from ropetool.verification import duration, estimate, suites
from ropetool.verification.duration import FITTING, LONGEST, NO_BUDGET, RunSize, TooLong, check_duration
from ropetool.verification.measure import Suite

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
TRAINED = 8192


def rows(run: RunSize) -> Mapping[int, int]:
    """Return about as many rows as a suite has: of target and baseline for losses, of tasks by their trials."""
    each = 2 * run.suite.segments
    tasks = 5 * run.suite.trials * (len(run.suite.measures) - 1) + (25 if run.grade != "research" else 0)
    return dict.fromkeys(run.lengths, each + tasks)


def pace(first: float, growth: float) -> Callable[[], estimate.Pace]:
    return lambda: lambda work: sum(count * length * (first + growth * length) for length, count in work.items())


def suite(name: str | None, measures: tuple[str, ...] = ()) -> Suite:
    return suites.choose(name, measures, None)


@pytest.mark.parametrize("seed", range(40))
def test_the_smaller_run_fits(seed: int) -> None:
    """Whatever the model's pace, suite and lengths: the options that a refusal names make a run that is not refused."""
    chance = random.Random(seed)
    longest = chance.choice([16384, 32768, 131072])
    chosen = suite(chance.choice(["quick", "standard", "full", None]), chance.choice([(), ("last-segment",)]))
    asked = RunSize(chosen, tuple(2**n for n in range(11, longest.bit_length())), chance.choice(["research", "usable"]))
    slow = pace(10 ** chance.uniform(-3.2, -1), 10 ** chance.uniform(-9, -6))
    free = chance.random() < 0.5
    with pytest.raises(TooLong) as refused:
        check_duration(asked, rows, slow, None, TRAINED, free_grade=free)
    changes = refused.value.changes
    assert changes
    assert free or "--grade" not in changes
    smaller = made_of(asked, changes)
    assert slow()(rows(smaller)) <= 60 * LONGEST * FITTING
    check_duration(smaller, rows, slow, None, TRAINED, free_grade=free)
    assert "reaches" not in str(refused.value.notes)
    assert f"of {longest} tokens" in refused.value.notes[0]


def made_of(asked: RunSize, changes: Mapping[str, str | None]) -> RunSize:
    """Return the run of the options that were changed, as the command line would make it."""
    measures = asked.suite.measures if "--measure" not in changes else (changes["--measure"] or "").split(",")
    custom = asked.suite.name == suites.CUSTOM if "--suite" not in changes else changes["--suite"] is None
    segments, trials = (changes.get(name) for name in ("--segments", "--trials"))
    name = changes.get("--suite", asked.suite.name)
    made = suites.choose(
        None if custom else name, tuple(measures) if custom else (), segments and int(segments), trials and int(trials)
    )
    lengths = tuple(map(int, changes["--lengths"].split(","))) if changes.get("--lengths") else asked.lengths
    return RunSize(made, lengths, changes.get("--grade") or asked.grade)


def test_a_run_within_the_limit_is_not_refused() -> None:
    asked = RunSize(suite("standard"), (2048, 16384), "usable")
    minutes = pace(1e-3, 0)()(rows(asked)) / 60
    check_duration(asked, rows, pace(1e-3 * 59 / minutes, 0), None, TRAINED, free_grade=True)
    hour = pace(1e-3 * 61 / minutes, 0)
    with pytest.raises(TooLong, match="the run takes about 61 min on this machine; the limit is 60 minutes"):
        check_duration(asked, rows, hour, None, TRAINED, free_grade=True)
    with pytest.raises(TooLong, match="the limit is 30 minutes"):
        check_duration(asked, rows, hour, 30, TRAINED, free_grade=True)
    check_duration(asked, rows, hour, 62, TRAINED, free_grade=True)
    check_duration(asked, rows, pace(1e3, 1), NO_BUDGET, TRAINED, free_grade=True)


def test_a_smaller_run_keeps_the_lengths_where_it_can() -> None:
    asked = RunSize(suite("standard"), (2048, 4096, 8192, 16384), "research")
    quick = sum(length * count for length, count in rows(RunSize(suite("quick"), asked.lengths, "research")).items())
    with pytest.raises(TooLong) as refused:
        check_duration(asked, rows, pace(60 * LONGEST * FITTING / quick * 0.99, 0), None, TRAINED, free_grade=True)
    assert refused.value.changes == {"--suite": "quick", "--measure": None, "--segments": None, "--trials": None}


def test_nothing_fits_and_the_budget_is_named() -> None:
    asked = RunSize(suite("quick"), (2048, 16384), "research")
    with pytest.raises(TooLong) as refused:
        check_duration(asked, rows, pace(60, 0), None, TRAINED, free_grade=True)
    assert refused.value.changes == {}
    check_duration(asked, rows, pace(60, 0), float(refused.value.try_.split()[-1]), TRAINED, free_grade=True)


def test_options_of_a_line_are_changed() -> None:
    words = ["verify", "x", "--suite=full", "--measure", "far", "--measure", "cache", "--resume", "--lengths", "1k,2k"]
    changed = with_options(words, {"--suite": "quick", "--measure": None, "--lengths": "512", "--segments": "8"})
    assert changed == ["verify", "x", "--resume", "--suite", "quick", "--lengths", "512", "--segments", "8"]


# --- the commands


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_texts: None) -> Path:
    """A folder with the demo checkpoint, on a machine that takes a tenth of a second for each token."""
    shutil.copytree(DEMO, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimate, "pace", lambda *a, **k: pace(0.1, 0)())
    monkeypatch.setattr(duration, "SMALL", 0)
    answer_at_once(monkeypatch)
    return tmp_path


def suggested(err: str) -> list[str]:
    (line,) = (line for line in err.splitlines() if line.startswith("Try: "))
    return shlex.split(line)[2:]


def extended() -> None:
    assert run("extend", "model", "--method", "yarn", "--factor", "2", "-o", "extended").code == 0


@pytest.mark.parametrize(
    "options", [["--suite", "standard", "--baseline", "model"], ["--grade", "usable", "--seed", "3", "--json"]]
)
def test_verify_names_a_line_that_runs(slow: Path, options: list[str]) -> None:
    extended()
    refused = run("verify", "extended", *options)
    assert refused.code == 1
    assert "Error: --budget: the run takes about " in refused.err
    line = suggested(refused.err)
    kept = [word for word in options if word not in ("--suite", "standard")]
    assert line[: len(kept) + 2] == ["verify", "extended", *kept]
    done = run(*line)
    assert done.code in (0, 1, 3), done.err
    assert "takes about" not in done.err.replace("the smaller run", "")
    assert (slow / "extended" / "ropetool.json").exists()


@pytest.mark.parametrize(
    "typed",
    [
        ["extended", "--suite", "standard", "--segments", "900"],
        ["extended", "--suite", "standard", "--trials=400"],
        ["--suite", "standard", "--", "extended"],
        ["--segments", "900", "--", "extended"],
    ],
)
def test_the_smaller_run_fits_whatever_was_typed(slow: Path, typed: list[str]) -> None:
    extended()
    refused = run("verify", *typed)
    assert refused.code == 1
    done = run(*suggested(refused.err))
    assert done.code in (0, 1, 3), done.err
    assert "the run takes about" not in done.err


def test_a_budget_lets_a_long_run_begin(slow: Path) -> None:
    extended()
    few = ("--suite", "quick", "--grade", "research", "--segments", "8", "--lengths", "256,512")
    assert run("verify", "extended", *few).code != 2
    assert "the run takes about" in run("verify", "extended", *few, "--segments", "200").err
    for budget in ("none", "100000"):
        done = run("verify", "extended", *few, "--budget", budget)
        assert done.code in (0, 3), done.err
    wrong = run("verify", "extended", "--budget", "much")
    assert (wrong.code, "'much' is not a number of minutes, or none" in wrong.err) == (2, True)
    capped = run("verify", "extended", *few, "--segments", "200", "--budget", "30")
    assert "the limit is 30 minutes" in capped.err
    for value in ("0", "nan", "-5"):
        assert "must be a number of minutes above 0" in run("verify", "extended", "--budget", value).err


def test_extend_verify_keeps_the_output_and_names_the_command(slow: Path) -> None:
    done = run(
        "extend", "model", "--method", "yarn", "--factor", "2", "-o", "extended", "--verify", "--suite", "standard"
    )
    assert done.code == 1
    assert (slow / "extended" / "config.json").exists()
    line = suggested(done.err)
    assert line[:2] == ["verify", "extended"]
    assert run(*line).code in (0, 1, 3)


def test_compare_and_extend_auto_refuse_too(slow: Path) -> None:
    asked = ("compare", "model", "--methods", "yarn,ntk", "--factors", "2,4")
    refused = run(*asked)
    assert refused.code == 1
    assert "the run takes about" in refused.err
    line = suggested(refused.err)
    assert line[: len(asked)] == list(asked)
    assert run(*line).code == 0
    auto = run("extend", "model", "--method", "auto", "--factor", "4", "-o", "extended")
    assert auto.code == 1
    assert "Error: --tune-minutes: the run takes about " in auto.err  # extend has no --budget
    assert suggested(auto.err) == ["extend", "model", "--factor", "4", "-o", "extended"]
    assert run(*suggested(auto.err)).code == 0


def test_models_are_not_run_before_the_refusal(slow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither rows nor the logits of a target without a record, which take minutes on a real model."""
    extended()
    (slow / "extended" / "ropetool.json").unlink()

    def computed(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a model was run")

    from ropetool.verification import whole_suites
    from ropetool.verification.runners.torch_runner import TorchRunner

    monkeypatch.setattr(whole_suites, "kl_to_claim", computed)
    monkeypatch.setattr(TorchRunner, "score", computed)
    with pytest.raises(ConfigError, match="the run takes about"):
        ropetool.verify(slow / "extended", baseline=slow / "model", suite="standard")
