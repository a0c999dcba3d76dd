"""How numbers become text, and the plot in characters."""

from __future__ import annotations

import math

import pytest
import sample

from ropetool import charts
from ropetool.report.losses import by_length
from ropetool.report.plot import chart_lines
from ropetool.sections import Table, change, csv_text, exact, number, perplexity, row, with_interval


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.04, "12.0"),
        (1.2345, "1.23"),
        (0.917, "0.917"),
        (99.96, "100"),
        (135.4, "135"),
        (2e5, "2.0e5"),
        (0.00123, "0.00123"),
        (1.234e-5, "1.2e-5"),
        (-3e-10, "-3.0e-10"),
        (0.0, "0"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1.500049, "1.5"), (1.50006, "1.5001"), (1e-4, "0.0001"), (3e-6, "3e-6"), (None, "-")]
)
def test_figures_beside_a_limit_have_five(value: float | None, text: str) -> None:
    assert exact(value) == text


def test_a_change_of_nothing_has_no_minus() -> None:
    assert change(sample.estimate(0.0, 0.0), -1) == "+0.000 ± 0.000"
    assert change(sample.estimate(-0.5, 0.25), -1) == "+0.500 ± 0.250"


def test_one_document_gives_no_interval() -> None:
    one = sample.single(2.0)
    assert (perplexity(one), with_interval(one), change(one)) == (
        "7.39 (no interval)",
        "2.000 (no interval)",
        "+2.000 ± ?",
    )
    assert (perplexity(None), with_interval(None), change(None)) == ("-", "-", "-")


def test_a_loss_beyond_the_largest_float_is_shown_as_a_large_number() -> None:
    assert perplexity(sample.estimate(5000.0)).startswith("8.2e307")


def test_csv_has_the_head_and_quotes_what_needs_quotes() -> None:
    table = Table(("name", "loss"), (row('x "a", b', "1.5"), row("ü\nü", "")))
    assert csv_text(table) == 'name,loss\n"x ""a"", b",1.5\n"ü\nü",\n'


def plotted(series: dict[str, list[tuple[int, float]]], trained_length: int) -> list[str]:
    """Return the lines of a plot below its key. series: length and loss of each point, by the sign."""
    marks = []
    for sign, points in series.items():
        places, losses = zip(*points, strict=True)
        marks.append(charts.Series(sign, charts.Look("ink", sign=sign), places, losses))
    panel = by_length(marks, [length for points in series.values() for length, _ in points], trained_length)
    return chart_lines(charts.Chart("", "", "", "", (panel,)), 120)[1:]


def test_the_plot_puts_points_in_proportion_to_the_logarithms() -> None:
    # Four times the length is two thirds of the way to eight times; a loss in the middle is in the middle row.
    lines = plotted({"x": [(100, 0.0), (400, 1.0), (800, 2.0)]}, trained_length=50)
    rows = [line[10:] for line in lines[:9]]
    assert [(row.index("x"), level) for level, row in enumerate(rows) if "x" in row] == [(69, 0), (47, 4), (2, 8)]
    assert [lines[0][:8].strip(), lines[4][:8].strip(), lines[8][:8].strip()] == ["7.39", "2.72", "1.00"]
    assert "┊" not in "".join(lines)


def test_a_plot_of_one_point_and_of_points_on_one_place() -> None:
    lines = plotted({"a": [(256, 2.0)], "b": [(256, 2.0)]}, trained_length=256)
    assert lines[8].endswith("7.39 │  ◉")
    assert lines[10].split() == ["256", "tokens"]
