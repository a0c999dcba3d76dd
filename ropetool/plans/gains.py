"""An extension with gains in the weights beside it, as one plan: what a table cannot say, and a search may find.

Chooses nothing: which gains is for a search or a user to say.
"""

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

    Those of full attention. Shapes: pair_gains (rotary_dim // 2,); head_gains (layers, heads, bands).
    Raises: LossyExport, UnsupportedDtype where the weights cannot hold them; ConfigError for a wrong number of them.
    """
    source = bakeable(checkpoint, plan.bake_dtype)
    edits: list[TensorEdit] = []
    if pair_gains:
        edits += bakes.pair_gain(source, {names.FULL_ATTENTION: pair_gains}).tensors
    if head_gains:
        edits += source.placed(head_gain_edits(source.targets, names.FULL_ATTENTION, head_gains))
    tensors = (*plan.tensors, *edits)
    each = {edit.tensor: edit for edit in edits}  # of heads there are several a tensor
    return replace(
        plan, tensors=tensors, bakes=(*plan.bakes, *described(list(each.values()))), edits=(*plan.edits, *source.other_edits(edits)),
        weight_files=marks(tensors, weight_files(checkpoint)),
    )  # fmt: skip


def heads_of(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return how many query heads each layer of full attention has.

    Raises: LossyExport where no gain of a head can be folded into the weights.
    """
    targets = bakeable(checkpoint).targets
    entry = targets.rope.entries[names.FULL_ATTENTION]
    counts = [targets.sizes(entry, layer).of(Q) for layer in layers(targets, entry)]
    head_gain_edits(targets, names.FULL_ATTENTION, [[[1.0]] * count for count in counts])
    return tuple(counts)
