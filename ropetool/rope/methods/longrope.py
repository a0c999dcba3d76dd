"""LongRoPE: a searched divisor for each pair, one list up to the trained length and one beyond it.

The lists come from a search (a file) or from the source. This form can also store any fixed table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ropetool.errors import InvalidRope
from ropetool.rope.formulas import Source, logn_factor
from ropetool.rope.methods.base import Derived, Goal, chosen_attention_factor, described, with_attention_factor
from ropetool.rope.tables import Regime, RopeTable

NAME = "longrope"
ALIASES = ("su",)
SUMMARY = "a divisor per pair: one list up to the trained length, one beyond"
SOURCE = "arXiv:2402.13753"
AUTO_ATTENTION_FACTOR = "logn"


@dataclass(frozen=True)
class LongropeParams:
    long_factor: tuple[float, ...] = described(
        (), "divisors beyond the trained length; on the command line a JSON file or list"
    )
    short_factor: tuple[float, ...] | None = described(
        None, "divisors up to the trained length; default: the long ones"
    )


def derive(source: Source, goal: Goal, params: LongropeParams) -> Derived:
    if not params.long_factor:
        raise InvalidRope(
            "longrope needs a list of divisors, and the source does not have one",
            where="-p long_factor",
            try_="-p long_factor FILE.json, a JSON list of one number per rotary pair",
        )
    long_factor = checked_list("long_factor", params.long_factor, source.inv_freq.size)
    short_factor = long_factor
    if params.short_factor is not None:
        short_factor = checked_list("short_factor", params.short_factor, source.inv_freq.size)
    attention_factor = chosen_attention_factor(source, goal, AUTO_ATTENTION_FACTOR)
    long = Regime(source.inv_freq / long_factor, attention_factor)
    regimes: tuple[Regime, ...] = (long,)
    if not np.array_equal(short_factor, long_factor):
        regimes = (Regime(source.inv_freq / short_factor, attention_factor, up_to=source.length), long)
    native: tuple[Any, ...] = ()
    if source.rope_theta is not None:
        keys = {
            "rope_type": "longrope",
            "short_factor": short_factor.tolist(),
            "long_factor": long_factor.tolist(),
            "factor": goal.factor,
            "original_max_position_embeddings": source.length,
        }
        native = (with_attention_factor(keys, attention_factor, logn_factor(goal.factor, source.length)),)
    return Derived(RopeTable(regimes), goal.target_length, native=native, softmax_multiplier=source.softmax_multiplier)


def checked_list(name: str, values: Any, pairs: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the divisors as a vector.

    Raises: InvalidRope if the number of divisors differs from the number of pairs, or if a divisor is not a finite
    number above 0.
    """
    divisors = np.asarray(values, dtype=np.float64)
    if divisors.shape != (pairs,):
        raise InvalidRope(f"{name} has {divisors.size} entries; the model has {pairs} rotary pairs", where=f"-p {name}")
    if not np.all(np.isfinite(divisors) & (divisors > 0)):
        pair = int(np.argmin(np.isfinite(divisors) & (divisors > 0)))
        raise InvalidRope(
            f"{name}[{pair}] is {divisors[pair]}; a divisor is a finite number above 0", where=f"-p {name}"
        )
    return divisors
