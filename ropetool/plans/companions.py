"""A model that drafts tokens for another one: it has to rotate by the same table, or its drafts are refused beyond the trained length."""

from __future__ import annotations

from ropetool import names
from ropetool.errors import InvalidRope
from ropetool.plans.plan import Plan


def check_companion(plan: Plan, companion: Plan, where: str) -> None:
    """Raise InvalidRope where a layer of the companion would rotate by a table that the planned model has nowhere.

    Each kind of layer is compared with that kind of the model, full attention where it has no such kind.
    """
    assert plan.target is not None  # both have just been made
    assert companion.target is not None
    for kind, entry in companion.target.entries.items():
        model = plan.target.entries.get(kind) or plan.target.entries[names.FULL_ATTENTION]
        if entry.table is None or (model.table is not None and entry.table.agrees(model.table)):
            continue
        pairs, theirs = entry.rotary_dim // 2, model.rotary_dim // 2
        reason = (
            f"{pairs} rotary pairs, and the model {theirs}" if pairs != theirs
            else f"base {entry.rope_theta:g}, and the model {model.rope_theta:g}" if entry.rope_theta != model.rope_theta
            else "a table of its own"
        )  # fmt: skip
        raise InvalidRope(
            f"it has {reason}: the model's table is none for it", where=where,
            try_="leave out --companion, and extend it by a command of its own to the same length",
        )  # fmt: skip
