"""A model that drafts tokens for another one: it has to rotate by the same table, or its drafts are refused beyond the trained length."""

from __future__ import annotations

import math

from ropetool.errors import InvalidRope
from ropetool.plans.plan import Plan
from ropetool.rope.tables import LayerRope


def check_companion(plan: Plan, companion: Plan) -> None:
    """Raise InvalidRope where a layer of the companion would rotate otherwise than any layer of the planned model."""
    assert plan.target is not None  # both have just been made
    assert companion.target is not None
    rotating = [entry for entry in plan.target.entries.values() if entry.table is not None]
    for entry in companion.target.entries.values():
        if entry.table is None or any(_alike(entry, one) for one in rotating):
            continue
        model = rotating[0] if rotating else entry
        pairs, theirs = entry.rotary_dim // 2, model.rotary_dim // 2
        reason = (
            "layers that rotate, and the model none" if not rotating
            else f"{pairs} rotary pairs, and the model {theirs}" if pairs != theirs
            else f"base {entry.rope_theta:g}, and the model {model.rope_theta:g}" if entry.rope_theta != model.rope_theta
            else "a table or a softmax scale of its own"
        )  # fmt: skip
        raise InvalidRope(
            f"it has {reason}: the model's table is none for it",
            try_="leave out --companion, and extend it by a command of its own to the same length",
        )  # fmt: skip


def _alike(one: LayerRope, other: LayerRope) -> bool:
    assert one.table is not None
    scales = math.isclose(one.softmax_multiplier, other.softmax_multiplier, rel_tol=1e-6)
    return other.table is not None and one.table.agrees(other.table) and scales
