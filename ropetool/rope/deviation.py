"""The difference between RoPE tables and their targets: the number of different pairs, and the size of the difference.

The size includes the first distance at which an angle is wrong by a given amount.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropetool.rope.tables import TABLE_TOLERANCE, LayerRope, RopeSet, RopeTable

TENTH, RADIAN = 0.1, 1.0  # of an angle, in radians
LENGTHS = 257  # lengths at which tables are compared, in a geometric series from 1 to the context
OF_TABLES = frozenset({"inv_freq", "attention_factor", "table"})  # the fields of a Difference between tables


@dataclass(frozen=True)
class Deviation:
    """The difference between tables and their targets. Each figure is from the worst layer type, but `rms` covers all.

    pairs: the number of rotary pairs with a different speed.
    of: the number of rotary pairs in the layer type that `pairs` is from.
    ratio: the largest factor between the two speeds of a pair; inf if a pair rotates in only one of the tables.
    factor: the attention factor divided by its target, at the length where it is furthest from 1.
    tenth, radian: the first distance in tokens at which an angle is off by 0.1 rad and by 1 rad; None if this happens
      at no distance within the window and `context`.
    rms: root mean square of the distance between a unit vector rotated by one table and by the other, over all pairs,
      layers and distances. Each doubling of the distance has equal weight. It is sqrt 2 for unrelated tables.
    context: the longest compared text, in tokens.
    """

    pairs: int
    of: int
    ratio: float
    factor: float
    tenth: int | None
    radian: int | None
    rms: float
    context: int

    def __str__(self) -> str:
        parts = []
        if self.pairs:
            off = [
                f"{angle:g} rad from {at} tokens on"
                for angle, at in ((TENTH, self.tenth), (RADIAN, self.radian))
                if at is not None
            ]
            by = f"by up to {self.ratio:.4g}x" if math.isfinite(self.ratio) else "some only in one of the tables"
            parts.append(f"{self.pairs} of {self.of} pairs rotate at a different speed, {by}")
            parts.append(f"angles are off by {' and '.join(off)}" if off else f"no angle is off by {TENTH:g} rad")
        if not math.isclose(self.factor, 1, rel_tol=TABLE_TOLERANCE):
            parts.append(f"the attention factor is {self.factor:.6g} times the target")
        return ", ".join(parts) or f"the tables agree up to {self.context} tokens and differ beyond"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data. An infinite ratio is null."""
        return {**vars(self), "ratio": self.ratio if math.isfinite(self.ratio) else None}


def aligned(
    target: RopeSet, actual: RopeSet, *, same_layout: bool = True
) -> list[tuple[int, LayerRope, LayerRope]] | None:
    """Return the first layer, target entry and actual entry of each layer type; None if the sides have other layers.

    Layers are matched by their number, because formats name layer types differently. A window beyond the context is
    removed.
    same_layout: whether the layout must be equal. An export reorders the rows of the weights for a different layout.
    """
    ours, theirs = _by_layer(target), _by_layer(actual)
    if ours.keys() != theirs.keys():
        return None
    first_layers = {(id(ours[layer]), id(theirs[layer])): layer for layer in sorted(ours, reverse=True)}
    context = min(target.max_position_embeddings, actual.max_position_embeddings)
    pairs = []
    for layer in sorted(first_layers.values()):
        a, b = ours[layer].within(context), theirs[layer].within(context)
        pairs.append((layer, a, replace(b, layers=a.layers, layout=b.layout if same_layout else a.layout)))
    return pairs


def _by_layer(rope: RopeSet) -> dict[int, LayerRope]:
    return {layer: entry for entry in rope.entries.values() for layer in entry.layers}


def deviation(target: RopeSet, actual: RopeSet, *, same_layout: bool = True) -> Deviation | None:
    """Return the difference between tables up to the target's context; None if more than tables differs."""
    layers = aligned(target, actual, same_layout=same_layout)
    if layers is None:
        return None
    each: list[Deviation] = []
    for _, ours, theirs in layers:
        if any(one.field not in OF_TABLES for one in ours.differences(theirs)):
            return None
        if ours.table is None or theirs.table is None:
            if ours.table is not theirs.table:
                return None
            continue
        if ours.rotary_dim != theirs.rotary_dim:
            return None
        context = target.max_position_embeddings
        window = min(ours.sliding_window or context, context)
        each += [_of_tables(ours.table, theirs.table, context, window)] * len(ours.layers)
    return _together(each) if each else None


def _of_tables(target: RopeTable, actual: RopeTable, context: int, window: int) -> Deviation:
    """Return the difference between two tables.

    context: the longest text in tokens. window: the largest distance between two of its tokens that attend to each
      other.
    """
    switches = [r.up_to for table in (target, actual) for r in table.regimes if r.up_to is not None]
    steps = np.rint(np.geomspace(1, context, LENGTHS)).astype(np.int64).tolist()
    lengths = sorted([*steps, *(n for switch in switches for n in (switch, switch + 1) if n <= context)])
    ours, theirs = ([table.at(length) for length in lengths] for table in (target, actual))
    a, b = (np.array([regime.inv_freq for regime in side]) for side in (ours, theirs))
    factor = np.array([y.attention_factor / x.attention_factor for x, y in zip(ours, theirs, strict=True)])
    differs = np.abs(a - b) > TABLE_TOLERANCE * np.maximum(a, b)
    apart = np.where(differs, np.abs(a - b), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(differs, np.maximum(a / b, b / a), 1.0)
    angles = apart * np.minimum(lengths, window)[:, None]
    squares = 1 + factor[:, None] ** 2 - 2 * factor[:, None] * np.cos(angles)

    def first(angle: float) -> int | None:
        reached = np.flatnonzero(angles.max(axis=1) >= angle)
        if not reached.size:
            return None
        at = int(reached[0])
        low, high = (int(lengths[at - 1]) if at else 0), int(lengths[at])
        while high - low > 1:  # between two changes of the table, an angle grows with the length
            middle = (low + high) // 2
            off = np.where(differs[at], np.abs(target.at(middle).inv_freq - actual.at(middle).inv_freq), 0.0)
            low, high = (low, middle) if off.max() * min(middle, window) >= angle else (middle, high)
        return high

    return Deviation(
        pairs=int(differs.any(axis=0).sum()), of=a.shape[1], ratio=float(ratio.max()), factor=_furthest(factor.tolist()),
        tenth=first(TENTH), radian=first(RADIAN), rms=math.sqrt(max(0.0, float(squares.mean()))), context=context,
    )  # fmt: skip


def _furthest(factors: list[float]) -> float:
    return max(factors, key=lambda factor: abs(math.log(factor)))


def _together(each: list[Deviation]) -> Deviation:
    worst = max(each, key=lambda one: one.pairs)
    tenths = [one.tenth for one in each if one.tenth is not None]
    radians = [one.radian for one in each if one.radian is not None]
    return Deviation(
        pairs=worst.pairs, of=worst.of, ratio=max(one.ratio for one in each), factor=_furthest([one.factor for one in each]),
        tenth=min(tenths, default=None), radian=min(radians, default=None),
        rms=math.sqrt(sum(one.rms**2 for one in each) / len(each)), context=worst.context,
    )  # fmt: skip
