"""The charts: what is drawn is what was found, read back from the figures themselves."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sample
from legible import contrast

pytest.importorskip("matplotlib")

from ropetool import charts
from ropetool.report import drawing
from ropetool.report.bands import bands_chart
from ropetool.report.verified import verify_charts
from ropetool.verification.results import VerifyResult


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with drawing.style():
        yield


def line(axes: Any, label: str) -> tuple[list[float], list[float]]:
    """Return the points of the one line with this label."""
    (found,) = [drawn for drawn in axes.lines if drawn.get_label() == label]
    return list(found.get_xdata()), list(found.get_ydata())


def axes_of(chart: charts.Chart) -> list[Any]:
    """Return the axes of a chart as it is drawn."""
    return list(drawing.drawn(chart).axes)


def chart_of(result: VerifyResult, name: str) -> list[Any]:
    """Return the axes of the chart with this name."""
    (found,) = [chart for chart in verify_charts(result) if chart.name == name]
    return axes_of(found)


def with_measure(name: str, found: Any) -> VerifyResult:
    """Return the full result with another result of a measure."""
    result = sample.full()
    return replace(result, measures={**result.measures, name: found})


def labels(axis: Any) -> list[str]:
    return [tick.get_text() for tick in axis.get_ticklabels()]


def test_the_loss_of_both_over_the_length_with_bands() -> None:
    result = sample.full()
    (axes,) = chart_of(result, "loss")
    lengths = [entry.length for entry in result.lengths]
    assert line(axes, "target") == (lengths, [entry.target.mean for entry in result.lengths])
    assert line(axes, "baseline") == (lengths, [entry.baseline.mean for entry in result.lengths])
    assert line(axes, "trained length")[0] == [256, 256]
    assert (axes.get_xscale(), labels(axes.xaxis)) == ("log", [str(length) for length in lengths])
    band = axes.collections[1].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(min(entry.target.low for entry in result.lengths))
    assert band[:, 1].max() == pytest.approx(max(entry.target.high for entry in result.lengths))


def test_the_perplexities_on_the_right_stand_at_their_losses() -> None:
    (axes,) = chart_of(sample.full(), "loss")
    (right,) = axes.child_axes
    shown = {float(tick.get_text()): tick.get_position()[1] for tick in right.yaxis.get_ticklabels()}
    assert set(shown) == {10, 20, 50, 100}
    assert all(place == pytest.approx(math.log(value)) for value, place in shown.items())


def test_a_single_document_has_a_point_and_no_band() -> None:
    result = sample.failing()
    (axes,) = chart_of(result, "loss")
    assert line(axes, "target")[1][-1] == 576.0
    assert np.isfinite(axes.collections[1].get_paths()[0].vertices).all()
    assert axes.collections[1].get_paths()[0].vertices[:, 0].max() == 1024


def test_the_tax_with_its_error_bars_within_the_trained_length_alone() -> None:
    result = sample.full()
    (axes,) = chart_of(result, "tax")
    assert labels(axes.xaxis) == ["64", "128", "256"]
    assert list(axes.containers[0].lines[0].get_ydata()) == [entry.tax.mean for entry in result.lengths[:3]]
    bars = [segment[:, 1] for segment in axes.containers[0].lines[2][0].get_segments()]
    assert bars == [pytest.approx([entry.tax.low, entry.tax.high]) for entry in result.lengths[:3]]


def test_the_wavelengths_before_and_after() -> None:
    bands = sample.bands()
    (axes,) = axes_of(bands_chart(bands, 2048))
    for key in ("before", "after"):
        pairs, wavelengths = line(axes, key)
        assert pairs == list(range(32))
        assert wavelengths == pytest.approx([2 * math.pi / value for value in bands[key]])  # type: ignore[attr-defined]
    assert line(axes, "trained length, 256")[1] == [256, 256]
    assert line(axes, "new context, 2048")[1] == [2048, 2048]
    assert axes.get_yscale() == "log"


def test_a_pair_that_never_turns_is_left_out() -> None:
    bands = {**sample.bands(), "after": [1.0, *[0.0] * 31]}
    (axes,) = axes_of(bands_chart(bands, 2048))
    assert line(axes, "after") == ([0], [pytest.approx(2 * math.pi)])


def test_the_position_probe_beside_the_baseline() -> None:
    found = sample.position()
    (axes,) = chart_of(with_measure("position", found), "position")
    assert line(axes, "target")[1] == [entry.loss.mean for entry in found.offsets]
    assert line(axes, "baseline without filler")[1] == [2.48, 2.48]
    assert labels(axes.xaxis) == ["0", "256", "512", "1024", "1800"]
    assert len(chart_of(with_measure("position", replace(found, baseline=None)), "position")[0].lines) == 1


def test_far_dependence_and_its_gain() -> None:
    found = sample.far()
    above, below = chart_of(with_measure("far", found), "far")
    assert line(above, "after its own copy")[1] == [entry.repeated.mean for entry in found.distances]
    assert line(above, "after other text")[1] == [entry.unrelated.mean for entry in found.distances]
    gains = below.containers[0]
    assert list(gains.lines[0].get_xdata()) == [250, 500, 1000, 1750]
    assert list(gains.lines[0].get_ydata()) == [entry.gain.mean for entry in found.distances]


def test_the_heat_map_has_every_count_in_its_cell() -> None:
    grid = sample.retrieval(lost=6)
    axes, _bar = chart_of(with_measure("retrieval", (grid,)), "retrieval-keys")
    shares = np.asarray(axes.images[0].get_array())
    written = {tuple(map(round, text.get_position())): text for text in axes.texts}
    assert len(written) == len(grid.cells) == shares.size
    for cell in grid.cells:
        x, y = sample.LENGTHS[2:].index(cell.length), [0.0, 0.25, 0.5, 0.75, 1.0].index(cell.depth)
        assert shares[y, x] == cell.hits / cell.trials
        assert written[x, y].get_text() == f"{cell.hits}/16"
        assert written[x, y].get_color() == drawing.IN_CELLS[cell.hits <= 8]
    assert labels(axes.yaxis) == ["0.00", "0.25", "0.50", "0.75", "1.00"]  # the front on top
    assert list(axes.lines[0].get_xdata()) == [0.5, 0.5]


@pytest.mark.parametrize("hits", range(17))
def test_counts_can_be_read_on_every_colour(hits: int) -> None:
    from matplotlib.colors import to_rgb

    grid = replace(sample.retrieval(), cells=(sample.cell(256, 0.5, hits),))
    axes, _bar = chart_of(with_measure("retrieval", (grid,)), "retrieval-keys")
    (text,) = axes.texts
    assert contrast(axes.images[0].to_rgba([[hits / 16]])[0, 0], to_rgb(text.get_color())) >= 4


def test_kl_by_position() -> None:
    found = sample.divergence()
    (axes,) = chart_of(replace(sample.full(), divergence=found), "divergence")
    mean, tail = axes.patches
    assert list(mean.get_data().values) == [span.mean.mean for span in found.by_position]
    assert list(tail.get_data().values) == [span.p99 for span in found.by_position]
    assert labels(axes.xaxis) == ["0", "128", "256", "512", "1024", "2048"]
    assert line(axes, "trained length")[0] == [2, 2]
    assert axes.get_yscale() == "log"


def test_a_divergence_of_zero_has_a_place() -> None:
    (axes,) = chart_of(sample.identical(), "divergence")
    assert (axes.get_yscale(), axes.get_ylim()[0]) == ("linear", 0)
    (axes,) = chart_of(sample.failing(), "divergence")
    assert (axes.get_yscale(), axes.get_ylim()[0], labels(axes.yaxis)[0]) == ("symlog", 0, "0")


def test_charts_are_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found, again = (list(verify_charts(sample.full())) for _ in range(2))
    assert len(found) == 8
    assert found == again
    with pytest.raises(ImportError):
        drawing.images(found[0], "svg")


@pytest.mark.parametrize("name", sample.SAMPLES)
def test_every_axis_has_a_name_with_its_unit(name: str) -> None:
    for chart in verify_charts(sample.SAMPLES[name]()):
        named = [text for axes in axes_of(chart) for text in (axes.get_xlabel(), axes.get_ylabel()) if text]
        assert len(named) >= 2
        assert any("tokens" in text or "pair" in text for text in named)
        assert len(chart.caption) > 100


@pytest.mark.parametrize(
    ("first", "last", "numbers"),
    [
        (0.95, 2.2, ["10", "20", "50", "100"]),
        (1.0, 1.3, ["10", "12", "14", "16", "18"]),
        (-0.004, 0.072, ["1", "1.05", "1.1", "1.15"]),
        (0.0, 0.002, ["1", "1.001", "1.002", "1.003", "1.004"]),
        (-6.2, -2.2, ["1e-6", "1e-5", "0.0001", "0.001"]),
        (0.0, 260.0, ["1", "1e50", "1e100", "1e150", "1e200", "1e250"]),
        (0.0, 2170.0, ["1", "1e500", "1e1000", "1e1500", "1e2000"]),  # a loss of 5000 nats
    ],
)
def test_axes_have_a_few_round_numbers(first: float, last: float, numbers: list[str]) -> None:
    found = drawing.round_numbers(first, last)
    assert [label for _, label in found] == numbers
    assert all(first <= power <= last for power, _ in found)


@pytest.mark.parametrize(
    ("length", "text"), [(64, "64"), (4096, "4096"), (8192, "8k"), (131072, "128k"), (100000, "100000")]
)
def test_long_lengths_are_written_short(length: int, text: str) -> None:
    assert drawing.compact(length) == text


def test_labels_of_lengths_that_have_no_room_are_left_out() -> None:
    lengths = [1024 * 2**i for i in range(11)]
    long = replace(sample.full(), lengths=tuple(replace(sample.lengths()[0], length=n) for n in lengths))
    (axes,) = chart_of(long, "loss")
    assert labels(axes.xaxis) == ["1024", "4096", "16k", "64k", "256k", "1024k"]
    assert axes.get_xlabel() == "context (tokens, k = 1024)"


@pytest.mark.parametrize(
    "labels",
    [
        ["target", "baseline", "trained length"],
        ["at the longest length within its own context", "worst within the trained length"],
        ["the source", "the source, text cut to 131072 tokens", "yarn x2", "linear x2", "trained length"],
        ["before", "after", "trained length, 131072", "new context, 1048576"],
    ],
)
def test_a_key_is_no_wider_than_its_plot(labels: list[str]) -> None:
    marks = tuple(charts.Series(label, charts.Look("ink", "o"), (0.0,), (0.0,)) for label in labels)
    figure = drawing.drawn(charts.Chart("", "", "", "", (charts.Panel(charts.Axis(""), charts.Axis(""), marks),)))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    assert [text.get_text() for text in legend.get_texts()] == labels
