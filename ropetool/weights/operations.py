"""The changes that weights can store exactly, as tensor edits.

A multiple of the score or a new order of pairs can be folded into weights. A change of a frequency cannot
(docs/bake.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ropetool.errors import ConfigError
from ropetool.families.rows import K, Q
from ropetool.rope.arithmetic import half_to_interleaved, interleaved_to_half
from ropetool.rope.tables import LayerRope, is_number
from ropetool.weights.edits import PERMUTE, SCALE, TensorEdit
from ropetool.weights.fold_targets import FoldRows, FoldTargets, fold_rows, layers

BOTH = "both"
SIDES = (K, Q, BOTH)
NORM = "norm"  # MLA's query latent, which takes factors of the whole score only
STILL_DIVISOR = 1e30  # of a frequency, so that the pair does not rotate within any length


def gain_edits(
    targets: FoldTargets, layer_type: str, gains: Sequence[float], side: str, reason: str
) -> list[TensorEdit]:
    """Return the edits that multiply the score of each rotary pair by its gain, in all layers of this layer type.

    A gain of 0 mutes a pair.

    Shapes: gains (rotary_dim // 2,).
    Raises: ConfigError for a negative gain or a wrong number of gains; LossyExport if the family has no suitable rows.
    """
    entry = _rotating(targets, layer_type)
    pairs = entry.rotary_dim // 2
    if len(gains) != pairs or not all(is_number(gain) and gain >= 0 for gain in gains):
        raise ConfigError(f"needs {pairs} gains of at least 0, one for each rotary pair of {layer_type}", where="gains")
    edits = []
    for layer in layers(targets, entry):
        for one, values in _split(side, gains):
            steps = targets.steps.q if one == Q else targets.steps.k
            edits += [
                _gain(place, values, entry.layout, reason)
                for place in fold_rows(targets, entry, layer, steps, one, last=True)
            ]
        if targets.steps.indexer_k:  # the choice of tokens depends on the same table
            edits += [
                _gain(place, gains, targets.steps.indexer_layout, reason)
                for place in fold_rows(targets, entry, layer, targets.steps.indexer_k, K, last=True)
            ]
    return edits


def _rotating(targets: FoldTargets, layer_type: str) -> LayerRope:
    entry = targets.rope.entries.get(layer_type)
    if entry is None or entry.table is None:
        raise ConfigError(f"{layer_type} is not a layer type that rotates in this model", where=targets.where)
    return entry


def _split(side: str, gains: Sequence[float]) -> list[tuple[str, Sequence[float]]]:
    if side not in SIDES:
        raise ConfigError(f"{side!r} is not one of {', '.join(SIDES)}", where="--side")
    if side != BOTH:
        return [(side, gains)]
    roots = [math.sqrt(gain) for gain in gains]
    return [(K, roots), (Q, roots)]


def _gain(place: FoldRows, gains: Sequence[float], layout: str, reason: str) -> TensorEdit:
    length = 2 * len(gains)
    if len(set(gains)) == 1:
        factors: tuple[float, ...] = (float(gains[0]),)
    else:
        doubled = np.repeat(gains, 2) if layout == "interleaved" else np.tile(gains, 2)
        factors = tuple(map(float, doubled))
    starts = tuple(start + place.rotary for start in place.starts)
    return TensorEdit(
        place.tensor, SCALE, place.height, starts, length, factors=factors, offset=place.offset, reason=reason
    )


def score_edits(targets: FoldTargets, layer_type: str, multiplier: float, side: str, reason: str) -> list[TensorEdit]:
    """Return the edits that multiply the whole score, of rotary and other channels, in all layers of this layer type.

    side: K, Q, BOTH, or NORM for MLA's query latent, one small vector per layer.
    Raises: ConfigError, LossyExport.
    """
    entry = targets.rope.entries[layer_type]
    if not is_number(multiplier) or multiplier <= 0:
        raise ConfigError(
            f"the multiplier of the score is {multiplier}; it must be a number above 0", where=targets.where
        )
    sides = [(Q, (multiplier,))] if side == NORM else _split(side, (multiplier,))
    edits = []
    for layer in layers(targets, entry):
        for one, (factor,) in sides:
            chosen = _whole(targets, entry, layer, NORM if side == NORM else one)
            if not chosen:
                raise ConfigError(
                    f"{targets.family.model_type} has no query latent here", where="--side", try_="--side q or --side k"
                )
            edits += [
                TensorEdit(
                    p.tensor, SCALE, p.height, p.starts, p.width, factors=(factor,), offset=p.offset, reason=reason
                )
                for p in chosen
            ]
    return edits


def query_side(targets: FoldTargets) -> str:
    """Return the place of a factor on the queries: NORM if the model has MLA's query latent, else Q."""
    return NORM if targets.steps.score and targets.config.get("q_lora_rank") else Q


def score_side(targets: FoldTargets) -> str:
    """Return the default place of a factor of the whole score: the keys, if they support it."""
    return K if _keys_take_scores(targets) else query_side(targets)


def _keys_take_scores(targets: FoldTargets) -> bool:
    return not targets.family.mla or bool(targets.steps.k_plain)


def _whole(targets: FoldTargets, entry: LayerRope, layer: int, side: str) -> list[FoldRows]:
    """Return the rows for a factor of the whole score."""
    steps = targets.steps
    if side == NORM:
        return fold_rows(targets, entry, layer, steps.score, Q, last=True)
    if side == Q:
        return fold_rows(targets, entry, layer, steps.q, Q, last=True)
    if not _keys_take_scores(targets):
        raise ConfigError(
            "a GGUF file stores the MLA keys transposed in attn_k_b, so only the queries can scale the whole score",
            where="--side", try_="--side norm or --side q",
        )  # fmt: skip
    rotary = fold_rows(targets, entry, layer, steps.k, K, last=True)
    return rotary + fold_rows(targets, entry, layer, steps.k_plain, K, last=True)


def order_edits(targets: FoldTargets, layer_type: str, order: Sequence[int], reason: str) -> list[TensorEdit]:
    """Return the edits that reorder the rotary channels of all queries and keys. New channel i is old channel order[i].

    Norms and biases are permuted with their projection. An indexer has a separate order and keeps it.
    Shapes: order (rotary_dim,).
    """
    entry = _rotating(targets, layer_type)
    edits = []
    for layer in layers(targets, entry):
        for side, steps in ((Q, targets.steps.q), (K, targets.steps.k)):
            for place in fold_rows(targets, entry, layer, steps, side, last=False):
                edits.append(_ordered(place, order, reason))
    return edits


def _ordered(place: FoldRows, order: Sequence[int], reason: str) -> TensorEdit:
    starts = tuple(start + place.rotary for start in place.starts)
    return TensorEdit(
        place.tensor, PERMUTE, place.height, starts, len(order), order=tuple(map(int, order)), offset=place.offset,
        reason=reason,
    )  # fmt: skip


def layout_edits(targets: FoldTargets, layer_type: str, layout: str, reason: str) -> list[TensorEdit]:
    """Return the edits that change the channel order to `layout`.

    Raises: ConfigError if it already has this order.
    """
    entry = _rotating(targets, layer_type)
    if entry.layout == layout or layout not in ("half", "interleaved"):
        raise ConfigError(f"{layer_type} has the layout {entry.layout} and cannot become {layout}", where=targets.where)
    change = half_to_interleaved if layout == "interleaved" else interleaved_to_half
    return order_edits(targets, layer_type, change(entry.rotary_dim).tolist(), reason)


def kept_first(rotary_dim: int, dropped: Iterable[int], layout: str) -> npt.NDArray[np.int64]:
    """Return the channel order with the kept pairs first and the dropped pairs after them, in this layout."""
    pairs = rotary_dim // 2
    gone = sorted(set(dropped))
    if not all(0 <= pair < pairs for pair in gone) or len(gone) == pairs:
        raise ConfigError(f"pairs must be from 0 to {pairs - 1}, and at least one pair must remain", where="--pairs")
    kept = [pair for pair in range(pairs) if pair not in gone]
    if layout == "interleaved":
        order = [2 * pair + t for pair in (*kept, *gone) for t in (0, 1)]
    else:
        order = [pair + t * pairs for part in (kept, gone) for t in (0, 1) for pair in part]
    return np.array(order, dtype=np.int64)


def mute_edits(targets: FoldTargets, layer_type: str, pairs: Iterable[int], reason: str) -> list[TensorEdit]:
    """Return the edits that set the key rows of these pairs to zero, which removes them from the score."""
    entry = _rotating(targets, layer_type)
    gone = set(pairs)
    kept_first(entry.rotary_dim, gone, entry.layout)  # checks the numbers
    gains = [0.0 if pair in gone else 1.0 for pair in range(entry.rotary_dim // 2)]
    return gain_edits(targets, layer_type, gains, K, reason)
