"""One loaded model turned by several tables: a runner for each, so that a table costs no weights and no loading."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeVar

from ropetool.errors import ConfigError
from ropetool.rope.tables import Regime, RopeSet
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Done, Generated, Logits, Predictions, Scores, Wrapped, ignore

Found = TypeVar("Found")


class RotatedRunner(Wrapped):
    """A loaded checkpoint that turns as another rotation says, for as long as it is asked; the checkpoint's owner closes it.

    The table of a row is the one for its length. meant: what the checkpoint computes by itself. rope: what is to be computed.
    nested: whether the modules keep a table for each kind of layer, as `Family.nested` says.
    Raises: ConfigError where the two differ in what a loaded model cannot be told: layout, window, temperature.
    """

    def __init__(self, runner: TorchRunner, rope: RopeSet, *, meant: RopeSet, nested: bool) -> None:
        super().__init__(runner)
        self._torch_runner, self._rope, self._nested = runner, rope, nested
        fixed = meant.disagreement(_but_for_tables(rope, meant))
        if fixed:
            raise ConfigError(f"the rotation of a loaded model cannot change this: {fixed}", where=str(runner.path))
        self._scores = softmax_ratios(rope, meant)

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return what the last tokens of every row cost."""
        return self._turned(len(rows[0]), lambda: self._torch_runner.score(rows, scored, done))

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return what comes after every row."""
        return self._turned(len(rows[0]), lambda: self._torch_runner.predict(rows, candidates, done))

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits of a row; nothing else may ask the model until the last one is taken."""
        with self._turn(len(ids)):
            yield from self._torch_runner.logits(ids)

    def generated(self, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
        """Return the logits of generation and of whole passes, by the table of the whole row."""
        return self._turned(len(ids), lambda: self._torch_runner.generated(ids, count, done))

    def close(self) -> None:
        """Leave the model to its owner."""

    def _turned(self, length: int, compute: Callable[[], Found]) -> Found:
        with self._turn(length):
            return compute()

    def check(self) -> None:
        """Return if the model, which is loaded for it, can be turned so. Raises: ConfigError."""
        if not self._torch_runner.model.scalable >= self._scores.keys():
            raise ConfigError(
                "the plan scales the whole attention score, which this transformers class does not support",
                where=str(self._torch_runner.path), try_="ropetool extend, then ropetool verify OUTPUT",
            )  # fmt: skip

    def _turn(self, length: int) -> AbstractContextManager[None]:
        self.check()
        return self._torch_runner.model.turned(tables_at(self._rope, length), self._nested, self._scores)


def _but_for_tables(rope: RopeSet, meant: RopeSet) -> RopeSet:
    """Return a rotation with the tables and softmax scales of another one, which has the same kinds of layers or none of them."""
    entries = {
        kind: replace(entry, table=own.table, softmax_multiplier=own.softmax_multiplier)
        if entry.table and own.table
        else entry
        for kind, entry in rope.entries.items()
        if (own := meant.entries.get(kind, entry))
    }
    return replace(rope, entries=entries)


def tables_at(rope: RopeSet, length: int) -> dict[str, Regime]:
    """Return the table of each kind of layer that rotates, for a row of so many tokens."""
    return {kind: entry.table.at(length) for kind, entry in rope.entries.items() if entry.table is not None}


def softmax_ratios(rope: RopeSet, meant: RopeSet) -> dict[int, float]:
    """Return by what the softmax scale of each layer is another one than the checkpoint's."""
    found: dict[int, float] = {}
    for kind, entry in rope.entries.items():
        ratio = entry.softmax_multiplier / meant.entries[kind].softmax_multiplier
        if not math.isclose(ratio, 1.0, rel_tol=1e-9):
            found |= dict.fromkeys(entry.layers, ratio)
    return found
