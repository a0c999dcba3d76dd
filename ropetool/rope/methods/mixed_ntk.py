"""Mixed NTK: a stretch that grows smoothly over the pairs, all of s for the slowest and almost none for the fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ropetool.errors import InvalidRope
from ropetool.rope.formulas import Source
from ropetool.rope.methods.base import Derived, Goal, chosen_attention_factor, described, reach_note
from ropetool.rope.tables import RopeTable

NAME = "mixed-ntk"
ALIASES = ("ntk-mixed",)
SUMMARY = "stretches pair i by exp(a (i+1)^b); the slowest pair gets the whole factor"
SOURCE = "kexue.fm/archives/9706"
AUTO_ATTENTION_FACTOR = "none"


@dataclass(frozen=True)
class MixedNtkParams:
    exponent: float = described(0.625, "b of exp(a (i+1)^b); 0.625 to 0.75 is usual")


def derive(source: Source, goal: Goal, params: MixedNtkParams) -> Derived:
    if not math.isfinite(params.exponent) or params.exponent <= 0:
        raise InvalidRope(
            f"{params.exponent} is not an exponent; it must be a finite number above 0", where="-p exponent"
        )
    pairs = source.inv_freq.size
    # a (i+1)^b with a = ln s / pairs^b, written so that no exponent overflows
    share = (np.arange(1, pairs + 1) / pairs) ** params.exponent
    stretch = np.float64(goal.factor) ** -share
    inv_freq = source.inv_freq * stretch
    return Derived(
        RopeTable.fixed(inv_freq, chosen_attention_factor(source, goal, AUTO_ATTENTION_FACTOR)),
        goal.target_length,
        softmax_multiplier=source.softmax_multiplier,
        notes=reach_note(NAME, source, inv_freq, goal.target_length),
    )
