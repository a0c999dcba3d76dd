"""Retrieval grids, the divergence of two files and rotary pairs as tables with legends. Measures and judges nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ropetool.rope import arithmetic
from ropetool.sections import Cell, Section, Table, exact, half_width, number, row
from ropetool.verification.results import (
    DivergenceResult,
    DivergenceSpan,
    RetrievalCell,
    RetrievalPair,
    RetrievalResult,
)

EXPLAINED = (
    ("depth", "where the key stands, 0.00 at the front and 1.00 at the end; columns: tokens of context"),
    ("cells", "how often the right value was the likeliest of the candidates, of how many trials"),
    ("written", "how often it was the likeliest token of all, which greedy generation writes; all depths"),
)


def retrieval_section(grid: RetrievalResult, trained_length: int, *, explained: bool = True) -> Section:
    """Return the grid: depth by length, sums over the depths, and the baseline's; explained: what they mean, too."""
    lengths = sorted({cell.length for cell in grid.cells})
    place = {(cell.depth, cell.length): cell for cell in grid.cells}
    depths = sorted({cell.depth for cell in grid.cells})
    rows = [
        row(f"{depth:.2f}", *(share([place[depth, n]] if (depth, n) in place else []) for n in lengths))
        for depth in depths
    ]
    rows.append(row("all", *(share(_at(grid.cells, n)) for n in lengths)))
    rows.append(row("written", *(share(_at(grid.cells, n), written=True) for n in lengths)))
    differences = {pair.length: pair for pair in grid.pairs if pair.depth is None and not pair.generated}
    if differences:
        rows.append(row("difference", *(_difference(differences.get(n)) for n in lengths)))
    if grid.baseline:
        rows.append(row("baseline", *(share(_at(grid.baseline, n)) for n in lengths)))
    legend = [*(EXPLAINED if explained else ()), *([("95 %", _wilson(grid))] if grid.cells else [])]
    if grid.baseline:
        within = [cell for cell in grid.baseline if cell.length <= trained_length]
        legend.append(("baseline", f"all depths; within its trained length of {trained_length} tokens {share(within)}"))
    legend += [
        ("difference", "right answers at that length minus those of the same keys and values within the trained length, "
         "as a part of all, and the 95 % bounds of its true value"),
    ] if grid.pairs else []  # fmt: skip
    legend.append(("chance", f"a blind guess is right in {number(grid.chance)} of the trials"))
    title = f"Retrieval, {grid.task}: {grid.keys} in the context, one asked for"
    table = Table(("depth", *map(str, lengths)), tuple(rows))
    notes = (grid.note,) if grid.note else ()
    return Section(f"retrieval-{grid.task}", title, table, tuple(legend), notes, (_every_cell(grid),))


def _at(cells: Sequence[RetrievalCell], length: int) -> list[RetrievalCell]:
    return [cell for cell in cells if cell.length == length]


def share(cells: Sequence[RetrievalCell], written: bool = False) -> str:
    """Return how many answers are right, of how many; written: of those that greedy generation writes."""
    hits = sum(cell.generated if written else cell.hits for cell in cells)
    return f"{hits}/{sum(cell.trials for cell in cells)}" if cells else "-"


def _difference(pair: RetrievalPair | None) -> str:
    return "-" if pair is None else f"{pair.difference:+.2f} ({pair.lower:+.2f}..{pair.upper:+.2f})"


