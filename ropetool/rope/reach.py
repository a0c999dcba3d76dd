"""The reach of a table: the angles seen in training, the critical dimension, and the smallest base for a length."""

from __future__ import annotations

import math

import numpy as np

from ropetool.errors import InvalidRope
from ropetool.rope import arithmetic
from ropetool.rope.tables import MAX_LENGTH, Array

CHUNK = 1 << 12  # distances that are computed together
LARGEST_BASE = 1e15
STEP = 1.002  # ratio of successive bases in the search; the range of valid bases can be 0.5 % wide
FEW, PROBED = 32, 1024  # numbers of distances that are checked before all distances
PUBLISHED_FIT, PUBLISHED_POWER = 0.0424, 1.628  # fit of the base to the length, for 128 channels


def reach(trained: Array, table: Array, length: int) -> tuple[float, int]:
    """Return the tokens up to which every pair stays at angles seen in training, and the first pair to exceed them.

    A pair that turns at least once within the trained length has seen every angle. A slower pair has seen an arc, and
    the table exceeds this arc at some length. The result is inf and -1 if no pair exceeds its arc.
    Shapes: trained, table (rotary_dim // 2,). Units: radians per token; tokens. Source: arXiv:2309.00071, section 3.1.
    """
    slow = np.flatnonzero((arithmetic.turns(trained, length) < 1) & (table > 0))
    if not slow.size:
        return math.inf, -1
    reached = length * trained[slow] / table[slow]
    first = int(np.argmin(reached))
    return float(reached[first]), int(slow[first])


def reach_of_new_base(inv_freq: Array, base: float, length: int, target: int) -> tuple[int, int]:
    """Return the base that `ntk` derives for a target, and the reach in tokens of this base's table.

    A file of `ntk` contains the target, which its table does not reach. A file of `abf` can contain the reach.
    Shapes: inv_freq (rotary_dim // 2,), the trained table. Units: tokens.
    """
    dim = 2 * inv_freq.size
    new = math.ceil(base * (target / length) ** (dim / (dim - 2)))
    reached, _ = reach(inv_freq, np.where(inv_freq > 0, arithmetic.base_inv_freq(new, dim), 0.0), length)
    return new, target if math.isinf(reached) else min(target, math.floor(reached))


def critical_dimension(inv_freq: Array, length: int) -> int:
    """Return the number of channels in pairs that turn at least once within the trained length.

    Other pairs have seen only an arc.
    Shapes: (rotary_dim // 2,). Units: channels. Source: arXiv:2310.05209, theorem 1; it is 92 of Llama 2's 128.
    """
    return 2 * int(np.count_nonzero(arithmetic.turns(inv_freq, length) >= 1))


def attention_holds(inv_freq: Array, length: int) -> int:
    """Return the largest distance, at most `length`, up to which the sum of cos(m f) over pairs is at least 0.

    Up to this distance, a query attends more to similar tokens.
    Shapes: (rotary_dim // 2,). Units: tokens. Source: arXiv:2405.14591, theorem 1.
    """
    below = _below(inv_freq, length)
    return int(below[0]) - 1 if below.size else length


def least_base(rotary_dim: int, length: int) -> float:
    """Return the smallest base whose table supports attention up to a length, within 0.2 %.

    With 128 channels, it is 2.7e4 for 4,096 tokens and 6.3e5 for 32,768 tokens. Source: arXiv:2405.14591, table 2.
    Raises: InvalidRope for a length below 1 or above MAX_LENGTH, or if no base up to 1e15 is sufficient.
    """
    if not 1 <= length <= MAX_LENGTH:
        raise InvalidRope(f"{length} must be a whole number of tokens from 1 to {MAX_LENGTH}")
    base: float = max(2.0, PUBLISHED_FIT / 10 * length**PUBLISHED_POWER)
    exponents = arithmetic.exponents(rotary_dim)
    failing = np.arange(max(1, length - PROBED), length + 1.0)
    spread = np.arange(length, 0, -max(1, length // PROBED), dtype=np.float64)
    worst = failing[-1:]  # the distance with the smallest sum for the previous base
    # The search tries each base, because a larger one may fail although a smaller one is sufficient. Most bases fail at
    # the distances of earlier failures, which are checked first.
    while base <= LARGEST_BASE:
        inv_freq = np.float64(base) ** exponents
        for distances in (worst, failing[-FEW:], failing, spread):
            sums = similarity(inv_freq, distances)
            if sums.min() < 0:
                worst = distances[[sums.argmin()]]
                break
        else:
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
    sums: Array = np.cos(distances[:, None] * inv_freq).sum(axis=1)
    return sums


def _below(inv_freq: Array, length: int) -> Array:
    """Return the distances up to a length at which the sum is below 0, in order, from the first chunk that has any."""
    for start in range(1, length + 1, CHUNK):
        distances = np.arange(start, min(start + CHUNK, length + 1), dtype=np.float64)
        below: Array = distances[similarity(inv_freq, distances) < 0]
        if below.size:
            return below
    return np.zeros(0)
