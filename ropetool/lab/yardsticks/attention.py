"""Attention of a variant in a layer: queries and keys rotated as each band needs them, in the kernel of `blocked`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ropetool.lab.yardsticks import blocked
from ropetool.lab.yardsticks.named import Yardstick
from ropetool.lab.yardsticks.pairs import NEAR, Positions
from ropetool.rope.tables import Array
from ropetool.verification.runners.torch_attention import Attend, Unrotated


def attention(yardstick: Yardstick, trained: int) -> Attend:
    """Return the function that computes a layer with a variant's distances.

    trained: the trained length in tokens, for log-n.
    """

    def attend(layer: Unrotated) -> Any:
        import torch

        places = np.arange(layer.tokens, dtype=np.float64)
        wide = torch.promote_types(layer.values.dtype, torch.float32)
        queries = [_rotated(layer.queries, band.query, NEAR.query, places).to(wide) for band in yardstick.pairs.bands]
        keys_by_positions: dict[Positions, Any] = {}
        for band in yardstick.pairs.bands:
            if band.key not in keys_by_positions:
                keys_by_positions[band.key] = _rotated(layer.keys, band.key, NEAR.key, places).to(wide)
        keys = [keys_by_positions[band.key] for band in yardstick.pairs.bands]
        if yardstick.log_n:
            scale = torch.from_numpy(log_n(places, trained)).to(queries[0])[:, None]
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


def _rotated(rotate: Callable[..., Any], positions: Positions, own: Positions, places: Array) -> Any:
    # For the model's own positions, use its own table, because the model computes the table in its own type.
    return rotate() if positions is own else rotate(positions(places))
