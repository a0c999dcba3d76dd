"""The formulas that methods and runtimes share, in float64: ramps, blends, stretches, attention factors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ropetool.errors import InvalidRope
from ropetool.rope import arithmetic
from ropetool.rope.tables import MAX_LENGTH, TABLE_TOLERANCE, Array, Regime, RopeTable, frozen_table


@dataclass(frozen=True, eq=False)
class Source:
    """The table that a method starts from.

    inv_freq: in radians per token.
    length: the tokens that this table was trained on.
    rope_theta: the base if inv_freq is exactly its table, so that native keys exist; else None.
    stated_theta: the base in the file, for any table; None if the file does not set one.
    attention_factor: the source's factor on cos and sin.
    softmax_multiplier: the source's multiplier of the whole score.
    mscale: DeepSeek's multiplier if the family scales the whole score (MLA); else None.
    """

    inv_freq: Array
    length: int
    rope_theta: float | None = None
    stated_theta: float | None = None
    attention_factor: float = 1.0
    softmax_multiplier: float = 1.0
    mscale: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "inv_freq", frozen_table(self.inv_freq))
        # The logn factor divides by ln L, so a single token is not enough.
        if not 2 <= self.length <= MAX_LENGTH:
            raise InvalidRope(f"the trained length is {self.length} tokens; it must be from 2 to {MAX_LENGTH}")

    @property
    def rotary_dim(self) -> int:
        return 2 * self.inv_freq.size


def yarn_factor(factor: float) -> float:
    """Return YaRN's attention factor, 0.1 ln s + 1."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def logn_factor(factor: float, length: int) -> float:
    """Return sqrt(ln(s L) / ln L), the constant form of the entropy-invariance scale. It is also LongRoPE's default."""
    return math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0


def kept_share_by_dims(source: Source, beta_fast: float, beta_slow: float, truncate: bool) -> Array:
    """Return g, the share of each pair's frequency that stays: 1 up to index c(beta_fast), 0 from index c(beta_slow).

    It is linear in the pair index between them. transformers and llama.cpp clip at rotary_dim - 1, not at the last
    pair. The same clip here keeps the tables equal.
    """
    if source.rope_theta is not None:

        def index(count: float) -> float:
            assert source.rope_theta is not None
            return (
                source.rotary_dim * math.log(source.length / (count * 2 * math.pi)) / (2 * math.log(source.rope_theta))
            )
    else:

        def index(count: float) -> float:
            return arithmetic.index_at_turns(source.inv_freq, source.length, count)

    low, high = index(beta_fast), index(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, source.rotary_dim - 1)
    if low == high:
        high += 0.001
    kept: Array = 1 - np.clip((np.arange(source.inv_freq.size) - low) / (high - low), 0, 1)
    return kept


def kept_share_by_turns(source: Source, beta_fast: float, beta_slow: float) -> Array:
    """Return g by the paper's formula: linear in the number of turns, from 0 at beta_slow to 1 at beta_fast."""
    counted = arithmetic.turns(source.inv_freq, source.length)
    if beta_fast == beta_slow:
        return (counted >= beta_fast).astype(np.float64)
    return np.clip((counted - beta_slow) / (beta_fast - beta_slow), 0, 1)


def blend(inv_freq: Array, kept: Array, factor: float) -> Array:
    """Return f (g + (1 - g) / s) for each pair."""
    return inv_freq * (kept + (1 - kept) / factor)


def blend_by_dims(source: Source, beta_fast: float, beta_slow: float, truncate: bool, factor: float) -> Array:
    """Return YaRN's frequencies: `blend` with the shares of `kept_share_by_dims`."""
    return blend(source.inv_freq, kept_share_by_dims(source, beta_fast, beta_slow, truncate), factor)


def with_share(inv_freq: Array, share: float) -> Array:
    """Return the table with only this share of the pairs rotating, the fastest ones. Others get frequency 0."""
    return np.where(np.arange(inv_freq.size) < int(2 * inv_freq.size * share // 2), inv_freq, 0.0)


def geometric(inv_freq: Array, rope_theta: float) -> tuple[float, float] | None:
    """Return the base and the factor if the table is a base's table with all pairs divided by one factor; else None.

    The given base is returned if it fits. The slowest pairs may have frequency 0, but not a pair before one that
    rotates.
    """
    turning = int(np.count_nonzero(inv_freq))
    if not turning or not inv_freq[:turning].all():
        return None
    table, dim = inv_freq[:turning], 2 * inv_freq.size
    # A base always fits two pairs, which would not prove that the table has one.
    fitted = (table[0] / table[-1]) ** (dim / (2 * (turning - 1))) if turning > 2 else rope_theta
    for theta in (rope_theta, float(fitted)):
        base = arithmetic.base_inv_freq(theta, dim)[:turning] if theta > 1 else np.zeros(turning)
        if np.allclose(table / table[0], base, rtol=TABLE_TOLERANCE / 10, atol=0):
            return theta, float(1 / table[0])
    return None


def ntk_stretch(rotary_dim: int, factor: float) -> Array:
    """Return s ** (-2i / (d - 2)) for each pair: 1 for the fastest, 1 / s for the slowest.

    Raises: InvalidRope for a single pair, which would be the fastest and the slowest.
    """
    if rotary_dim < 4:
        raise InvalidRope(f"rotary_dim is {rotary_dim}; a change of base needs at least two pairs")
    stretch: Array = np.float64(factor) ** (-np.arange(0, rotary_dim, 2) / (rotary_dim - 2))
    return stretch


def dynamic_table(inv_freq: Array, length: int, factor: float, attention_factor: float = 1.0) -> RopeTable:
    """Return the rule of transformers' `dynamic`, with a trained length.

    At factor 1, it is the rule of ropetool's method. For n tokens, the slowest pair is divided by
    factor n / L - (factor - 1), and by 1 up to L tokens.
    """
    base = Regime(inv_freq, attention_factor)
    # Raises the error for a single pair now, not at the first call of the rule.
    ntk_stretch(2 * base.inv_freq.size, 1.0)

    def rule(n: int) -> Regime:
        stretch = factor * max(n, length) / length - (factor - 1)
        return Regime(base.inv_freq * ntk_stretch(2 * base.inv_freq.size, stretch), attention_factor)

    return RopeTable((base,), rule=rule, rule_key=("dynamic", float(factor), length))
