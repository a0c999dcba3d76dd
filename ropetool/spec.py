"""The plain data of the project: rotary tables, what a layer type does with them, and a set of both.

Everything here is frozen and validated when it is made. Knows nothing of files or runtimes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import InvalidRope

Array = npt.NDArray[np.float64]

MAX_LENGTH = 2**31  # positions; beyond it no runtime has an integer for them
# What any number of a rope may be multiplied by itself: beyond, float32 has no square of it, and float64 soon no product.
SMALLEST, LARGEST = 1e-18, 1e18
TABLE_TOLERANCE = 1e-6  # relative; two float64 tables from values as stored


def is_number(value: object) -> bool:
    """Return whether the value is a finite number; a bool is none, nor is an integer too large for a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_multiplier(value: object) -> bool:
    """Return whether the value is a number from SMALLEST to LARGEST."""
    return is_number(value) and SMALLEST <= value <= LARGEST  # type: ignore[operator]


def frozen_table(values: Any) -> Array:
    """Return the values as a read-only float64 vector.

    Raises: InvalidRope if it is not one-dimensional, or an entry is negative, infinite or NaN.
    """
    table = np.array(values, dtype=np.float64)
    if table.ndim != 1 or table.size == 0:
        raise InvalidRope(
            f"a table of inverse frequencies is a vector of at least one entry, not of shape {table.shape}"
        )
    bad = ~np.isfinite(table) | (table < 0)
    if bad.any():
        pair = int(np.argmax(bad))
        raise InvalidRope(f"inv_freq[{pair}] is {table[pair]}; an inverse frequency is finite and not negative")
    table.setflags(write=False)
    return table


@dataclass(frozen=True, eq=False)
class Regime:
    """One table and its attention factor, used while the sequence has at most `up_to` tokens (None: always).

    Shapes: inv_freq (rotary_dim // 2,). Units: radians per token.
    """

    inv_freq: Array
    attention_factor: float = 1.0
    up_to: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "inv_freq", frozen_table(self.inv_freq))
        if not is_multiplier(self.attention_factor):
            raise InvalidRope(
                f"attention_factor is {self.attention_factor}; it multiplies cos and sin and must be above 0, a number from "
                f"{SMALLEST:g} to {LARGEST:g}"
            )

    def agrees(self, other: Regime, tolerance: float = TABLE_TOLERANCE) -> bool:
        """Return whether both rotate alike, to a relative tolerance per pair and on the attention factor."""
        return (
            self.up_to == other.up_to
            and self.inv_freq.shape == other.inv_freq.shape
            and bool(
                np.all(np.abs(self.inv_freq - other.inv_freq) <= tolerance * np.maximum(self.inv_freq, other.inv_freq))
            )
            and math.isclose(self.attention_factor, other.attention_factor, rel_tol=tolerance)
        )


@dataclass(frozen=True, eq=False)
class RopeTable:
    """What a kind of layer rotates by: regimes in order of length, or a rule for tables that follow the length.

    A rule maps a length in tokens to a regime; `regimes` then holds its value at the trained length alone, and
    `rule_key` names it, so that two rules can be compared without calling them everywhere.
    """

    regimes: tuple[Regime, ...]
    rule: Callable[[int], Regime] | None = field(default=None, repr=False)
    rule_key: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        limits = [regime.up_to for regime in self.regimes]
        if not limits or limits[-1] is not None or None in limits[:-1]:
            raise InvalidRope("the last regime, and only that one, has no upper length")
        known = [limit for limit in limits if limit is not None]
        if known != sorted(set(known)):
            raise InvalidRope(f"regimes must be ordered by length, not {known}")
        sizes = [regime.inv_freq.size for regime in self.regimes]
        if len(set(sizes)) > 1:
            raise InvalidRope(f"the regimes of one table have {sizes} rotary pairs; they must have equally many")

    @classmethod
    def fixed(cls, inv_freq: Any, attention_factor: float = 1.0) -> RopeTable:
        """Return the table of a method that does not look at the length."""
        return cls((Regime(inv_freq, attention_factor),))

    @property
    def is_fixed(self) -> bool:
        """Whether the same table serves every length."""
        return self.rule is None and len(self.regimes) == 1

    def at(self, length: int) -> Regime:
        """Return the regime that a sequence of this many tokens is rotated by."""
        if self.rule is not None:
            return self.rule(length)
        return next(r for r in self.regimes if r.up_to is None or length <= r.up_to)

    def agrees(self, other: RopeTable, tolerance: float = TABLE_TOLERANCE) -> bool:
        """Return whether both rotate alike at every length."""
        if (self.rule is None) != (other.rule is None) or len(self.rule_key) != len(other.rule_key):
            return False
        same_rule = all(
            math.isclose(a, b, rel_tol=tolerance) if isinstance(a, float) and isinstance(b, float) else a == b
            for a, b in zip(self.rule_key, other.rule_key, strict=True)
        )
        return same_rule and self._regimes_agree(other, tolerance)

    def _regimes_agree(self, other: RopeTable, tolerance: float) -> bool:
        return len(self.regimes) == len(other.regimes) and all(
            a.agrees(b, tolerance) for a, b in zip(self.regimes, other.regimes, strict=True)
        )


@dataclass(frozen=True)
class Temperature:
    """A factor on the score that grows with the position: 1 + beta ln(1 + floor(position / length))."""

    beta: float
    length: int

    def agrees(self, other: Temperature | None, tolerance: float = TABLE_TOLERANCE) -> bool:
        """Return whether both grow alike."""
        if other is None or self.length != other.length:
            return False
        return math.isclose(self.beta, other.beta, rel_tol=tolerance)


