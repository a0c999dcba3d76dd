"""The writer for images: draws any chart with matplotlib, without pyplot, as PNG or as SVG for light and dark pages."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ropetool import charts
from ropetool.sections import exact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 5.2  # inches; letters of 11 points are then 11 pixels high on a phone, 17 at the full 560
DPI = 160
# Characters of a key in the width of a figure, and characters for the sign of a label.
IN_A_LINE, BESIDE_LABEL = 68, 6
PAPER, INK, QUIET, GRID = "#ffffff", "#1a1a1a", "#666666", "#dddddd"
# By name: on a light page, and on a dark page, where lighter colours of the same palette have more contrast. The palette is
# Okabe and Ito's, which people with the common types of colour blindness can distinguish.
COLOURS = {
    "paper": (PAPER, "#16181c"), "ink": (INK, "#e6e6e6"), "quiet": (QUIET, "#a8adb4"), "grid": (GRID, "#33373d"),
    "target": ("#0072b2", "#56b4e9"), "baseline": ("#d55e00", "#e69f00"),
}  # fmt: skip
# For more than two curves. An SVG defines only those that it uses.
MORE = {
    "second": ("#009e73", "#40c9a2"), "third": ("#a64d79", "#e3a3c6"), "fourth": ("#7a6a00", "#f0e442"),
    "fifth": ("#5b3fa8", "#bfa9f5"), "sixth": ("#484848", "#c4c4c4"),
}  # fmt: skip
IN_CELLS = ("#000000", "#fafafa")  # text on a light cell and on a dark cell; cells have the same colours on every page
BORDER = "#d75000"  # between cells
LIGHT = {**{name: light for name, (light, _) in {**COLOURS, **MORE}.items()}, "border": BORDER}
HOLLOW = ("baseline",)  # colours of marks that are not filled, so that marks below them stay visible
DECADES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000)  # powers of ten from one label to the next
NARROW = 0.15  # powers of ten: below that, ticks are multiples of one step
STYLE = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "text.parse_math": False,
    "svg.hashsalt": "ropetool",  # the same report twice is the same bytes
    "svg.fonttype": "path",
}


def images(chart: charts.Chart, *formats: str) -> list[bytes]:
    """Return a chart as an image of each format: `png`, or `svg` that is dark on a dark page."""
    with style():
        figure = drawn(chart)
        return [encoded(figure, each) for each in formats]


def style() -> AbstractContextManager[None]:
    """Return a context manager. Create and save figures within it."""
    import matplotlib

    context: AbstractContextManager[None] = matplotlib.rc_context(STYLE)
    return context


def encoded(figure: Figure, file_format: str) -> bytes:
    """Return a figure as `png`, or as an `svg` that is dark on a dark page."""
    stream = io.BytesIO()
    figure.savefig(stream, format=file_format, dpi=DPI, metadata={"Date": None} if file_format == "svg" else None)
    return _in_both(stream.getvalue()) if file_format == "svg" else stream.getvalue()


def _in_both(svg: bytes) -> bytes:
    """Return an SVG with a style for light and dark pages, because an image does not get the style of its page."""
    text = svg.decode()
    used = {**COLOURS, **{name: colours for name, colours in MORE.items() if f": {colours[0]}" in text}}
    for name, (light, _) in used.items():
        text = text.replace(f": {light}", f": var(--{name})")
    by_page = ["".join(f"--{name}: {colours[dark]}; " for name, colours in used.items()) for dark in (False, True)]
    style = f"<style>:root {{ {by_page[0]}}} @media (prefers-color-scheme: dark) {{ :root {{ {by_page[1]}}} }}</style>"
    head, tag, rest = text.partition("<defs>")
    return f"{head}{style}{tag}{rest}".encode()


def drawn(chart: charts.Chart) -> Figure:
    """Return a chart as a figure without a window. Call this within `style()`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, chart.height), layout="constrained", facecolor=PAPER)
    every = figure.subplots(len(chart.panels), sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(every, chart.panels, strict=True):
        _panel(axes, panel, is_lowest=panel is chart.panels[-1])
    for axes in every:
        axes.minorticks_off()
    _key(figure)
    return figure


# --- marks


def _panel(axes: Axes, panel: charts.Panel, is_lowest: bool) -> None:
    for mark in panel.marks:
        if isinstance(mark, charts.Cells):
            _cells(axes, mark)
        elif isinstance(mark, charts.Series):
            _series(axes, mark, panel.sideways)
        elif not mark.name:
            _guide(axes, mark, panel.sideways)
    place, value = ("y", "x") if panel.sideways else ("x", "y")
    if is_lowest:
        _axis(axes, place, panel.places, panel)
    _axis(axes, value, panel.values, panel)
    for mark in panel.marks:
        if isinstance(mark, charts.Guide) and mark.name:
            _guide(axes, mark, panel.sideways)


def _line(look: charts.Look) -> dict[str, Any]:
    """Return the look of a line without marks, as matplotlib names it."""
    dashes = look.dashes if isinstance(look.dashes, str) else (0, look.dashes)
    return {"color": LIGHT.get(look.colour, look.colour), "linestyle": dashes or "none", "linewidth": look.width}


def _marked(look: charts.Look) -> dict[str, Any]:
    hollow = {"markerfacecolor": PAPER} if look.colour in HOLLOW else {}
    return {**_line(look), "marker": look.mark or "none", "markersize": look.size, **hollow}


def _guide(axes: Axes, guide: charts.Guide, sideways: bool) -> None:
    line = axes.axhline if guide.level != sideways else axes.axvline
    line(guide.at, **_line(guide.look), label=guide.name)


def _series(axes: Axes, series: charts.Series, sideways: bool) -> None:
    if not series.values:
        return
    if series.form == charts.STEPS:
        _steps(axes, series)
    elif series.form == charts.BARS:
        x, y = (series.values, series.places) if sideways else (series.places, series.values)
        bars, capsize = ("xerr", 3) if sideways else ("yerr", 4)
        look: dict[str, Any] = {**_marked(series.look), bars: _reach(series)}
        axes.errorbar(x, y, capsize=capsize, label=series.name, **look)
    else:
        axes.plot(series.places, series.values, **_marked(series.look), label=series.name)
    if series.form == charts.BAND:
        low, high = ([end if math.isfinite(end) else math.nan for end in ends] for ends in (series.low, series.high))
        axes.fill_between(series.places, low, high, color=_line(series.look)["color"], alpha=0.18, linewidth=0)


def _steps(axes: Axes, series: charts.Series) -> None:
    look = _line(series.look)
    # The main series is not cut off at the lower end of the axis.
    main = {"linewidth": 2, "clip_on": False} if series.low else {"linewidth": 1}
    axes.stairs(series.values, series.places, baseline=None, **{**look, **main}, label=series.name)
    if series.low:
        middles = [(start + end) / 2 for start, end in zip(series.places, series.places[1:], strict=False)]
        axes.errorbar(middles, series.values, yerr=_reach(series), fmt="none", capsize=4, color=look["color"])


def _reach(series: charts.Series) -> list[list[float]]:
    """Return the lengths of error bars down and up. A value without an interval has no bar."""
    ends = zip(series.low, series.values, series.high, strict=True)
    bars = [(value - low, high - value) for low, value, high in ends]
    known = [bar if math.isfinite(sum(bar)) else (math.nan, math.nan) for bar in bars]
    return [[down for down, _ in known], [up for _, up in known]]


def _cells(axes: Axes, cells: charts.Cells) -> None:
    for x, column in enumerate(zip(*cells.shares, strict=True)):
        for y, share in enumerate(column):
            if not math.isnan(share):
                colour = IN_CELLS[share <= 0.5]
                axes.text(x, y, cells.texts[y][x], ha="center", va="center", color=colour, fontsize=9.5)
    image = axes.imshow(cells.shares, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    axes.figure.colorbar(image, label=cells.name)
    axes.grid(visible=False)


# --- axes


def _axis(axes: Axes, direction: str, axis: charts.Axis, panel: charts.Panel) -> None:
    """Set the scale, the labels and the name of an axis. direction: x or y."""
    name = axis.name
    if axis.scale == charts.TOKENS:
        lengths = _with_room(sorted(set(axis.tokens)))
        axes.set_xscale("log", base=2)
        _ticks(axes, direction, lengths, map(compact, lengths))
        name = _in_tokens(name, lengths)
    elif axis.scale == charts.EVEN_TOKENS:
        every = math.ceil(len(axis.tokens) / 8)
        _ticks(axes, direction, range(0, len(axis.tokens), every), map(compact, axis.tokens[::every]))
        if all(isinstance(mark, charts.Guide) or _is_scattered(mark) for mark in panel.marks):
            axes.set_xlim(-0.6, len(axis.tokens) - 0.4)  # so that no value touches an end
        name = _in_tokens(name, axis.tokens)
    elif axis.scale == charts.NAMES:
        _ticks(axes, direction, range(len(axis.names)), axis.names)
        axes.yaxis.set_inverted(True)
    elif axis.scale == charts.LOGARITHMIC:
        _logarithmic(axes, direction, _numbers(panel, axis))
    elif axis.scale == charts.RATIOS:
        axes.set_xscale("log")
        _round_ticks(axes, direction, *(math.log10(end) for end in axes.get_xlim()))
    elif axis.scale == charts.LOSSES:
        _perplexities(axes)
    getattr(axes, f"set_{direction}label")(name)


def _is_scattered(mark: charts.Series | charts.Cells) -> bool:
    """Return whether a mark is a series whose values are not joined."""
    return isinstance(mark, charts.Series) and not mark.look.dashes


def _ticks(axes: Axes, direction: str, places: Iterable[float], labels: Iterable[str]) -> None:
    getattr(axes, f"set_{direction}ticks")(list(places), labels=list(labels))


def _round_ticks(axes: Axes, direction: str, first: float, last: float) -> None:
    """Label round numbers between two powers of ten."""
    ticks = round_numbers(first, last)
    _ticks(axes, direction, [10.0**power for power, _ in ticks], [label for _, label in ticks])


def _with_room(lengths: Sequence[int]) -> list[int]:
    """Return the lengths whose labels, of up to six digits, have room next to each other."""
    room = math.log(lengths[-1] / lengths[0]) * 0.13
    kept = [lengths[0]]
    for length in lengths[1:]:
        if math.log(length / kept[-1]) >= room:
            kept.append(length)
    return kept


def _in_tokens(name: str, lengths: Sequence[int]) -> str:
    return f"{name} (tokens{', k = 1024' if any(compact(n).endswith('k') for n in lengths) else ''})"


def compact(length: int) -> str:
    """Return a length; from 8192 on in units of 1024, if it is a multiple of 1024."""
    return f"{length // 1024}k" if length >= 8192 and length % 1024 == 0 else str(length)


def _perplexities(axes: Axes) -> None:
    """Label the losses on the right as perplexities."""
    ticks = round_numbers(*(max(loss, 0.0) / math.log(10) for loss in axes.get_ylim()))
    right = axes.secondary_yaxis("right")
    right.set_yticks([power * math.log(10) for power, _ in ticks], labels=[label for _, label in ticks])
    right.set_ylabel("perplexity")


def _numbers(panel: charts.Panel, axis: charts.Axis) -> list[float]:
    """Return the places or the values of all marks, and the ends of error bars."""
    series = [mark for mark in panel.marks if isinstance(mark, charts.Series)]
    if axis is panel.places:
        return [place for each in series for place in each.places]
    levels = (mark.at for mark in panel.marks if isinstance(mark, charts.Guide) and mark.level)
    ends = (end for each in series if each.form == charts.BARS for end in (*each.low, *each.high) if math.isfinite(end))
    return [*(value for each in series for value in each.values), *ends, *levels]


def _logarithmic(axes: Axes, direction: str, numbers: Sequence[float]) -> None:
    """Make an axis logarithmic, with a place for 0 if a number is 0, but then only on the y axis."""
    above = [number for number in numbers if number > 0]
    if not above:
        axes.set_ylim(bottom=0)
        return
    first, last = math.log10(min(above)) - 0.1, math.log10(max(above)) + 0.1
    if len(above) == len(numbers):
        getattr(axes, f"set_{direction}scale")("log")
        _round_ticks(axes, direction, first, last)
        return
    axes.set_yscale("symlog", linthresh=min(above))
    axes.set_ylim(bottom=0)
    ticks = [(0.0, "0"), *((10.0**power, label) for power, label in round_numbers(first, last))]
    _ticks(axes, direction, [place for place, _ in ticks], [label for _, label in ticks])


def round_numbers(first: float, last: float) -> list[tuple[float, str]]:
    """Return round numbers between two powers of ten: the power of each, and the number as text."""
    if last - first > 2:
        step = next(step for step in DECADES if step >= (last - first) / 6)
        powers = range(math.ceil(first / step) * step, math.floor(last) + 1, step)
        return [(power, exact(10.0**power) if abs(power) <= 5 else f"1e{power}") for power in powers]
    if last - first < NARROW:
        return _multiples(10.0**first, 10.0**last)
    digits = (1, 2, 5) if last - first > 0.7 else (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9)
    decades = range(math.floor(first), math.ceil(last) + 1)
    numbers = [(power + math.log10(digit), digit * 10.0**power) for power in decades for digit in digits]
    return [(power, exact(value)) for power, value in numbers if first <= power <= last]


def _multiples(low: float, high: float) -> list[tuple[float, str]]:
    """Return the multiples of a round step between two numbers, as `round_numbers` does."""
    whole = 10.0 ** math.floor(math.log10(high - low))
    step = whole * next(share for share in (0.2, 0.5, 1, 2) if (high - low) / (share * whole) <= 6)
    values = [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(math.log10(value), f"{value:.6g}") for value in values]


# --- the key


def _key(figure: Figure) -> None:
    """Put the key of all named marks above the chart, in as many columns as fit."""
    named = [pair for axes in figure.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    if named:
        handles, labels = zip(*named, strict=True)
        figure.legend(
            handles, labels, loc="outside upper left", ncols=_key_columns(labels), columnspacing=1.2, handletextpad=0.5
        )


def _key_columns(labels: Sequence[str]) -> int:
    """Return the number of columns of a key, which is filled column by column."""
    for columns in (3, 2) if len(labels) <= 3 else (2,):
        each = math.ceil(len(labels) / columns)
        widest = (max(map(len, labels[start : start + each])) for start in range(0, len(labels), each))
        if sum(length + BESIDE_LABEL for length in widest) <= IN_A_LINE:
            return columns
    return 1
