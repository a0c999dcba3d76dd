"""Two readings of positions compared layer by layer: how far apart their tables are, and in words what differs.

Knows decoded tables alone, neither files nor plans.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ropetool.rope.tables import Array, LayerRope, RopeSet, in_words


def compare_tables(wanted: RopeSet, found: RopeSet, *, same_layout: bool = True) -> tuple[float, str]:
    """Return the largest relative difference, and in words what differs, or an empty string.

    Layers are matched by their index, whatever a format calls their kind. same_layout: whether the order of the
    channels counts too; between formats it does not, for the exporter moves the rows of the weights with it.
    The figure is inf where the tables have no pairs to compare.
    """
    ours, theirs = _by_layer(wanted), _by_layer(found)
    if ours.keys() != theirs.keys():
        return math.inf, f"{len(theirs)} layers instead of {len(ours)}"
    pairs = {(id(ours[layer]), id(theirs[layer])): layer for layer in sorted(ours, reverse=True)}
    context = min(wanted.max_position_embeddings, found.max_position_embeddings)
    figure, reasons = 0.0, []
    for layer in sorted(pairs.values()):
        a, b = ours[layer].within(context), theirs[layer].within(context)
        b = replace(b, layers=a.layers, layout=b.layout if same_layout else a.layout)
        figure = max(figure, _largest_difference(a, b, context))
        where = f"layer {layer}: " if len(pairs) > 1 else ""
        differences = in_words(a.differences(b))
        reasons += [f"{where}{differences}"] if differences else []
    return figure, reasons[0] if reasons else ""


def _by_layer(rope: RopeSet) -> dict[int, LayerRope]:
    return {layer: entry for entry in rope.entries.values() for layer in entry.layers}


def _largest_difference(a: LayerRope, b: LayerRope, context: int) -> float:
    """Return the largest relative difference of any frequency, attention factor or softmax multiplier."""
    found = [_relative(np.float64(a.softmax_multiplier), np.float64(b.softmax_multiplier))]
    if a.table is None or b.table is None:
        return found[0] if a.table is b.table else math.inf
    switches = [regime.up_to for table in (a.table, b.table) for regime in table.regimes if regime.up_to is not None]
    for length in {1, context, 2 * context, *switches, *(switch + 1 for switch in switches)}:
        first, second = a.table.at(length), b.table.at(length)
        if first.inv_freq.shape != second.inv_freq.shape:
            return math.inf
        found.append(_relative(first.inv_freq, second.inv_freq))
        found.append(_relative(np.float64(first.attention_factor), np.float64(second.attention_factor)))
    return max(found)


def _relative(a: Array | np.float64, b: Array | np.float64) -> float:
    """Return the largest difference as a part of the larger number; two zeros are equal."""
    larger = np.maximum(np.abs(a), np.abs(b))
    return float(np.max(np.abs(a - b) / np.where(larger == 0, 1.0, larger)))
