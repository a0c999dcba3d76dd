"""How far a table reaches: the arcs seen in training, the critical dimension, and the base that a length asks for.

float64, no I/O.
"""

from __future__ import annotations

import math

import numpy as np

from ropetool.errors import InvalidRope
from ropetool.rope import arithmetic
from ropetool.rope.tables import MAX_LENGTH, Array

CHUNK = 1 << 12  # distances looked at together
LARGEST_BASE = 1e15
STEP = 1.002  # from one base that is tried to the next: the range that holds can be 0.5 % wide
FEW, PROBED = 32, 1024  # distances that are looked at before all
PUBLISHED_FIT, PUBLISHED_POWER = 0.0424, 1.628  # base over length, of 128 channels


def reach(trained: Array, table: Array, length: int) -> tuple[float, int]:
    """Return the tokens within which every pair of a table stays at angles that training showed, and the first pair to leave.

    A pair that turns once and more within the trained length has seen every angle; a slower one an arc, which the table passes
    at that many tokens. inf and -1 where none ever leaves.
    Shapes: trained, table (rotary_dim // 2,). Units: radians per token; tokens. Source: arXiv:2309.00071, section 3.1.
    """
    slow = np.flatnonzero((arithmetic.turns(trained, length) < 1) & (table > 0))
    if not slow.size:
        return math.inf, -1
    reached = length * trained[slow] / table[slow]
    first = int(np.argmin(reached))
    return float(reached[first]), int(slow[first])


def reach_of_new_base(inv_freq: Array, base: float, length: int, target: int) -> tuple[int, int]:
    """Return the base that `ntk` derives for a target, and the tokens that a table of this base reaches.

    A file of `ntk` contains the target, which its table does not reach. A file of `abf` can contain the reach.
    Shapes: inv_freq (rotary_dim // 2,), the trained table. Units: tokens.
    """
    dim = 2 * inv_freq.size
    new = math.ceil(base * (target / length) ** (dim / (dim - 2)))
    reached, _ = reach(inv_freq, np.where(inv_freq > 0, arithmetic.base_inv_freq(new, dim), 0.0), length)
    return new, target if math.isinf(reached) else min(target, math.floor(reached))


def critical_dimension(inv_freq: Array, length: int) -> int:
    """Return the channels whose pairs turn once and more within the trained length: the others have seen an arc.

    Shapes: (rotary_dim // 2,). Units: channels. Source: arXiv:2310.05209, theorem 1, where it is 92 of Llama 2's 128.
    """
    return 2 * int(np.count_nonzero(arithmetic.turns(inv_freq, length) >= 1))


def attention_holds(inv_freq: Array, length: int) -> int:
    """Return how far sum over pairs of cos(m f) stays at 0 and above, at most `length`: until there, like tokens attract.

    Shapes: (rotary_dim // 2,). Units: tokens. Source: arXiv:2405.14591, theorem 1.
    """
    below = _below(inv_freq, length)
    return int(below[0]) - 1 if below.size else length


def least_base(rotary_dim: int, length: int) -> float:
    """Return the smallest base whose table holds attention up to a length, within 0.2 %.

    2.7e4 for 4,096 tokens and 6.3e5 for 32,768, with 128 channels. Source: arXiv:2405.14591, table 2.
    Raises: InvalidRope for a length that no runtime counts to, or for which no base up to 1e15 serves.
    """
    if not 1 <= length <= MAX_LENGTH:
        raise InvalidRope(f"{length} must be a whole number of tokens from 1 to {MAX_LENGTH}")
    base: float = max(2.0, PUBLISHED_FIT / 10 * length**PUBLISHED_POWER)
    failing = np.arange(max(1, length - PROBED), length + 1.0)
    # One base after the other: a larger one may fail where a smaller one holds. Most fail where those before did.
    while base <= LARGEST_BASE:
        inv_freq = arithmetic.base_inv_freq(base, rotary_dim)
        if similarity(inv_freq, failing[-FEW:]).min() >= 0 and similarity(inv_freq, failing).min() >= 0:
            below = _below(inv_freq, length)
            if not below.size:
                return base
            failing = np.append(failing, below)[-PROBED:]
        base *= STEP
    raise InvalidRope(f"no base up to {LARGEST_BASE:g} supports {length} tokens with {rotary_dim} rotary channels")


def similarity(inv_freq: Array, distances: Array) -> Array:
    """Return the sum over pairs of cos(m f) for each distance m.

    Shapes: (pairs,), (n,) -> (n,). Units: radians per token; tokens.
    """
    found: Array = np.cos(distances[:, None] * inv_freq).sum(axis=1)
    return found


def _below(inv_freq: Array, length: int) -> Array:
    """Return distances up to a length at which the sum is below 0: those of the first stretch that has any, in order."""
    for start in range(1, length + 1, CHUNK):
        distances = np.arange(start, min(start + CHUNK, length + 1), dtype=np.float64)
        below: Array = distances[similarity(inv_freq, distances) < 0]
        if below.size:
            return below
    return np.zeros(0)
