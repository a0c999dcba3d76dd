"""The record of whole searches on the demo checkpoint: that docs/choosing.md says what it has, and that it is of this code."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import script

import ropetool
from ropetool.lab.tuning import tuning
from ropetool.lab.tuning.judging import ERROR, LEAST
from ropetool.lab.tuning.material import TuningRows
from ropetool.lab.tuning.searching import SearchState
from ropetool.lab.tuning.spaces import SPACES
from ropetool.verification.results import Estimate
from ropetool.verification.scoring import ignore
from ropetool.verification.statistics import chance_of_less, chance_of_more, rejected

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
RECORD = json.loads((Path(__file__).parent / "tune_demo.json").read_text(encoding="utf-8"))
PAGE = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text(encoding="utf-8")


def lines() -> dict[str, list[str]]:
    """Return the cells of the page's table, by the first one."""
    table = PAGE.partition("<!-- demo -->")[2].partition("<!-- /demo -->")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    return {first: rest for first, *rest in cells}


def test_every_space_was_searched_at_four_times_the_length_and_yarn_at_twice() -> None:
    assert {*lines()} == {f"1024, {space}" for space in SPACES} | {"512, yarn"}


@pytest.mark.parametrize("name", RECORD)
def test_the_table_has_the_figures_of_the_record(name: str) -> None:
    entry = RECORD[name]
    points, *cells = lines()[name.replace(" ", ", ")]
    assert int(points) == entry["points"] == 12 * len(entry["generations"])
    judgement = entry["judgement"]
    if judgement is None:
        assert cells[-1] == "none better than the default"
        return
    for cell, part in zip(cells, judgement["parts"], strict=False):
        shown = [float(number) for number in re.findall(r"[+-]\d\.\d{3}", cell)]
        assert shown == [pytest.approx(part["difference"][key], abs=5.1e-4) for key in ("mean", "low", "high")]
    costs = [float(number) for number in cells[3].split(", ")]
    of = [math.exp(judgement[key]["mean"]) for key in ("default_regression", "regression")]
    assert costs == [pytest.approx(cost, abs=5.1e-4) for cost in of]
    better = [part["name"] for part in judgement["parts"] if part["better"]]
    assert cells[4] == (f"no gain: {judgement['reason']}" if judgement["reason"] else f"better: {', '.join(better)}")
    assert (entry["recommended"] == "tuned") == (not judgement["reason"])


def test_the_example_is_what_the_search_of_its_row_printed() -> None:
    assert f"```text\n{RECORD['1024 yarn']['text']}```" in PAGE


def test_the_sentences_say_what_was_found() -> None:
    """Negative results too: of what has begun to fail, and what no search gained."""
    words = " ".join(PAGE.partition("<!-- /demo -->")[2].split())

    def by(name: str, part: int) -> str:
        return f"{-RECORD[name]['judgement']['parts'][part]['difference']['mean']:.3f}"

    def chosen(name: str) -> str:
        return f"{RECORD[name]['judgement']['retrieved']['tuned']:.2f}"

    assert f"lower the loss of key tokens by {by('512 yarn', 1)} nats" in words
    assert f"With twice the original length, `yarn` lowers the text loss by {by('1024 yarn', 0)} nats" in words
    low, high = re.findall(r"\d+\.\d+", RECORD["1024 ramp"]["winner"])[:2]
    for start, name in (f"A ramp from pair {low} to {high}", "1024 ramp"), ("**`pairs`**", "1024 pairs"):
        text, keys = by(name, 0), by(name, 1)
        assert f"{start} lowers the text loss by {text} nats and the key-token loss by {keys} nats" in words
    assert float(by("1024 pairs", 0)) < float(by("1024 ramp", 0))
    assert float(by("1024 pairs", 1)) < float(by("1024 ramp", 1))
    assert [RECORD[f"1024 {space}"]["points"] for space in ("pairs", "ramp")] == [36, 12]
    gains = [(by(f"1024 {space}", 1), by(f"1024 {space}", 2)) for space in ("pair-gain", "head-gain")]
    (pair_keys, pair_answers), (head_keys, head_answers) = gains
    assert (
        f"lowers the key-token loss by {pair_keys} nats and the answer loss by {pair_answers} nats, `head-gain` by "
        f"{head_keys} and {head_answers} nats" in words
    )
    default = f"{RECORD['1024 pair-gain']['judgement']['retrieved']['default']:.2f}"
    assert f"{chosen('1024 pair-gain')} and {chosen('1024 head-gain')}, and {default} with the default" in words
    assert f"raises the text loss by {by('1024 head-band-gain', 0).lstrip('-')} nats" in words
    assert RECORD["1024 head-band-gain"]["judgement"]["reason"] == "it is worse on unseen text"


def test_what_is_called_better_is_so_by_the_estimates() -> None:
    """The verdicts of the record again, by the rule as it is now, from its means and errors."""
    for name, entry in RECORD.items():
        parts = entry["judgement"]["parts"] if entry["judgement"] else []
        found = [Estimate(**part["difference"]) for part in parts]
        assert [part["better"] for part in parts] == rejected([chance_of_more(f, -LEAST) for f in found], ERROR), name
        assert [part["worse"] for part in parts] == rejected([chance_of_less(f, 0.0) for f in found], ERROR), name
        for part, estimate in zip(parts, found, strict=True):
            assert estimate.documents <= len(entry["unseen"]), (name, part["name"])


def test_rows_that_are_missing_are_said_not_to_have_run(monkeypatch: pytest.MonkeyPatch) -> None:
    page = script("tune/tune_demo_page.py")
    monkeypatch.setattr(page, "known", lambda: {name: RECORD[name] for name in RECORD if name != "1024 pairs"})
    rows = {row[0]: row[1:] for row in page.table()}
    assert [name for name, cells in rows.items() if cells[0] == "not run"] == ["1024, pairs"]


def test_the_record_is_of_this_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same documents, and the default's loss of text on those that are judged on; no clock is asked."""
    entry, found = RECORD["512 yarn"], {}

    def begun(self: Any, *_: object) -> SearchState:
        return SearchState(self.task.space.starts(self.task.ground)[1], 0, ())

    def judged(self: Any, material: TuningRows, *_: object) -> None:
        planner, nested = self.task.planner, self.task.source.checkpoint.family.nested
        view = planner.view(self.runner, planner.default, nested)
        losses = material._text(view, 512, 1.0, ignore)
        found.update(loss=float(np.mean(losses)), names=list(material.corpus.names))
        raise KeyboardInterrupt

    def clock(*_: object) -> int:
        raise AssertionError("the number of generations was given")

    monkeypatch.setattr(tuning._Run, "search", begun)
    monkeypatch.setattr(tuning._Run, "judged", judged)
    monkeypatch.setattr(tuning, "_generations", clock)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(DEMO, 512, generations=2, seed=entry["seed"], device="cpu")
    assert found["names"] == entry["unseen"]
    assert found["loss"] == pytest.approx(entry["judgement"]["lengths"][0]["default"], abs=1e-4)
