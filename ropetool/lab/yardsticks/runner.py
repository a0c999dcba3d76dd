"""A loaded checkpoint that runs with a reference attention variant; a runner for every measurement that accepts one.

    yardstick_runner(yardstick, runner, rope, trained=256, nested=False) -> Runner

yardstick: the variant, from `named.parse` or `named.yardsticks_named` with a name such as `rerope(128)`.
runner: a loaded TorchRunner. Its opener closes it.
rope: the rotation that transformers computes from the checkpoint's files.
trained: the trained length, in tokens.
nested: whether the model has a table per layer type, see `Family.nested`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from ropetool.errors import ConfigError
from ropetool.lab.yardsticks import pairs, tables
from ropetool.lab.yardsticks.attention import attention
from ropetool.lab.yardsticks.named import Yardstick
from ropetool.rope.tables import RopeSet
from ropetool.verification.beside import OPTION
from ropetool.verification.runners.rotated import RotatedRunner
from ropetool.verification.runners.torch_attention import Unfit
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Done, Generated, Logits, Predictions, Runner, Scores, Wrapped, ignore

Found = TypeVar("Found")
PROBE = 24  # tokens, of which a model has to compute the same by the blocks as by itself
APART = {"float64": 1e-4, "float32": 1e-3}  # of the largest logit; tables are float32 in either
APART_ROUNDED = 0.1  # where states are bfloat16 or float16
FITS = (
    "reference attention variants work with models that rotate whole heads or their first channels just before the scores, "
    "and that see the whole text, such as Llama, Qwen, Gemma, Phi, GLM and OLMo"
)


def yardstick_runner(yardstick: Yardstick, runner: TorchRunner, rope: RopeSet, *, trained: int, nested: bool) -> Runner:
    """Return a runner of the checkpoint that uses this attention variant in the layers that see the whole text.

    Layers with a sliding window, and layers that do not rotate, stay unchanged.
    Raises: ConfigError with the checkpoint's path if no layer is left, if its own table depends on the length, or if
    its class does not support the change.
    """
    layers = layers_of(rope, str(runner.path))
    if yardstick.table:
        return RotatedRunner(runner, tables.following(rope, yardstick.table, trained, layers), own=rope, nested=nested)
    _check_fit(runner, layers, trained)
    return YardstickRunner(yardstick, runner, layers, trained)


def layers_of(rope: RopeSet, where: str) -> frozenset[int]:
    """Return the layers that the variant changes.

    Raises: ConfigError if no layer is left, or if the table depends on the length.
    """
    chosen = [e for e in rope.entries.values() if e.table is not None and e.sliding_window is None and not e.chunked]
    if not chosen:
        raise _unfit("every layer has a window or does not rotate", where)
    if not all(entry.table and entry.table.is_fixed for entry in chosen):
        raise _unfit("its own table depends on the text length", where)
    if any(entry.temperature is not None for entry in chosen):
        raise _unfit("its own scores already grow with the position", where)
    return frozenset(layer for entry in chosen for layer in entry.layers)


class YardstickRunner(Wrapped):
    """A loaded checkpoint with a different attention during each call; the checkpoint's owner closes it."""

    def __init__(self, yardstick: Yardstick, runner: TorchRunner, layers: frozenset[int], trained: int) -> None:
        super().__init__(runner)
        self._torch_runner, self._layers = runner, layers
        self._attend = attention(yardstick, trained)

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return what the last tokens of every row cost."""
        return self._attending(lambda: self._torch_runner.score(rows, scored, done))

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return what comes after every row."""
        return self._attending(lambda: self._torch_runner.predict(rows, candidates, done))

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits of a row; nothing else may ask the model until the last one is taken."""
        with self._otherwise():
            yield from self._torch_runner.logits(ids)

    def generated(self, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
        """Raise ConfigError: a yardstick reads whole rows."""
        raise ConfigError("a reference attention variant reads whole texts, without a cache", where=OPTION)

    def close(self) -> None:
        """Leave the model to its owner."""

    def _attending(self, compute: Callable[[], Found]) -> Found:
        with self._otherwise():
            return compute()

    @contextmanager
    def _otherwise(self) -> Iterator[None]:
        try:
            with self._torch_runner.model.attending(self._layers, self._attend):
                yield
        except Unfit as error:  # after a trial that went well; all the same, a sentence
            raise _unfit(str(error), str(self._torch_runner.path)) from None


def _check_fit(runner: TorchRunner, layers: frozenset[int], trained: int) -> None:
    """Raise ConfigError unless the model computes the same by the blocks of plain attention as by itself."""
    ids = [*runner.prefix, *range(3, 3 + PROBE)]
    plain = Yardstick("plain", pairs.PLAIN)
    try:
        own = np.concatenate([piece.copy() for _, piece in runner.logits(ids)])
        with runner.model.attending(layers, attention(plain, trained)) as reached:
            found = np.concatenate([piece.copy() for _, piece in runner.logits(ids)])
        if missing := layers - reached:
            raise Unfit(f"layer {min(missing)} computes its scores in code that ropetool cannot replace")
        apart = float(np.abs(found - own).max() / np.abs(own).max())
        if not apart <= APART.get(runner.model.dtype, APART_ROUNDED):
            raise Unfit(
                f"with plain attention its logits change by {apart:.2g} of the largest logit, but must stay equal"
            )
    except Unfit as error:
        raise _unfit(str(error), str(runner.path)) from None


def _unfit(why: str, where: str) -> ConfigError:
    return ConfigError(f"{why}; {FITS}", where=where, try_=f"without {OPTION}")
