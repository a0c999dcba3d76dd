"""Variants that combine the predictions of several passes: naive Bayes over pieces of a text, and a mean over bases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ropetool.errors import ConfigError
from ropetool.rope.tables import Array
from ropetool.verification.beside import OPTION
from ropetool.verification.scoring import Done, Generated, Logits, Predictions, Runner, Scores, Wrapped, ignore
from ropetool.verification.softmax import log_softmax

BETA = 0.25  # how much NBCE takes away of what the model predicts without any piece; its author's value

LogProbs = Callable[[Sequence[int], int], Array]
"""Returns the log-probabilities after each of the last tokens of a row. Shape: (count, vocabulary)."""


def log_probs(runner: Runner, ids: Sequence[int], count: int) -> Array:
    """Return the log-probabilities after each of the last `count` tokens of a row. Shape: (count, vocabulary)."""
    first, kept = len(ids) - count, []
    for start, piece in runner.logits(ids):
        if start + len(piece) > first:
            kept.append(log_softmax(piece[max(0, first - start) :]))
    return np.concatenate(kept)


class Ensemble(Wrapped):
    """A runner whose predictions combine those of other runners or rows.

    runner: the loaded checkpoint. Its opener closes it. combined: see `LogProbs`.
    """

    def __init__(self, runner: Runner, combined: LogProbs) -> None:
        super().__init__(runner)
        self._combined = combined

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return the losses of the last `scored` tokens of every row."""
        losses, hits = [], []
        for row in rows:
            predicted, tokens = self._combined(row, scored + 1)[:-1], np.array(row[-scored:])
            losses.append(-predicted[np.arange(scored), tokens])
            hits.append(predicted.argmax(axis=-1) == tokens)
            done(len(row))
        return Scores(np.array(losses), np.array(hits))

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return the predictions after every row."""
        chosen, top = [], []
        for row, tokens in zip(rows, candidates, strict=True):
            predicted = self._combined(row, 1)[0]
            chosen.append(predicted[list(tokens)])
            top.append(int(predicted.argmax()))
            done(len(row))
        return Predictions(np.array(chosen), np.array(top))

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Raise ConfigError, because only the last predictions are combined."""
        raise ConfigError("this variant combines predictions for the end of a text alone", where=OPTION)

    def generated(self, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
        """Raise ConfigError, because a variant reads whole rows and has no cache."""
        raise ConfigError("a reference attention variant reads whole texts, without a cache", where=OPTION)

    def close(self) -> None:
        """Do nothing, because the owner closes the model."""


def nbce(runner: Runner, trained: int, tail: int) -> Ensemble:
    """Return a runner that reads the end of a text after each piece of what precedes, and combines the predictions.

    A prediction is 1.25 times that of the piece with the least entropy, minus 0.25 times that without any piece, in logits.
    The end is the last `tail` tokens, or more if more are scored. A text within the trained length is read as it is.
    Source: Su 2023, kexue.fm/archives/9617.
    """

    def combined(row: Sequence[int], count: int) -> Array:
        if len(row) <= trained:
            return log_probs(runner, row, count)
        prefix = list(runner.prefix)
        body = list(row[len(prefix) :])
        end = max(tail, count)
        room = trained - len(prefix) - end
        if room < 1:
            raise ConfigError(
                f"the end of {end} tokens leaves no room for a piece within the trained length of {trained}", where=OPTION,
                try_="fewer scored tokens, or shorter --lengths",
            )  # fmt: skip
        context, question = body[:-end], body[-end:]
        surest, least = np.zeros(0), np.full(count, np.inf)
        for stop in range(len(context), 0, -room):  # one after another, because a vocabulary is large
            after = log_probs(runner, [*prefix, *context[max(0, stop - room) : stop], *question], count)
            entropy = -(np.exp(after) * after).sum(axis=-1)
            surest = np.where((entropy < least)[:, None], after, surest) if surest.size else after
            least = np.minimum(least, entropy)
        alone = log_probs(runner, [*prefix, *question], count)
        return log_softmax((1 + BETA) * surest - BETA * alone)

    return Ensemble(runner, combined)


def mean_of(runner: Runner, views: Sequence[Runner]) -> Ensemble:
    """Return a runner whose probabilities are the mean of those of several views of one model.

    Source: the mean over bases of Chen et al. 2023, arXiv 2312.04455, without its choice by confidence.
    """

    def combined(row: Sequence[int], count: int) -> Array:
        together = log_probs(views[0], row, count)
        for view in views[1:]:
            together = np.logaddexp(together, log_probs(view, row, count))
        return np.asarray(together - np.log(len(views)))

    return Ensemble(runner, combined)
