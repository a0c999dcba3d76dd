"""NTK-by-parts: pairs that turned often stay, pairs that never turned are divided by s, and a ramp connects them.

It is YaRN without the attention factor.
"""

from __future__ import annotations

from ropetool.rope.formulas import Source
from ropetool.rope.methods.base import Derived, Goal
from ropetool.rope.methods.yarn import YarnParams, derive_by_parts

NAME = "ntk-by-parts"
ALIASES = ("by-parts",)
SUMMARY = "keep fast pairs, interpolate slow ones, a ramp between; attention factor 1"
SOURCE = "arXiv:2309.00071 section 3.2"
AUTO_ATTENTION_FACTOR = "none"


def derive(source: Source, goal: Goal, params: YarnParams) -> Derived:
    return derive_by_parts(source, goal, params, AUTO_ATTENTION_FACTOR)
