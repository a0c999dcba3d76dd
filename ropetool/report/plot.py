"""A plot of perplexity by length in characters, both scales logarithmic."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ropetool.escaping import escaped
from ropetool.sections import number

WIDTH, HEIGHT, MARGIN = 72, 9, 2
AROUND = 18  # characters next to the plot: the scale on the left, half a label and the unit on the right
SCALE = 10  # characters on the left: a label, and the axis
TARGET, BASELINE = "●", "○"
SEVERAL, TRAINED = "◉", "┊"  # the sign of several series on one place, and the line at the trained length


@dataclass(frozen=True)
class Plot:
    """Losses by length.

    series: the points of each series by its one-character sign: length in tokens, loss in nats per token.
    names: the meaning of each sign.
    several: the meaning of the sign for several series on one place; empty for a single series.
    trained_length: tokens.
    """

    series: Mapping[str, Sequence[tuple[int, float]]]
    names: Mapping[str, str]
    several: str
    trained_length: int

    def lines(self, width: int) -> list[str]:
        """Return the key and the plot. width: characters in a line. A plot needs at most 90."""
        signs = [*self.names.items(), *([(SEVERAL, self.several)] if self.several else []), (TRAINED, "trained length")]
        key = textwrap.wrap(
            escaped("  ".join(f"{sign} {name}" for sign, name in signs)), max(width - SCALE, 1),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        shown = [f"{'' if index else 'ppl':>8}  {line}" for index, line in enumerate(key)]
        return [*shown, *perplexity_plot(self.series, self.trained_length, width)]


def perplexity_plot(
    series: Mapping[str, Sequence[tuple[int, float]]], trained_length: int, width: int = 120
) -> list[str]:
    """Return lines with each series as its sign, dots between the points, and a mark at the trained length.

    series, width: see `Plot`. The scale on the left has perplexities.
    """
    size = max(min(WIDTH, width - AROUND), 2 * MARGIN + 2)
    everything = [point for points in series.values() for point in points]
    lengths = sorted({length for length, _ in everything})
    low, high = min(loss for _, loss in everything), max(loss for _, loss in everything)
    grid = [[" "] * size for _ in range(HEIGHT)]
    if lengths[0] <= trained_length <= lengths[-1]:
        for row in grid:
            row[_column(trained_length, lengths, size)] = TRAINED
    for sign, points in series.items():
        _draw(grid, sign, [(_column(n, lengths, size), _share(loss, low, high) * (HEIGHT - 1)) for n, loss in points])
    ticks = {0: low, HEIGHT // 2: (low + high) / 2, HEIGHT - 1: high} if high > low else {0: low}
    labels = {level: number(math.exp(min(loss, 709))) for level, loss in ticks.items()}
    rows = [f"{labels.get(level, ''):>8} │{''.join(grid[level])}".rstrip() for level in reversed(range(HEIGHT))]
    return [*rows, f"{'':>8} └{'─' * size}", _axis(lengths, size)]


def _draw(grid: list[list[str]], sign: str, points: Sequence[tuple[int, float]]) -> None:
    """Put a series on the grid: dots between its points on empty places, then its signs."""
    for (x0, y0), (x1, y1) in pairwise(points):
        for x in range(x0 + 1, x1):
            level = round(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
            if grid[level][x] in (" ", TRAINED):
                grid[level][x] = "·"
    for x, y in points:
        taken = grid[round(y)][x] not in (" ", TRAINED, "·")
        grid[round(y)][x] = SEVERAL if taken else sign


def _axis(lengths: Sequence[int], size: int) -> str:
    line = ""
    for length in lengths:
        label = str(length)
        start = SCALE + _column(length, lengths, size) - len(label) // 2
        if not line or start > len(line):  # omit a label that would overlap the label before it
            line = line.ljust(start) + label
    return f"{line} tokens"


def _column(length: int, lengths: Sequence[int], size: int) -> int:
    share = _share(math.log(length), math.log(lengths[0]), math.log(lengths[-1]))
    return MARGIN + round(share * (size - 1 - 2 * MARGIN))


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.0
