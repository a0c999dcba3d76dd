"""llama3: Llama 3.1's ramp, linear in turns between low_freq_factor and high_freq_factor, no attention factor."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ropetool.errors import InvalidRope
from ropetool.rope.formulas import Source, blend, kept_share_by_turns
from ropetool.rope.methods.base import Derived, Goal, chosen_attention_factor, described
from ropetool.rope.tables import RopeTable

NAME = "llama3"
ALIASES = ()
SUMMARY = "Llama 3.1's ramp: pairs above 4 turns kept, below 1 divided by the factor"
SOURCE = "github.com/meta-llama/llama-models, models/llama3/reference_impl/model.py"
AUTO_ATTENTION_FACTOR = "none"


@dataclass(frozen=True)
class Llama3Params:
    low_freq_factor: float = described(
        1.0, "a pair with fewer turns within the trained length gets its frequency divided by the factor"
    )
    high_freq_factor: float = described(4.0, "a pair with more turns within the trained length keeps its frequency")


def derive(source: Source, goal: Goal, params: Llama3Params) -> Derived:
    low, high = params.low_freq_factor, params.high_freq_factor
    if not (math.isfinite(low) and math.isfinite(high) and 0 < low < high):
        raise InvalidRope(
            f"low_freq_factor {low:g} and high_freq_factor {high:g} must be above 0, and the low one smaller",
            where="-p low_freq_factor",
            try_="-p low_freq_factor 1 -p high_freq_factor 4",
        )
    kept = kept_share_by_turns(source, high, low)
    native = {
        "rope_type": "llama3",
        "factor": goal.factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": source.length,
    }
    return Derived(
        RopeTable.fixed(
            blend(source.inv_freq, kept, goal.factor), chosen_attention_factor(source, goal, AUTO_ATTENTION_FACTOR)
        ),
        goal.target_length,
        native=(native,) if source.rope_theta is not None else (),
        softmax_multiplier=source.softmax_multiplier,
    )
