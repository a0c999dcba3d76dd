"""The search spaces: how a vector of numbers from 0 to 1 becomes a table or gains.

To add a space, add an entry to `SPACES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ropetool.errors import ConfigError, UnknownName, did_you_mean
from ropetool.lab.tuning.points import Ground, Point, of_lists
from ropetool.rope import arithmetic
from ropetool.rope.formulas import Source, blend, kept_share_by_dims, kept_share_by_turns, ntk_stretch
from ropetool.rope.tables import Array

BETA_FAST, BETA_SLOW = 32.0, 1.0  # YaRN's defaults
# Ramps that work for small models: YaRN's, YaRN's with twice the original length, and one with a later start.
RAMPS = ((BETA_FAST, BETA_SLOW), (BETA_FAST / 2, BETA_SLOW / 2), (8.0, BETA_SLOW))
KNOTS = 8  # the points of a curve over the pairs, with linear interpolation between them
BANDS = 3  # of pairs, if a head has a gain for each: near, middle, far
ASIDE = (
    0.1  # within this distance of its middle, a coordinate means the target's factor, which the native keys can store
)


@dataclass(frozen=True)
class Space:
    """A search space. Every coordinate of a vector is from 0 to 1.

    name: its name.
    summary: its description.
    size: returns the number of coordinates for a ground.
    starts: returns the vectors to begin with.
    point: returns the point of a vector.
    smooth: whether neighbouring coordinates move together.
    """

    name: str
    summary: str
    size: Callable[[Ground], int]
    starts: Callable[[Ground], list[Array]]
    point: Callable[[Ground, Array], Point]
    smooth: bool = False


def get(name: str) -> Space:
    """Return the space with this name. Raises: UnknownName, with the known names."""
    if name not in SPACES:
        raise UnknownName(
            f"unknown search space {name!r}{did_you_mean(name, SPACES)}; known are {', '.join(SPACES)}", where="--space"
        )
    return SPACES[name]


def _between(low: float, high: float, unit: float) -> float:
    """Return the number at a share of the way from `low` to `high`, on a logarithmic scale."""
    return float(low * (high / low) ** unit)


def _unit(low: float, high: float, value: float) -> float:
    """Return the share of the way from `low` to `high` at which a number is, on a logarithmic scale, from 0 to 1."""
    return float(np.clip(np.log(value / low) / np.log(high / low), 0, 1))


def _ratio(unit: float, less: float, more: float) -> float:
    """Return a ratio from `less` to `more` for a coordinate. It is 1 near the middle of the coordinate."""
    low, high = 0.5 - ASIDE, 0.5 + ASIDE
    if unit < low:
        return _between(1.0, less, (low - unit) / low)
    return _between(1.0, more, max(0.0, unit - high) / (1 - high))


# --- yarn: factor, original length, beta_fast, ramp


def _yarn(ground: Ground, vector: Array) -> Point:
    ratio, original = _ratio(vector[0], 0.75, 3.0), _between(0.5, 4.0, vector[1])
    fast, ramp = _between(2.0, 64.0, vector[2]), "dims" if vector[3] < 0.5 else "turns"
    # With k times the original length, each pair has k times the turns. Dividing both betas by k gives the same ramp.
    beta_fast, beta_slow = float(f"{fast / original:.4g}"), float(f"{BETA_SLOW / original:.4g}")
    factor = max(1.0, float(f"{ground.factor * ratio:.5g}"))
    ends = f"beta_fast {beta_fast:g}, beta_slow {beta_slow:g}, ramp {ramp}"
    if ratio == 1.0:
        params = {"beta_fast": beta_fast, "beta_slow": beta_slow, "truncate": False, "ramp": ramp}
        return Point(f"yarn, factor {factor:g}, {ends}", params=params)
    # The native keys would set the factor times the trained length as the context, which differs from the target. So
    # the table is a list, with the attention factor of the target's factor.
    source = Source(ground.inv_freq, ground.length)
    kept = (
        kept_share_by_dims(source, beta_fast, beta_slow, False)
        if ramp == "dims"
        else kept_share_by_turns(source, beta_fast, beta_slow)
    )
    words = (
        f"yarn's table of factor {factor:g}, {ends}, with the attention factor of {ground.factor:g} "
        f"({ground.attention_factor:.5g}), as a list"
    )
    return of_lists(ground, 1 / blend(np.ones(ground.pairs), kept, factor), words)


def _yarn_starts(ground: Ground) -> list[Array]:
    longer = [_unit(0.5, 4.0, original) for original in (1.0, 2.0)]
    return [np.array([0.5, o, _unit(2.0, 64.0, fast), 0.25]) for fast in (BETA_FAST, 8.0) for o in longer]


# --- ramp: both ends and its shape


def _ramp(ground: Ground, vector: Array) -> Point:
    last = ground.pairs - 1
    low = vector[0] * last
    high = low + max(vector[1] * (last - low), 1e-3)
    shape = _between(1 / 3, 3.0, vector[2])
    gone = np.clip((np.arange(ground.pairs) - low) / (high - low), 0, 1) ** shape
    words = f"a ramp from pair {low:.2f} to {high:.2f}, shape {shape:.2f}"
    return of_lists(ground, 1 / blend(np.ones(ground.pairs), 1 - gone, ground.factor), words)


def _ramp_starts(ground: Ground) -> list[Array]:
    last, vectors = ground.pairs - 1, []
    for betas in RAMPS:
        ends = [arithmetic.index_at_turns(ground.inv_freq, ground.length, turns) for turns in betas]
        low, high = np.clip(ends, 0, last)
        vectors.append(np.array([low / last, (high - low) / max(last - low, 1e-9), 0.5]))
    return vectors


# --- pairs: one divisor each, none below the one before


def _pairs(ground: Ground, vector: Array) -> Point:
    logs = np.maximum.accumulate(vector) * np.log(2 * ground.factor)
    words = f"a divisor for each pair, {np.exp(logs[0]):.3g} to {np.exp(logs[-1]):.3g}"
    return of_lists(ground, np.exp(logs), words)


def _pairs_starts(ground: Ground) -> list[Array]:
    """Return the default, other ramps, NTK and interpolation. LongRoPE's search starts from the same tables."""
    source = Source(ground.inv_freq, ground.length)
    ramps = [
        1 / blend(np.ones(ground.pairs), kept_share_by_dims(source, *betas, False), ground.factor)
        for betas in RAMPS[1:]
    ]
    ntk = 1 / ntk_stretch(2 * ground.pairs, ground.factor)
    tables = (ground.divisors, *ramps, ntk, np.full(ground.pairs, ground.factor))
    return [np.clip(np.log(table) / np.log(2 * ground.factor), 0, 1) for table in tables]


