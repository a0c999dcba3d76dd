"""The model itself with any table: what it would find likely, wherever it is asked, one pass for each hypothesis and text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.identify.hypotheses import Hypothesis
from ropetool.rope.tables import Array, Regime
from ropetool.verification.runners.torch_runner import TorchRunner


class Reference:
    """A checkpoint run by transformers, whose tables are exchanged between passes.

    Raises: as TorchRunner does.
    """

    def __init__(self, checkpoint: HfCheckpoint, *, device: str, dtype: str) -> None:
        self._nested = checkpoint.family.nested
        self.runner = TorchRunner(Path(checkpoint.path), device=device, dtype=dtype)

    def log_probs(self, hypothesis: Hypothesis, ids: Sequence[int], ends: Sequence[int]) -> Array:
        """Return how likely each token is behind the first `end` ids. Shapes: (ends, vocabulary). Units: nats."""
        found: dict[int, Array] = {}
        for tables, group in self._by_table(hypothesis, ends):
            self.runner.rotate(tables, self._nested)
            wanted = {end - 1 for end in group}
            for start, logits in self.runner.logits(ids[: max(group)]):
                for place in wanted & set(range(start, start + len(logits))):
                    found[place + 1] = _log_softmax(logits[place - start].astype(np.float64))
        return np.stack([found[end] for end in ends])

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
