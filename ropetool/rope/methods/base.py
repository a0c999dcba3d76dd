"""The interface of a method: it gets a source table and a goal, and returns a target table.

A method module has NAME, ALIASES, SUMMARY, SOURCE, AUTO_ATTENTION_FACTOR, and a function derive(source, goal, params)
-> Derived. The annotation of `params` is a frozen dataclass with the method's parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ropetool.errors import InvalidRope
from ropetool.rope.formulas import Source, logn_factor, yarn_factor
from ropetool.rope.reach import reach
from ropetool.rope.tables import MAX_LENGTH, Array, Regime, RopeTable, is_number

# Beyond these numbers, a ramp ends far outside every table, and a runtime's float32 cannot represent the number.
FEWEST_TURNS, MOST_TURNS = 1e-6, 1e9
PRESETS = ("auto", "none", "yarn", "logn")


@dataclass(frozen=True)
class Goal:
    """The goal of an extension.

    factor: the exact ratio of the target length to the source's length.
    target_length: in whole tokens.
    attention_factor: a number or a name of `PRESETS`; `auto` is the method's own.
    """

    factor: float
    target_length: int
    attention_factor: str | float = "auto"

    @classmethod
    def make(
        cls, length: int, factor: float | None, target_length: int | None, attention_factor: str | float = "auto"
    ) -> Goal:
        """Return the goal from exactly one of factor and target length.

        Raises: InvalidRope if both or neither are given, if the factor is not a finite number of at least 1, or if the
        target is below the source's length or beyond 2^31 positions.
        """
        if (factor is None) == (target_length is None):
            raise InvalidRope("pass exactly one of --factor and --target-length", try_="--factor 4")
        if factor is not None:
            if not is_number(factor) or factor < 1:
                raise InvalidRope(
                    f"{factor} is not a factor; a factor is a finite number of at least 1", where="--factor"
                )
            if length * factor > MAX_LENGTH:
                # A length of 1 checks the factor before a source is open.
                raise _too_long(f"{factor:g} times {length}" if length > 1 else f"{factor:g}", "--factor")
            target_length = round(length * factor)
        if not isinstance(target_length, int) or isinstance(target_length, bool):
            raise InvalidRope(f"{target_length} must be a whole number of tokens", where="--target-length")
        if target_length < length:
            raise InvalidRope(
                f"{target_length} is below the {length} tokens of the trained length; there is nothing to extend",
                where="--target-length",
                try_=f"a target length of at least {length}",
            )
        if target_length > MAX_LENGTH:
            raise _too_long(str(target_length), "--target-length")
        if isinstance(attention_factor, str):
            check_preset(attention_factor)
        elif not (is_number(attention_factor) and attention_factor > 0):
            raise InvalidRope(
                f"{attention_factor} multiplies cos and sin and must be a finite number above 0",
                where="--attention-factor",
            )
        return cls(float(factor) if factor is not None else target_length / length, target_length, attention_factor)


@dataclass(frozen=True, eq=False)
class Derived:
    """The result of a method.

    table: the target table.
    max_position_embeddings: the context length for the config, in tokens. `dynamic` keeps the trained length.
    native: possible Hugging Face rope keys for the table, in order of preference: rope_type and its parameters, and
      rope_theta if the base changes. Empty if only a full table can express it.
    softmax_multiplier: the multiplier of the whole score.
    notes: for the user.
    """

    table: RopeTable
    max_position_embeddings: int
    native: tuple[Mapping[str, Any], ...] = ()
    softmax_multiplier: float = 1.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NoParams:
    """The parameters of a method without parameters."""


def described(default: Any, text: str) -> Any:
    """Return a dataclass field with a one-line description, which help and docs show."""
    return field(default=default, metadata={"help": text})


def _too_long(tokens: str, where: str) -> InvalidRope:
    return InvalidRope(f"{tokens} tokens is above {MAX_LENGTH}, the most that runtimes support", where=where)


def chosen_attention_factor(source: Source, goal: Goal, auto: str) -> float:
    """Return the attention factor of a goal: a number, the value of a preset, or the method's own for `auto`.

    auto: the method's own preset. It multiplies the source's factor. A given number or preset is absolute.
    """
    preset = goal.attention_factor
    base = 1.0
    if preset == "auto":
        preset, base = auto, source.attention_factor
    if isinstance(preset, (int, float)):
        return float(preset)
    values = {"none": 1.0, "yarn": yarn_factor(goal.factor), "logn": logn_factor(goal.factor, source.length)}
    check_preset(preset)
    return base * values[preset]


def with_native_short(derived: Derived, source: Source) -> Derived:
    """Return a derived target that keeps the source's table up to its length, and has the new table beyond it.

    Raises: InvalidRope if the new table depends on the length already.
    """
    if not derived.table.is_fixed:
        raise InvalidRope(
            "the table of this method depends on the text length already", where="--native-short", try_="leave it out"
        )
    native = Regime(source.inv_freq, source.attention_factor, up_to=source.length)
    return replace(derived, table=RopeTable((native, *derived.table.regimes)), native=())


def check_preset(name: str) -> None:
    """Raise InvalidRope for an unknown preset of the attention factor."""
    if name not in PRESETS:
        raise InvalidRope(f"{name!r} must be a number or one of {', '.join(PRESETS)}", where="--attention-factor")


def check_betas(beta_fast: float, beta_slow: float) -> None:
    """Raise InvalidRope unless both are plausible numbers of turns and beta_fast is not below beta_slow."""
    for name, value in (("beta_fast", beta_fast), ("beta_slow", beta_slow)):
        if not FEWEST_TURNS <= value <= MOST_TURNS:
            raise InvalidRope(
                f"{name} is {value}; it counts turns and must be from {FEWEST_TURNS:g} to {MOST_TURNS:g}",
                where=f"--{name.replace('_', '-')}",
            )
    if beta_fast < beta_slow:
        raise InvalidRope(
            f"beta_fast {beta_fast:g} is below beta_slow {beta_slow:g}; "
            "pairs with more turns than beta_fast are kept, with fewer than beta_slow divided",
            where="--beta-fast",
            try_="--beta-fast 32 --beta-slow 1",
        )


def reach_note(method: str, source: Source, inv_freq: Array, target_length: int) -> tuple[str, ...]:
    """Return a note if a table reaches less than the target, because the first slow pair leaves its arc earlier."""
    reached, first = reach(source.inv_freq, inv_freq, source.length)
    if reached >= target_length * (1 - 1e-9):
        return ()
    return (
        f"{method} reaches about {math.floor(reached)} tokens, not {target_length}: beyond that, pair {first} rotates "
        f"further than within the {source.length} trained tokens. The yarn method reaches its target",
    )


def with_attention_factor(native: Mapping[str, Any], attention_factor: float, default: float) -> Mapping[str, Any]:
    """Return the native keys, with the attention factor only if the runtime's default differs."""
    is_default = math.isclose(attention_factor, default, rel_tol=1e-12)
    return dict(native) if is_default else {**native, "attention_factor": attention_factor}
