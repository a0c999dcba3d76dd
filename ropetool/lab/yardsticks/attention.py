"""What a yardstick computes in a layer: the kernel of `blocked`, given queries and keys as each band has them rotated."""

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
    """Return what computes a layer by the distances of a yardstick. trained: tokens, from which log-n counts."""

    def attend(layer: Unrotated) -> Any:
        import torch

        places = np.arange(layer.tokens, dtype=np.float64)
        wide = torch.promote_types(layer.values.dtype, torch.float32)
        queries = [_rotated(layer.queries, band.query, NEAR.query, places).to(wide) for band in yardstick.pairs.bands]
        known: dict[Positions, Any] = {}
        for band in yardstick.pairs.bands:
            if band.key not in known:
                known[band.key] = _rotated(layer.keys, band.key, NEAR.key, places).to(wide)
        keys = [known[band.key] for band in yardstick.pairs.bands]
        if yardstick.log_n:
            scale = torch.from_numpy(log_n(places, trained)).to(queries[0])[:, None]
            queries = [each * scale for each in queries]
        found = blocked.attend(
            queries, keys, layer.values.to(wide), yardstick.pairs,
            scaling=layer.scaling, softcap=layer.softcap, sinks=layer.sinks,
        )  # fmt: skip
        return found.to(layer.values.dtype)

    return attend


def log_n(places: Array, trained: int) -> Array:
    """Return max(1, ln(m + 1) / ln L) of queries at places m: what keeps the entropy of attention as keys become more.

    Source: Su 2021, kexue.fm/archives/8823; clipped as in rerope_patch.py of github.com/bojone/rerope at 2cbd019.
    """
    return np.maximum(1.0, np.log(places + 1) / math.log(trained))


def _rotated(rotate: Callable[..., Any], positions: Positions, own: Positions, places: Array) -> Any:
    # Their own positions are not asked for anew: the model has that table, and computes in it whatever its type.
    return rotate() if positions is own else rotate(positions(places))
