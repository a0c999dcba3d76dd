"""Rotary arithmetic in float64: base tables, wavelengths, turns, bands, layouts, the reference rotation.

Source of the definitions: arXiv:2104.09864 (RoPE), arXiv:2309.00071 (YaRN).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ropetool.errors import InvalidRope
from ropetool.rope.tables import Array, is_number

NEAR_TURNS = 32.0  # YaRN's beta_fast: in training, pairs with more turns see every angle many times
FAR_TURNS = 1.0  # YaRN's beta_slow: in training, pairs with fewer turns see only an arc


@lru_cache(maxsize=64, typed=True)  # a run decodes the same base for each runtime
def base_inv_freq(rope_theta: float, rotary_dim: int) -> Array:
    """Return rope_theta ** (-2i / rotary_dim) for each pair i.

    Shapes: (rotary_dim // 2,). Units: radians per token.
    Raises: InvalidRope if rotary_dim is odd or below 2, or rope_theta is not above 1.
    """
    powers = exponents(rotary_dim)
    if not is_number(rope_theta) or rope_theta <= 1:
        raise InvalidRope(f"rope_theta is {rope_theta}; it must be a finite number above 1")
    table: Array = np.float64(rope_theta) ** powers
    table.setflags(write=False)  # all callers share it
    return table


def exponents(rotary_dim: int) -> Array:
    """Return -2i / rotary_dim for each pair i: the powers of a base that are its table.

    Shapes: (rotary_dim // 2,).
    Raises: InvalidRope if rotary_dim is odd or below 2.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise InvalidRope(f"rotary_dim is {rotary_dim}; it must be even and at least 2")
    powers: Array = -(np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    return powers


def wavelengths(inv_freq: Array) -> Array:
    """Return how many tokens each rotary pair takes to turn once; inf for a pair that never turns.

    Shapes: (..., rotary_dim // 2) -> same. Units: radians per token -> tokens per turn.
    Raises: InvalidRope if an entry is negative or NaN.
    """
    inv_freq = np.asarray(inv_freq, dtype=np.float64)
    if not np.all(inv_freq >= 0):
        raise InvalidRope("an inverse frequency is negative or NaN")
    with np.errstate(divide="ignore"):
        lengths: Array = 2 * math.pi / inv_freq
    return lengths


def turns(inv_freq: Array, length: float) -> Array:
    """Return the number of turns of each pair within `length` tokens."""
    counted: Array = np.asarray(inv_freq, dtype=np.float64) * length / (2 * math.pi)
    return counted


def bands(inv_freq: Array, length: float) -> tuple[int, int, int]:
    """Return the number of pairs with more than 32 turns, with 1 to 32, and with less than one, within `length`."""
    counted = turns(inv_freq, length)
    near = int(np.sum(counted > NEAR_TURNS))
    far = int(np.sum(counted < FAR_TURNS))
    return near, counted.size - near - far, far


def index_at_turns(inv_freq: Array, length: float, count: float) -> float:
    """Return the fractional pair index at which a pair would turn `count` times within `length`.

    The index is linear in log inv_freq between neighbouring pairs. Beyond the ends, the slope of the last interval
    continues. Pairs that never turn are skipped. On a geometric table, this is YaRN's d ln(L / (2 pi b)) / (2 ln
    theta).
    Raises: InvalidRope if fewer than two pairs turn, or if the pairs at the needed end do not slow down.
    """
    indices = np.flatnonzero(inv_freq > 0)
    if indices.size < 2:
        raise InvalidRope("a ramp over pair indices needs at least two pairs that rotate")
    logs = np.log(inv_freq[indices])
    log_needed = math.log(2 * math.pi * count / length)
    # The last pair that is at least as fast, because a searched table need not fall everywhere. At the ends, the slope
    # of the last interval continues.
    as_fast = np.flatnonzero(logs >= log_needed)
    left = min(int(as_fast[-1]) if as_fast.size else 0, indices.size - 2)
    rise = logs[left + 1] - logs[left]
    if rise >= 0:
        raise InvalidRope(
            f"pair {indices[left + 1]} does not rotate more slowly than pair {indices[left]}, so the ramp has no end beyond them"
        )
    return float(indices[left] + (log_needed - logs[left]) / rise * (indices[left + 1] - indices[left]))


def half_to_interleaved(rotary_dim: int) -> npt.NDArray[np.int64]:
    """Return the channel order that converts the half layout to the interleaved one: new[2i + t] = old[i + t d/2]."""
    order: npt.NDArray[np.int64] = np.arange(rotary_dim).reshape(2, rotary_dim // 2).T.reshape(-1)
    return order


def interleaved_to_half(rotary_dim: int) -> npt.NDArray[np.int64]:
    """Return the inverse of half_to_interleaved."""
    order: npt.NDArray[np.int64] = np.arange(rotary_dim).reshape(rotary_dim // 2, 2).T.reshape(-1)
    return order


def rotate(x: Array, positions: Array, inv_freq: Array, attention_factor: float = 1.0, layout: str = "half") -> Array:
    """Return x with its first 2 * len(inv_freq) channels rotated. Tests compare runtimes with this reference.

    Shapes: x (..., n, head_dim), positions (n,), inv_freq (rotary_dim // 2,) -> (..., n, head_dim).
    """
    rotary_dim = 2 * inv_freq.size
    angles = np.asarray(positions, dtype=np.float64)[:, None] * inv_freq
    cos, sin = np.cos(angles) * attention_factor, np.sin(angles) * attention_factor
    part = x[..., :rotary_dim]
    if layout == "interleaved":
        part = part[..., interleaved_to_half(rotary_dim)]
    first, second = part[..., : rotary_dim // 2], part[..., rotary_dim // 2 :]
    rotated = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    if layout == "interleaved":
        rotated = rotated[..., half_to_interleaved(rotary_dim)]
    return np.concatenate([rotated, x[..., rotary_dim:]], axis=-1)


def scores(
    q: Array,
    k: Array,
    positions: Array,
    inv_freq: Array,
    *,
    attention_factor: float = 1.0,
    layout: str = "half",
    softmax_scale: float | None = None,
) -> Array:
    """Return the attention scores before the softmax, -inf for keys after their query.

    The first 2 * len(inv_freq) channels rotate. The other channels add their plain product. Several queries may share a
    key.
    Shapes: q (heads, n, head_dim), k (kv_heads, n, head_dim), positions (n,) -> (heads, n, n).
    """
    shared = q.shape[0] // k.shape[0]
    rotated_q = rotate(q, positions, inv_freq, attention_factor, layout)
    rotated_k = np.repeat(rotate(k, positions, inv_freq, attention_factor, layout), shared, axis=0)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    products: Array = rotated_q @ rotated_k.swapaxes(-1, -2) * scale
    ordered = np.asarray(positions)
    products[:, ordered[:, None] < ordered[None, :]] = -np.inf
    return products
