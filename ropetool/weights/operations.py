"""The changes that weights can carry exactly, as tensor edits: gains of pairs, scales of the score, channel orders.

What is a multiple of the score or a reordering of pairs folds; a change of a frequency never does (docs/bake.md).
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
STILL_DIVISOR = 1e30  # of a frequency: the pair turns by nothing within any length


def gain_edits(
    targets: FoldTargets, layer_type: str, gains: Sequence[float], side: str, reason: str
) -> list[TensorEdit]:
    """Return the edits that multiply the score of each rotary pair by its gain, in all layers of this kind.

    Shapes: gains (rotary_dim // 2,). A gain of 0 mutes a pair.
    Raises: ConfigError for a gain below 0 or too many of them; LossyExport where the family has no place.
    """
    entry = _rotating(targets, layer_type)
    pairs = entry.rotary_dim // 2
    if len(gains) != pairs or not all(is_number(gain) and gain >= 0 for gain in gains):
        raise ConfigError(f"needs {pairs} gains of at least 0, one for each rotary pair of {layer_type}", where="gains")
    found = []
    for layer in layers(targets, entry):
        for one, values in _split(side, gains):
            steps = targets.steps.q if one == Q else targets.steps.k
            found += [
                _gain(place, values, entry.layout, reason)
                for place in fold_rows(targets, entry, layer, steps, one, last=True)
            ]
        if targets.steps.indexer_k:  # which tokens are chosen depends on the same table
            found += [
                _gain(place, gains, targets.steps.indexer_layout, reason)
                for place in fold_rows(targets, entry, layer, targets.steps.indexer_k, K, last=True)
            ]
    return found


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
    """Return the edits that multiply the whole score, rotary or not, in all layers of this kind.

    side: norm is MLA's query latent, one small vector a layer.
    Raises: ConfigError, LossyExport.
    """
    entry = targets.rope.entries[layer_type]
    if not is_number(multiplier) or multiplier <= 0:
        raise ConfigError(
            f"the multiplier of the score is {multiplier}; it must be a number above 0", where=targets.where
        )
    sides = [(Q, (multiplier,))] if side == NORM else _split(side, (multiplier,))
    found = []
    for layer in layers(targets, entry):
        for one, (factor,) in sides:
            chosen = _whole(targets, entry, layer, NORM if side == NORM else one)
            if not chosen:
                raise ConfigError(
                    f"{targets.family.model_type} has no query latent here", where="--side", try_="--side q or --side k"
                )
            found += [
                TensorEdit(
                    p.tensor, SCALE, p.height, p.starts, p.width, factors=(factor,), offset=p.offset, reason=reason
                )
                for p in chosen
            ]
    return found


def query_side(targets: FoldTargets) -> str:
    """Return where queries take a factor of the whole score: in MLA's query latent, where there is one, else in their rows."""
    return NORM if targets.steps.score and targets.config.get("q_lora_rank") else Q


def score_side(targets: FoldTargets) -> str:
    """Return where a factor of the whole score goes by default: into the keys, if they can take it."""
    return K if _keys_take_scores(targets) else query_side(targets)


def _keys_take_scores(targets: FoldTargets) -> bool:
    return not targets.family.mla or bool(targets.steps.k_plain)


def _whole(targets: FoldTargets, entry: LayerRope, layer: int, side: str) -> list[FoldRows]:
    """Return the rows that a factor on the whole score goes into."""
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
    """Return the edits that put the rotary channels of all queries and keys into another order: new i is old order[i].

    Norms and biases are permuted with their projection; an indexer has an order of its own and keeps it.
    Shapes: order (rotary_dim,).
    """
    entry = _rotating(targets, layer_type)
    found = []
    for layer in layers(targets, entry):
        for side, steps in ((Q, targets.steps.q), (K, targets.steps.k)):
            for place in fold_rows(targets, entry, layer, steps, side, last=False):
                found.append(_ordered(place, order, reason))
    return found


def _ordered(place: FoldRows, order: Sequence[int], reason: str) -> TensorEdit:
    starts = tuple(start + place.rotary for start in place.starts)
    return TensorEdit(
        place.tensor, PERMUTE, place.height, starts, len(order), order=tuple(map(int, order)), offset=place.offset,
        reason=reason,
    )  # fmt: skip


def layout_edits(targets: FoldTargets, layer_type: str, layout: str, reason: str) -> list[TensorEdit]:
    """Return the edits that change the channel order from the model's to `layout`.

    Raises: ConfigError if that is the order it has.
    """
    entry = _rotating(targets, layer_type)
    if entry.layout == layout or layout not in ("half", "interleaved"):
        raise ConfigError(f"{layer_type} has the layout {entry.layout} and cannot become {layout}", where=targets.where)
    change = half_to_interleaved if layout == "interleaved" else interleaved_to_half
    return order_edits(targets, layer_type, change(entry.rotary_dim).tolist(), reason)


def kept_first(rotary_dim: int, dropped: Iterable[int], layout: str) -> npt.NDArray[np.int64]:
    """Return the channel order that puts the kept pairs first, in the layout, and the dropped ones behind them."""
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
    """Return the edits that set the key rows of these pairs to zero: the score loses them."""
    entry = _rotating(targets, layer_type)
    gone = set(pairs)
    kept_first(entry.rotary_dim, gone, entry.layout)  # checks the numbers
    gains = [0.0 if pair in gone else 1.0 for pair in range(entry.rotary_dim // 2)]
    return gain_edits(targets, layer_type, gains, K, reason)
