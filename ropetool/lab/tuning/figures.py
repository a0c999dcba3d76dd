"""What is measured of a point, and what it comes to: one number for the search, and whether it keeps within the bounds.

Knows losses by document; nothing of models or of how the search goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ropetool.lab.tuning.searching import Score
from ropetool.rope.tables import Array

# The weights beside that of text, in the objective of the search. Answers are few, and differ by a nat from trial to trial:
# weighed more, their chance would decide.
COPIES, ANSWERS = 0.1, 0.03


@dataclass(frozen=True, eq=False)
class Figures:
    """The losses of one point on some text, in nats.

    within: at the trained length. text: beyond it, by length. copies: of passages whose copy stands the whole context in
    front. answers: of what was told somewhere in the context. found: whether each answer was the likeliest of its kind.
    Shapes: within, text, copies (rows, scored); answers, found (trials,).
    """

    within: Array
    text: Mapping[int, Array]
    copies: Array
    answers: Array
    found: npt.NDArray[np.bool_]

    @property
    def beyond(self) -> Array:
        """The text beyond the trained length, all lengths side by side: those segments that every length has."""
        rows = min(len(losses) for losses in self.text.values())
        return np.concatenate([losses[:rows] for losses in self.text.values()], axis=1)

    @property
    def objective(self) -> float:
        """What the search makes small: the loss of text, with copies and answers beside it."""
        beside = [
            weight * part.mean() for weight, part in ((COPIES, self.copies), (ANSWERS, self.answers)) if part.size
        ]
        return float(self.beyond.mean() + sum(beside))

    @property
    def retrieved(self) -> float | None:
        """The share of answers that were found; None without trials."""
        return float(self.found.mean()) if self.found.size else None


@dataclass(frozen=True)
class Bounds:
    """What a point may cost. regression: nats a token within the trained length, against the source.

    stated: whether the user said so; else the default's own is allowed too. lost: the share of answers that it may find less
    than the default.
    """

    regression: float
    stated: bool
    lost: float

    def limit(self, own: float) -> float:
        """Return the regression that is allowed where the default has its own."""
        return self.regression if self.stated else max(self.regression, own)

    def score(self, found: Figures, default: Figures, source: Array, *, whole: bool) -> Score:
        """Return objective and excess. source: what the source loses within its trained length, on the same rows.

        whole: whether all the text of the search was read; of a few answers alone nothing is said.
        """
        excess = max(0.0, regression(found, source) - self.limit(regression(default, source)))
        if whole and found.retrieved is not None and default.retrieved is not None:
            excess += max(0.0, default.retrieved - self.lost - found.retrieved)
        return Score(found.objective, excess)


def regression(found: Figures, source: Array) -> float:
    """Return by how much text within the trained length is worse than the source has it, in nats a token."""
    return float((found.within - source[: len(found.within)]).mean())


def ratio(nats: float) -> float:
    """Return a difference of losses as a ratio of perplexities."""
    return math.exp(min(nats, 700.0))


@dataclass(frozen=True)
class Documents:
    """The document of each row, that figures are clustered by; of an answer, the one that stands around what it asks for."""

    text: Sequence[int]
    within: Sequence[int]
    copies: Sequence[int]
    answers: Sequence[int]
