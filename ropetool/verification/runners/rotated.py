"""Runners that apply different RoPE tables to one loaded model, so that several tables share its weights."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import replace

from ropetool.errors import ConfigError
from ropetool.rope.tables import Regime, RopeSet
from ropetool.verification.runners.altered import AlteredRunner
from ropetool.verification.runners.torch_runner import TorchRunner


class RotatedRunner(AlteredRunner):
    """A view of a loaded checkpoint with a different rotation, which applies only during a call.

    Each row uses the table for its length, and generation the table for the whole row.

    runner: the loaded checkpoint.
    rope: the rotation to apply.
    own: the rotation of the checkpoint.
    nested: whether the modules have a table for each layer type; see `Family.nested`.
    Raises: ConfigError if the rotations differ in the layout, the window or the temperature, which cannot be changed.
    """

    def __init__(self, runner: TorchRunner, rope: RopeSet, *, own: RopeSet, nested: bool) -> None:
        super().__init__(runner)
        self._torch_runner, self._rope, self._nested = runner, rope, nested
        fixed = own.disagreement(_with_tables_of(own, rope))
        if fixed:
            raise ConfigError(f"the rotation of a loaded model cannot change this: {fixed}", where=str(runner.path))
        self._scores = softmax_ratios(rope, own)

    def check(self) -> None:
        """Load the model. Raises: ConfigError if its softmax scale would have to change and cannot be changed."""
        if not self._torch_runner.model.scalable >= self._scores.keys():
            raise ConfigError(
                "the plan scales the whole attention score, which this transformers class does not support",
                where=str(self._torch_runner.path), try_="ropetool extend, then ropetool verify OUTPUT",
            )  # fmt: skip

    def _altered(self, length: int) -> AbstractContextManager[None]:
        self.check()
        return self._torch_runner.model.rotated(tables_at(self._rope, length), self._nested, self._scores)


def _with_tables_of(own: RopeSet, rope: RopeSet) -> RopeSet:
    """Return `rope` with the tables and softmax multipliers of `own` in each layer type that rotates in both."""
    entries = {
        layer_type: replace(entry, table=own_entry.table, softmax_multiplier=own_entry.softmax_multiplier)
        if entry.table and own_entry.table
        else entry
        for layer_type, entry in rope.entries.items()
        if (own_entry := own.entries.get(layer_type, entry))
    }
    return replace(rope, entries=entries)


def tables_at(rope: RopeSet, length: int) -> dict[str, Regime]:
    """Return the table of each layer type that rotates, for a row of `length` tokens."""
    return {layer_type: entry.table.at(length) for layer_type, entry in rope.entries.items() if entry.table is not None}


def softmax_ratios(rope: RopeSet, own: RopeSet) -> dict[int, float]:
    """Return the factor that changes the softmax scale of each layer from `own` to `rope`; layers with 1 are left out."""
    ratios: dict[int, float] = {}
    for layer_type, entry in rope.entries.items():
        ratio = entry.softmax_multiplier / own.entries[layer_type].softmax_multiplier
        if not math.isclose(ratio, 1.0, rel_tol=1e-9):
            ratios |= dict.fromkeys(entry.layers, ratio)
    return ratios
