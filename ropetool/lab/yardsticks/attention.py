"""Attention of a variant in a layer: queries and keys rotated as each band needs them, in the kernel of `blocked`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ropetool.lab.yardsticks import blocked
from ropetool.lab.yardsticks.named import SCALES, Yardstick
from ropetool.lab.yardsticks.pairs import NEAR, Positions
from ropetool.rope.tables import Array
from ropetool.verification.runners.torch_attention import Attend, Unrotated


def attention(yardstick: Yardstick, trained: int, layout: str = "half", pairs: int = 0) -> Attend:
    """Return the function that computes a layer with a variant's distances.

    trained: the trained length in tokens, for a scale.
    layout, pairs: the model's layout and number of pairs. Only a variant whose groups of pairs have their own positions
      needs them.
    """

    def attend(layer: Unrotated) -> Any:
        import torch

        places = np.arange(layer.tokens, dtype=np.float64)
        wide = torch.promote_types(layer.values.dtype, torch.float32)
        pairs_of = partial(pair_of, layout, pairs)
        queries = [
            _rotated(layer.queries, band.query, NEAR.query, places, pairs_of).to(wide) for band in yardstick.pairs.bands
        ]
        keys_by_positions: dict[Positions, Any] = {}
        for band in yardstick.pairs.bands:
            if band.key not in keys_by_positions:
                keys_by_positions[band.key] = _rotated(layer.keys, band.key, NEAR.key, places, pairs_of).to(wide)
        keys = [keys_by_positions[band.key] for band in yardstick.pairs.bands]
        if yardstick.scale:
            scale = torch.from_numpy(_SCALES[yardstick.scale](places, trained)).to(queries[0])[:, None]
            queries = [each * scale for each in queries]
        attended = blocked.attend(
            queries, keys, layer.values.to(wide), yardstick.pairs,
            scaling=layer.scaling, softcap=layer.softcap, sinks=layer.sinks,
        )  # fmt: skip
        return attended.to(layer.values.dtype)

    return attend


def log_n(places: Array, trained: int) -> Array:
    """Return max(1, ln(m + 1) / ln L) for queries at places m.

    It keeps the entropy of attention as the keys become more.
    Source: Su 2021, kexue.fm/archives/8823; clipped as in rerope_patch.py of github.com/bojone/rerope at 2cbd019.
    """
    return np.maximum(1.0, np.log(places + 1) / math.log(trained))


def temperature(places: Array, trained: int) -> Array:
    """Return (0.1 ln max(1, (m + 1) / L) + 1)^2 for queries at places m: YaRN's factor for the text up to each query.

    Source: Peng et al. 2023, arXiv 2309.00071, 3.4, with the factor of each place instead of the goal's.
    """
    return (0.1 * np.log(np.maximum(1.0, (places + 1) / trained)) + 1) ** 2


_SCALES: Mapping[str, Callable[[Array, int], Array]] = dict(zip(SCALES, (log_n, temperature), strict=True))


def _rotated(
    rotate: Callable[..., Any], positions: Positions, own: Positions, places: Array, pair_of: Callable[[int], Array]
) -> Any:
    """Return states rotated by positions. pair_of: returns the pair of each channel."""
    # For the model's own positions, use its own table, because the model computes the table in its own type.
    if positions is own:
        return rotate()
    moved = positions(places)
    if moved.ndim == 1:
        return rotate(moved)
    import torch

    by_group = torch.stack([rotate(each) for each in moved])
    numbers = pair_of(by_group.shape[-1])
    groups = torch.from_numpy(numbers * len(moved) // (numbers.max() + 1)).to(by_group.device)
    return by_group.gather(0, groups.expand(1, *by_group.shape[1:]))[0]


def pair_of(layout: str, pairs: int, channels: int) -> Array:
    """Return the pair of each channel. Channels that do not rotate count as the first pair, which changes nothing."""
    numbers = np.arange(channels)
    paired = numbers % pairs if layout == "half" else numbers // 2
    return np.where(numbers < 2 * pairs, paired, 0)
