"""The charts of a verification, one function each, with captions that explain them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropetool.report import drawing
from ropetool.verification.results import DivergenceResult, VerifyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ropetool.verification.measures.position import PositionResult
    from ropetool.verification.measures.repeats import FarResult
    from ropetool.verification.measures.retrieval import RetrievalResult


@dataclass(frozen=True)
class Chart:
    """A drawn chart.

    name: the name of its PNG file, without the suffix.
    section: the key of the section that shows it.
    caption: an explanation of axes and marks.
    """

    name: str
    section: str
    title: str
    caption: str
    figure: Figure


def charts(result: VerifyResult) -> Iterator[Chart]:
    """Yield the charts of everything that was measured. Call this within `drawing.style()`."""
    if result.lengths:
        yield loss_chart(result)
    if any(entry.tax for entry in result.lengths):
        yield tax_chart(result)
    if any(variant.lengths for variant in result.yardsticks):
        yield yardsticks_chart(result)
    if result.bands is not None:
        yield bands_chart(result.bands, result.context_length)
    position, far = result.measures.get("position"), result.measures.get("far")
    if position is not None and position.offsets:
        yield position_chart(position)
    if far is not None and far.distances:
        yield far_chart(far)
    for grid in result.measures.get("retrieval", ()):
        if grid.cells:
            yield retrieval_chart(grid, result.trained_length)
    if result.divergence is not None and result.divergence.by_position:
        yield divergence_chart(result.divergence, result.trained_length)


def loss_chart(result: VerifyResult) -> Chart:
    """Return the loss of target and baseline by length."""
    figure = drawing.figure()
    axes = figure.subplots()
    for look, entries in (
        (drawing.BASELINE, [(entry.length, entry.baseline) for entry in result.lengths if entry.baseline]),
        (drawing.TARGET, [(entry.length, entry.target) for entry in result.lengths]),
    ):
        if entries:
            drawing.curve(axes, [n for n, _ in entries], [value for _, value in entries], look)
    drawing.loss_axes(figure, axes, [entry.length for entry in result.lengths], result.trained_length)
    caption = (
        f"Mean loss of the same last {result.scored} tokens by context length. Bands: 95 % interval over documents. "
        "Perplexity = exp(loss). A level curve keeps its quality, a falling curve uses the context, a rising curve breaks."
    )
    return Chart("loss", "loss", "Loss against context", caption, figure)


def tax_chart(result: VerifyResult) -> Chart:
    """Return the regression at each length within the trained length."""
    regressions = [(entry.length, entry.tax) for entry in result.lengths if entry.tax]
    figure = drawing.figure(2.8)
    axes = figure.subplots()
    drawing.points(
        axes, range(len(regressions)), [tax for _, tax in regressions], {**drawing.TARGET, "linestyle": "none"}
    )
    drawing.slots(axes, [length for length, _ in regressions], "context")
    axes.set_xlim(-0.6, len(regressions) - 0.4)
    axes.set_ylabel("regression (nats per token)")
    caption = (
        f"regression(n) = loss(target, n) - loss(baseline, n) for lengths n up to the trained {result.trained_length}, paired "
        "by token, with 95 % interval. Above zero, the extension makes short texts worse: the perplexity grows by "
        "exp(regression) - 1."
    )
    return Chart("tax", "worth", "Short-context regression", caption, figure)


def yardsticks_chart(result: VerifyResult) -> Chart:
    """Return the loss of target, baseline and reference attention variants by length."""
    figure = drawing.figure()
    axes = figure.subplots()
    series = [
        (drawing.BASELINE, [(entry.length, entry.baseline) for entry in result.lengths if entry.baseline]),
        (drawing.TARGET, [(entry.length, entry.target) for entry in result.lengths]),
        *(
            (drawing.beside(index, variant.name), [(entry.length, entry.target) for entry in variant.lengths])
            for index, variant in enumerate(result.yardsticks)
        ),
    ]
    for look, entries in series:
        if entries:
            axes.plot([length for length, _ in entries], [value.mean for _, value in entries], **look)
    drawing.loss_axes(figure, axes, [entry.length for entry in result.lengths], result.trained_length)
    caption = (
        f"Mean loss of the same last {result.scored} tokens. Reference attention variants, applied to "
        f"{result.yardsticks[0].on}, cannot be stored in a file. The table contains the differences with their intervals."
    )
    return Chart("yardsticks", "yardsticks", "Loss of reference attention variants", caption, figure)


def bands_chart(bands: Mapping[str, Any], context_length: int, key: str = "bands", of: str = "") -> Chart:
    """Return the wavelength of each rotary pair before and after, or only before if there is no new table.

    bands: see `grids.bands_section`.
    context_length: tokens, a horizontal line.
    key: the key of the section.
    of: the layer type; empty if there is only one.
    """
    figure = drawing.figure()
    axes = figure.subplots()
    shown: list[float] = []
    for when, look in (("before", drawing.BASELINE), ("after", drawing.TARGET)):
        if bands[when] is None:
            continue
        turning = {pair: 2 * math.pi / value for pair, value in enumerate(bands[when]) if value > 0}
        axes.plot(
            list(turning), list(turning.values()), **{**look, "label": when, "linestyle": "none", "markersize": 4}
        )
        shown.extend(turning.values())
    drawing.logarithmic(axes, [*shown, bands["trained_length"], context_length])
    for length, name, dash in ((bands["trained_length"], "trained length", ":"), (context_length, "new context", "-.")):
        axes.axhline(length, color=drawing.QUIET, linestyle=dash, linewidth=1.5, label=f"{name}, {length}")
    axes.set_xlabel("rotary pair, fastest first")
    axes.set_ylabel("wavelength (tokens per turn)")
    drawing.key(figure)
    caption = (
        "wavelength = 2π / inv_freq of each rotary pair. Pairs below the dotted line made full turns in training and can "
        "stay unchanged. Pairs above it saw only an arc, and must be stretched to stay within this arc in the new context. "
        f"The plot omits pairs that never turn. Attention factor: {bands['attention_factor']:.5g}."
    )
    when = "" if bands["after"] is None else " before and after"
    return Chart(key, key, f"Frequency bands{f' of {of}' if of else ''}{when}", caption, figure)


def position_chart(position: PositionResult) -> Chart:
    """Return the loss of the same passages after filler of increasing length."""
    figure = drawing.figure(3.0)
    axes = figure.subplots()
    places = range(len(position.offsets))
    drawing.curve(axes, places, [entry.loss for entry in position.offsets], drawing.TARGET)
    if position.baseline is not None:
        axes.axhline(
            position.baseline.mean, color=drawing.BASELINE["color"], linestyle="--", label="baseline without filler"
        )
    drawing.slots(axes, [entry.filler for entry in position.offsets], "filler before the passage")
    axes.set_ylabel("loss (nats per token)")
    drawing.key(figure)
    caption = (
        f"Mean loss of the last {position.scored} tokens of the same passages of {position.passage} tokens, after more and more "
        "text of other documents. Band: 95 % interval over documents. The filler is unrelated to the passage, so only the "
        "position can raise the loss."
    )
    return Chart("position", "position", "Loss by position", caption, figure)


def far_chart(far: FarResult) -> Chart:
    """Return the accuracy on the second copy of a passage, and the gain from the first copy, by distance."""
    figure = drawing.figure(4.6)
    above, below = figure.subplots(2, sharex=True)
    distances = [entry.distance for entry in far.distances]
    unrelated = {**drawing.BASELINE, "label": "after other text"}
    drawing.curve(above, distances, [entry.unrelated for entry in far.distances], unrelated)
    own = {**drawing.TARGET, "label": "after its own copy"}
    drawing.curve(above, distances, [entry.repeated for entry in far.distances], own)
    drawing.points(below, distances, [entry.gain for entry in far.distances], drawing.GAIN)
    drawing.length_axis(below, distances, "distance to the copy")
    above.minorticks_off()
    above.set_ylabel("accuracy")
    below.set_ylabel("gain")
    drawing.key(figure)
    caption = (
        "Above: share of right next tokens in a passage, with a copy of it or other text at this distance before it. The "
        "same tokens are scored. Below: gain = accuracy(own copy) - accuracy(other text), paired, with 95 % interval. "
        "A gain above zero shows that the model uses text at this distance."
    )
    return Chart("far", "far", "Far dependence by distance", caption, figure)


def retrieval_chart(grid: RetrievalResult, trained_length: int) -> Chart:
    """Return a heat map of right answers by depth and length, with counts."""
    lengths = sorted({cell.length for cell in grid.cells})
    depths = sorted({cell.depth for cell in grid.cells})
    figure = drawing.figure(1.3 + 0.42 * len(depths))
    axes = figure.subplots()
    shares = [[math.nan] * len(lengths) for _ in depths]
    for cell in grid.cells:
        y, x, share = depths.index(cell.depth), lengths.index(cell.length), cell.hits / cell.trials
        shares[y][x] = share
        text = f"{cell.hits}/{cell.trials}" if len(lengths) <= 8 else str(cell.hits)
        axes.text(x, y, text, ha="center", va="center", color=drawing.IN_CELLS[share <= 0.5], fontsize=9.5)
    image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    figure.colorbar(image, label="share of right answers")
    drawing.slots(axes, lengths, "context")
    axes.set_yticks(range(len(depths)), labels=[f"{depth:.2f}" for depth in depths])
    axes.set_ylabel("depth of the key")
    axes.grid(visible=False)
    within = sum(length <= trained_length for length in lengths)
    border = ""
    if 0 < within < len(lengths):
        axes.axvline(within - 0.5, color=drawing.BORDER, linewidth=2.5)
        border = f" Left of the orange line: within the trained length of {trained_length} tokens."
    caption = (
        f"{grid.keys} keys in the context, one in the question; depth 0 is the start. A trial counts if the right value has "
        f"the highest log-probability of all candidates. Guessing gives a share of {grid.chance:.3g}.{border}"
    )
    return Chart(f"retrieval-{grid.task}", f"retrieval-{grid.task}", f"Retrieval, {grid.task}", caption, figure)


def divergence_chart(divergence: DivergenceResult, trained_length: int) -> Chart:
    """Return the divergence by position."""
    spans = divergence.by_position
    edges = [span.start for span in spans] + [spans[-1].end]
    means = [span.mean.mean for span in spans]
    figure = drawing.figure(3.0)
    axes = figure.subplots()
    axes.stairs(
        means, range(len(edges)), baseline=None, color=drawing.TARGET["color"], linewidth=2, label="mean", clip_on=False
    )
    tails = [span.p99 for span in spans]
    axes.stairs(tails, range(len(edges)), baseline=None, color=drawing.BASELINE["color"], linestyle="--", label="99 %")
    middles = [place + 0.5 for place in range(len(spans))]
    bars = _bars([(span.mean.low, span.mean.mean, span.mean.high) for span in spans])
    axes.errorbar(middles, means, yerr=bars, fmt="none", capsize=4, color=drawing.TARGET["color"])
    if trained_length in edges[1:-1]:
        drawing.trained_line(axes, edges.index(trained_length))
    drawing.slots(axes, edges, "position")
    drawing.logarithmic(axes, [*means, *tails])
    axes.set_ylabel("KL (nats per token)")
    drawing.key(figure)
    caption = (
        "KL(reference || target) = Σ p ln(p / q) over the vocabulary, by position: the mean with 95 % interval, and the "
        "99th percentile. Rounding errors do not depend on the position; errors of a wrong frequency grow with it."
    )
    return Chart("divergence", "divergence", "KL by position", caption, figure)


def _bars(ends: Sequence[tuple[float, float, float]]) -> list[list[float]]:
    """Return the lengths of error bars down and up. A bar that would reach zero or below ends at half the mean."""
    down = [mean - low if low > 0 else mean / 2 for low, mean, _ in ends]
    up = [high - mean if math.isfinite(high) else math.nan for _, mean, high in ends]
    return [[size if math.isfinite(end[2]) else math.nan for size, end in zip(down, ends, strict=True)], up]
