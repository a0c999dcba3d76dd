"""The plots of a comparison: losses of the candidates by length, and what each costs and gains. Measures and judges nothing."""

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


def charts(found: Comparison) -> Iterator[Chart]:
    """Yield the plots of all that was measured. To be used within `drawing.style()`."""
    if found.beside is not None:
        yield losses_chart(
            found,
            found.beside.length,
            found.beside.order[:MOST],
            name="losses-beside",
            extra=", with reference attention variants",
        )
    for ranking in reversed(found.rankings):
        yield losses_chart(found, ranking.length, ranking.order[:MOST])
    if found.rankings:
        yield costs_chart(found)


def losses_chart(found: Comparison, length: int, names: Sequence[str], name: str = "", extra: str = "") -> Chart:
    """Return the losses of the best at a length, and of the source, by length; dotted beyond its own length."""
    figure = drawing.figure(4.0)
    axes = figure.subplots()
    lengths = [n for n in found.lengths if n <= length]
    own = {n: loss for n, loss in found.baseline.items() if n <= length}
    drawing.curve(axes, list(own), list(own.values()), {**drawing.BASELINE, "label": "the source"})
    beyond = [n for n in lengths if own and n >= max(own)]
    if len(beyond) > 1:  # the tokens are the same at every length, so cut text gives the same loss
        loss, label = own[max(own)].mean, f"the source, text cut to {max(own)} tokens"
        axes.plot(beyond, [loss] * len(beyond), color=drawing.BASELINE["color"], linestyle=":", label=label)
    for index, each in enumerate(names):
        measured = found.candidate(each).found
        entries = [entry for entry in (measured.lengths if measured else ()) if entry.length <= length]
        axes.plot([e.length for e in entries], [e.target.mean for e in entries], **look(index), label=each)
    drawing.loss_axes(figure, axes, lengths, found.trained_length)
    rest = f", the {len(names)} best" if len(names) == MOST else ""
    caption = (
        f"Mean loss of the same last {found.scored} tokens by context length, for candidates measured at {length} tokens{rest}. "
        "Band: 95 % interval of the source over documents. Intervals of differences are narrower than intervals of losses, so "
        "curves within one band can differ significantly. The table of pairs contains these differences."
    )
    return Chart(name or f"losses-{length}", "ratios", f"Losses up to {length} tokens{extra}", caption, figure)


def costs_chart(found: Comparison) -> Chart:
    """Return the ratio at the longest length measured within each candidate's own context beside its worst within the trained length."""
    shown = [each for each in found.candidates if each.regression is not None and each.reached is not None]
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
    """Return how the curve of a place in the order is drawn: its colour, mark and dashes all differ."""
    return {
        "color": drawing.SERIES[index % len(drawing.SERIES)], "marker": MARKS[index % len(MARKS)],
        "linestyle": DASHES[index % len(DASHES)],
    }  # fmt: skip


def _bars(axes: Axes, entries: Sequence[LengthResult | None], looked: dict[str, Any], shift: float) -> None:
    found = [entry for entry in entries if entry is not None]
    ratios = [entry.ratio for entry in found]
    reach = [
        [_finite(entry.ratio - (entry.lower or entry.ratio)) for entry in found],
        [_finite((entry.upper or entry.ratio) - entry.ratio) for entry in found],
    ]
    places = [index + shift for index in range(len(found))]
    axes.errorbar(ratios, places, xerr=reach, capsize=3, **{**looked, "linestyle": "none"})


def _finite(reach: float) -> float:
    """Return how far an error bar reaches; one without an end has none."""
    return max(0.0, reach) if math.isfinite(reach) else 0.0
