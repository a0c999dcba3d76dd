"""The look of all charts: size, colours, axes of lengths and perplexities, and figures as bytes. Does not use pyplot."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ropetool.sections import exact
from ropetool.verification.results import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.2, 3.5  # inches; letters of 11 points are then 11 pixels high on a phone, 17 at the full 560
DPI = 160
# Characters of a key in the width of a figure, and characters for the sign of a label.
IN_A_LINE, BESIDE_LABEL = 68, 6
PAPER, INK, QUIET, GRID = "#ffffff", "#1a1a1a", "#666666", "#dddddd"
# Okabe and Ito's colours, which people with the common types of colour blindness can distinguish. Marks and dashes also differ.
BLUE, VERMILION = "#0072b2", "#d55e00"
# By name: on a light page, and on a dark page, where lighter colours of the same palette have more contrast.
COLOURS = {
    "paper": (PAPER, "#16181c"), "ink": (INK, "#e6e6e6"), "quiet": (QUIET, "#a8adb4"), "grid": (GRID, "#33373d"),
    "target": (BLUE, "#56b4e9"), "baseline": (VERMILION, "#e69f00"),
}  # fmt: skip
# For more than two curves. An SVG defines only those that it uses.
MORE = {
    "second": ("#009e73", "#40c9a2"), "third": ("#a64d79", "#e3a3c6"), "fourth": ("#7a6a00", "#f0e442"),
    "fifth": ("#5b3fa8", "#bfa9f5"), "sixth": ("#484848", "#c4c4c4"),
}  # fmt: skip
SERIES = (BLUE, *(light for light, _ in MORE.values()))
IN_CELLS = ("#000000", "#fafafa")  # text on a light cell and on a dark cell; cells have the same colours on every page
BORDER = "#d75000"  # between cells
TARGET: dict[str, Any] = {"color": BLUE, "marker": "o", "label": "target"}
BASELINE: dict[str, Any] = {
    "color": VERMILION, "marker": "s", "markerfacecolor": PAPER, "linestyle": "--", "label": "baseline",
}  # fmt: skip
GAIN: dict[str, Any] = {"color": INK, "marker": "D", "label": "gain"}
# Reference attention variants differ only by marks and dashes, because the colours mean target and baseline.
BESIDE = (("^", "-."), ("v", ":"), ("x", (0, (3, 1, 1, 1))), ("+", (0, (6, 2))), ("*", (0, (1, 1))))
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000)  # powers of ten from one label to the next
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
    "lines.markersize": 5,
    "text.parse_math": False,
    "svg.hashsalt": "ropetool",  # the same report twice is the same bytes
    "svg.fonttype": "path",
}


def beside(index: int, name: str) -> dict[str, Any]:
    """Return the look of a curve of a reference attention variant."""
    marker, dashes = BESIDE[index % len(BESIDE)]
    return {"color": QUIET, "marker": marker, "linestyle": dashes, "linewidth": 1.2, "label": name}


def style() -> AbstractContextManager[None]:
    """Return a context manager. Create and save figures within it."""
    import matplotlib

    context: AbstractContextManager[None] = matplotlib.rc_context(STYLE)
    return context


def figure(height: float = HEIGHT) -> Figure:
    """Return an empty figure without a window. height: inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained", facecolor=PAPER)


def encoded(drawn: Figure, file_format: str) -> bytes:
    """Return a figure as `png`, or as an `svg` that is dark on a dark page."""
    stream = io.BytesIO()
    drawn.savefig(stream, format=file_format, dpi=DPI, metadata={"Date": None} if file_format == "svg" else None)
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


def curve(axes: Axes, x: Sequence[float], values: Sequence[Estimate], look: dict[str, Any]) -> None:
    """Draw means with the band of their intervals, if they have intervals."""
    axes.plot(x, [value.mean for value in values], **look)
    low, high = ([_finite(end) for end in ends] for ends in zip(*((v.low, v.high) for v in values), strict=True))
    axes.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)


def points(axes: Axes, x: Sequence[float], values: Sequence[Estimate], look: dict[str, Any]) -> None:
    """Draw means with an error bar each, and a line at zero."""
    reach = [_finite((value.high - value.low) / 2) for value in values]
    axes.axhline(0, color=QUIET, linewidth=1)
    axes.errorbar(x, [value.mean for value in values], yerr=reach, capsize=4, **look)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def length_axis(axes: Axes, lengths: Sequence[int], name: str) -> None:
    """Make x a logarithmic axis of tokens, with labels at the lengths that have room for them."""
    shown = _with_room(sorted(set(lengths)))
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, labels=[compact(length) for length in shown])
    axes.minorticks_off()
    axes.set_xlabel(_in_tokens(name, shown))


