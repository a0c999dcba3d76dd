"""Dynamic NTK: the stretch follows the current length, so nothing changes within the trained length.

The curve is NTK with s = n / L. transformers stretches by f n / L - (f - 1), where f is its key `factor`. Both are
equal only at factor 1. A table that follows the length mixes keys of different bases in a cache; -p freeze avoids this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ropetool.errors import InvalidRope
from ropetool.rope.formulas import Source, dynamic_table
from ropetool.rope.methods.base import Derived, Goal, chosen_attention_factor, described, reach_note
from ropetool.rope.tables import MAX_LENGTH, RopeTable

NAME = "dynamic"
ALIASES = ("dynamic-ntk",)
SUMMARY = "NTK with a factor that grows with the text; -p freeze N fixes the table for a length"
SOURCE = "emozilla 2023, reddit.com/r/LocalLLaMA/comments/14mrgpr"
AUTO_ATTENTION_FACTOR = "none"


@dataclass(frozen=True)
class DynamicParams:
    freeze: int | None = described(None, "write the fixed table of this length instead of the rule")


def derive(source: Source, goal: Goal, params: DynamicParams) -> Derived:
    d = source.rotary_dim
    attention_factor = chosen_attention_factor(source, goal, AUTO_ATTENTION_FACTOR)

    table = dynamic_table(source.inv_freq, source.length, 1.0, attention_factor)
    native: tuple[dict[str, Any], ...] = ()
    if params.freeze is not None:
        if not source.length <= params.freeze <= MAX_LENGTH:
            raise InvalidRope(
                f"{params.freeze} must be from the trained length, {source.length}, to {MAX_LENGTH} tokens",
                where="-p freeze",
            )
        if source.rope_theta is not None:
            stretch = params.freeze / source.length
            native = ({"rope_type": "default", "rope_theta": source.rope_theta * stretch ** (d / (d - 2))},)
        frozen = table.at(params.freeze)
        return Derived(
            RopeTable((frozen,)),
            params.freeze,
            native=native,
            softmax_multiplier=source.softmax_multiplier,
            notes=reach_note(f"{NAME} frozen at {params.freeze}", source, frozen.inv_freq, params.freeze),
        )
    if source.rope_theta is not None:
        native = ({"rope_type": "dynamic", "factor": 1.0},)
    return Derived(
        table,
        source.length,
        native=native,
        softmax_multiplier=source.softmax_multiplier,
        notes=(
            f"max_position_embeddings stays {source.length}, because the rule counts from it. The rule ignores the factor and "
            "stretches by n / L. The table changes while the KV cache grows; -p freeze N writes a fixed table",
        ),
    )
