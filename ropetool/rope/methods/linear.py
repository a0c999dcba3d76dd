"""Linear, or position interpolation: every pair rotates s times as slowly.

All positions are then within the trained range, but local distances shrink too. Results are poor without fine-tuning.
"""

from __future__ import annotations

from ropetool.rope.formulas import Source
from ropetool.rope.methods.base import Derived, Goal, NoParams, chosen_attention_factor
from ropetool.rope.tables import RopeTable

NAME = "linear"
ALIASES = ("pi",)
SUMMARY = "position interpolation: all frequencies divided by the factor"
SOURCE = "arXiv:2306.15595; kaiokendev 2023"
AUTO_ATTENTION_FACTOR = "none"


def derive(source: Source, goal: Goal, params: NoParams) -> Derived:
    attention_factor = chosen_attention_factor(source, goal, AUTO_ATTENTION_FACTOR)
    return Derived(
        RopeTable.fixed(source.inv_freq / goal.factor, attention_factor),
        goal.target_length,
        native=({"rope_type": "linear", "factor": goal.factor},) if source.rope_theta is not None else (),
        softmax_multiplier=source.softmax_multiplier,
    )
