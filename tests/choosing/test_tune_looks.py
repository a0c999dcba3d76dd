"""Judgements of one model on the same documents: each after the first has half of the error, kept in the cache."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from choosing.test_tune import source, tuned  # noqa: F401  # the first is a fixture
from loading import script

from ropetool import machine
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.lab.tuning.judging import ERROR, GAIN, LEAST
from ropetool.lab.tuning.looks import error_of
from ropetool.verification.results import Estimate
from ropetool.verification.statistics import chance_of_less, chance_of_more, rejected

UNSEEN = [b"first", b"second", b"third"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "cache"))


def asked(judged: str, documents: list[bytes] = UNSEEN, model: str = "model") -> tuple[float, list[str]]:
    notes: list[str] = []
    return error_of(model, documents, judged, notes), notes


def test_each_judgement_on_the_same_documents_has_half_of_the_error() -> None:
    assert asked("yarn") == (ERROR, [])
    error, (note,) = asked("ramp")
    assert error == ERROR / 2
    assert note.startswith(
        "1 earlier plan was evaluated on the same documents, so the error rate of this evaluation is 1.2 %"
    )
    assert asked("pairs", [b"third", b"fourth"])[0] == ERROR / 4  # one document is enough
    assert asked("other", [b"fifth"]) == (ERROR, [])
    assert asked("yarn", model="another") == (ERROR, [])
    assert [asked(judged)[0] for judged in ("yarn", "ramp", "ramp")] == [ERROR, ERROR / 2, ERROR / 2]


def test_all_judgements_together_are_wrong_in_at_most_5_percent() -> None:
    """Of twelve spaces in which nothing is to be gained; uncounted they would be wrong in a quarter of the runs."""
    errors = [asked(f"space {number}")[0] for number in range(12)]
    assert sum(errors) <= 2 * ERROR
    chances = np.random.default_rng(0).random((4000, 12, 3))
    claimed = [
        [any(any(rejected(list(parts), error)) for parts, error in zip(run, given, strict=True)) for run in chances]
        for given in (errors, [ERROR] * 12)
    ]
    assert np.mean(claimed[0]) <= 2 * ERROR + 3 * math.sqrt(0.05 * 0.95 / 4000)
    assert np.mean(claimed[1]) > 0.2


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\x00 broken \n", b"{}"])
def test_a_damaged_record_is_no_reason_to_stop(content: bytes) -> None:
    asked("yarn")
    (place,) = (machine.cache() / "tune").iterdir()
    place.write_bytes(place.read_bytes() + content + b"\n")
    assert asked("ramp")[0] == ERROR / 2


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "file"))
    error, (note,) = asked("yarn")
    assert error == ERROR
    assert "cannot record this evaluation or count earlier ones on these documents: " in note


def test_a_second_space_is_judged_with_less_room_for_chance(source: Path) -> None:  # noqa: F811
    first = tuned(source, space="yarn")
    second = tuned(source, space="ramp")
    again = tuned(source, space="yarn")
    assert first.judgement is not None
    assert second.judgement is not None
    assert (first.judgement.error, second.judgement.error) == (ERROR, ERROR / 2)
    assert first.judgement == again.judgement
    assert [note for note in first.notes if "evaluated on the same" in note] == []
    assert any(note.startswith("1 earlier plan was evaluated") for note in second.notes)
    found = [part.difference for part in second.judgement.parts]
    expected = rejected([chance_of_more(difference, -LEAST) for difference in found], ERROR / 2)
    assert [part.better for part in second.judgement.parts] == expected
    assert open_checkpoint(source).path == source  # which is only read


def test_the_verdicts_on_the_demo_stay_where_all_of_them_are_counted() -> None:
    """As docs/choosing.md says of its table."""
    page = script("tune/tune_demo_page.py")
    entries = [page.known()[page.named(*row[:2])] for row in page.ROWS]
    judgements = [entry["judgement"] for entry in entries if entry["judgement"]]
    assert f"{100 * ERROR / 2 ** (len(judgements) - 1):.2f} %" == "0.04 %"
    for number, judgement in enumerate(judgements):
        error = ERROR / 2**number
        found = [Estimate(**part["difference"]) for part in judgement["parts"]]
        worse = any(rejected([chance_of_less(each, 0.0) for each in found], ERROR))
        better = any(rejected([chance_of_more(each, -LEAST) for each in found], error))
        assert (better and not worse) == (judgement["verdict"] == GAIN)
