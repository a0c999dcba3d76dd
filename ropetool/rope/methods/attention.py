"""Attention factor only: frequencies stay, and cos and sin are multiplied by a constant.

This keeps the entropy of a longer softmax under control. It does not extend the context without another method.
"""

from __future__ import annotations

from ropetool.rope.formulas import Source
from ropetool.rope.methods.base import Derived, Goal, NoParams, chosen_attention_factor
from ropetool.rope.tables import RopeTable

NAME = "attention"
ALIASES = ("attention-factor",)
SUMMARY = "changes only the attention factor; default logn, sqrt(ln(sL) / ln L)"
SOURCE = "kexue.fm/archives/8823; arXiv:2202.12172"
AUTO_ATTENTION_FACTOR = "logn"


def derive(source: Source, goal: Goal, params: NoParams) -> Derived:
    return Derived(
        RopeTable.fixed(source.inv_freq, chosen_attention_factor(source, goal, AUTO_ATTENTION_FACTOR)),
        goal.target_length,
        softmax_multiplier=source.softmax_multiplier,
        notes=("the frequencies do not change: an attention factor does not extend the context",),
    )