# --- gains


def _gain(unit: Array) -> Array:
    """Return gains from 1/2 to 2. 0.5 becomes 1."""
    gains: Array = np.round(2.0 ** (2 * unit - 1), 5)
    return gains


def _pair_gain(ground: Ground, vector: Array) -> Point:
    places = np.linspace(0, vector.size - 1, ground.pairs)
    gains = _gain(np.interp(places, np.arange(vector.size), vector))
    words = f"yarn, gains of pairs from {gains.min():g} to {gains.max():g} in the keys"
    return Point(words, pair_gains=tuple(gains.tolist()))


def _head_gains(ground: Ground, vector: Array, bands: int) -> Point:
    if not ground.heads:
        raise ConfigError("the weights of this model cannot store gains of heads", where="--space")
    gains, by_layer, start = _gain(0.25 + vector / 2), [], 0
    for heads in ground.heads:
        layer = gains[start : start + heads * bands].reshape(heads, bands)
        by_layer.append(tuple(tuple(head) for head in layer.tolist()))
        start += heads * bands
    each = f" in {bands} bands" if bands > 1 else ""
    words = f"yarn, gains of heads from {gains.min():g} to {gains.max():g}{each} in the queries"
    return Point(words, head_gains=tuple(by_layer))


def _middle(count: int) -> list[Array]:
    return [np.full(count, 0.5)]


SPACES = {
    space.name: space
    for space in (
        Space(
            "yarn", "yarn's factor, original length, beta_fast and ramp", lambda ground: 4, _yarn_starts, _yarn,
        ),
        Space("ramp", "a ramp over the pairs: both ends and its shape", lambda ground: 3, _ramp_starts, _ramp),
        Space(
            "pairs", "a divisor for each pair, increasing, as LongRoPE searches",
            lambda ground: ground.pairs, _pairs_starts, _pairs, smooth=True,
        ),
        Space(
            "pair-gain", "yarn, and a gain for each pair in the keys", lambda ground: min(KNOTS, ground.pairs),
            lambda ground: _middle(min(KNOTS, ground.pairs)), _pair_gain, smooth=True,
        ),
        Space(
            "head-gain", "yarn, and a gain for each head in the queries", lambda ground: max(1, sum(ground.heads)),
            lambda ground: _middle(max(1, sum(ground.heads))), lambda ground, vector: _head_gains(ground, vector, 1),
        ),
        Space(
            "head-band-gain", "yarn, and a gain for each head and band of pairs in the queries",
            lambda ground: max(1, BANDS * sum(ground.heads)), lambda ground: _middle(max(1, BANDS * sum(ground.heads))),
            lambda ground, vector: _head_gains(ground, vector, BANDS),
        ),
    )
}  # fmt: skip
