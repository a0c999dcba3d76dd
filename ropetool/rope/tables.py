"""The central data of ropetool: RoPE tables, their use in a layer type, and the tables of a whole checkpoint.

All classes are frozen and validated on creation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from ropetool.errors import InvalidRope

Array = npt.NDArray[np.float64]

MAX_LENGTH = 2**31  # positions; runtimes have no integers for more
# Limits of any multiplier: float32 cannot represent the square of a number beyond, and float64 soon no product.
SMALLEST, LARGEST = 1e-18, 1e18
TABLE_TOLERANCE = 1e-6  # relative error between two float64 tables from stored values
SEEN = 1.005  # the smallest ratio that three digits show
CONTEXT = "max_position_embeddings"


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether the value is a finite number. A bool does not count, nor does an integer too large for a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_multiplier(value: object) -> bool:
    """Return whether the value is a number from SMALLEST to LARGEST."""
    return is_number(value) and SMALLEST <= value <= LARGEST


def frozen_table(values: Any) -> Array:
    """Return the values as a read-only float64 vector.

    Raises: InvalidRope if it is not one-dimensional, or an entry is negative, infinite or NaN.
    """
    table = np.array(values, dtype=np.float64)
    if table.ndim != 1 or table.size == 0:
        raise InvalidRope(f"inv_freq has the shape {table.shape}; it must be a vector with at least one entry")
    bad = ~np.isfinite(table) | (table < 0)
    if bad.any():
        pair = int(np.argmax(bad))
        raise InvalidRope(f"inv_freq[{pair}] is {table[pair]}; it must be finite and not negative")
    table.setflags(write=False)
    return table


@dataclass(frozen=True, eq=False)
class Regime:
    """One table with its attention factor.

    inv_freq: shape (rotary_dim // 2,), in radians per token.
    attention_factor: multiplies cos and sin.
    up_to: the longest sequence in tokens that uses this table; None for any length.
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
        """Return whether length limit, frequencies and attention factor are equal, within the relative tolerance."""
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
    """The table of a layer type: regimes in order of length, or a rule if the table depends on the length.

    regimes: at least one. If there is a rule, only its regime at the trained length.
    rule: maps a length in tokens to a regime; None for a table without a rule.
    rule_key: identifies the rule, so that rules can be compared without calls.
    """

    regimes: tuple[Regime, ...]
    rule: Callable[[int], Regime] | None = field(default=None, repr=False)
    rule_key: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        limits = [regime.up_to for regime in self.regimes]
        if not limits or limits[-1] is not None or None in limits[:-1]:
            raise InvalidRope("only the last regime must have no upper length")
        known = [limit for limit in limits if limit is not None]
        if known != sorted(set(known)):
            raise InvalidRope(f"regimes must be ordered by length, not {known}")
        sizes = [regime.inv_freq.size for regime in self.regimes]
        if len(set(sizes)) > 1:
            raise InvalidRope(f"the regimes of one table have {sizes} rotary pairs; the numbers must be equal")

    @classmethod
    def fixed(cls, inv_freq: Any, attention_factor: float = 1.0) -> RopeTable:
        """Return a table that does not depend on the length."""
        return cls((Regime(inv_freq, attention_factor),))

    @property
    def is_fixed(self) -> bool:
        """Whether the same table applies to every length."""
        return self.rule is None and len(self.regimes) == 1

    def at(self, length: int) -> Regime:
        """Return the regime for a sequence of this many tokens."""
        if self.rule is not None:
            return self.rule(length)
        return next(r for r in self.regimes if r.up_to is None or length <= r.up_to)

    def with_factor(self, factor: float) -> RopeTable:
        """Return the same table with this attention factor at every length. A rule keeps its own factor."""
        regimes = tuple(replace(regime, attention_factor=factor) for regime in self.regimes)
        return RopeTable(regimes, self.rule, self.rule_key)

    def agrees(self, other: RopeTable, tolerance: float = TABLE_TOLERANCE) -> bool:
        """Return whether both are equal at every length, within the relative tolerance."""
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

    def agrees(self, other: Temperature | None) -> bool:
        """Return whether both factors grow equally."""
        if other is None or self.length != other.length:
            return False
        return math.isclose(self.beta, other.beta, rel_tol=TABLE_TOLERANCE)


@dataclass(frozen=True, eq=False)
class Difference:
    """A difference between two interpretations of a file.

    field: the field that differs.
    first, other: both values.
    words: the difference as text.
    effect: its effect as text; empty if `words` is enough.
    layer_type: the layer type; empty if there is only one, or for a difference in all layers.
    """

    field: str
    first: Any
    other: Any
    words: str
    effect: str = ""
    layer_type: str = ""

    def __str__(self) -> str:
        where = f"{self.layer_type}: " if self.layer_type else ""
        return f"{where}{self.words}{f': {self.effect}' if self.effect else ''}"


@dataclass(frozen=True, eq=False)
class LayerRope:
    """The computation of one layer type: its table, and everything else that scales or masks the score.

    rope_type: Hugging Face's name of the table's type; `table` if no single type gives this table; `none` if the layers
      do not rotate.
    table: None if the layers do not rotate.
    head_dim, rotary_dim: channels of a head, and rotating ones.
    layout: half or interleaved.
    layers: the numbers of the layers.
    rope_theta: the base; None without one.
    factor: the factor in the file; None without one.
    params: the rope keys with the file's spelling, without rope_type and rope_theta.
    original_max_position_embeddings: the trained length in tokens, if the file sets it.
    softmax_multiplier: multiplies the whole score, in addition to the family's own softmax scale (DeepSeek's
      mscale_all_dim).
    temperature: the growth of the score with the position; None without one.
    sliding_window: in tokens; None without one.
    chunked: the window is a chunk of the text, and a token attends only to earlier tokens of its chunk.
    """

    rope_type: str
    table: RopeTable | None
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
    chunked: bool = False

    def __post_init__(self) -> None:
        if self.layout not in ("half", "interleaved"):
            raise InvalidRope(f"layout is {self.layout!r}; it must be half or interleaved")
        if self.table is not None and self.table.regimes[0].inv_freq.size * 2 != self.rotary_dim:
            raise InvalidRope(
                f"a table of {self.table.regimes[0].inv_freq.size} pairs does not fit rotary_dim {self.rotary_dim}"
            )
        if self.rotary_dim > self.head_dim:
            raise InvalidRope(f"rotary_dim {self.rotary_dim} is above head_dim {self.head_dim}")
        if not is_multiplier(self.softmax_multiplier):
            raise InvalidRope(
                f"softmax_multiplier is {self.softmax_multiplier}; it must be a number from {SMALLEST:g} to {LARGEST:g}"
            )

    @property
    def unscaled(self) -> bool:
        """Whether the table is the unscaled table of a base, as in training. True for layers that do not rotate."""
        return (
            self.table is None
            or self.rope_type == "default"
            or (self.rope_type == "proportional" and self.factor in (None, 1))
        )

    @property
    def attention_factor(self) -> float:
        """The factor on cos and sin for the longest sequences."""
        return self.table.regimes[-1].attention_factor if self.table else 1.0

    def with_factor(self, factor: float) -> LayerRope:
        """Return a copy with this factor on cos and sin. Layers without rotation stay unchanged."""
        return self if self.table is None else replace(self, table=self.table.with_factor(factor))

    @property
    def score_rotary(self) -> float:
        """The multiplier of the rotary part of the score: attention_factor squared times the softmax multiplier."""
        return self.attention_factor**2 * self.softmax_multiplier

    @property
    def score_plain(self) -> float:
        """The multiplier of the part of the score that does not rotate."""
        return self.softmax_multiplier

    def within(self, context: int) -> LayerRope:
        """Return a copy without the window if the window is at least as long as this context."""
        window = self.sliding_window
        return replace(self, sliding_window=None) if window is not None and window >= context else self

    def differences(self, other: LayerRope) -> tuple[Difference, ...]:
        """Return the differences in the computation. The keys in the file do not matter."""
        if self.layers != other.layers:
            counts = (
                f", {len(other.layers)} instead of {len(self.layers)}" if len(other.layers) != len(self.layers) else ""
            )
            words = f"other layers{counts}"
            return (Difference("layers", self.layers, other.layers, words, "they rotate with a different table"),)
        if self.table is None or other.table is None:
            if self.table is other.table:
                return ()
            words, effect = "one rotates, the other does not", "positions are lost or added"
            return (Difference("table", self.table, other.table, words, effect),)
        differences = _of_tables(self.table, other.table)
        if self.layout != other.layout:
            words, effect = (
                f"layout {other.layout} instead of {self.layout}",
                "different channels are paired, so the output is noise",
            )
            differences.append(Difference("layout", self.layout, other.layout, words, effect))
        ours, theirs = self.softmax_multiplier, other.softmax_multiplier
        if not math.isclose(ours, theirs, rel_tol=TABLE_TOLERANCE):
            words = f"the whole score is multiplied by {theirs:.6g} instead of {ours:.6g}"
            effect = f"attention is {'sharper' if theirs > ours else 'flatter'}"
            differences.append(Difference("softmax_multiplier", ours, theirs, words, effect))
        grows = self.temperature
        if not (other.temperature is None if grows is None else grows.agrees(other.temperature)):
            words, effect = "the position temperature differs", "attention far into a text is sharper or flatter"
            differences.append(Difference("temperature", grows, other.temperature, words, effect))
        return (*differences, *_of_windows(self.sliding_window, other.sliding_window))


@dataclass(frozen=True, eq=False)
class RopeSet:
    """All layer types of a checkpoint, and its lengths.

    entries: the layer types by name.
    max_position_embeddings: the context length in the file, in tokens.
    original_max_position_embeddings: the trained length before any scaling, in tokens; None if the file does not set it
      (linear scaling does not store it).
    """

    entries: Mapping[str, LayerRope]
    max_position_embeddings: int
    original_max_position_embeddings: int | None

    def differences(self, other: RopeSet) -> tuple[Difference, ...]:
        """Return the differences in the computation, the context first."""
        differences = _of_contexts(self.max_position_embeddings, other.max_position_embeddings)
        if set(self.entries) != set(other.entries):
            words = f"layer types {sorted(other.entries)} instead of {sorted(self.entries)}"
            return (*differences, Difference("layer_types", sorted(self.entries), sorted(other.entries), words))
        several = len(self.entries) > 1
        for layer_type, entry in self.entries.items():
            more = entry.differences(other.entries[layer_type])
            differences += [replace(one, layer_type=layer_type) for one in more] if several else more
        return tuple(differences)

    def mismatch(self, other: RopeSet) -> str:
        """Return the differences as text, or an empty text."""
        return in_words(self.differences(other))

    def disagreement(self, other: RopeSet) -> str:
        """Return the differences other than the context as text, or an empty text."""
        return in_words(one for one in self.differences(other) if one.field != CONTEXT)

    def with_entry(self, layer_type: str, entry: LayerRope) -> RopeSet:
        """Return a copy with one layer type replaced."""
        return replace(self, entries={**self.entries, layer_type: entry})

    def named_as(self, other: RopeSet) -> RopeSet:
        """Return a copy with the other's names for layer types that have the same layers."""
        names = {frozenset(entry.layers): name for name, entry in reversed([*other.entries.items()])}
        return replace(self, entries={names.get(frozenset(e.layers), name): e for name, e in self.entries.items()})


# --- differences


def in_words(differences: Iterable[Difference]) -> str:
    """Return the differences as one text, empty without differences."""
    return "; ".join(map(str, differences))


def _of_contexts(ours: int, theirs: int) -> list[Difference]:
    effect = "stops earlier" if theirs < ours else "accepts longer texts"
    return [] if ours == theirs else [Difference(CONTEXT, ours, theirs, f"context {theirs} instead of {ours}", effect)]


def _of_windows(ours: int | None, theirs: int | None) -> list[Difference]:
    if ours == theirs:
        return []
    if theirs is None:
        words, effect = f"no sliding window instead of {ours} tokens", "looks back to the beginning"
    else:
        words, effect = f"a sliding window of {theirs} tokens instead of {ours or 'none'}", "looks no further back"
    return [Difference("sliding_window", ours, theirs, words, effect)]


def _of_tables(ours: RopeTable, theirs: RopeTable) -> list[Difference]:
    """Return the differences between the regimes for the longest sequences, or else between the first regimes."""
    if ours.agrees(theirs):
        return []
    a, b = ours.regimes[-1], theirs.regimes[-1]
    differences = []
    if ours.is_fixed != theirs.is_fixed or len(ours.regimes) != len(theirs.regimes):
        differences.append(
            Difference("table", ours, theirs, _by_length(ours, theirs), "some lengths get a different table")
        )
    if a.inv_freq.size != b.inv_freq.size:
        words = f"{b.inv_freq.size} rotary pairs instead of {a.inv_freq.size}"
        differences.append(Difference("inv_freq", a.inv_freq, b.inv_freq, words, "different channels rotate"))
    else:
        differences += _of_pairs(a.inv_freq, b.inv_freq)
    if not math.isclose(a.attention_factor, b.attention_factor, rel_tol=TABLE_TOLERANCE):
        scores = (b.attention_factor / a.attention_factor) ** 2
        words = f"attention factor {b.attention_factor:.6g} instead of {a.attention_factor:.6g}"
        effect = f"scores of the rotated channels times {scores:.6g}"
        differences.append(Difference("attention_factor", a.attention_factor, b.attention_factor, words, effect))
    if differences:
        return differences
    return [Difference("table", ours, theirs, _before_the_last(ours, theirs))]


def _before_the_last(ours: RopeTable, theirs: RopeTable) -> str:
    """Return the difference of two tables whose last regimes are equal."""
    first, other = ours.regimes[0], theirs.regimes[0]
    if first.up_to is None:
        return "the rule that depends on the length differs"
    if first.up_to != other.up_to:
        return f"the table changes at {other.up_to} tokens instead of {first.up_to}"
    if first.attention_factor != other.attention_factor:
        factors = f"{other.attention_factor:.6g} instead of {first.attention_factor:.6g}"
        return f"up to {first.up_to} tokens, the attention factor is {factors}"
    return f"the table up to {first.up_to} tokens differs"


def _by_length(ours: RopeTable, theirs: RopeTable) -> str:
    if theirs.is_fixed:
        return "one table for all lengths instead of a table that depends on the length"
    if ours.is_fixed:
        return "a table that depends on the length instead of one table for all lengths"
    return "the table depends on the length in a different way"


def _of_pairs(ours: Array, theirs: Array) -> list[Difference]:
    """Return how many pairs rotate faster or slower. At k times the speed, distances look k times as long."""
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = np.where(ours == theirs, 1.0, theirs / ours)
        count = int(np.sum(np.abs(ours - theirs) > TABLE_TOLERANCE * np.maximum(ours, theirs)))
        longer, shorter = float(np.max(speed)), float(np.max(1 / speed))
    if not count:
        return []
    by_way = {"longer": longer, "shorter": shorter}
    shown = {way: by for way, by in by_way.items() if by > SEEN} or {
        max(by_way, key=by_way.__getitem__): max(by_way.values())
    }
    ways = [f"{by:.3g}x {way}" if by > SEEN else f"{by:.7g}x {way}" for way, by in shown.items()]
    words, effect = f"table: {count} of {ours.size} pairs differ", f"distances look up to {' or '.join(ways)}"
    return [Difference("inv_freq", ours, theirs, words, effect)]