def _with_room(lengths: Sequence[int]) -> list[int]:
    """Return the lengths whose labels, of up to six digits, have room next to each other."""
    room = math.log(lengths[-1] / lengths[0]) * 0.13
    kept = [lengths[0]]
    for length in lengths[1:]:
        if math.log(length / kept[-1]) >= room:
            kept.append(length)
    return kept


def slots(axes: Axes, lengths: Sequence[int], name: str) -> None:
    """Label x with lengths at evenly spaced places from 0 on, with at most eight labels."""
    every = math.ceil(len(lengths) / 8)
    axes.set_xticks(range(0, len(lengths), every), labels=[compact(length) for length in lengths[::every]])
    axes.set_xlabel(_in_tokens(name, lengths))


def _in_tokens(name: str, lengths: Sequence[int]) -> str:
    return f"{name} (tokens{', k = 1024' if any(compact(n).endswith('k') for n in lengths) else ''})"


def compact(length: int) -> str:
    """Return a length; from 8192 on in units of 1024, if it is a multiple of 1024."""
    return f"{length // 1024}k" if length >= 8192 and length % 1024 == 0 else str(length)


def trained_line(axes: Axes, length: float) -> None:
    """Mark the trained length."""
    axes.axvline(length, color=QUIET, linestyle=":", linewidth=1.5, label="trained length")


def perplexity_axis(axes: Axes) -> None:
    """Label the losses on the right as perplexities."""
    low, high = (max(loss, 0.0) / math.log(10) for loss in axes.get_ylim())
    ticks = round_numbers(low, high)
    right = axes.secondary_yaxis("right")
    right.set_yticks([power * math.log(10) for power, _ in ticks], labels=[label for _, label in ticks])
    right.set_ylabel("perplexity")


def ratio_axis(axes: Axes) -> None:
    """Make x a logarithmic axis of perplexity ratios."""
    axes.set_xscale("log")
    low, high = (math.log10(end) for end in axes.get_xlim())
    ticks = round_numbers(low, high)
    axes.set_xticks([10.0**power for power, _ in ticks], labels=[label for _, label in ticks])
    axes.minorticks_off()
    axes.set_xlabel("perplexity ratio")


def logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """Make y a logarithmic axis for the values, with a place for 0 if a value is 0."""
    above = [value for value in values if value > 0]
    if not above:
        axes.set_ylim(bottom=0)
        return
    first, last = math.log10(min(above)), math.log10(max(above))
    ticks = [(10.0**power, label) for power, label in round_numbers(first - 0.1, last + 0.1)]
    if len(above) == len(values):
        axes.set_yscale("log")
    else:
        axes.set_yscale("symlog", linthresh=min(above))
        axes.set_ylim(bottom=0)
        ticks = [(0.0, "0"), *ticks]
    axes.set_yticks([place for place, _ in ticks], labels=[label for _, label in ticks])
    axes.minorticks_off()


def round_numbers(first: float, last: float) -> list[tuple[float, str]]:
    """Return round numbers between two powers of ten: the power of each, and the number as text."""
    if last - first > 2:
        step = next(step for step in STEPS if step >= (last - first) / 6)
        powers = range(math.ceil(first / step) * step, math.floor(last) + 1, step)
        return [(power, exact(10.0**power) if abs(power) <= 5 else f"1e{power}") for power in powers]
    digits = (1, 2, 5) if last - first > 0.7 else (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9)
    numbers = [(power + math.log10(digit), digit * 10.0**power) for power in _decades(first, last) for digit in digits]
    return [(power, exact(value)) for power, value in numbers if first <= power <= last]


def _decades(first: float, last: float) -> range:
    return range(math.floor(first), math.ceil(last) + 1)


def key(drawn: Figure) -> None:
    """Put the key of all lines above the plot, in as many columns as fit."""
    handles, labels = zip(
        *((h, n) for axes in drawn.axes for h, n in zip(*axes.get_legend_handles_labels(), strict=True)), strict=True
    )
    drawn.legend(
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


def loss_axes(drawn: Figure, axes: Axes, lengths: Sequence[int], trained_length: int) -> None:
    """Finish a plot of losses by length: lengths in tokens below, perplexities on the right, and the key."""
    length_axis(axes, lengths, "context")
    trained_line(axes, trained_length)
    perplexity_axis(axes)
    axes.set_ylabel("loss (nats per token)")
    key(drawn)
