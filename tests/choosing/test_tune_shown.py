"""The judgement of made-up losses, and how a tuning is shown: as text, as JSON, as a page, and by the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from choosing.tuned_sample import DEMO, DOCUMENTS, figures, sample
from running import run

from ropetool.lab.tuning import tuning
from ropetool.lab.tuning.figures import AllowedLoss, Documents
from ropetool.lab.tuning.judging import judge
from ropetool.lab.tuning.options import TuneOptions
from ropetool.lab.tuning.report import tune_json, tune_page, tune_parts
from ropetool.plans.plan import Plan
from ropetool.report.page import write_page
from ropetool.report.terminal import terminal_text


def test_a_gain_is_claimed_where_a_part_is_surely_better() -> None:
    found = sample(0.1).judgement
    assert found is not None
    assert [(part.name, part.better, part.worse) for part in found.parts] == [
        ("text", True, False), ("key tokens", True, False), ("answers", False, False),
    ]  # fmt: skip
    assert found.verdict == "better"
    default, tuned = figures(0.0, 0.05, 6), figures(0.1, 0.02, 7)
    by_hand = np.mean([tuned.text[n].mean() - default.text[n].mean() for n in (512, 1024)])
    assert found.parts[0].difference.mean == pytest.approx(by_hand)
    source = figures(0.0, 0.0, 0).within
    assert [at.cut for at in found.lengths] == [pytest.approx(source.mean())] * 2
    assert found.regression.mean == pytest.approx(0.02)
    assert found.default_regression.mean == pytest.approx(0.05)


def test_answers_of_one_document_do_not_count_as_so_many() -> None:
    """Ten answers, half a nat better around one document and a tenth around the other, are two differences and not ten."""
    same = figures(0.0, 0.0, 5)
    better = replace(same, answers=same.answers - np.repeat([0.5, 0.1], 5))
    for documents, sure in (range(10), True), ([0] * 5 + [1] * 5, False):
        of = Documents(DOCUMENTS, DOCUMENTS, DOCUMENTS, documents)
        answers = judge(same, better, same.within, of, AllowedLoss(1.0, True, 0.1)).parts[2]
        assert (answers.name, answers.better) == ("answers", sure)
        assert answers.difference.mean == pytest.approx(-0.3)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shift": 0.0}, "the difference on unseen text is not significant, or below 0.001 nats"),
        ({"shift": 0.0009}, "the difference on unseen text is not significant, or below 0.001 nats"),  # and sure
        ({"shift": -0.1}, "it is worse on unseen text, key tokens"),
        ({"cost": 0.2}, "on unseen text, its cost within the trained length is above the limit"),
        (
            {"cost": 0.02, "stated": True, "limit": 1.01},
            "on unseen text, its cost within the trained length is above the limit",
        ),
        ({"right": 4}, "on unseen text, it finds fewer answers"),
    ],
)
def test_no_gain_is_claimed_otherwise_and_the_default_is_recommended(options: dict[str, Any], reason: str) -> None:
    found = sample(**options)
    assert found.judgement is not None
    assert (found.judgement.verdict, found.judgement.reason) == ("no gain", reason)
    assert found.plan is found.default
    assert f"no gain: {reason}; use the default" in terminal_text(tune_parts(found, "model", Path("p.json")))


def test_what_the_default_costs_is_allowed_unless_a_bound_is_stated() -> None:
    costly = sample(cost=0.04, limit=1.01)
    assert costly.judgement is not None
    assert costly.judgement.limit == pytest.approx(0.05)
    assert costly.is_better


TEXT = """\
model: 1024 tokens, 4 times the trained 256
  space     yarn: yarn's factor, original length, beta_fast and ramp
  searched  24 points in 2 generations, on 24 segments of 2 documents, at 512, 1024 tokens
  best      yarn, factor 4, beta_fast 8, beta_slow 1, ramp dims; 0.0612 nats below the default in the search

