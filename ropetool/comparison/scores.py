"""Combine the factors of the tables with the scales of the weights' rows: the change of the attention score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ropetool.comparison.relations import CONVERTED, IDENTICAL, PERMUTED, ROWS_SCALED, SCALED, Relation
from ropetool.comparison.results import NetScore, TensorDiff
from ropetool.comparison.sides import Opened
from ropetool.errors import RopetoolError
from ropetool.families.family import FoldStep
from ropetool.families.rows import K, Q
from ropetool.rope.tables import Array, LayerRope, RopeSet
from ropetool.weights.fold_targets import FoldRows, FoldTargets, fold_rows, layers

ROTARY, PLAIN = "rotary", "plain"
SAME = 1e-5  # relative; in a whole bfloat16 model, the bounds of a factor are narrower


@dataclass(frozen=True)
class _Rows:
    """The rows of a tensor that produce a part of all queries, or of all keys, in a layer."""

    tensor: str
    rows: tuple[int, ...]


def net_scores(a: Opened, ours: RopeSet, theirs: RopeSet, tensors: Mapping[str, TensorDiff]) -> tuple[NetScore, ...]:
    """Return the change of the attention score in each layer type whose weights were scaled uniformly."""
    scores: list[NetScore] = []
    if a.targets is None:
        return ()
    for layer_type, entry in ours.entries.items():
        other = theirs.entries.get(layer_type)
        if other is None or entry.table is None or other.table is None:
            continue
        tables = {
            ROTARY: float(other.score_rotary / entry.score_rotary),
            PLAIN: float(other.score_plain / entry.score_plain),
        }
        for part, by_tables in tables.items():
            bounds = _row_scale(a.targets, entry, part, tensors)
            if bounds is not None and bounds != (1.0, 1.0):
                low, high = bounds
                middle = (low + high) / 2
                same = low * (1 - SAME) <= 1 / by_tables <= high * (1 + SAME)
                scores.append(NetScore(layer_type, part, by_tables, middle, by_tables * middle, bool(same)))
    return tuple(scores)


def _row_scale(
    targets: FoldTargets, entry: LayerRope, part: str, tensors: Mapping[str, TensorDiff]
) -> tuple[float, float] | None:
    """Return the bounds of the factor on the score from all rows of this part. None if the rows do not agree."""
    by_layer: list[tuple[float, float]] = []
    try:
        for layer in layers(targets, entry):
            sides = [_side_scale(some, tensors) for some in _layer_rows(targets, entry, layer, part)]
            if not sides or any(side is None for side in sides):
                return None
            lows, highs = zip(*[side for side in sides if side], strict=True)
            by_layer.append((float(np.prod(lows)), float(np.prod(highs))))
    except RopetoolError:  # packed weights, or missing rows
        return None
    return _common(by_layer)


def _common(bounds: list[tuple[float, float]]) -> tuple[float, float] | None:
    if not bounds:
        return None
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    return (low, high) if low <= high * (1 + SAME) else None


def _side_scale(rows: list[_Rows], tensors: Mapping[str, TensorDiff]) -> tuple[float, float] | None:
    """Return the bounds of the factor on the queries or on the keys. Weights and biases must agree."""
    by_tensor = []
    for some in rows:
        tensor = tensors.get(some.tensor)
        bounds = _bounds(tensor.relation, some.rows) if tensor is not None else None
        if bounds is None:
            return None
        by_tensor.append(bounds)
    return _common(by_tensor)


def _bounds(relation: Relation, rows: tuple[int, ...]) -> tuple[float, float] | None:
    moved = relation.kind == PERMUTED and not relation.order
    if moved or relation.kind not in (IDENTICAL, CONVERTED, PERMUTED, SCALED, ROWS_SCALED):
        return None
    low: Array = np.ones(max(relation.total, max(rows) + 1))
    high = low.copy()
    for scale in relation.scales:
        for first, last in scale.rows:
            low[first : last + 1], high[first : last + 1] = scale.low, scale.high
    chosen = list(rows)
    return _common([(float(low[chosen].max()), float(high[chosen].min()))])


# --- rows of queries and keys


def _layer_rows(targets: FoldTargets, entry: LayerRope, layer: int, part: str) -> list[list[_Rows]]:
    """Return the rows of a layer's queries, of its keys, and of a scale on whole queries. Empty if some are unknown.

    If a norm follows a projection, only the rows of the norm scale the rotated channels.
    """
    bake, sides = targets.steps, []
    for side, steps in ((Q, bake.q), (K, bake.k)):
        if side == K and part == PLAIN and targets.family.mla:
            some = _whole(targets, entry, layer, bake.k_plain, K)
            if not some:
                return []
        else:
            some = [
                _Rows(p.tensor, rows)
                for p in fold_rows(targets, entry, layer, steps, side, last=True)
                if (rows := _of_heads(p, entry.rotary_dim, part))
            ]
        sides += [some] if some else []
    return sides + [[one] for one in _whole(targets, entry, layer, bake.score, Q)]


def _whole(targets: FoldTargets, entry: LayerRope, layer: int, steps: tuple[FoldStep, ...], side: str) -> list[_Rows]:
    if not steps:
        return []
    places = fold_rows(targets, entry, layer, steps, side, last=True)
    return [_Rows(p.tensor, tuple(start + i for start in p.starts for i in range(p.width))) for p in places]


def _of_heads(place: FoldRows, rotary_dim: int, part: str) -> tuple[int, ...]:
    inside = range(place.rotary, place.rotary + rotary_dim)
    channels = [i for i in range(place.width) if (i in inside) == (part == ROTARY)]
    return tuple(start + i for start in place.starts for i in channels)
