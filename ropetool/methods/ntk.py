"""NTK-aware scaling: a larger base, chosen so that the slowest pair turns s times as slowly and the fastest stays.

It does not reach s times the trained length: the first pair with under one turn leaves its arc earlier.
"""

from __future__ import annotations

import math

from ropetool import rope
from ropetool.methods.base import Derived, Goal, NoParams, Source, chosen_attention_factor, ntk_stretch
from ropetool.spec import RopeTable

NAME = "ntk"
ALIASES = ("ntk-aware",)
SUMMARY = "NTK-aware: a larger base; fastest pair unchanged, slowest divided by the factor"
SOURCE = "bloc97 2023, reddit.com/r/LocalLLaMA/comments/14lz7j5"
AUTO_ATTENTION_FACTOR = "none"
Params = NoParams


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
        notes=_reach_note(source, inv_freq, goal),
    )


def _reach_note(source: Source, inv_freq: object, goal: Goal) -> tuple[str, ...]:
    """Say where the first pair that never turned in training leaves the arc that it has seen."""
    slow = rope.turns(source.inv_freq, source.length) < 1
    if not slow.any() or goal.factor == 1:
        return ()
    first = int(slow.argmax())
    reach = source.length * goal.factor ** (2 * first / (source.rotary_dim - 2))
    if reach >= goal.target_length:
        return ()
    return (
        f"ntk leaves the trained arc of pair {first} at about {math.floor(reach)} tokens, "
        f"before the target of {goal.target_length}; yarn reaches its target",
    )
