"""What a search starts from and what it tries, as plain data.

Knows numbers of tables and gains; neither files nor models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ropetool.rope.tables import Array


@dataclass(frozen=True, eq=False)
class Ground:
    """The table that a model was trained with, and what `extend` would make of it.

    inv_freq: in radians per token. length: tokens that it was trained on. factor: the target over that. divisors: of the
    default. attention_factor: the default's. heads: of queries, layer by layer, empty where weights cannot take gains.
    Shapes: inv_freq, divisors (rotary_dim // 2,).
    """

    inv_freq: Array
    length: int
    factor: float
    divisors: Array
    attention_factor: float
    heads: tuple[int, ...] = ()

    @property
    def pairs(self) -> int:
        """How many rotary pairs there are."""
        return self.inv_freq.size


@dataclass(frozen=True)
class Point:
    """One thing to try: a method with its parameters, and gains that go into the weights.

    words: what it is, for people. pair_gains: one for each rotary pair. head_gains: layer by layer and head by head, one for
    each band of pairs, or one for the whole head.
    """

    words: str
    method: str = "yarn"
    params: Mapping[str, Any] = field(default_factory=dict)
    attention_factor: str | float = "auto"
    pair_gains: tuple[float, ...] = ()
    head_gains: tuple[tuple[tuple[float, ...], ...], ...] = ()

    @property
    def gains(self) -> bool:
        """Whether the weights take a part of it."""
        return bool(self.pair_gains or self.head_gains)


def of_lists(ground: Ground, divisors: Array, words: str) -> Point:
    """Return a table as a divisor for each pair, with the default's attention factor. Shapes: (pairs,)."""
    values = tuple(float(f"{value:.6g}") for value in np.maximum(divisors, 1e-3))
    return Point(words, "longrope", {"long_factor": values}, ground.attention_factor)
