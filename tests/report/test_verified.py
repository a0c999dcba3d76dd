"""The verification as text: whole output, so that a change to it is seen and read."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import sample

from ropetool.report.terminal import WIDTH, terminal_text
from ropetool.report.verdict import summary
from ropetool.report.verified import gate_section, sections, verify_text
from ropetool.sections import Section, Table, row

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.mark.parametrize("name", ["full", "failing", "minimal"])
def test_the_whole_text(name: str) -> None:
    assert verify_text(sample.SAMPLES[name]()) == (SNAPSHOTS / f"{name}.txt").read_text(encoding="utf-8")


def test_the_whole_text_with_legends_on_a_narrow_terminal() -> None:
    found = verify_text(sample.full(), width=60, explained=True)
    assert found == (SNAPSHOTS / "full-60-explained.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sample.SAMPLES)
@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("explained", [False, True])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut_off(name: str, width: int, explained: bool) -> None:
    result = sample.SAMPLES[name]()
    text = verify_text(result, width=width, explained=explained)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    said = " ".join(text.split())
    wide = verify_text(result, width=100_000, explained=explained)
    plot = set("●○◉┊·│└─")
    assert {word for word in wide.split() if not plot & set(word)} <= set(text.split()), "words are lost"
    assert said.startswith(summary(result))


@pytest.mark.parametrize("name", sample.SAMPLES)
def test_without_a_terminal_the_verdict_is_one_line_and_tables_get_120_columns(name: str) -> None:
    verdict, *lines = verify_text(sample.SAMPLES[name]()).splitlines()
    assert verdict == summary(sample.SAMPLES[name]())
    assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("name", sample.SAMPLES)
def test_legends_stand_below_their_tables_on_request_alone(name: str) -> None:
    result = sample.SAMPLES[name]()
    shown = [gate_section(result), *sections(result)]
    terms = {(term, " ".join(text.split())) for section in shown for term, text in section.legend}
    plain, explained = (" ".join(verify_text(result, explained=asked).split()) for asked in (False, True))
    assert terms
    assert [text for _, text in terms if text in plain] == []
    assert [text for term, text in terms if f"{term} {text}" not in explained] == []
    assert plain.endswith("of --report contain it too.")
    assert "--explain" not in explained


def test_notes_are_findings_and_always_shown() -> None:
    assert verify_text(sample.failing()).count("note  2048: too little text: 3 segments of 1 document") == 1


def test_checks_that_decide_the_verdict_come_first() -> None:
    lines = verify_text(sample.failing()).splitlines()
    gate = lines[lines.index("Gate, suite standard, grade research") :]
    names = [
        line.split()[0]
        for line in gate[gate.index(next(x for x in gate if "──" in x)) + 1 : gate.index("", 3)]
        if line[1] != " "
    ]
    assert names == ["weights", "rotation", "ratio", "retrieval,", "KL", "far", "useful"]


HEADLINES = {
    "lengths": ("Last segment: does quality hold?", ()),
    "protocols": ("Perplexity by published protocols", ()),
    "position": ("Position probe", None),
    "far": ("Far dependence", None),
    "retrieval": ("Retrieval, keys", ()),
    "divergence": ("Divergence from", None),
}


@pytest.mark.parametrize("field", HEADLINES)
def test_only_what_was_measured_is_shown(field: str) -> None:
    headline, nothing = HEADLINES[field]
    assert headline in verify_text(sample.full())
    assert headline not in verify_text(sample.without(field, nothing))


def test_a_result_without_any_measurement_still_has_its_checks() -> None:
    bare = replace(sample.minimal(), lengths=())
    lines = verify_text(bare).splitlines()
    assert [line for line in lines if line][3] == "Gate, suite quick, grade research"
    assert (
        lines[0]
        == "pass: demo-yarn-8x (yarn, factor 8), measured without a baseline, is good enough for grade research."
    )


def test_a_figure_just_above_its_limit_does_not_look_equal_to_it() -> None:
    above = replace(sample.CHECKS[2], figure=1.50007, verdict="fail")
    assert " ratio  1.5001    1.5  fail " in verify_text(replace(sample.full(), checks=(above,)))


def test_the_gains_have_the_sign_of_a_gain() -> None:
    # At 1024 tokens the target's loss is ln(11/12) from the truncated baseline's and ln(11/14.9) from its own at 512.
    text = verify_text(sample.full())
    assert "   1024        +0.087 ± 0.047     yes    +0.303 ± 0.009               -" in text.splitlines()
    assert "    256        -0.236 ± 0.047      no    +0.129 ± 0.009  +0.236 ± 0.047" in text.splitlines()


def test_the_baseline_of_a_grid_counts_within_its_trained_length_alone() -> None:
    (grid, *_) = sample.full().measures["retrieval"]
    more = replace(grid, baseline=(*grid.baseline, sample.cell(512, 0.5, 3)))
    text = verify_text(replace(sample.full(), measures={"retrieval": (more,)}), explained=True)
    assert " baseline  75/80   3/16      -      -" in text.splitlines()
    assert "baseline  all depths; 75/80 within its trained length of 256 tokens" in text


def test_colour_only_where_it_is_asked_for() -> None:
    assert "\x1b[" not in verify_text(sample.full())
    assert verify_text(sample.full(), colour=True).startswith("\x1b[1;32mpass\x1b[0m: demo-yarn-8x")
    assert verify_text(sample.failing(), colour=True).startswith("\x1b[1;31mfail\x1b[0m: demo-yarn-8x")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", verify_text(sample.full(), colour=True, width=60))
    assert plain == verify_text(sample.full(), width=60)


def test_names_are_text_not_markup() -> None:
    assert verify_text(replace(sample.full(), target="[red]x[/red]")).startswith("pass: [red]x[/red] (yarn")


HOSTILE = "m\x1b[2J\x1b]0;owned\x07\npass: all is well\u202e"


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("explained", [False, True])
def test_a_hostile_name_neither_ends_a_line_nor_reaches_the_terminal(colour: bool, explained: bool) -> None:
    full = sample.full()
    result = replace(
        full, target=HOSTILE, baseline=HOSTILE, against=HOSTILE, suite=HOSTILE, runtime=HOSTILE, grade=HOSTILE,
        extension={"method": HOSTILE, "factor": 2.0, "params": {}},
        checks=(replace(sample.CHECKS[0], name=HOSTILE, detail=HOSTILE, verdict="fail"),),
        divergence=replace(sample.divergence(), reference=HOSTILE, note=HOSTILE),
        measures={**full.measures, "retrieval": (replace(sample.retrieval(lost=1), task=HOSTILE, note=HOSTILE),)},
        lengths=(replace(full.lengths[0], note=HOSTILE), *full.lengths[1:]),
    )  # fmt: skip
    for width in (None, 60):
        text = verify_text(result, width=width, colour=colour, explained=explained)
        ours = re.sub(r"\x1b\[[0-9;]*m", "", text)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", ours)
        assert not any(line.startswith("pass") for line in ours.splitlines())
        assert "m\\x1b[2J\\x1b]0;owned\\x07\\npass:" in ours


def test_figures_of_another_size_stay_whole() -> None:
    wild = replace(sample.lengths()[0], target=sample.estimate(500.0), baseline=sample.estimate(3.0), ratio=1e43)
    text = verify_text(replace(sample.full(), lengths=(wild,)))
    assert " 1.0e43     1.34  1.4e217 (1.3e217-1.6e217)  20.1 (18.2-22.2)" in text


def test_a_verdict_in_the_last_column_stands_in_its_row_and_a_sentence_below_where_there_is_no_room() -> None:
    cells = row("a task", "0.12345", "undecided")
    named, unnamed = (
        Section("x", "T", Table(("task", "score", last), (cells,), words=(0, 2))) for last in ("verdict", "")
    )
    assert " a task  0.12345  undecided" in terminal_text([named], 80).splitlines()
    assert not named.table.ends_in_sentences
    assert unnamed.table.ends_in_sentences
    long = replace(unnamed, table=replace(unnamed.table, rows=(row("a" * 50, "0.12345", "one two three"),)))
    assert terminal_text([long], 80).splitlines()[-1] == "   one two three"
