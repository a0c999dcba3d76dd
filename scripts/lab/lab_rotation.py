"""Sizes of the laboratory's models, positions, and the rotation of pairs with what is changed of it after training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ropetool.rope.methods import Goal, Source, get


@dataclass(frozen=True)
class Extension:
    """What is changed of a trained model: a method of ropetool by its name, or distances beyond a window, or log-n added.

    window, leak: a distance t beyond the window counts as window + (t - window) / leak; leak infinite is ReRoPE.
    logn: scores times max(1, ln n / ln L).
    """

    method: str = ""
    factor: float = 1.0
    window: int = 0
    leak: float = math.inf
    logn: bool = False


@dataclass(frozen=True)
class Sizes:
    """Of a model, and the tokens that it is trained at. bfloat16: whether products are rounded to it, in training and at the test."""

    vocabulary: int = 2048
    width: int = 128
    inner: int = 352
    layers: int = 4
    heads: int = 4
    trained: int = 64
    bfloat16: bool = True

    @property
    def head(self) -> int:
        """Channels of a head."""
        return self.width // self.heads


def draw_positions(kind: str, rows: int, length: int, target: int, rng: np.random.Generator) -> Tensor:
    """Return the positions that a batch counts, (rows, length) or (1, length): increasing, and below the target.

    randomized: a random subset of all positions, in order (arXiv:2305.16843). pose: two pieces, of which the second
    skips a random number of positions (arXiv:2309.10400).
    """
    positions = np.arange(length)[None]
    if kind == "randomized":
        positions = np.stack([np.sort(rng.choice(target, length, replace=False)) for _ in range(rows)])
    elif kind == "pose":
        border = rng.integers(1, length, size=(rows, 1))
        skipped = rng.integers(0, target - length + 1, size=(rows, 1))
        positions = positions + skipped * (positions >= border)
    return torch.from_numpy(positions).double()


def table(base: float, sizes: Sizes, extension: Extension) -> tuple[Tensor, float]:
    """Return the frequencies of the pairs, (head / 2,), and what multiplies cos and sin."""
    frequencies = base ** (-np.arange(0, sizes.head, 2) / sizes.head)
    if not extension.method:
        return torch.from_numpy(frequencies), 1.0
    method, goal = get(extension.method), Goal.make(sizes.trained, extension.factor, None)
    derived = method.derive(Source(frequencies, sizes.trained, base), goal, method.params({}))
    regime = derived.table.at(goal.target_length)
    return torch.from_numpy(regime.inv_freq.copy()), regime.attention_factor


def rotate(x: Tensor, positions: Tensor, frequencies: Tensor, factor: float) -> Tensor:
    """Turn pairs (i, i + d/2) of x, (rows, heads, length, d), by positions, (rows or 1, length), times frequencies."""
    angles = positions[:, None, :, None] * frequencies
    cos, sin = (factor * angles.cos()).to(x.dtype), (factor * angles.sin()).to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