@dataclass(frozen=True, eq=False)
class LayerRope:
    """What one kind of layer computes: its table, and everything else that scales or masks the score.

    `softmax_multiplier` multiplies the whole score beyond the family's own softmax scale (DeepSeek's
    mscale_all_dim); `params` are the rope keys as the file spells them, without rope_type and rope_theta.
    """

    rope_type: str
    table: RopeTable | None  # None: the layers do not rotate
    head_dim: int
    rotary_dim: int
    layout: str
    layers: tuple[int, ...]
    rope_theta: float | None = None
    factor: float | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    original_max_position_embeddings: int | None = None
    softmax_multiplier: float = 1.0
    temperature: Temperature | None = None
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        if self.layout not in ("half", "interleaved"):
            raise InvalidRope(f"layout is {self.layout!r}; it is half or interleaved")
        if self.table is not None and self.table.regimes[0].inv_freq.size * 2 != self.rotary_dim:
            raise InvalidRope(
                f"a table of {self.table.regimes[0].inv_freq.size} pairs does not fit rotary_dim {self.rotary_dim}"
            )
        if self.rotary_dim > self.head_dim:
            raise InvalidRope(f"rotary_dim {self.rotary_dim} is above head_dim {self.head_dim}")
        if not is_multiplier(self.softmax_multiplier):
            raise InvalidRope(
                f"softmax_multiplier is {self.softmax_multiplier}; it is a number from {SMALLEST:g} to {LARGEST:g}"
            )

    @property
    def attention_factor(self) -> float:
        """The factor on cos and sin, of the regime for the longest sequences."""
        return self.table.regimes[-1].attention_factor if self.table else 1.0

    @property
    def score_rotary(self) -> float:
        """What multiplies the rotary part of the score: attention_factor squared times the softmax multiplier."""
        return self.attention_factor**2 * self.softmax_multiplier

    @property
    def score_plain(self) -> float:
        """What multiplies the part of the score that is not rotated."""
        return self.softmax_multiplier

    def disagreement(self, other: LayerRope, tolerance: float = TABLE_TOLERANCE) -> str:
        """Return in a few words how the score differs from the other's, or an empty string."""
        if (self.table is None) != (other.table is None):
            return "one rotates, the other does not"
        if self.layers != other.layers:
            return "it concerns other layers"
        if self.table is not None and other.table is not None and not self.table.agrees(other.table, tolerance):
            return _table_difference(self.table, other.table, tolerance)
        if self.layout != other.layout:
            return f"layout {other.layout} instead of {self.layout}"
        wanted, found = self.softmax_multiplier, other.softmax_multiplier
        if not math.isclose(wanted, found, rel_tol=tolerance):
            return f"the whole score is multiplied by {found:.6g} instead of {wanted:.6g}"
        grows = self.temperature
        if not (other.temperature is None if grows is None else grows.agrees(other.temperature, tolerance)):
            return "the position temperature differs"
        windows = other.sliding_window, self.sliding_window
        if windows[0] != windows[1]:
            theirs, ours = (f"a sliding window of {w}" if w else "no sliding window" for w in windows)
            return f"{theirs} instead of {ours}"
        return ""


def _table_difference(a: RopeTable, b: RopeTable, tolerance: float) -> str:
    if a.is_fixed != b.is_fixed or len(a.regimes) != len(b.regimes):
        return "the table depends on the length in another way"
    for wanted, found in zip(a.regimes, b.regimes, strict=True):
        if wanted.up_to != found.up_to:
            return f"the table changes at {found.up_to} tokens instead of {wanted.up_to}"
        if wanted.inv_freq.shape != found.inv_freq.shape:
            return f"{found.inv_freq.size} rotary pairs instead of {wanted.inv_freq.size}"
        if not math.isclose(wanted.attention_factor, found.attention_factor, rel_tol=tolerance):
            return f"attention factor {found.attention_factor:.6g} instead of {wanted.attention_factor:.6g}"
        with np.errstate(divide="ignore", invalid="ignore"):
            speed = np.where(found.inv_freq == wanted.inv_freq, 1.0, found.inv_freq / wanted.inv_freq)
        pair = int(np.argmax(np.abs(speed - 1)))
        if abs(speed[pair] - 1) > tolerance:
            return f"pair {pair} turns {speed[pair]:.6g} times as fast as asked"
    return "the rule that follows the length differs"


@dataclass(frozen=True, eq=False)
class RopeSet:
    """All kinds of layers of a checkpoint, and its lengths.

    max_position_embeddings: what the file promises, in tokens. original_max_position_embeddings: what it was
    trained on before any scaling, None where the file does not say (linear scaling stores no length).
    """

    entries: Mapping[str, LayerRope]
    max_position_embeddings: int
    original_max_position_embeddings: int | None

    def disagreement(self, other: RopeSet, tolerance: float = TABLE_TOLERANCE) -> str:
        """Return in a few words what the other computes differently, or an empty string."""
        if set(self.entries) != set(other.entries):
            return f"layer types {sorted(other.entries)} instead of {sorted(self.entries)}"
        for layer_type, entry in self.entries.items():
            reason = entry.disagreement(other.entries[layer_type], tolerance)
            if reason:
                return f"{layer_type}: {reason}" if len(self.entries) > 1 else reason
        return ""

    def with_entry(self, layer_type: str, entry: LayerRope) -> RopeSet:
        """Return a copy with one kind of layer replaced."""
        return replace(self, entries={**self.entries, layer_type: entry})
