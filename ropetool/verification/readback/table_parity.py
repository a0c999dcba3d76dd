"""Comparison of two decoded rotations, layer by layer."""

from __future__ import annotations

import math

import numpy as np

from ropetool.rope.deviation import aligned
from ropetool.rope.tables import Array, LayerRope, RopeSet, in_words


def compare_tables(expected: RopeSet, rope: RopeSet, *, same_layout: bool = True) -> tuple[float, str]:
    """Return the largest relative difference, and a description of the difference or "".

    Layers are matched by their index, because formats name layer types differently. The difference is inf if the tables
    have different sizes.

    same_layout: whether the order of the channels counts too. It does not count between formats, because the exporter
      reorders the rows of the weights accordingly.
    """
    layers = aligned(expected, rope, same_layout=same_layout)
    if layers is None:
        counts = [sum(len(entry.layers) for entry in each.entries.values()) for each in (expected, rope)]
        return math.inf, f"{counts[1]} layers instead of {counts[0]}"
    context = min(expected.max_position_embeddings, rope.max_position_embeddings)
    figure, reasons = 0.0, []
    for layer, ours, theirs in layers:
        figure = max(figure, _largest_difference(ours, theirs, context))
        where = f"layer {layer}: " if len(layers) > 1 else ""
        differences = in_words(ours.differences(theirs))
        reasons += [f"{where}{differences}"] if differences else []
    return figure, reasons[0] if reasons else ""


def _largest_difference(a: LayerRope, b: LayerRope, context: int) -> float:
    """Return the largest relative difference of any frequency, attention factor or softmax multiplier."""
    differences = [_relative(np.float64(a.softmax_multiplier), np.float64(b.softmax_multiplier))]
    if a.table is None or b.table is None:
        return differences[0] if a.table is b.table else math.inf
    switches = [regime.up_to for table in (a.table, b.table) for regime in table.regimes if regime.up_to is not None]
    for length in {1, context, 2 * context, *switches, *(switch + 1 for switch in switches)}:
        first, second = a.table.at(length), b.table.at(length)
        if first.inv_freq.shape != second.inv_freq.shape:
            return math.inf
        differences.append(_relative(first.inv_freq, second.inv_freq))
        differences.append(_relative(np.float64(first.attention_factor), np.float64(second.attention_factor)))
    return max(differences)


def _relative(a: Array | np.float64, b: Array | np.float64) -> float:
    """Return the largest difference, divided by the larger of the two numbers. Two zeros are equal."""
    larger = np.maximum(np.abs(a), np.abs(b))
    return float(np.max(np.abs(a - b) / np.where(larger == 0, 1.0, larger)))
