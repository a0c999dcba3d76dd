"""The verification as text: whole output, so that a change to it is seen and read."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ropetool.report.plot import number, perplexity_plot
from ropetool.report.text import verify_table
from ropetool.verification.loss import LengthResult, VerifyResult
from ropetool.verification.statistics import Estimate


def estimate(mean: float, reach: float = 0.1) -> Estimate:
    return Estimate(mean, mean - reach, mean + reach, reach / 2, 16, 2048)


def entry(length: int, baseline: float, target: float, difference: float) -> LengthResult:
    return LengthResult(
        length=length,
        target=estimate(math.log(target)),
        baseline=estimate(math.log(baseline)),
        difference_to_truncation=estimate(difference, 0.047),
        ratio=target / 12,
        holds=target / 12 <= 1.5,
        useful=difference + 0.047 < 0,
        segments=32,
        documents=16,
        partial=False,
        note="",
    )


@pytest.fixture
def result() -> VerifyResult:
    rows = [(256, 12.0, 15.2, 0.236), (512, 92.9, 14.9, 0.216), (1024, 107.0, 11.0, -0.087), (2048, 135.0, 15.1, 0.23)]
    return VerifyResult(
        target="demo-yarn-8x",
        baseline="demo",
        trained_length=256,
        scored=64,
        seed=0,
        max_ratio=1.5,
        documents=("a.txt",),
        lengths=tuple(entry(*row) for row in rows),
        runtime="torch",
        notes=(),
    )


WHOLE = """\
demo-yarn-8x, trained at 256 tokens, against demo

 length  segments      ppl baseline        ppl target  ratio  holds  gain over truncation  useful
 ────────────────────────────────────────────────────────────────────────────────────────────────
    256  32 of 16  12.0 (10.9-13.3)  15.2 (13.8-16.8)   1.27    yes        -0.236 ± 0.047      no
    512  32 of 16   92.9 (84.1-103)  14.9 (13.5-16.5)   1.24    yes        -0.216 ± 0.047      no
   1024  32 of 16    107 (96.8-118)  11.0 (9.95-12.2)  0.917    yes        +0.087 ± 0.047     yes
   2048  32 of 16     135 (122-149)  15.1 (13.7-16.7)   1.26    yes        -0.230 ± 0.047      no

length    tokens of model input, always ending on the same tokens
segments  places in the texts, and how many documents they lie in
ppl       perplexity of the last 64 tokens of each segment (95 % interval over documents)
ratio     ppl of the target over that of the baseline at min(length, 256); holds: at most 1.5
gain      nats a token that the target saves on the baseline that reads the last min(length, 256)
          tokens alone, ± its 95 % interval; useful: all of the interval is above 0

     ppl  ● target  ○ baseline  ◉ both  ┊ trained length
     135 │  ┊                                                    ··············○
         │  ┊                    ·○······················○·······
         │  ┊                 ···
         │  ┊              ···
    38.5 │  ┊          ····
         │  ┊       ···
         │  ┊    ···
         │  ●·····················●···········                      ···········●
    11.0 │  ○                                 ···········●··········
         └────────────────────────────────────────────────────────────────────────
           256                   512                   1024                  2048 tokens

pass: ppl at every length is at most 1.5 x the baseline's at min(length, 256); worst 1.27 at 256; useful at 1024
"""


def test_the_whole_text(result: VerifyResult) -> None:
    assert verify_table(result) == WHOLE


def test_a_failure_says_where_and_what_was_too_thin(result: VerifyResult) -> None:
    broken = replace(result.lengths[3], ratio=math.inf, holds=False, note="beyond the 256 tokens that the file states")
    one = Estimate(math.log(11), -math.inf, math.inf, math.inf, 1, 64)
    difference = replace(one, mean=-0.087)
    thin = replace(
        result.lengths[2], target=one, difference_to_truncation=difference, useful=False, segments=3, documents=1,
        partial=True, note="partial: too little text",
    )  # fmt: skip
    failed = replace(result, lengths=(*result.lengths[:2], thin, broken))
    lines = verify_table(failed).splitlines()
    assert lines[6] == (
        "   1024   3 of 1!    107 (96.8-118)  11.0 (no interval)  0.917    yes            +0.087 ± ?      no"
    )
    assert lines[7].split()[-6:] == ["inf", "no", "-0.230", "±", "0.047", "no"]
    assert "note      1024: partial: too little text" in lines
    assert "note      2048: beyond the 256 tokens that the file states" in lines
    assert lines[-1] == (
        "fail: ppl at 2048 is above 1.5 x the baseline's at min(length, 256); worst inf at 2048; "
        "too little text at 1024; useful at no length"
    )


def test_a_target_without_a_baseline_has_dashes_where_nothing_is_compared(result: VerifyResult) -> None:
    own = replace(result.lengths[0], difference_to_truncation=None, useful=None)
    beyond = replace(result.lengths[3], baseline=None)
    lines = verify_table(replace(result, baseline=None, lengths=(own, beyond))).splitlines()
    assert lines[0] == "demo-yarn-8x, trained at 256 tokens, against itself within that length"
    assert lines[4].split()[-3:] == ["yes", "-", "-"]
    assert lines[5].split()[:5] == ["2048", "32", "of", "16", "-"]


def test_colour_only_where_it_is_asked_for(result: VerifyResult) -> None:
    assert "\x1b[" not in verify_table(result)
    assert "\x1b[1;32mpass\x1b[0m" in verify_table(result, colour=True)


def test_names_are_text_not_markup(result: VerifyResult) -> None:
    assert "[red]x[/red], trained" in verify_table(replace(result, target="[red]x[/red]"))


def test_the_figures_of_a_broken_model_are_not_cut_off(result: VerifyResult) -> None:
    wild = replace(result.lengths[0], target=estimate(500.0), baseline=estimate(400.0), ratio=1e43, holds=False)
    text = verify_table(replace(result, lengths=(wild,)))
    assert "5.2e+173 (4.7e+173-5.8e+173)  1.4e+217 (1.3e+217-1.6e+217)  1.0e+43     no" in text
    assert "…" not in text


def test_the_plot_puts_points_in_proportion_to_the_logarithms() -> None:
    # Four times the length is two thirds of the way to eight times; a loss in the middle is in the middle row.
    lines = perplexity_plot({"x": [(100, 0.0), (400, 1.0), (800, 2.0)]}, trained_length=50).splitlines()
    rows = [line[10:] for line in lines[:9]]
    assert [(row.index("x"), level) for level, row in enumerate(rows) if "x" in row] == [(69, 0), (47, 4), (2, 8)]
    assert [lines[0][:8].strip(), lines[4][:8].strip(), lines[8][:8].strip()] == ["7.39", "2.72", "1.00"]
    assert "┊" not in "".join(lines)


def test_a_plot_of_one_point_and_of_points_on_one_place() -> None:
    lines = perplexity_plot({"a": [(256, 2.0)], "b": [(256, 2.0)]}, trained_length=256).splitlines()
    assert lines[8].endswith("7.39 │  ◉")
    assert lines[10].split() == ["256", "tokens"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.04, "12.0"),
        (1.2345, "1.23"),
        (0.917, "0.917"),
        (99.96, "100"),
        (135.4, "135"),
        (2e5, "2.0e+05"),
        (math.inf, "inf"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text
