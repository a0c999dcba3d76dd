"""The rotary pairs of a table before and after an extension: a section and a chart of their wavelengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ropetool import charts
from ropetool.rope import arithmetic
from ropetool.sections import Section, Table, number, row

PAIR = "rotary pair, fastest first"


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


def bands_chart(bands: Mapping[str, Any], context_length: int, key: str = "bands", of: str = "") -> charts.Chart:
    """Return the wavelength of each rotary pair before and after, or only before if there is no new table.

    bands: see `bands_section`.
    context_length: tokens, a level line.
    key: the key of the section.
    of: the layer type; empty if there is only one.
    """
    caption = (
        "wavelength = 2π / inv_freq of each rotary pair. Pairs below the dotted line made full turns in training and can "
        "stay unchanged. Pairs above it saw only an arc, and must be stretched to stay within this arc in the new context. "
        f"The plot omits pairs that never turn. Attention factor: {bands['attention_factor']:.5g}."
    )
    present = "" if bands["after"] is None else " before and after"
    looks = {"before": replace(charts.BASELINE, dashes=""), "after": replace(charts.TARGET, dashes="")}
    marks = [by_pair(when, look, _turning(bands[when])) for when, look in looks.items() if bands[when] is not None]
    trained = bands["trained_length"]
    lines = (
        charts.Guide(f"trained length, {trained}", charts.DOTTED, trained, level=True),
        charts.Guide(f"new context, {context_length}", replace(charts.DOTTED, dashes="-."), context_length, level=True),
    )
    wavelengths = charts.Axis("wavelength (tokens per turn)", charts.LOGARITHMIC)
    panel = charts.Panel(charts.Axis(PAIR), wavelengths, (*marks, *lines))
    return charts.Chart(key, key, f"Frequency bands{f' of {of}' if of else ''}{present}", caption, (panel,))


def by_pair(name: str, look: charts.Look, values: Mapping[int, float]) -> charts.Series:
    """Return values by the number of their rotary pair, with small marks because there are many pairs."""
    return charts.Series(name, replace(look, size=4.0), tuple(values), tuple(values.values()))


def _turning(inv_freq: Sequence[float]) -> dict[int, float]:
    """Return the wavelengths of the pairs that turn."""
    return {pair: 2 * math.pi / value for pair, value in enumerate(inv_freq) if value > 0}


def _wavelength(inv_freq: float) -> float:
    return 2 * math.pi / inv_freq if inv_freq > 0 else math.inf


def _stretch(before: float, after: float) -> float:
    return 1.0 if before == after else after / before
