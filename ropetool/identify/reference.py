"""The model itself rotated in any way: what it would find likely, wherever it is asked, one pass for each hypothesis and text."""

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

PROBE = tuple(range(2, 18))  # tokens, behind which another pairing or scale is seen to take effect


class Reference:
    """A checkpoint run by transformers, whose tables, pairs and softmax scales are exchanged between passes.

    meant: what it computes by itself. Raises: as TorchRunner does.
    """

    def __init__(self, checkpoint: HfCheckpoint, meant: RopeSet, *, device: str, dtype: str) -> None:
        self._nested, self._meant = checkpoint.family.nested, meant
        self.runner = TorchRunner(Path(checkpoint.path), device=device, dtype=dtype)

    def computes(self, hypothesis: Hypothesis) -> bool:
        """Return whether the class of transformers can be made to: tables always, pairs and scales where it is seen to."""
        model, scores = self.runner.model, self._scores(hypothesis)
        swaps = self._swaps(hypothesis)
        if swaps and not (model.swappable and len(self._widths()) == len(self._turned())):
            return False
        if not (swaps or scores):
            return True
        if not model.scalable >= scores.keys():
            return False
        itself = Hypothesis("", "", replace(hypothesis.rope, entries={
            kind: replace(entry, layout=self._meant.entries[kind].layout, softmax_multiplier=self._meant.entries[kind].softmax_multiplier)
            for kind, entry in hypothesis.rope.entries.items()
        }))  # fmt: skip
        otherwise, own = (self.log_probs(one, PROBE, [len(PROBE)]) for one in (hypothesis, itself))
        return not np.allclose(otherwise, own, atol=1e-6)

    def log_probs(self, hypothesis: Hypothesis, ids: Sequence[int], ends: Sequence[int]) -> Array:
        """Return how likely each token is behind the first `end` ids. Shapes: (ends, vocabulary). Units: nats."""
        model = self.runner.model
        found: dict[int, Array] = {}
        entry = next(iter(self._meant.entries.values()))
        layout = model.swapped(self._widths(), entry.layout) if self._swaps(hypothesis) else nullcontext()
        with layout:
            for tables, group in self._by_table(hypothesis, ends):
                model.rotate(tables, self._nested, self._scores(hypothesis))
                wanted = {end - 1 for end in group}
                for start, logits in self.runner.logits(ids[: max(group)]):
                    for place in wanted & set(range(start, start + len(logits))):
                        found[place + 1] = _log_softmax(logits[place - start].astype(np.float64))
        return np.stack([found[end] for end in ends])

    def _swaps(self, hypothesis: Hypothesis) -> bool:
        return any(entry.layout != self._meant.entries[kind].layout for kind, entry in hypothesis.rope.entries.items())

    def _turned(self) -> set[tuple[int, int]]:
        """Return of how many channels how many rotate; a class that splits them first rotates all that are left."""
        turned = {
            (entry.head_dim, entry.rotary_dim) for entry in self._meant.entries.values() if entry.table is not None
        }
        return turned | {(rotary_dim, rotary_dim) for _, rotary_dim in turned}

    def _widths(self) -> dict[int, int]:
        return dict(self._turned())

    def _scores(self, hypothesis: Hypothesis) -> dict[int, float]:
        """Return by what the softmax scale of layers is another one."""
        found: dict[int, float] = {}
        for kind, entry in hypothesis.rope.entries.items():
            ratio = entry.softmax_multiplier / self._meant.entries[kind].softmax_multiplier
            if not math.isclose(ratio, 1.0, rel_tol=1e-9):
                found |= dict.fromkeys(entry.layers, ratio)
        return found

    def _by_table(self, hypothesis: Hypothesis, ends: Sequence[int]) -> list[tuple[Mapping[str, Regime], list[int]]]:
        """Return the tables that prompts of these lengths are computed by, each with its lengths."""
        groups: list[tuple[Mapping[str, Regime], list[int]]] = []
        for end in ends:
            tables = {
                kind: entry.table.at(end) for kind, entry in hypothesis.rope.entries.items() if entry.table is not None
            }
            same = next((group for known, group in groups if all(known[kind] is tables[kind] for kind in tables)), None)
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
    found: Array = logits - top - np.log(np.exp(logits - top).sum())
    return found