evaluated once, on 8 segments of 4 documents that the search did not use
"""


def test_the_text_says_what_was_searched_judged_and_what_to_do() -> None:
    found = sample(0.1)
    text = terminal_text(tune_parts(found, "model", Path("model-tuned.json")))
    assert text.startswith(TEXT)
    lines = text.splitlines()
    assert lines[6].split() == ["nats", "per", "token", "default", "tuned", "difference", "95", "%", "interval"]
    assert [line.split()[0] for line in lines[7:12]] == ["text", "at", "at", "key", "answers"]
    assert lines[7].endswith("better")
    assert lines[11].endswith("not significant")
    assert "1.020 times the source's perplexity (1.020 to 1.020); the default has 1.051, the limit is 1.100" in text
    assert "0.70 of the answers are right; with the default 0.60" in text
    assert lines[-2] == "better than the default on unseen text, key tokens; use the tuned plan"
    assert lines[-1] == "  ropetool apply model model-tuned.json"


def test_nothing_before_the_default_has_no_judgement() -> None:
    found = replace(sample(), judgement=None, tuned=None, winner="")
    text = terminal_text(tune_parts(found, "model", Path("p.json")))
    assert "best      none better than the default" in text
    assert "no gain: the search found nothing better than the default; use the default" in text
    assert tune_json(found, Path("p.json"))["judgement"] is None


def test_the_page_says_the_same(tmp_path: Path) -> None:
    page, plot = write_page(tune_page(sample(0.1), Path("p.json"), "ropetool tune model"), tmp_path / "report")
    assert (page.name, plot.name) == ("index.html", "divisors.png")
    text = page.read_text(encoding="utf-8")
    for words in (
        "better than the default on unseen text, key tokens",
        "key tokens",
        "not significant",
        "0.0612",
        "c.txt",
    ):
        assert words in text


def test_the_command_writes_the_plan_that_is_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def tune(source: Path, length: int, options: TuneOptions, **callbacks: Any) -> Any:
        asked.update(vars(options), source=source, length=length)
        return sample(0.1)

    monkeypatch.setattr(tuning, "tune_source", tune)
    place = tmp_path / "plan.json"
    line = [
        "tune",
        DEMO,
        "--target-length",
        "1k",
        "--space",
        "ramp",
        "--budget",
        "3",
        "--max-regression",
        "1.05",
        "--seed",
        "4",
    ]
    done = run(*line, "--for", "vllm", "--plan-out", place, "--report", tmp_path / "report")
    assert done.code == 0
    assert done.out.splitlines()[-1].endswith(f"ropetool apply {DEMO} {place}")
    assert "Note: a note" in done.err
    assert Plan.read(place).to_json() == sample(0.1).plan.to_json()
    assert Plan.read(place).suffix == "tuned-1024"
    assert (asked["length"], asked["space"], asked["budget"], asked["max_regression"]) == (1024, "ramp", 3.0, 1.05)
    assert (asked["for_runtimes"], asked["seed"], asked["resume"]) == (("vllm",), 4, False)
    assert (tmp_path / "report" / "index.html").is_file()
    again = run(*line, "--plan-out", place)
    assert (again.code, again.out) == (1, "")
    assert f"Error: --plan-out {place}: exists already" in again.err
    place.unlink()
    shown = run(*line, "--plan-out", place, "--json")
    assert json.loads(shown.out) == json.loads(json.dumps(tune_json(sample(0.1), place)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target-length", "256"], "Error: --target-length: 256 does not exceed 256 tokens"),
        (["--target-length", "512", "--space", "pear"], "Error: --space: unknown search space 'pear'"),
        (
            ["--target-length", "512", "--budget", "0"],
            "Error: --budget: the time must be a number of minutes above 0, not 0.0",
        ),
        (
            ["--target-length", "512", "--text", "short.txt"],
            "Error: --text: tune needs 6 texts of at least 511 tokens",
        ),
        ([], "Missing option '--target-length'."),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("A short text.")
    done = run("tune", DEMO, *words, "--plan-out", tmp_path / "p.json")
    assert done.code in (1, 2)
    assert message in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "p.json").exists()
