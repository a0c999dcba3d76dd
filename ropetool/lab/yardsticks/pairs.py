"""The distances and visible keys of each variant as plain data, with a function per variant.

Positions count from 0. A query is at position m and a key at position n, with m >= n. L is the trained length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ropetool.rope.tables import Array

Positions = Callable[[Array], Array]
"""Maps the places of tokens to the positions that they are rotated to, which may be fractions.

Shapes: (tokens,) -> (tokens,), or (groups, tokens) if the pairs of a head are in groups with their own positions. The
groups have sizes as equal as possible, and the first has the fastest pairs.
"""


@dataclass(frozen=True, eq=False)
class Band:
    """The pairs of query and key with a distance of at least `first`, up to the next band.

    first: the smallest distance in tokens.
    query, key: the positions that queries and keys are rotated to.
    seen: the number of a text's first keys that are visible. None for all.
    """

    first: int
    query: Positions
    key: Positions
    seen: int | None = None


@dataclass(frozen=True, eq=False)
class Bands:
    """The bands in order of distance. The first starts at 0."""

    bands: tuple[Band, ...]


def _same(places: Array) -> Array:
    return places


def _always(position: float) -> Positions:
    return lambda places: np.full_like(places, position)


NEAR = Band(0, _same, _same)
PLAIN = Bands((NEAR,))


def rerope(window: int) -> Bands:
    """Cap the distance: min(m - n, window).

    Source: Su 2023, kexue.fm/archives/9708; rerope_patch.py of github.com/bojone/rerope at 2cbd019.
    """
    return Bands((NEAR, Band(window, _always(window), _always(0))))


def leaky_rerope(window: int, factor: float) -> Bands:
    """Let the distance grow more slowly beyond the window: window + (m - n - window) / factor.

    Source: Su 2023, kexue.fm/archives/9708; leaky_rerope_patch.py of github.com/bojone/rerope at 2cbd019.
    """
    shift = window - window / factor
    return Bands((NEAR, Band(window, lambda places: places / factor + shift, lambda places: places / factor)))


def self_extend(group: int, window: int) -> Bands:
    """Round positions down to groups from the window on: m // group - n // group + window - window // group.

    Source: Jin et al. 2024, arXiv 2401.01325; self_extend_patch/Llama.py of github.com/datamllab/LongLM at 18950b5.
    """
    shift = window - window // group
    return Bands((NEAR, Band(window, lambda places: places // group + shift, lambda places: places // group)))


DPE_GROUPS = 8


def dpe(window: int, *groups: int) -> Bands:
    """Round positions down as Self-Extend does, with a group size for each eighth of the pairs.

    The paper does so only for the 48 channels of each head that matter most. Here, all pairs move.
    Source: Lu et al. 2025, arXiv 2504.18857.
    """
    sizes = np.array(groups, dtype=np.float64)[:, None]
    shift = window - window // sizes
    return Bands((NEAR, Band(window, lambda places: places // sizes + shift, lambda places: places // sizes)))


def string(shift: int, window: int) -> Bands:
    """Move distances from `shift` tokens on down to the window: m - n - shift + window.

    Source: An et al. 2024, arXiv 2410.18745.
    """
    return Bands((NEAR, Band(shift, lambda places: places - shift + window, _same)))


def sliding_window(window: int) -> Bands:
    """Hide keys that are at least `window` tokens away."""
    return Bands((NEAR, Band(window, _same, _same, seen=0)))


def lambda_mask(window: int, sinks: int) -> Bands:
    """Show the keys within the window and the first keys of the text, the latter at a distance of `window` tokens.

    Source: Han et al. 2023, arXiv 2308.16137; models/lambda_attention.py of github.com/Glaciohound/LM-Infinite at
      5f35e5d.
    """
    return Bands((NEAR, Band(window, _always(window), _always(0), seen=sinks)))
