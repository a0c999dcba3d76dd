"""Aligned columns for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ropetool.escaping import escaped


def columns(rows: Sequence[Sequence[str]], indent: int = 2) -> str:
    """Return the rows with every column but the last padded to its widest cell, one line each, whatever stands in them."""
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = (
        " " * indent + "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    )
    return "".join(line.rstrip() + "\n" for line in lines)


def serving_text(lines: Sequence[str]) -> str:
    """Return the command lines that serve an output, under their heading; empty where there are none."""
    return f"\nserved by\n{columns([(line,) for line in lines])}" if lines else ""
