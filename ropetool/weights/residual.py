"""The difference between a target score and the score from a file's keys, as tensor edits."""

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
    """The factors that the weights of one layer type must get.

    rotary: the multiplier of the rotary part of the score.
    whole: the multiplier of the whole score.
    """

    rotary: float
    whole: float

    @property
    def is_nothing(self) -> bool:
        """Return whether the keys already give the target."""
        return all(math.isclose(factor, 1, rel_tol=TABLE_TOLERANCE) for factor in (self.rotary, self.whole))


def residual_of(target: RopeSet, from_keys: RopeSet) -> dict[str, Residual]:
    """Return the factors for the weights by layer type. Layer types without a difference are left out.

    target: the tables to reach.
    from_keys: the tables from the keys.
    Raises: LossyExport if a factor depends on the length, because weights cannot.
    """
    rests = {
        layer_type: _rest(target.entries[layer_type], entry)
        for layer_type, entry in from_keys.entries.items()
        if layer_type in target.entries
    }
    return {layer_type: rest for layer_type, rest in rests.items() if not rest.is_nothing}


def _rest(target: LayerRope, from_keys: LayerRope) -> Residual:
    whole = target.softmax_multiplier / from_keys.softmax_multiplier
    if target.table is None or from_keys.table is None:
        return Residual(1.0, whole)
    pairs = zip(target.table.regimes, from_keys.table.regimes, strict=False)
    rotary = {round((ours.attention_factor / theirs.attention_factor) ** 2, 12) for ours, theirs in pairs}
    if len(rotary) > 1:
        raise LossyExport("the factor for the weights depends on the length of the text, but weights cannot")
    return Residual(rotary.pop(), whole)


def without_residual(target: RopeSet, from_keys: RopeSet) -> RopeSet:
    """Return the target with the factors from the keys, for a comparison of everything else."""
    entries = {
        layer_type: _with_factors(entry, from_keys.entries[layer_type]) if layer_type in from_keys.entries else entry
        for layer_type, entry in target.entries.items()
    }
    return replace(target, entries=entries)


def _with_factors(target: LayerRope, from_keys: LayerRope) -> LayerRope:
    if target.table is None or from_keys.table is None or target.table.rule or from_keys.table.rule:
        return replace(target, softmax_multiplier=from_keys.softmax_multiplier)
    factor = from_keys.table.regimes[-1].attention_factor
    return replace(target.with_factor(factor), softmax_multiplier=from_keys.softmax_multiplier)


def residual_words(rests: Mapping[str, Residual]) -> tuple[str, ...]:
    """Return the factors for the weights as text."""
    texts = []
    for layer_type, rest in rests.items():
        if not math.isclose(rest.rotary, 1, rel_tol=TABLE_TOLERANCE):
            texts.append(f"attention factor {math.sqrt(rest.rotary):.6g} of {layer_type}: its square into the keys")
        if not math.isclose(rest.whole, 1, rel_tol=TABLE_TOLERANCE):
            texts.append(f"softmax multiplier {rest.whole:.6g} of {layer_type}: into the queries")
    return tuple(texts)


def residual_edits(source: Bakeable, rests: Mapping[str, Residual]) -> tuple[TensorEdit, ...]:
    """Return the edits that put the factors into the weights: factors of cos and sin into keys, others into queries.

    Raises: LossyExport or UnsupportedDtype if the weights cannot store them exactly.
    """
    targets, edits = source.targets, list[TensorEdit]()
    for layer_type, rest in rests.items():
        pairs = targets.rope.entries[layer_type].rotary_dim // 2
        if not math.isclose(rest.rotary, 1, rel_tol=TABLE_TOLERANCE):
            reason = f"attention factor {math.sqrt(rest.rotary):.6g} of {layer_type}"
            edits += ops.gain_edits(targets, layer_type, [rest.rotary] * pairs, K, reason)
        if not math.isclose(rest.whole, 1, rel_tol=TABLE_TOLERANCE):
            reason = f"softmax multiplier {rest.whole:.6g} of {layer_type}"
            edits += ops.score_edits(targets, layer_type, rest.whole, ops.query_side(targets), reason)
    return source.placed(edits)
