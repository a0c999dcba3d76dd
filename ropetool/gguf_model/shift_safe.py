"""An export after which llama.cpp turns queries and keys by cos and sin of length 1: the factor goes into the keys.

A context shift, cache reuse and self-extend turn cached keys once more, and a factor would multiply them each time.
Plans what the rows are multiplied by; reads and writes nothing.
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
    """rope: what the file is to ask for, no factor among it. gains: what the keys are multiplied by, by tensor; in words."""

    rope: RopeSet
    gains: Mapping[str, RowChange]
    words: tuple[str, ...]


def shift_safe(targets: FoldTargets) -> ShiftSafe:
    """Return what makes the export of a checkpoint safe to shift; nothing to multiply where it has no factor.

    Raises: LossyExport for a factor that depends on the length, or that this family's weights cannot hold.
    """
    rope = replace(targets.rope, entries={kind: entry.with_factor(1.0) for kind, entry in targets.rope.entries.items()})
    try:
        rests = residual_of(targets.rope, rope)
    except LossyExport as error:
        error.where = targets.where
        raise
    edits: list[TensorEdit] = []
    for kind, rest in rests.items():
        pairs = targets.rope.entries[kind].rotary_dim // 2
        edits += operations.gain_edits(targets, kind, [rest.rotary] * pairs, K, f"attention factor of {kind}")
    return ShiftSafe(rope, by_tensor(edits), residual_words(rests))
