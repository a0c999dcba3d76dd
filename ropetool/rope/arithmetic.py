"""Rotary arithmetic: base tables, wavelengths, turns, bands, layouts, the reference rotation.

float64 throughout, no I/O. Source of the definitions: arXiv:2104.09864 (RoPE), arXiv:2309.00071 (YaRN).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ropetool.errors import InvalidRope
from ropetool.rope.tables import Array, is_number

NEAR_TURNS = 32.0  # YaRN's beta_fast: pairs that turned more often have met every angle many times
FAR_TURNS = 1.0  # YaRN's beta_slow: pairs that turned less often have only seen an arc


def base_inv_freq(rope_theta: float, rotary_dim: int) -> Array:
    """Return rope_theta ** (-2i / rotary_dim) for each pair i.

    Shapes: (rotary_dim // 2,). Units: radians per token.
    Raises: InvalidRope if rotary_dim is odd or below 2, or rope_theta is not above 1.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise InvalidRope(f"rotary_dim is {rotary_dim}; it must be even and at least 2")
    if not is_number(rope_theta) or rope_theta <= 1:
        raise InvalidRope(f"rope_theta is {rope_theta}; it must be a finite number above 1")
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim
    table: Array = np.float64(rope_theta) ** -exponents
    return table


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
    """Return how often each pair turns within `length` tokens."""
    counted: Array = np.asarray(inv_freq, dtype=np.float64) * length / (2 * math.pi)
    return counted


def bands(inv_freq: Array, length: float) -> tuple[int, int, int]:
    """Return how many pairs turn more than 32 times, 1 to 32 times, and less than once within `length`."""
    counted = turns(inv_freq, length)
    near = int(np.sum(counted > NEAR_TURNS))
    far = int(np.sum(counted < FAR_TURNS))
    return near, counted.size - near - far, far


def index_at_turns(inv_freq: Array, length: float, count: float) -> float:
    """Return the fractional pair index at which a pair would turn `count` times within `length`.

    Linear in log inv_freq between neighbours, end slopes beyond; pairs that never turn are skipped. On a
    geometric table this is YaRN's d ln(L / (2 pi b)) / (2 ln theta).
    Raises: InvalidRope if fewer than two pairs turn, or those at the needed end do not slow down.
    """
    indices = np.flatnonzero(inv_freq > 0)
    if indices.size < 2:
        raise InvalidRope("a ramp over pair indices needs at least two pairs that rotate")
    logs = np.log(inv_freq[indices])
    wanted = math.log(2 * math.pi * count / length)
    # The last pair that is still at least as fast (a searched table need not fall everywhere); the ends keep the
    # slope of their last interval.
    as_fast = np.flatnonzero(logs >= wanted)
    left = min(int(as_fast[-1]) if as_fast.size else 0, indices.size - 2)
    rise = logs[left + 1] - logs[left]
    if rise >= 0:
        raise InvalidRope(
            f"pair {indices[left + 1]} does not rotate more slowly than pair {indices[left]}, so the ramp has no end beyond them"
        )
    return float(indices[left] + (wanted - logs[left]) / rise * (indices[left + 1] - indices[left]))


def half_to_interleaved(rotary_dim: int) -> npt.NDArray[np.int64]:
    """Return the channel order that turns the half layout into the interleaved one: new[2i + t] = old[i + t d/2]."""
    order: npt.NDArray[np.int64] = np.arange(rotary_dim).reshape(2, rotary_dim // 2).T.reshape(-1)
    return order


def interleaved_to_half(rotary_dim: int) -> npt.NDArray[np.int64]:
    """Return the inverse of half_to_interleaved."""
    order: npt.NDArray[np.int64] = np.arange(rotary_dim).reshape(rotary_dim // 2, 2).T.reshape(-1)
    return order


def rotate(x: Array, positions: Array, inv_freq: Array, attention_factor: float = 1.0, layout: str = "half") -> Array:
    """Return x with its first 2 * len(inv_freq) channels rotated: the reference that tests compare runtimes with.

    Shapes: x (..., n, head_dim), positions (n,), inv_freq (rotary_dim // 2,) -> (..., n, head_dim).
    """
    rotary_dim = 2 * inv_freq.size
    angles = np.asarray(positions, dtype=np.float64)[:, None] * inv_freq
    cos, sin = np.cos(angles) * attention_factor, np.sin(angles) * attention_factor
    part = x[..., :rotary_dim]
    if layout == "interleaved":
        part = part[..., interleaved_to_half(rotary_dim)]
    first, second = part[..., : rotary_dim // 2], part[..., rotary_dim // 2 :]
    turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    if layout == "interleaved":
        turned = turned[..., half_to_interleaved(rotary_dim)]
    return np.concatenate([turned, x[..., rotary_dim:]], axis=-1)


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
    """Return the attention scores before the softmax, -inf where a key comes after its query.

    The first 2 * len(inv_freq) channels rotate, the others add their plain product; several queries may share a key.
    Shapes: q (heads, n, head_dim), k (kv_heads, n, head_dim), positions (n,) -> (heads, n, n).
    """
    shared = q.shape[0] // k.shape[0]
    turned_q = rotate(q, positions, inv_freq, attention_factor, layout)
    turned_k = np.repeat(rotate(k, positions, inv_freq, attention_factor, layout), shared, axis=0)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    found: Array = turned_q @ turned_k.swapaxes(-1, -2) * scale
    ordered = np.asarray(positions)
    found[:, ordered[:, None] < ordered[None, :]] = -np.inf
    return found


def attention(found: Array, v: Array) -> Array:
    """Return what the scores make of the values: a softmax over the keys, in float64.

    Shapes: found (heads, n, n), v (kv_heads, n, head_dim) -> (heads, n, head_dim).
    """
    weights = np.exp(found - found.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: Array = weights @ np.repeat(v, found.shape[0] // v.shape[0], axis=0)
    return mixed
