"""YaRN: NTK-by-parts, and an attention factor of 0.1 ln s + 1 that compensates for the longer softmax.

On DeepSeek-style MLA models, the temperature applies to the whole score, so it is written as mscale keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropetool.errors import InvalidRope
from ropetool.rope.formulas import Source, blend, kept_share_by_dims, kept_share_by_turns, yarn_factor
from ropetool.rope.methods.base import (
    Derived,
    Goal,
    check_betas,
    chosen_attention_factor,
    described,
    with_attention_factor,
)
from ropetool.rope.tables import RopeTable

NAME = "yarn"
ALIASES = ()
SUMMARY = "NTK-by-parts and an attention factor of 0.1 ln s + 1; the training-free default"
SOURCE = "arXiv:2309.00071; MLA: arXiv:2405.04434"
AUTO_ATTENTION_FACTOR = "yarn"


@dataclass(frozen=True)
class YarnParams:
    beta_fast: float = described(32.0, "a pair with more turns within the trained length keeps its frequency")
    beta_slow: float = described(
        1.0, "a pair with fewer turns within the trained length gets its frequency divided by the factor"
    )
    truncate: bool = described(True, "round the ends of the dims ramp outwards to whole pairs, as most files do")
    ramp: str = described(
        "dims", "dims: linear in the pair index (files, runtimes); turns: linear in turns (the paper)"
    )


def derive(source: Source, goal: Goal, params: YarnParams) -> Derived:
    return derive_by_parts(source, goal, params, AUTO_ATTENTION_FACTOR)


def derive_by_parts(source: Source, goal: Goal, params: YarnParams, auto: str) -> Derived:
    """Return the table of the ramp, with `auto` as the preset of the attention factor."""
    check_betas(params.beta_fast, params.beta_slow)
    if params.ramp == "dims":
        kept = kept_share_by_dims(source, params.beta_fast, params.beta_slow, params.truncate)
    elif params.ramp == "turns":
        kept = kept_share_by_turns(source, params.beta_fast, params.beta_slow)
    else:
        raise InvalidRope(f"{params.ramp!r} is not a ramp; pass dims or turns", where="-p ramp")

    on_whole_score = source.mscale is not None and auto == "yarn" and goal.attention_factor == "auto"
    softmax_multiplier = source.softmax_multiplier
    notes: tuple[str, ...] = ()
    if on_whole_score:
        attention_factor = source.attention_factor
        softmax_multiplier *= (0.1 * (source.mscale or 0.0) * math.log(goal.factor) + 1) ** 2
    else:
        attention_factor = chosen_attention_factor(source, goal, auto)
        if source.mscale is not None and attention_factor != 1:
            notes = (
                "this attention factor scales only the rotary part of the score; --attention-factor auto scales the whole score",
            )
    return Derived(
        RopeTable.fixed(blend(source.inv_freq, kept, goal.factor), attention_factor),
        goal.target_length,
        native=_native(source, goal, params, None if on_whole_score else attention_factor),
        softmax_multiplier=softmax_multiplier,
        notes=notes,
    )


def _native(
    source: Source, goal: Goal, params: YarnParams, attention_factor: float | None
) -> tuple[Mapping[str, Any], ...]:
    """Return the yarn keys. attention_factor None: with DeepSeek's mscale pair, which keeps cos and sin at 1."""
    if source.rope_theta is None or params.ramp != "dims":
        return ()
    keys: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": goal.factor,
        "original_max_position_embeddings": source.length,
    }
    # MLA files contain both betas, and some runtimes require them.
    if params.beta_fast != 32 or source.mscale is not None:
        keys["beta_fast"] = params.beta_fast
    if params.beta_slow != 1 or source.mscale is not None:
        keys["beta_slow"] = params.beta_slow
    if not params.truncate:
        keys["truncate"] = False
    if attention_factor is None:
        return ({**keys, "mscale": source.mscale, "mscale_all_dim": source.mscale},)
    # vLLM's gpt_oss stops without the betas.
    with_betas = {**keys, "beta_fast": params.beta_fast, "beta_slow": params.beta_slow}
    ways = (keys,) if with_betas == keys else (keys, with_betas)
    return tuple(with_attention_factor(way, attention_factor, yarn_factor(goal.factor)) for way in ways)
