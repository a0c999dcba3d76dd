"""The charts of a comparison: losses of the candidates by length, and the cost of each candidate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ropetool.choosing.results import Comparison
from ropetool.report import drawing
from ropetool.report.charts import Chart
from ropetool.verification.results import LengthResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 6  # curves in one plot
MARKS, DASHES = "osD^vP", ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (3, 1)))


def charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield the charts of everything that was measured. Call this within `drawing.style()`."""
    if comparison.beside is not None:
        yield losses_chart(
            comparison,
            comparison.beside.length,
            comparison.beside.order[:MOST],
            name="losses-beside",
            extra=", with reference attention variants",
        )
    for ranking in reversed(comparison.rankings):
        yield losses_chart(comparison, ranking.length, ranking.order[:MOST])
    if comparison.rankings:
        yield costs_chart(comparison)


def losses_chart(comparison: Comparison, length: int, names: Sequence[str], name: str = "", extra: str = "") -> Chart:
    """Return the losses of some candidates and of the source by length.

    length: the longest length that is shown, in tokens. Beyond its own length, the line of the source is dotted.
    names: the candidates.
    name: the name of the chart.
    extra: the end of the title.
    """
    figure = drawing.figure(4.0)
    axes = figure.subplots()
    lengths = [n for n in comparison.lengths if n <= length]
    own = {n: loss for n, loss in comparison.baseline.items() if n <= length}
    drawing.curve(axes, list(own), list(own.values()), {**drawing.BASELINE, "label": "the source"})
    beyond = [n for n in lengths if own and n >= max(own)]
    if len(beyond) > 1:  # the tokens are the same at every length, so cut text gives the same loss
        loss, label = own[max(own)].mean, f"the source, text cut to {max(own)} tokens"
        axes.plot(beyond, [loss] * len(beyond), color=drawing.BASELINE["color"], linestyle=":", label=label)
    for index, each in enumerate(names):
        measured = comparison.candidate(each).measured
        entries = [entry for entry in (measured.lengths if measured else ()) if entry.length <= length]
        axes.plot([e.length for e in entries], [e.target.mean for e in entries], **look(index), label=each)
    drawing.loss_axes(figure, axes, lengths, comparison.trained_length)
    rest = f", the {len(names)} best" if len(names) == MOST else ""
    caption = (
        f"Mean loss of the same last {comparison.scored} tokens by context length, for candidates measured at {length} tokens{rest}. "
        "Band: 95 % interval of the source over documents. Intervals of differences are narrower than intervals of losses, so "
        "curves within one band can differ significantly. The table of pairs contains these differences."
    )
    return Chart(name or f"losses-{length}", "ratios", f"Losses up to {length} tokens{extra}", caption, figure)


def costs_chart(comparison: Comparison) -> Chart:
    """Return two ratios per candidate: at the longest length in its own context, and the worst in the trained length."""
    shown = [each for each in comparison.candidates if each.regression is not None and each.reached is not None]
    figure = drawing.figure(1.4 + 0.34 * len(shown))
    axes = figure.subplots()
    _bars(
        axes,
        [each.reached for each in shown],
        {**drawing.TARGET, "label": "at the longest length within its own context"},
        -0.12,
    )
    _bars(
        axes,
        [each.regression for each in shown],
        {**drawing.BASELINE, "label": "worst within the trained length"},
        0.12,
    )
    axes.axvline(1, color=drawing.QUIET, linewidth=1)
    axes.set_yticks(range(len(shown)), labels=[each.name for each in shown])
    axes.invert_yaxis()
    drawing.ratio_axis(axes)
    drawing.key(figure)
    caption = (
        "Perplexity of each candidate / perplexity of the source at min(length, trained length), with one-sided 95 % bounds. "
        "Left of 1, the candidate is better than the source with text of its trained length."
    )
    return Chart("costs", "candidates", "Cost of each candidate", caption, figure)


def look(index: int) -> dict[str, Any]:
    """Return the look of a curve by its index. Colour, mark and dashes all differ, so a print in grey is legible."""
    return {
        "color": drawing.SERIES[index % len(drawing.SERIES)], "marker": MARKS[index % len(MARKS)],
        "linestyle": DASHES[index % len(DASHES)],
    }  # fmt: skip


def _bars(axes: Axes, entries: Sequence[LengthResult | None], looked: dict[str, Any], shift: float) -> None:
    known = [entry for entry in entries if entry is not None]
    ratios = [entry.ratio for entry in known]
    reach = [
        [_finite(entry.ratio - (entry.lower or entry.ratio)) for entry in known],
        [_finite((entry.upper or entry.ratio) - entry.ratio) for entry in known],
    ]
    places = [index + shift for index in range(len(known))]
    axes.errorbar(ratios, places, xerr=reach, capsize=3, **{**looked, "linestyle": "none"})


def _finite(reach: float) -> float:
    """Return the length of an error bar, which is 0 if it has no end."""
    return max(0.0, reach) if math.isfinite(reach) else 0.0
