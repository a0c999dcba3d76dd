"""Which distance a query and a key are turned apart by, and which keys are seen: plain data, a function a method.

Positions count from 0, m is a query's and n a key's, m >= n; L is the trained length. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ropetool.rope.tables import Array

Positions = Callable[[Array], Array]
"""Maps the places of tokens to the positions that they are rotated by, which may be fractions."""


@dataclass(frozen=True, eq=False)
class Band:
    """The pairs that are `first` tokens apart or more, up to the next band.

    query, key: what a query and a key are rotated by. seen: how many of a text's first keys are attended to; None for all.
    """

    first: int
    query: Positions
    key: Positions
    seen: int | None = None


@dataclass(frozen=True, eq=False)
class Pairs:
    """Bands in order of distance, the first from 0 on."""

    bands: tuple[Band, ...]


def _same(places: Array) -> Array:
    return places


def _always(position: float) -> Positions:
    return lambda places: np.full_like(places, position)


NEAR = Band(0, _same, _same)
PLAIN = Pairs((NEAR,))


def rerope(window: int) -> Pairs:
    """Cap the distance: min(m - n, window).

    Source: Su 2023, kexue.fm/archives/9708; rerope_patch.py of github.com/bojone/rerope at 2cbd019.
    """
    return Pairs((NEAR, Band(window, _always(window), _always(0))))


def leaky_rerope(window: int, factor: float) -> Pairs:
    """Let the distance grow more slowly beyond the window: window + (m - n - window) / factor.

    Source: Su 2023, kexue.fm/archives/9708; leaky_rerope_patch.py of github.com/bojone/rerope at 2cbd019.
    """
    shift = window - window / factor
    return Pairs((NEAR, Band(window, lambda places: places / factor + shift, lambda places: places / factor)))


def self_extend(group: int, window: int) -> Pairs:
    """Round positions down to groups from the window on: m // group - n // group + window - window // group.

    Source: Jin et al. 2024, arXiv 2401.01325; self_extend_patch/Llama.py of github.com/datamllab/LongLM at 18950b5.
    """
    shift = window - window // group
    return Pairs((NEAR, Band(window, lambda places: places // group + shift, lambda places: places // group)))


def sliding_window(window: int) -> Pairs:
    """See no key that is `window` tokens away or more."""
    return Pairs((NEAR, Band(window, _same, _same, seen=0)))


def lambda_mask(window: int, sinks: int) -> Pairs:
    """See the keys of the window and the first ones of the text, those as if `window` tokens away.

    Source: Han et al. 2023, arXiv 2308.16137; models/lambda_attention.py of github.com/Glaciohound/LM-Infinite at 5f35e5d.
    """
    return Pairs((NEAR, Band(window, _always(window), _always(0), seen=sinks)))
