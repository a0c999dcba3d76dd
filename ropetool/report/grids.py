"""The divergence of two files, and the rotary pairs of a table, as sections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ropetool.rope import arithmetic
from ropetool.sections import Cell, Section, Table, exact, half_width, number, row
from ropetool.verification.results import (
    DivergenceResult,
    DivergenceSpan,
)


def divergence_section(divergence: DivergenceResult, trained_length: int) -> Section:
    """Return the divergence within and beyond the trained length."""
    named = (("within", divergence.within), ("beyond", divergence.beyond), ("rare tokens", divergence.rare))
    spans = [(label, span) for label, span in named if span is not None]
    legend = (
        (
            "KL",
            "KL(reference || target) = sum of p ln(p/q) over the vocabulary, nats per token, ± 95 % interval over documents",
        ),
        ("top-1", "share of tokens for which both have the same likeliest token"),
        ("logits", "largest difference of two logits, divided by the largest logit of the reference"),
        (
            "within",
            f"the trained length of {trained_length} tokens; {divergence.rows} rows of {divergence.length} tokens",
        ),
        *(
            [("rare tokens", "rows of tokens that do not occur in the texts, in random order")]
            if divergence.rare
            else []
        ),
    )
    head = ("positions", "", "tokens", "mean KL", "median", "99 %", "maximum", "top-1", "logits")
    rows = tuple(_span(span, label) for label, span in spans)
    finer = Table(head, tuple(_span(span, "") for span in divergence.by_position), words=(0, 1), title="By position")
    title = f"Divergence from {divergence.reference}"
    notes = (divergence.note,) if divergence.note else ()
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
    """Return the numbers of fast, middle and slow rotary pairs and of changed pairs, with every wavelength as a detail.

    bands: `trained_length` in tokens, `before` and `after` with the inverse frequencies in radians per token, and
      `attention_factor`; `after` is None without a new table.
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
            row("with a changed frequency", str(stretched)),
            row("largest stretch", number(max(_stretch(*pair) for pair in pairs))),
        ]
        head = (*head[:1], "wavelength before", "after", "stretch")
    rows.append(row("attention factor", f"{bands['attention_factor']:.5g}"))
    each = tuple(
        row(str(index), number(before), *([number(after), number(_stretch(before, after))] if changes else []))
        for index, (before, after) in enumerate(pairs)
    )
    detail = Table(head, each, title="Every pair, in tokens per turn")
    return Section(key, title, Table(("", ""), tuple(rows), words=(0,)), details=(detail,))


def _wavelength(inv_freq: float) -> float:
    return 2 * math.pi / inv_freq if inv_freq > 0 else math.inf


def _stretch(before: float, after: float) -> float:
    return 1.0 if before == after else after / before
