"""NTK-aware scaling: a larger base, so that the slowest pair rotates s times as slowly and the fastest one stays.

It does not reach s times the trained length, because the first pair with less than one turn leaves its arc earlier.
"""

from __future__ import annotations

from ropetool.rope.formulas import Source, ntk_stretch
from ropetool.rope.methods.base import Derived, Goal, NoParams, chosen_attention_factor, reach_note
from ropetool.rope.tables import RopeTable

NAME = "ntk"
ALIASES = ("ntk-aware",)
SUMMARY = "NTK-aware: a larger base; fastest pair unchanged, slowest divided by the factor"
SOURCE = "bloc97 2023, reddit.com/r/LocalLLaMA/comments/14lz7j5"
AUTO_ATTENTION_FACTOR = "none"


def derive(source: Source, goal: Goal, params: NoParams) -> Derived:
    d = source.rotary_dim
    attention_factor = chosen_attention_factor(source, goal, AUTO_ATTENTION_FACTOR)
    inv_freq = source.inv_freq * ntk_stretch(d, goal.factor)
    native: tuple[dict[str, object], ...] = ()
    if source.rope_theta is not None:
        native = ({"rope_type": "default", "rope_theta": source.rope_theta * goal.factor ** (d / (d - 2))},)
    return Derived(
        RopeTable.fixed(inv_freq, attention_factor),
        goal.target_length,
        native=native,
        softmax_multiplier=source.softmax_multiplier,
        notes=reach_note(NAME, source, inv_freq, goal.target_length),
    )
