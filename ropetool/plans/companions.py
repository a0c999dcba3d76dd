"""Check that a draft model gets the same table as its model. With a different table, its drafts would be rejected."""

from __future__ import annotations

import math

from ropetool.errors import InvalidRope
from ropetool.plans.plan import Plan
from ropetool.rope.tables import LayerRope


def check_companion(plan: Plan, companion: Plan) -> None:
    """Raise InvalidRope if a layer of the draft model would rotate differently from all layers of the planned model."""
    assert plan.target is not None  # new plans always have a target
    assert companion.target is not None
    rotating = [entry for entry in plan.target.entries.values() if entry.table is not None]
    for entry in companion.target.entries.values():
        if entry.table is None or any(_alike(entry, one) for one in rotating):
            continue
        model = rotating[0] if rotating else entry
        pairs, theirs = entry.rotary_dim // 2, model.rotary_dim // 2
        reason = (
            "rotating layers, but the model has none" if not rotating
            else f"{pairs} rotary pairs, but the model has {theirs}" if pairs != theirs
            else f"base {entry.rope_theta:g}, but the model has {model.rope_theta:g}" if entry.rope_theta != model.rope_theta
            else "a different table or softmax scale"
        )  # fmt: skip
        raise InvalidRope(
            f"it has {reason}, so the model's table does not fit it",
            try_="leave out --companion, and extend the draft model separately to the same length",
        )  # fmt: skip


def _alike(one: LayerRope, other: LayerRope) -> bool:
    assert one.table is not None
    scales = math.isclose(one.softmax_multiplier, other.softmax_multiplier, rel_tol=1e-6)
    return other.table is not None and one.table.agrees(other.table) and scales
