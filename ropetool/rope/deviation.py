"""How far rotary tables are from those that were wanted: which pairs, by how much, and from which distance on.

Pure numbers in float64; which tables are worth comparing is for others to know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropetool.rope.tables import TABLE_TOLERANCE, LayerRope, RopeSet, RopeTable

TENTH, RADIAN = 0.1, 1.0  # of an angle, in radians
LENGTHS = 257  # lengths at which tables are compared, from 1 to the context, each the same multiple of the one before
OF_TABLES = frozenset({"inv_freq", "attention_factor", "table"})  # the fields of a Difference that tables decide


@dataclass(frozen=True)
class Deviation:
    """How far tables are from those wanted: of several kinds of layers each figure of the worst, `rms` of all.

    pairs: how many of the rotary pairs, `of` in all, turn at another speed. ratio: how many times faster or slower, at most;
    inf where only one of the two turns. factor: the attention factor as a part of the wanted one, the furthest from 1.
    tenth, radian: the first distance in tokens at which an angle is off by 0.1 and by 1 rad; None where none is within the
    window and `context`, the longest text that was looked at. rms: root of the mean square distance between a unit vector
    rotated by the one and by the other, over all pairs, layers and distances, each doubling of the distance counting alike;
    sqrt 2 where they are unrelated.
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
        """Return plain data; an infinite ratio is null."""
        return {**vars(self), "ratio": self.ratio if math.isfinite(self.ratio) else None}


def aligned(
    wanted: RopeSet, found: RopeSet, *, same_layout: bool = True
) -> list[tuple[int, LayerRope, LayerRope]] | None:
    """Return what layers of each kind compute on both sides, with the first of them; None where they are not as many.

    Layers are matched by their index, whatever a format calls their kind, and windows beyond the context left out.
    same_layout: whether the order of the channels counts; between formats the exporter moves the rows of the weights with it.
    """
    ours, theirs = _by_layer(wanted), _by_layer(found)
    if ours.keys() != theirs.keys():
        return None
    kinds = {(id(ours[layer]), id(theirs[layer])): layer for layer in sorted(ours, reverse=True)}
    context = min(wanted.max_position_embeddings, found.max_position_embeddings)
    pairs = []
    for layer in sorted(kinds.values()):
        a, b = ours[layer].within(context), theirs[layer].within(context)
        pairs.append((layer, a, replace(b, layers=a.layers, layout=b.layout if same_layout else a.layout)))
    return pairs


def _by_layer(rope: RopeSet) -> dict[int, LayerRope]:
    return {layer: entry for entry in rope.entries.values() for layer in entry.layers}


def deviation(wanted: RopeSet, found: RopeSet, *, same_layout: bool = True) -> Deviation | None:
    """Return how far the tables are from those wanted, up to the wanted context; None where more than tables differs."""
    kinds = aligned(wanted, found, same_layout=same_layout)
    if kinds is None:
        return None
    each: list[Deviation] = []
    for _, ours, theirs in kinds:
        if any(one.field not in OF_TABLES for one in ours.differences(theirs)):
            return None
        if ours.table is None or theirs.table is None:
            if ours.table is not theirs.table:
                return None
            continue
        if ours.rotary_dim != theirs.rotary_dim:
            return None
        context = wanted.max_position_embeddings
        window = min(ours.sliding_window or context, context)
        each += [_of_tables(ours.table, theirs.table, context, window)] * len(ours.layers)
    return _together(each) if each else None


def _of_tables(wanted: RopeTable, found: RopeTable, context: int, window: int) -> Deviation:
    """Return how far a table is from the wanted one. context, window: the longest text, and the furthest two tokens of it."""
    switches = [r.up_to for table in (wanted, found) for r in table.regimes if r.up_to is not None]
    steps = np.rint(np.geomspace(1, context, LENGTHS)).astype(np.int64).tolist()
    lengths = sorted([*steps, *(n for switch in switches for n in (switch, switch + 1) if n <= context)])
    ours, theirs = ([table.at(length) for length in lengths] for table in (wanted, found))
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
        while high - low > 1:  # between two switches an angle grows with the length
            middle = (low + high) // 2
            off = np.where(differs[at], np.abs(wanted.at(middle).inv_freq - found.at(middle).inv_freq), 0.0)
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
