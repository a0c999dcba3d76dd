"""The start of a search and its points, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ropetool.rope.tables import Array


@dataclass(frozen=True, eq=False)
class Ground:
    """The trained table of a model, and the default table of `extend`.

    inv_freq: the trained table, in radians per token. Shapes: (rotary_dim // 2,).
    length: the trained length in tokens.
    factor: the target length divided by the trained length.
    divisors: the frequency factors of the default table. Shapes: (rotary_dim // 2,).
    attention_factor: the attention factor of the default.
    heads: the number of query heads in each layer. Empty if the weights cannot store gains of heads.
    """

    inv_freq: Array
    length: int
    factor: float
    divisors: Array
    attention_factor: float
    heads: tuple[int, ...] = ()

    @property
    def pairs(self) -> int:
        """Return the number of rotary pairs."""
        return self.inv_freq.size


@dataclass(frozen=True)
class Point:
    """One try: a method with its parameters, and gains for the weights.

    words: a description for users.
    method, params, attention_factor: as in `make_plan`.
    pair_gains: a gain for each rotary pair.
    head_gains: by layer and head, a gain for each band of pairs, or a single one for the whole head.
    """

    words: str
    method: str = "yarn"
    params: Mapping[str, Any] = field(default_factory=dict)
    attention_factor: str | float = "auto"
    pair_gains: tuple[float, ...] = ()
    head_gains: tuple[tuple[tuple[float, ...], ...], ...] = ()

    @property
    def gains(self) -> bool:
        """Return whether the weights store a part of it."""
        return bool(self.pair_gains or self.head_gains)


def of_lists(ground: Ground, divisors: Array, words: str) -> Point:
    """Return a table as a divisor per pair, with the default's attention factor. Shapes: (pairs,)."""
    values = tuple(float(f"{value:.6g}") for value in np.maximum(divisors, 1e-3))
    return Point(words, "longrope", {"long_factor": values}, ground.attention_factor)
