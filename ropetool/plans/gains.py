"""Add gains of rotary pairs or heads to the plan of an extension. The weights store the gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ropetool import names
from ropetool.checkpoint.opening import Checkpoint
from ropetool.families.rows import Q
from ropetool.plans.plan import Plan
from ropetool.weights import bakes
from ropetool.weights.edits import TensorEdit, described
from ropetool.weights.fold_targets import layers
from ropetool.weights.head_gains import head_gain_edits
from ropetool.weights.opening import bakeable
from ropetool.weights.weight_files import weight_files
from ropetool.weights.writing import marks


def with_gains(
    plan: Plan,
    checkpoint: Checkpoint,
    pair_gains: Sequence[float] = (),
    head_gains: Sequence[Sequence[Sequence[float]]] = (),
) -> Plan:
    """Return the plan with gains of rotary pairs in the keys, or of heads and their bands in the queries.

    The gains apply to full-attention layers. Shapes: pair_gains (rotary_dim // 2,); head_gains (layers, heads, bands).
    Raises: LossyExport, UnsupportedDtype if the weights cannot store them. ConfigError for a wrong number of gains.
    """
    source = bakeable(checkpoint, plan.bake_dtype)
    edits: list[TensorEdit] = []
    if pair_gains:
        edits += bakes.pair_gain(source, {names.FULL_ATTENTION: pair_gains}).tensors
    if head_gains:
        edits += source.placed(head_gain_edits(source.targets, names.FULL_ATTENTION, head_gains))
    tensors = (*plan.tensors, *edits)
    by_tensor = {edit.tensor: edit for edit in edits}  # a tensor may have several edits, one for each head
    return replace(
        plan, tensors=tensors, bakes=(*plan.bakes, *described(list(by_tensor.values()))), edits=(*plan.edits, *source.other_edits(edits)),
        weight_files=marks(tensors, weight_files(checkpoint)),
    )  # fmt: skip


def heads_of(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return the number of query heads in each full-attention layer.

    Raises: LossyExport if the weights cannot store a gain for a head.
    """
    targets = bakeable(checkpoint).targets
    entry = targets.rope.entries[names.FULL_ATTENTION]
    counts = [targets.sizes(entry, layer).of(Q) for layer in layers(targets, entry)]
    head_gain_edits(targets, names.FULL_ATTENTION, [[[1.0]] * count for count in counts])
    return tuple(counts)
