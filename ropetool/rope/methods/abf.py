"""ABF, adjusted base frequency: you choose rope_theta, larger or smaller than the source's base.

The base is chosen before a fine-tune. The factor only sets the context length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ropetool.errors import InvalidRope
from ropetool.rope.formulas import Source
from ropetool.rope.methods.base import Derived, Goal, chosen_attention_factor, described
from ropetool.rope.tables import RopeTable

NAME = "abf"
ALIASES = ("adjusted-base",)
SUMMARY = "adjusted base frequency: you set rope_theta; the factor sets only the context length"
SOURCE = "arXiv:2309.16039; arXiv:2308.12950; smaller bases: arXiv:2310.05209"
AUTO_ATTENTION_FACTOR = "none"


@dataclass(frozen=True)
class AbfParams:
    rope_theta: float | None = described(None, "the new base; required")


def derive(source: Source, goal: Goal, params: AbfParams) -> Derived:
    rope_theta = params.rope_theta
    if rope_theta is None:
        raise InvalidRope("abf needs the new base", where="--rope-theta", try_="--rope-theta 1e6")
    if not math.isfinite(rope_theta) or rope_theta <= 1:
        raise InvalidRope(f"{rope_theta:g} is not a base; a base is a finite number above 1", where="--rope-theta")
    old = source.rope_theta or source.stated_theta
    if old is None:
        raise InvalidRope(
            "the source does not set rope_theta, so there is no base to replace",
            where="--method abf",
            try_="--method ntk, which stretches any table",
        )
    d = source.rotary_dim
    inv_freq = source.inv_freq * np.float64(rope_theta / old) ** (-np.arange(0, d, 2) / d)
    return Derived(
        RopeTable.fixed(inv_freq, chosen_attention_factor(source, goal, AUTO_ATTENTION_FACTOR)),
        goal.target_length,
        native=({"rope_type": "default", "rope_theta": rope_theta},) if source.rope_theta is not None else (),
        softmax_multiplier=source.softmax_multiplier,
    )