def _wilson(grid: RetrievalResult) -> str:
    """Return the intervals of the lowest, a middle and the highest cell."""
    cells = sorted(grid.cells, key=lambda cell: (cell.low, cell.high))
    shown = dict.fromkeys(
        f"{c.hits}/{c.trials} is {c.low:.2f}-{c.high:.2f}" for c in (cells[0], cells[len(cells) // 2], cells[-1])
    )
    return f"Wilson's interval of {', of '.join(shown)}"


def _every_cell(grid: RetrievalResult) -> Table:
    rows = [
        row(
            Cell(model),
            str(cell.length),
            f"{cell.depth:.2f}",
            f"{cell.hits}/{cell.trials}",
            f"{cell.low:.3f}-{cell.high:.3f}",
            f"{cell.generated}/{cell.trials}",
        )
        for model, cells in (("target", grid.cells), ("baseline", grid.baseline))
        for cell in cells
    ]
    head = ("model", "length", "depth", "hits", "Wilson 95 %", "written")
    return Table(head, tuple(rows), words=(0,), title="Every cell with its interval")


def divergence_section(found: DivergenceResult, trained_length: int) -> Section:
    """Return the divergence within and beyond the trained length."""
    named = (("within", found.within), ("beyond", found.beyond), ("rare tokens", found.rare))
    spans = [(label, span) for label, span in named if span is not None]
    legend = (
        (
            "KL",
            "KL(reference || target) = sum over the vocabulary of p ln(p/q), nats a token, ± its 95 % interval over documents",
        ),
        ("top-1", "how often both have the same likeliest token"),
        ("logits", "the largest difference of two logits, as a part of the largest logit of the reference"),
        ("within", f"the trained length of {trained_length} tokens; {found.rows} rows of {found.length} tokens"),
        *([("rare tokens", "rows of tokens that the others do not show, in random order")] if found.rare else []),
    )
    head = ("positions", "", "tokens", "mean KL", "median", "99 %", "maximum", "top-1", "logits")
    rows = tuple(_span(span, label) for label, span in spans)
    finer = Table(head, tuple(_span(span, "") for span in found.by_position), words=(0, 1), title="By position")
    title = f"Divergence from {found.reference}"
    notes = (found.note,) if found.note else ()
    return Section("divergence", title, Table(head, rows, words=(0, 1)), legend, notes, (finer,))


def _span(span: DivergenceSpan, label: str) -> tuple[Cell, ...]:
    reach = half_width(span.mean)
    return row(
        f"{span.start}-{span.end - 1}",
        label,
        str(span.tokens),
        f"{number(span.mean.mean)} ± {'?' if reach == float('inf') else number(reach)}",
        number(span.median),
        number(span.p99),
        number(span.maximum),
        exact(span.top1),
        number(span.logit_difference),
    )


def bands_section(bands: Mapping[str, Any], key: str = "bands", title: str = "Rotary frequencies") -> Section:
    """Return how many rotary pairs turn how often, and were stretched, with every pair's wavelength as detail.

    bands: with None for `after` where nothing is to be extended.
    """
    trained, changes = bands["trained_length"], bands["after"] is not None
    pairs = [
        (_wavelength(before), _wavelength(after))
        for before, after in zip(bands["before"], bands["after"] if changes else bands["before"], strict=False)
    ]
    stretched = sum(not math.isclose(before, after, rel_tol=1e-6) for before, after in pairs)
    near, middle, far = arithmetic.bands(np.array(bands["before"]), trained)
    before = ", before" if changes else ""
    rows = [
        row("rotary pairs", str(len(pairs))),
        row(f"over {arithmetic.NEAR_TURNS:g} turns in {trained} tokens{before}", str(near)),
        row(f"1 to {arithmetic.NEAR_TURNS:g} turns{before}", str(middle)),
        row(f"under one turn{before}", str(far)),
    ]
    head: tuple[str, ...] = ("pair", "wavelength")
    if changes:
        rows += [
            row("of another frequency than before", str(stretched)),
            row("largest stretch", number(max(_stretch(*pair) for pair in pairs))),
        ]
        head = (*head[:1], "wavelength before", "after", "stretch")
    rows.append(row("attention factor", f"{bands['attention_factor']:.5g}"))
    each = tuple(
        row(str(index), number(before), *([number(after), number(_stretch(before, after))] if changes else []))
        for index, (before, after) in enumerate(pairs)
    )
    detail = Table(head, each, title="Every pair, in tokens a turn")
    return Section(key, title, Table(("", ""), tuple(rows), words=(0,)), details=(detail,))


def _wavelength(inv_freq: float) -> float:
    return 2 * math.pi / inv_freq if inv_freq > 0 else math.inf


def _stretch(before: float, after: float) -> float:
    return 1.0 if before == after else after / before
