"""The reference model: the checkpoint's own weights, run by transformers under the tables of each hypothesis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.identify.hypotheses import Hypothesis
from ropetool.rope.tables import Array, Regime, RopeSet
from ropetool.verification.runners.torch_runner import TorchRunner

PROBE = tuple(range(2, 18))  # tokens that show whether a different layout or scale takes effect


class Reference:
    """A checkpoint run by transformers. Its tables, layout and softmax scales change between passes.

    intended: the tables that it computes unchanged.
    Raises: as TorchRunner.
    """

    def __init__(self, checkpoint: HfCheckpoint, intended: RopeSet, *, device: str, dtype: str) -> None:
        self._nested, self._intended = checkpoint.family.nested, intended
        self.runner = TorchRunner(Path(checkpoint.path), device=device, dtype=dtype)

    def computes(self, hypothesis: Hypothesis) -> bool:
        """Return whether transformers can compute the hypothesis.

        Tables can always change. Layout and softmax scales must have an effect on the probe tokens.
        """
        model, scores = self.runner.model, self._scores(hypothesis)
        swaps = self._swaps(hypothesis)
        if swaps and not (model.swappable and len(self._widths()) == len(self._rotated())):
            return False
        if not (swaps or scores):
            return True
        if not model.scalable >= scores.keys():
            return False
        unchanged = Hypothesis("", "", replace(hypothesis.rope, entries={
            layer_type: replace(entry, layout=intended.layout, softmax_multiplier=intended.softmax_multiplier)
            for layer_type, entry in hypothesis.rope.entries.items()
            for intended in [self._intended.entries[layer_type]]
        }))  # fmt: skip
        with_changes, without_changes = (self.log_probs(one, PROBE, [len(PROBE)]) for one in (hypothesis, unchanged))
        return not np.allclose(with_changes, without_changes, atol=1e-6)

    def log_probs(self, hypothesis: Hypothesis, ids: Sequence[int], ends: Sequence[int]) -> Array:
        """Return the log probabilities of the next token after the first `end` ids, for each of `ends`.

        Shapes: (ends, vocabulary). Units: nats.
        """
        model = self.runner.model
        by_end: dict[int, Array] = {}
        entry = next(iter(self._intended.entries.values()))
        layout = model.swapped(self._widths(), entry.layout) if self._swaps(hypothesis) else nullcontext()
        with layout:
            for tables, group in self._by_table(hypothesis, ends):
                model.rotate(tables, self._nested, self._scores(hypothesis))
                places = {end - 1 for end in group}
                for start, logits in self.runner.logits(ids[: max(group)]):
                    for place in places & set(range(start, start + len(logits))):
                        by_end[place + 1] = _log_softmax(logits[place - start].astype(np.float64))
        return np.stack([by_end[end] for end in ends])

    def _swaps(self, hypothesis: Hypothesis) -> bool:
        return any(
            entry.layout != self._intended.entries[layer_type].layout
            for layer_type, entry in hypothesis.rope.entries.items()
        )

    def _rotated(self) -> set[tuple[int, int]]:
        """Return pairs of head width and rotated channels. Some classes cut the head to the rotated channels first."""
        widths = {
            (entry.head_dim, entry.rotary_dim) for entry in self._intended.entries.values() if entry.table is not None
        }
        return widths | {(rotary_dim, rotary_dim) for _, rotary_dim in widths}

    def _widths(self) -> dict[int, int]:
        return dict(self._rotated())

    def _scores(self, hypothesis: Hypothesis) -> dict[int, float]:
        """Return the ratio of the hypothesis's softmax scale to the intended one for each changed layer."""
        ratios: dict[int, float] = {}
        for layer_type, entry in hypothesis.rope.entries.items():
            ratio = entry.softmax_multiplier / self._intended.entries[layer_type].softmax_multiplier
            if not math.isclose(ratio, 1.0, rel_tol=1e-9):
                ratios |= dict.fromkeys(entry.layers, ratio)
        return ratios

    def _by_table(self, hypothesis: Hypothesis, ends: Sequence[int]) -> list[tuple[Mapping[str, Regime], list[int]]]:
        """Return the tables for prompts of these lengths, each with the lengths that use it."""
        groups: list[tuple[Mapping[str, Regime], list[int]]] = []
        for end in ends:
            tables = {
                layer_type: entry.table.at(end)
                for layer_type, entry in hypothesis.rope.entries.items()
                if entry.table is not None
            }
            same = next(
                (
                    group
                    for known, group in groups
                    if all(known[layer_type] is tables[layer_type] for layer_type in tables)
                ),
                None,
            )
            if same is None:
                groups.append((tables, [end]))
            else:
                same.append(end)
        return groups

    def close(self) -> None:
        """Free the model."""
        self.runner.close()


def _log_softmax(logits: Array) -> Array:
    top = logits.max()
    log_probs: Array = logits - top - np.log(np.exp(logits - top).sum())
    return log_probs
