"""The losses of a point: the objective of the search, and the bounds that a point must keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ropetool.lab.tuning.searching import Score
from ropetool.rope.tables import Array

# The weights in the objective of the search; text has weight 1. Answers are few and differ by a nat between trials, so
# with a larger weight chance would decide.
COPIES, ANSWERS = 0.1, 0.03


@dataclass(frozen=True, eq=False)
class PointLosses:
    """The losses of a point on some text, in nats.

    within: at the trained length. Shapes: (rows, scored).
    text: beyond the trained length, by length. Shapes: (rows, scored) each.
    copies: of passages that repeat an earlier passage, with the whole context between them. Shapes: (rows, scored).
    answers: of facts from somewhere in the context. Shapes: (trials,).
    correct: whether each answer was the likeliest candidate. Shapes: (trials,).
    """

    within: Array
    text: Mapping[int, Array]
    copies: Array
    answers: Array
    correct: npt.NDArray[np.bool_]

    @property
    def beyond(self) -> Array:
        """Return the losses of text beyond the trained length, with all lengths side by side.

        Contains only the segments that every length has. Shapes: (segments, scored x lengths).
        """
        rows = min(len(losses) for losses in self.text.values())
        return np.concatenate([losses[:rows] for losses in self.text.values()], axis=1)

    @property
    def objective(self) -> float:
        """Return the number that the search minimises: the loss of text plus weighted losses of copies and answers."""
        weighted = [
            weight * part.mean() for weight, part in ((COPIES, self.copies), (ANSWERS, self.answers)) if part.size
        ]
        return float(self.beyond.mean() + sum(weighted))

    @property
    def retrieved(self) -> float | None:
        """Return the share of correct answers, or None without trials."""
        return float(self.correct.mean()) if self.correct.size else None


@dataclass(frozen=True)
class AllowedLoss:
    """The bounds of a point.

    regression: the allowed loss within the trained length against the source, in nats per token.
    by_user: whether the user set it. If not, a point may lose as much as the default does.
    lost: the share of answers that a point may miss more than the default.
    """

    regression: float
    by_user: bool
    lost: float

    def limit(self, own: float) -> float:
        """Return the allowed regression in nats per token. own: the regression of the default."""
        return self.regression if self.by_user else max(self.regression, own)

    def score(self, losses: PointLosses, default: PointLosses, source: Array, *, whole: bool) -> Score:
        """Return objective and excess of a point.

        source: the losses of the source within its trained length, on the same rows.
        whole: whether all text of the search was read. If not, the answers are too few to count.
        """
        excess = max(0.0, regression(losses, source) - self.limit(regression(default, source)))
        if whole and losses.retrieved is not None and default.retrieved is not None:
            excess += max(0.0, default.retrieved - self.lost - losses.retrieved)
        return Score(losses.objective, excess)


def regression(losses: PointLosses, source: Array) -> float:
    """Return the mean loss within the trained length minus the loss of the source, in nats per token."""
    return float((losses.within - source[: len(losses.within)]).mean())


def ratio(nats: float) -> float:
    """Return a difference of losses as a ratio of perplexities."""
    return math.exp(min(nats, 700.0))


@dataclass(frozen=True)
class Documents:
    """The document of each row, as clusters for the statistics.

    text, within, copies: the numbers of the documents.
    answers: the number of the document around the question, or -1 for several documents.
    """

    text: Sequence[int]
    within: Sequence[int]
    copies: Sequence[int]
    answers: Sequence[int]
