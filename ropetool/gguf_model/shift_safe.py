"""Move the attention factor of an export into its key weights, so that llama.cpp's cos and sin have the length 1.

A context shift, cache reuse and self-extend rotate cached keys again. Each time, they would multiply the keys by a
factor of cos and sin. This module only computes the factors of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ropetool.errors import LossyExport
from ropetool.families.rows import K
from ropetool.rope.tables import RopeSet
from ropetool.weights import operations
from ropetool.weights.edits import RowChange, TensorEdit, by_tensor
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.residual import residual_of, residual_words


@dataclass(frozen=True, eq=False)
class ShiftSafe:
    """The changes that make an export safe to shift.

    rope: the tables of the file, without a factor.
    gains: factors for the rows of key weights, by tensor name.
    words: a phrase for each moved factor.
    """

    rope: RopeSet
    gains: Mapping[str, RowChange]
    words: tuple[str, ...]


def shift_safe(targets: FoldTargets) -> ShiftSafe:
    """Return the changes that make the export of a checkpoint safe to shift. Without a factor, there are no gains.

    Raises: LossyExport for a factor that depends on the length, or that the weights of this family cannot absorb.
    """
    rope = replace(
        targets.rope, entries={layer_type: entry.with_factor(1.0) for layer_type, entry in targets.rope.entries.items()}
    )
    try:
        rests = residual_of(targets.rope, rope)
    except LossyExport as error:
        error.where = targets.where
        raise
    edits: list[TensorEdit] = []
    for layer_type, rest in rests.items():
        pairs = targets.rope.entries[layer_type].rotary_dim // 2
        edits += operations.gain_edits(
            targets, layer_type, [rest.rotary] * pairs, K, f"attention factor of {layer_type}"
        )
    return ShiftSafe(rope, by_tensor(edits), residual_words(rests))
