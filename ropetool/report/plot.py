"""The writer for charts of losses in terminals: perplexity by length in characters, both scales logarithmic."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise

from ropetool import charts
from ropetool.escaping import escaped
from ropetool.sections import number

WIDTH, HEIGHT, MARGIN = 72, 9, 2  # of a plot, in characters
AROUND = 18  # characters next to the plot: the scale on the left, half a label and the unit on the right
SCALE = 10  # characters on the left: a label, and the axis
SEVERAL, GUIDE = "◉", "┊"  # the sign of several series on one place, and a line at a place


def chart_lines(chart: charts.Chart, width: int) -> list[str]:
    """Return the key of a chart of losses, and the plot: each series as its sign, with dots between the points.

    width: characters in a line. A plot needs at most 90.
    """
    marks = chart.panels[0].marks
    every = [mark for mark in marks if isinstance(mark, charts.Series) and mark.look.sign]
    guides = [mark for mark in marks if isinstance(mark, charts.Guide) and not mark.level]
    signs = [
        *((each.look.sign, each.name) for each in sorted(every, key=lambda each: each.look == charts.BASELINE)),
        *([(SEVERAL, chart.several)] if chart.several else []),
        *((GUIDE, guide.name) for guide in guides),
    ]
    key = textwrap.wrap(
        escaped("  ".join(f"{sign} {name}" for sign, name in signs)), max(width - SCALE, 1), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    shown = [f"{'' if index else 'ppl':>8}  {line}" for index, line in enumerate(key)]
    return [*shown, *_plotted(every, [guide.at for guide in guides], width)]


def _plotted(every: Sequence[charts.Series], guides: Iterable[float], width: int) -> list[str]:
    size = max(min(WIDTH, width - AROUND), 2 * MARGIN + 2)
    lengths = sorted({length for each in every for length in each.places})
    losses = [loss for each in every for loss in each.values]
    low, high = min(losses), max(losses)
    grid = [[" "] * size for _ in range(HEIGHT)]
    for length in guides:
        if lengths[0] <= length <= lengths[-1]:
            for row in grid:
                row[_column(length, lengths, size)] = GUIDE
    for each in every:
        levels = (_share(loss, low, high) * (HEIGHT - 1) for loss in each.values)
        columns = (_column(length, lengths, size) for length in each.places)
        _draw(grid, each.look.sign, [*zip(columns, levels, strict=True)])
    middle, top = HEIGHT // 2, HEIGHT - 1
    ticks = {0: low, middle: (low + high) / 2, top: high} if high > low else {0: low}
    labels = {level: number(math.exp(min(loss, 709))) for level, loss in ticks.items()}
    rows = [f"{labels.get(level, ''):>8} │{''.join(grid[level])}".rstrip() for level in reversed(range(HEIGHT))]
    return [*rows, f"{'':>8} └{'─' * size}", _axis(lengths, size)]


def _draw(grid: list[list[str]], sign: str, points: Sequence[tuple[int, float]]) -> None:
    """Put a series on the grid: dots between its points on empty places, then its signs."""
    for (x0, y0), (x1, y1) in pairwise(points):
        for x in range(x0 + 1, x1):
            level = round(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
            if grid[level][x] in (" ", GUIDE):
                grid[level][x] = "·"
    for x, y in points:
        taken = grid[round(y)][x] not in (" ", GUIDE, "·")
        grid[round(y)][x] = SEVERAL if taken else sign


def _axis(lengths: Sequence[float], size: int) -> str:
    line = ""
    for length in lengths:
        label = f"{length:.0f}"
        start = SCALE + _column(length, lengths, size) - len(label) // 2
        if not line or start > len(line):  # omit a label that would overlap the label before it
            line = line.ljust(start) + label
    return f"{line} tokens"


def _column(length: float, lengths: Sequence[float], size: int) -> int:
    share = _share(math.log(length), math.log(lengths[0]), math.log(lengths[-1]))
    return MARGIN + round(share * (size - 1 - 2 * MARGIN))


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.0
