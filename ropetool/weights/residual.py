"""What keys leave to the weights: the part of a wanted score that a file's keys do not ask for, as tensor edits.

Compares tables; which keys to try is not its to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ropetool.errors import LossyExport
from ropetool.families.rows import K
from ropetool.rope.tables import TABLE_TOLERANCE, LayerRope, RopeSet
from ropetool.weights import operations as ops
from ropetool.weights.bakeable import Bakeable
from ropetool.weights.edits import TensorEdit


@dataclass(frozen=True)
class Residual:
    """What the weights of one kind of layer must still multiply: the rotary part of the score, and all of it."""

    rotary: float
    whole: float

    @property
    def is_nothing(self) -> bool:
        """Return whether the keys say it all."""
        return all(math.isclose(factor, 1, rel_tol=TABLE_TOLERANCE) for factor in (self.rotary, self.whole))


def residual_of(wanted: RopeSet, found: RopeSet) -> dict[str, Residual]:
    """Return what is left of the wanted score by kind of layer, those with nothing left out.

    Raises: LossyExport if it depends on the length, which weights do not.
    """
    rests = {
        kind: _rest(wanted.entries[kind], entry) for kind, entry in found.entries.items() if kind in wanted.entries
    }
    return {kind: rest for kind, rest in rests.items() if not rest.is_nothing}


def _rest(wanted: LayerRope, found: LayerRope) -> Residual:
    whole = wanted.softmax_multiplier / found.softmax_multiplier
    if wanted.table is None or found.table is None:
        return Residual(1.0, whole)
    pairs = zip(wanted.table.regimes, found.table.regimes, strict=False)
    rotary = {round((ours.attention_factor / theirs.attention_factor) ** 2, 12) for ours, theirs in pairs}
    if len(rotary) > 1:
        raise LossyExport("the factor for the weights depends on the length of the text, but weights cannot")
    return Residual(rotary.pop(), whole)


def without_residual(wanted: RopeSet, found: RopeSet) -> RopeSet:
    """Return the wanted score with the factors that the keys of `found` ask for: what must then agree is the rest."""
    entries = {
        kind: _with_factors(entry, found.entries[kind]) if kind in found.entries else entry
        for kind, entry in wanted.entries.items()
    }
    return replace(wanted, entries=entries)


def _with_factors(wanted: LayerRope, found: LayerRope) -> LayerRope:
    if wanted.table is None or found.table is None or wanted.table.rule or found.table.rule:
        return replace(wanted, softmax_multiplier=found.softmax_multiplier)
    factor = found.table.regimes[-1].attention_factor
    return replace(wanted.with_factor(factor), softmax_multiplier=found.softmax_multiplier)


def residual_words(rests: Mapping[str, Residual]) -> tuple[str, ...]:
    """Return what goes into the weights, in words."""
    found = []
    for kind, rest in rests.items():
        if not math.isclose(rest.rotary, 1, rel_tol=TABLE_TOLERANCE):
            found.append(f"attention factor {math.sqrt(rest.rotary):.6g} of {kind}: its square into the keys")
        if not math.isclose(rest.whole, 1, rel_tol=TABLE_TOLERANCE):
            found.append(f"softmax multiplier {rest.whole:.6g} of {kind}: into the queries")
    return tuple(found)


def residual_edits(source: Bakeable, rests: Mapping[str, Residual]) -> tuple[TensorEdit, ...]:
    """Return the edits that put the rest into the weights: factors of cos and sin into keys, others into queries.

    Raises: LossyExport, UnsupportedDtype where the weights cannot hold it exactly.
    """
    targets, edits = source.targets, list[TensorEdit]()
    for kind, rest in rests.items():
        pairs = targets.rope.entries[kind].rotary_dim // 2
        if not math.isclose(rest.rotary, 1, rel_tol=TABLE_TOLERANCE):
            reason = f"attention factor {math.sqrt(rest.rotary):.6g} of {kind}"
            edits += ops.gain_edits(targets, kind, [rest.rotary] * pairs, K, reason)
        if not math.isclose(rest.whole, 1, rel_tol=TABLE_TOLERANCE):
            reason = f"softmax multiplier {rest.whole:.6g} of {kind}"
            edits += ops.score_edits(targets, kind, rest.whole, ops.query_side(targets), reason)
    return source.placed(edits)
