"""The usage of a checkpoint's attention: as parts for a terminal, as JSON, and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ropetool import charts
from ropetool.lab.usage.measuring import FAR, FIRST, Usage
from ropetool.report.bands import PAIR, by_pair
from ropetool.report.page import Page
from ropetool.rope import arithmetic
from ropetool.rope.tables import Array
from ropetool.sections import Line, Part, Section, Table, counted, listing, row

SCHEMA = 1
SHOWN = 8  # heads in the list of those that copy
COPIES = 0.25  # the share on the copy from which a head counts as one that copies
SINK = 0.5  # the share on the first tokens from which a head counts as one that rests on them
WIDEST = 24  # heads that a grid has room to name


def usage_parts(usage: Usage) -> Iterator[Part]:
    """Yield the output of `ropetool use`."""
    yield Line(f"{usage.name}: {usage.tokens} tokens of {usage.document}, trained length {usage.trained}")
    yield from (_heads(usage), _copying(usage), _bands(usage))


def _heads(usage: Usage) -> Section:
    count = usage.far.size
    copying, resting = int((usage.copies >= COPIES).sum()), int((usage.first >= SINK).sum())
    rows = [
        ("heads", f"{count} in {counted(len(usage.layers), 'layer')} that see the whole text"),
        ("far", f"{usage.far.mean():.1%} of the attention is at least {FAR:g} of the text away, at most {usage.far.max():.1%} in a head"),
        ("first tokens", f"{usage.first.mean():.1%} is on the first {FIRST} tokens; {resting} of {count} heads spend half or more on them"),
        ("copies", f"{copying} of {count} heads find the earlier copy of a repeated text"),
    ]  # fmt: skip
    return listing("Heads", rows)


def _ranked(usage: Usage) -> list[tuple[int, int]]:
    """Return layer and head, by index, of the heads that copy most."""
    order = np.argsort(usage.copies, axis=None)[::-1][:SHOWN]
    rows, columns = np.unravel_index(order, usage.copies.shape)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def _copying(usage: Usage) -> Section:
    rows = [
        (
            str(usage.layers[layer]),
            str(head),
            *(f"{share[layer, head]:.2f}" for share in (usage.copies, usage.far, usage.first)),
        )
        for layer, head in _ranked(usage)
    ]
    head = ("layer", "head", "on the copy", "far", "first tokens")
    return listing("Heads that copy most", rows, head=head, figures=range(5))


def _weights(usage: Usage) -> Array:
    """Return the share of each pair in the heads that copy, each head with its share on the copy. Shape: (pairs,)."""
    return np.asarray(np.einsum("lh,lhp->p", usage.copies, usage.by_pair) / usage.copies.sum())


def _bands(usage: Usage) -> Section:
    turns = arithmetic.turns(usage.inv_freq, usage.trained)
    bands = {
        f"over {arithmetic.NEAR_TURNS:g} turns": turns > arithmetic.NEAR_TURNS,
        f"1 to {arithmetic.NEAR_TURNS:g} turns": (turns <= arithmetic.NEAR_TURNS) & (turns >= 1),
        "under one turn": turns < 1,
    }
    every, copying = usage.by_pair.mean(axis=(0, 1)), _weights(usage)
    rows = tuple(
        row(name, str(int(band.sum())), f"{every[band].sum():.1%}", f"{copying[band].sum():.1%}")
        for name, band in bands.items()
    )
    legend = (
        ("turns", f"turns of one pair within the trained {usage.trained} tokens"),
        (
            "all heads, copying heads",
            "the variance that these pairs add to the scores over the keys, as a share of the sum over all pairs",
        ),
    )
    table = Table(("pairs", "number", "all heads", "copying heads"), rows, words=(0,))
    return Section("pairs", "Rotary pairs", table, legend)


def _charts(usage: Usage) -> Iterator[charts.Chart]:
    """Yield a grid of layers and heads for each share, and the shares of the pairs."""
    grids = {
        "copies": (usage.copies, "Share of the attention on the earlier copy of a repeated text"),
        "far": (usage.far, f"Share of the attention at least {FAR:g} of the text away"),
        "first": (usage.first, f"Share of the attention on the first {FIRST} tokens"),
    }
    for name, (shares, title) in grids.items():
        yield _grid(usage, name, shares, title)
    marks: list[charts.Series | charts.Guide] = [
        by_pair(name, look, dict(enumerate(values.tolist())))
        for name, look, values in (
            ("all heads", charts.BASELINE, usage.by_pair.mean(axis=(0, 1))), ("copying heads", charts.TARGET, _weights(usage)),
        )
    ]  # fmt: skip
    slow = np.flatnonzero(arithmetic.turns(usage.inv_freq, usage.trained) < 1)
    if slow.size:
        marks.append(charts.Guide("one turn in the trained length", charts.DOTTED, float(slow[0]) - 0.5))
    panel = charts.Panel(charts.Axis(PAIR), charts.Axis("share of the variance"), tuple(marks))
    caption = "Variance that each rotary pair adds to the scores over the keys, as a share of the sum over all pairs."
    yield charts.Chart("pairs", "pairs", "Use of the rotary pairs", caption, (panel,))


def _grid(usage: Usage, name: str, shares: Array, title: str) -> charts.Chart:
    narrow = shares.shape[1] <= WIDEST
    texts = tuple(tuple(f"{100 * share:.0f}" if narrow else "" for share in layer) for layer in shares)
    cells = charts.Cells("share", tuple(map(tuple, shares.tolist())), texts)
    heads, layers = (tuple(map(str, numbers)) for numbers in (range(shares.shape[1]), usage.layers))
    panel = charts.Panel(
        charts.Axis("head", charts.NAMES, names=heads), charts.Axis("layer", charts.NAMES, names=layers), (cells,)
    )
    return charts.Chart(
        name, "heads", title, f"{title}, by layer and head, in percent.", (panel,), 2 + 0.25 * len(layers)
    )


def usage_json(usage: Usage) -> dict[str, Any]:
    """Return the usage as `use --json` prints it. Shares are rounded to four digits."""
    shares = {name: np.round(getattr(usage, name), 4).tolist() for name in ("first", "far", "copies", "by_pair")}
    return {
        "schema": SCHEMA, "source": usage.name, "trained_length": usage.trained, "tokens": usage.tokens, "document": usage.document,
        "layers": list(usage.layers), **shares, "inv_freq": usage.inv_freq.tolist(), "runtime": usage.runtime,
    }  # fmt: skip


def usage_page(usage: Usage, line: str = "") -> Page:
    """Return the page of a usage. line: the command line."""
    heads = _heads(usage)
    section = Section("heads", "Heads", heads.table, details=(_copying(usage).table,))
    return Page(
        "use", usage.name, "use", "", f"{usage.tokens} tokens of {usage.document}",
        "Two forward passes over one text, within the trained length.", [("command", line), ("runtime", usage.runtime)],
        [section, _bands(usage)], charts=_charts(usage), documents=(usage.document,),
    )  # fmt: skip
