"""What one program computes otherwise than another, and what that does to the model, in words for a reader.

It compares tables and numbers; which programs they are of, and whether that is allowed, is not its to know.
"""

from __future__ import annotations

import math

import numpy as np

from ropetool.spec import TABLE_TOLERANCE, Array, LayerRope, RopeSet, RopeTable

SEEN = 1.005  # what three digits show


def differences(first: RopeSet, other: RopeSet) -> list[str]:
    """Return what the other computes differently and, behind a colon, what that does; empty where nothing differs."""
    found = _context(first.max_position_embeddings, other.max_position_embeddings)
    if set(first.entries) != set(other.entries):
        return [*found, f"layer types {sorted(other.entries)} instead of {sorted(first.entries)}"]
    for layer_type, entry in first.entries.items():
        where = f"{layer_type}: " if len(first.entries) > 1 else ""
        found += [where + reason for reason in _entry(entry, other.entries[layer_type])]
    return found


def _context(ours: int, theirs: int) -> list[str]:
    if ours == theirs:
        return []
    effect = "stops earlier" if theirs < ours else "takes longer texts"
    return [f"context {theirs} instead of {ours}: {effect}"]


def _entry(first: LayerRope, other: LayerRope) -> list[str]:
    if first.layers != other.layers:
        return [f"other layers, {len(other.layers)} instead of {len(first.layers)}: they are rotated by another table"]
    if first.table is None or other.table is None:
        return [] if first.table is other.table else ["one rotates, the other does not: positions are lost or made up"]
    found = _tables(first.table, other.table)
    if first.layout != other.layout:
        found.append(f"layout {other.layout} instead of {first.layout}: other channels are paired, the text is noise")
    if not _alike(first.softmax_multiplier, other.softmax_multiplier):
        sharper = "sharper" if other.softmax_multiplier > first.softmax_multiplier else "flatter"
        found.append(
            f"the whole score is multiplied by {other.softmax_multiplier:.6g} instead of {first.softmax_multiplier:.6g}: "
            f"attention is {sharper}"
        )
    if first.temperature != other.temperature:
        found.append("the position temperature differs: attention far into a text is sharper or flatter")
    return [*found, *_window(first.sliding_window, other.sliding_window)]


def _window(ours: int | None, theirs: int | None) -> list[str]:
    if ours == theirs:
        return []
    if theirs is None:
        return [f"no sliding window instead of {ours} tokens: looks back to the beginning"]
    return [f"a sliding window of {theirs} tokens instead of {ours or 'none'}: looks no further back"]


def _tables(ours: RopeTable, theirs: RopeTable) -> list[str]:
    if ours.agrees(theirs):
        return []
    a, b = ours.regimes[-1], theirs.regimes[-1]
    alike = ours.is_fixed == theirs.is_fixed and len(ours.regimes) == len(theirs.regimes)
    found = [] if alike else [_by_length(ours, theirs)]
    if a.inv_freq.size != b.inv_freq.size:
        found.append(f"{b.inv_freq.size} rotary pairs instead of {a.inv_freq.size}: other channels turn")
    else:
        found += _pairs(a.inv_freq, b.inv_freq)
    if not _alike(a.attention_factor, b.attention_factor):
        scores = (b.attention_factor / a.attention_factor) ** 2
        found.append(
            f"attention factor {b.attention_factor:.6g} instead of {a.attention_factor:.6g}: scores of the rotated "
            f"channels times {scores:.6g}"
        )
    limit = ours.regimes[0].up_to
    return found or [f"the table up to {limit} tokens differs" if limit else "the rule that follows the length differs"]


def _by_length(ours: RopeTable, theirs: RopeTable) -> str:
    if theirs.is_fixed:
        return "one table for all lengths instead of one that follows the length: some lengths get another"
    if ours.is_fixed:
        return "a table that follows the length instead of one for all: some lengths get another"
    return "the table follows the length in another way: some lengths get another"


def _pairs(ours: Array, theirs: Array) -> list[str]:
    """Return how many pairs turn faster or slower: k times as fast is a distance k times as long."""
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = np.where(ours == theirs, 1.0, theirs / ours)
        count = int(np.sum(np.maximum(speed, 1 / speed) > 1 + TABLE_TOLERANCE))
        longer, shorter = float(np.max(speed)), float(np.max(1 / speed))
    if not count:
        return []
    by_way = {"longer": longer, "shorter": shorter}
    told = {way: by for way, by in by_way.items() if by > SEEN} or {
        max(by_way, key=by_way.__getitem__): max(by_way.values())
    }
    ways = [f"{by:.3g}x {way}" if by > SEEN else f"{by:.7g}x {way}" for way, by in told.items()]
    return [f"table: {count} of {ours.size} pairs differ: distances look up to {' or '.join(ways)}"]


def _alike(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=TABLE_TOLERANCE)
