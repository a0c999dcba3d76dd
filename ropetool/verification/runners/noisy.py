"""Views of one loaded model of torch, with or without the rounding of ggml, which torch_noise.py imitates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.runners.torch_model import Hidden
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Logits, Runner, Wrapped

SHIFT = 2.0**-16  # share of an input of a matrix; a hundred times the effect of sums in a different order


class View(Wrapped):
    """A view that computes each row once and keeps its hidden states.

    shift: the amount for `torch_noise.noisy`. None computes without noise.
    """

    def __init__(self, runner: TorchRunner, shift: float | None = None) -> None:
        super().__init__(runner)
        self._torch_runner, self._shift = runner, shift
        self._hidden: dict[tuple[int, ...], Hidden] = {}

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits of a row. Other views may compute between the pieces."""
        row = tuple(ids)
        if row not in self._hidden:
            self._hidden[row] = self._computed(ids)
        yield from self._torch_runner.pieces(self._hidden[row], len(ids))

    def _computed(self, ids: Sequence[int]) -> Hidden:
        if self._shift is None:
            return self._torch_runner.hidden(ids)
        with self._torch_runner.model.noisy(self._shift):
            return self._torch_runner.hidden(ids)


def views(reference: Runner, target: Runner) -> tuple[View, View] | None:
    """Return the reference with ggml's rounding, shifted both ways; None unless llama.cpp is compared with torch."""
    if isinstance(reference, TorchRunner) and isinstance(target, LlamaRunner):
        return View(reference, SHIFT), View(reference, -SHIFT)
    return None
