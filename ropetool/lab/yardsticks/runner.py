"""A loaded checkpoint that runs with a reference attention variant; a runner for every measurement that accepts one.

    yardstick_runner(yardstick, runner, rope, trained=256, nested=False) -> Runner

yardstick: the variant, from `named.parse` or `named.yardsticks_named` with a name such as `rerope(128)`.
runner: a loaded TorchRunner. Its opener closes it.
rope: the rotation that transformers computes from the checkpoint's files.
trained: the trained length, in tokens.
nested: whether the model has a table per layer type, see `Family.nested`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ropetool.errors import ConfigError
from ropetool.lab.yardsticks import pairs, tables
from ropetool.lab.yardsticks.attention import attention
from ropetool.lab.yardsticks.ensembles import mean_of, nbce
from ropetool.lab.yardsticks.named import Yardstick
from ropetool.rope.tables import RopeSet
from ropetool.verification.beside import OPTION
from ropetool.verification.runners.altered import AlteredRunner
from ropetool.verification.runners.rotated import RotatedRunner
from ropetool.verification.runners.torch_attention import Attend, Unfit
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Done, Generated, Runner, ignore

PROBE = 24  # tokens for which the blocked attention must give the model's own results
APART = {"float64": 1e-4, "float32": 1e-3}  # relative to the largest logit; the tables are float32 in both
APART_ROUNDED = 0.1  # if states are bfloat16 or float16
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
    if yardstick.ensemble == "nbce":
        return nbce(runner, trained, *yardstick.numbers)

    def view(of: Yardstick) -> Runner:
        return RotatedRunner(runner, tables.scaled(rope, of, trained, layers), own=rope, nested=nested)

    if yardstick.ensemble == "bases":
        count, factor = yardstick.numbers
        factors = [factor ** (number / (count - 1)) for number in range(count)]
        return mean_of(runner, [view(replace(yardstick, table="ntk", factor=each)) for each in factors])
    inner = view(yardstick) if yardstick.table else runner
    if yardstick.table and not yardstick.scale:
        return inner
    try:
        check_fit(runner, layers, trained)
        layout, pairs = rotation_of(rope, layers) if yardstick.by_group else ("half", 0)
    except Unfit as error:
        raise _unfit(str(error), str(runner.path)) from None
    return YardstickRunner(inner, runner, layers, attention(yardstick, trained, layout, pairs))


def layers_of(rope: RopeSet, where: str) -> frozenset[int]:
    """Return the layers that a variant changes. Raises: ConfigError if no layer fits."""
    try:
        return alterable(rope)
    except Unfit as error:
        raise _unfit(str(error), where) from None


def alterable(rope: RopeSet) -> frozenset[int]:
    """Return the layers that see the whole text, rotate, and have a fixed table.

    Raises: Unfit if no layer is left, or if the table or the scores depend on the length.
    """
    chosen = [e for e in rope.entries.values() if e.table is not None and e.sliding_window is None and not e.chunked]
    if not chosen:
        raise Unfit("every layer has a window or does not rotate")
    if not all(entry.table and entry.table.is_fixed for entry in chosen):
        raise Unfit("its own table depends on the text length")
    if any(entry.temperature is not None for entry in chosen):
        raise Unfit("its own scores already grow with the position")
    return frozenset(layer for entry in chosen for layer in entry.layers)


def rotation_of(rope: RopeSet, layers: frozenset[int]) -> tuple[str, int]:
    """Return the layout and the number of pairs of these layers. Raises: Unfit if they differ."""
    shapes = {(each.layout, each.rotary_dim // 2) for each in rope.entries.values() if layers.issuperset(each.layers)}
    if len(shapes) > 1:
        raise Unfit("its layers rotate different numbers of pairs")
    return next(iter(shapes))


class YardstickRunner(AlteredRunner):
    """A loaded checkpoint with a different attention during each call.

    runner: the checkpoint, or a view of it with a different table. torch_runner: the checkpoint.
    """

    def __init__(self, runner: Runner, torch_runner: TorchRunner, layers: frozenset[int], attend: Attend) -> None:
        super().__init__(runner)
        self._torch_runner, self._layers, self._attend = torch_runner, layers, attend

    def generated(self, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
        """Raise ConfigError, because a variant reads whole rows and has no cache."""
        raise ConfigError("a reference attention variant reads whole texts, without a cache", where=OPTION)

    @contextmanager
    def _altered(self, length: int) -> Iterator[None]:
        try:
            with self._torch_runner.model.attending(self._layers, self._attend):
                yield
        except Unfit as error:  # unlikely after a successful check, but the user should still get a message
            raise _unfit(str(error), str(self._torch_runner.path)) from None


def check_fit(runner: TorchRunner, layers: frozenset[int], trained: int) -> None:
    """Raise Unfit unless blocked attention gives the same logits as the model's own attention."""
    ids = [*runner.prefix, *range(3, 3 + PROBE)]
    plain = Yardstick("plain", pairs.PLAIN)
    own = np.concatenate([piece.copy() for _, piece in runner.logits(ids)])
    with runner.model.attending(layers, attention(plain, trained)) as reached:
        replaced = np.concatenate([piece.copy() for _, piece in runner.logits(ids)])
    if missing := layers - reached:
        raise Unfit(f"layer {min(missing)} computes its scores in code that ropetool cannot replace")
    difference = float(np.abs(replaced - own).max() / np.abs(own).max())
    if not difference <= APART.get(runner.model.dtype, APART_ROUNDED):
        raise Unfit(
            f"with plain attention its logits change by {difference:.2g} of the largest logit, but must stay equal"
        )


def _unfit(why: str, where: str) -> ConfigError:
    return ConfigError(f"{why}; {FITS}", where=where, try_=f"without {OPTION}")
