"""The verification as text: whole output, so that a change to it is seen and read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sample

from ropetool.report.verified import WIDTH, verify_text

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.mark.parametrize("name", ["full", "failing", "minimal"])
def test_the_whole_text(name: str) -> None:
    assert verify_text(sample.SAMPLES[name]()) == (SNAPSHOTS / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sample.SAMPLES)
def test_no_line_but_the_verdict_is_wider_than_the_terminal_and_nothing_is_cut_off(name: str) -> None:
    *lines, verdict = verify_text(sample.SAMPLES[name]()).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert verdict.startswith(("pass: ", "fail: "))
    assert "…" not in "".join(lines)


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
    assert headline not in verify_text(replace(sample.full(), **{field: nothing}))


def test_a_result_without_any_measurement_still_has_its_checks() -> None:
    bare = replace(sample.minimal(), lengths=())
    lines = verify_text(bare).splitlines()
    assert [line for line in lines if line][1] == "Gate, suite quick, grade research"
    assert lines[-1] == "pass: 2 of 2 checks passed for grade research"


def test_what_did_not_run_is_listed() -> None:
    checks = [*sample.CHECKS[:2], *(replace(c, figure=None, verdict="not run") for c in sample.CHECKS[2:4])]
    text = verify_text(replace(sample.full(), checks=tuple(checks)))
    assert text.endswith(
        "\npartial: not run: ratio, far text; 2 of 4 checks passed for grade research; useful at 1024\n"
    )


def test_what_is_undecided_is_listed() -> None:
    unsure = replace(sample.CHECKS[2], figure=1.61, verdict="undecided")
    text = verify_text(replace(sample.full(), checks=(*sample.CHECKS[:2], unsure)))
    assert text.endswith(
        "\nundecided: more text decides ratio; 2 of 3 checks passed for grade research; useful at 1024\n"
    )


def test_a_figure_just_above_its_limit_does_not_look_equal_to_it() -> None:
    above = replace(sample.CHECKS[2], figure=1.50007, verdict="fail")
    assert "ratio 1.5001, limit 1.5" in verify_text(replace(sample.full(), checks=(above,)))


def test_the_gains_have_the_sign_of_a_gain() -> None:
    # At 1024 tokens the target's loss is ln(11/12) from the truncated baseline's and ln(11/14.9) from its own at 512.
    text = verify_text(sample.full())
    assert "   1024        +0.087 ± 0.047     yes    +0.303 ± 0.009               -" in text.splitlines()
    assert "    256        -0.236 ± 0.047      no    +0.129 ± 0.009  +0.236 ± 0.047" in text.splitlines()


def test_the_baseline_of_a_grid_counts_within_its_trained_length_alone() -> None:
    (grid, *_) = sample.full().retrieval
    more = replace(grid, baseline=(*grid.baseline, sample.cell(512, 0.5, 3)))
    text = verify_text(replace(sample.full(), retrieval=(more,)))
    assert " baseline  75/80   3/16      -      -" in text.splitlines()
    assert "baseline  all depths; within its trained length of 256 tokens 75/80" in text


def test_colour_only_where_it_is_asked_for() -> None:
    assert "\x1b[" not in verify_text(sample.full())
    assert "\x1b[1;32mpass\x1b[0m: 6 of 6" in verify_text(sample.full(), colour=True)
    assert "\x1b[1;31mfail\x1b[0m: weights" in verify_text(sample.failing(), colour=True)


def test_names_are_text_not_markup() -> None:
    assert "[red]x[/red], trained" in verify_text(replace(sample.full(), target="[red]x[/red]"))


def test_figures_of_another_size_stay_whole() -> None:
    wild = replace(sample.lengths()[0], target=sample.estimate(500.0), baseline=sample.estimate(3.0), ratio=1e43)
    text = verify_text(replace(sample.full(), lengths=(wild,)))
    assert "20.1 (18.2-22.2)  1.4e217 (1.3e217-1.6e217)  1.0e43" in text
