"""A view of a loaded model that is altered during each call, and restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from ropetool.verification.scoring import Done, Generated, Logits, Predictions, Scores, Wrapped, ignore


class AlteredRunner(Wrapped):
    """A runner that alters its model during each call. The owner of the model closes it."""

    def _altered(self, length: int) -> AbstractContextManager[object]:
        """Alter the model within the context. length: the tokens of the rows."""
        raise NotImplementedError

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return the losses of the last `scored` tokens of every row."""
        with self._altered(len(rows[0])):
            return self._runner.score(rows, scored, done)

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return the predictions after every row."""
        with self._altered(len(rows[0])):
            return self._runner.predict(rows, candidates, done)

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits of a row. The model must not be used for anything else until the last piece is read."""
        with self._altered(len(ids)):
            yield from self._runner.logits(ids)

    def generated(self, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
        """Return the logits of generation and of whole passes."""
        with self._altered(len(ids)):
            return self._runner.generated(ids, count, done)

    def close(self) -> None:
        """Do nothing, because the owner closes the model."""
