"""Gains of single heads, or of bands of rotary pairs in them, as edits of query rows.

If a norm is between projection and rotation, the heads share it, and a gain of a single head cannot be folded into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ropetool.errors import ConfigError, LossyExport
from ropetool.families.rows import Q
from ropetool.rope.tables import LayerRope
from ropetool.weights.edits import SCALE, TensorEdit
from ropetool.weights.fold_targets import FoldRows, FoldTargets, fold_rows, layers

REASON = "gains of heads"


def head_gain_edits(
    targets: FoldTargets, layer_type: str, gains: Sequence[Sequence[Sequence[float]]]
) -> list[TensorEdit]:
    """Return the edits that multiply the scores of each query head, or of each band of its rotary pairs, by a gain.

    A single band is the whole head, including channels that do not rotate. Several bands divide the pairs into equal
    parts, the fastest first, and do not change other channels.
    Shapes: gains (layers of this layer type, heads, bands).
    Raises: LossyExport if heads share the rows; ConfigError for a wrong number of gains.
    """
    entry = targets.rope.entries[layer_type]
    chosen = layers(targets, entry)
    if len(gains) != len(chosen):
        raise ConfigError(f"{layer_type} has {len(chosen)} layers, but there are gains for {len(gains)}", where="gains")
    return [
        edit
        for layer, of_layer in zip(chosen, gains, strict=True)
        for place in fold_rows(targets, entry, layer, targets.steps.q, Q, last=True)
        for edit in _of_place(targets, entry, layer, place, of_layer)
    ]


def _of_place(
    targets: FoldTargets, entry: LayerRope, layer: int, place: FoldRows, gains: Sequence[Sequence[float]]
) -> list[TensorEdit]:
    heads = targets.sizes(entry, layer).of(Q)
    if len(place.starts) != heads:
        raise LossyExport(
            f"the {heads} heads share {place.tensor}, so the gain of a single head cannot be folded into it",
            where=targets.where,
        )
    if len(gains) != heads:
        raise ConfigError(f"layer {layer} has {heads} query heads, but there are {len(gains)} gains", where="gains")
    return [
        _edit(place, start, entry, values)
        for start, values in zip(place.starts, gains, strict=True)
        if any(value != 1 for value in values)
    ]


def _edit(place: FoldRows, start: int, entry: LayerRope, values: Sequence[float]) -> TensorEdit:
    if len(values) == 1:
        return TensorEdit(
            place.tensor, SCALE, place.height, (start,), place.width, factors=(float(values[0]),), offset=place.offset,
            reason=REASON,
        )  # fmt: skip
    pairs = entry.rotary_dim // 2
    ends = np.linspace(0, pairs, len(values) + 1).round().astype(int)
    each = np.repeat(values, [end - begin for begin, end in pairwise(ends)])
    rows = np.repeat(each, 2) if entry.layout == "interleaved" else np.tile(each, 2)
    return TensorEdit(
        place.tensor, SCALE, place.height, (start + place.rotary,), 2 * pairs, factors=tuple(map(float, rows)),
        offset=place.offset, reason=REASON,
    )  # fmt: skip
