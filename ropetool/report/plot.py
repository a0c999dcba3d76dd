"""A small plot of perplexity against length, in characters, both scales logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ropetool.sections import number

WIDTH, HEIGHT, MARGIN = 72, 9, 2
AROUND = 18  # characters beside the plot: the scale on the left, half a label and the unit on the right
SEVERAL, TRAINED = "◉", "┊"  # the sign of several series on one place, and the line at the trained length


def perplexity_plot(series: Mapping[str, Sequence[tuple[int, float]]], trained_length: int, width: int = 120) -> str:
    """Return lines of text with each series as its one-character sign, dots between, and the trained length marked.

    width: of the lines, at most; a plot needs no more than 90 characters.
    Units: points are (tokens, loss in nats); the scale on the left is labelled with perplexities.
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
    return "\n".join([*rows, f"{'':>8} └{'─' * size}", _axis(lengths, size)]) + "\n"


def _draw(grid: list[list[str]], sign: str, points: Sequence[tuple[int, float]]) -> None:
    """Put a series on the grid: dots from point to point where nothing stands yet, then its signs."""
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
        start = 10 + _column(length, lengths, size) - len(label) // 2
        if not line or start > len(line):  # a label that would run into the one before is left out
            line = line.ljust(start) + label
    return f"{line} tokens"


def _column(length: int, lengths: Sequence[int], size: int) -> int:
    share = _share(math.log(length), math.log(lengths[0]), math.log(lengths[-1]))
    return MARGIN + round(share * (size - 1 - 2 * MARGIN))


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.0
