"""The result of a tuning as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from ropetool.escaping import Shown
from ropetool.lab.tuning.judging import GAIN, Judgement
from ropetool.lab.tuning.searching import Generation
from ropetool.plans.plan import Plan
from ropetool.rope.tables import Array


@dataclass(frozen=True, eq=False)
class TuneResult(Shown):
    """The search and its evaluation.

    source: the source's path or Hub id.
    space: the name of the search space.
    trained_length, target_length: tokens.
    lengths: the measured lengths beyond the trained one, in tokens.
    runtimes: the runtimes that read the plans' outputs.
    seed: the random seed.
    minutes: the requested minutes.
    points: the number of points that were tried.
    steps: the generations of the search.
    searched, unseen: the names of the documents of the search and of the evaluation.
    segments: the number of segments in each.
    winner: the best point in words. Empty if the search found nothing better than the default.
    judgement: the evaluation of the winner. None without a winner.
    default, tuned: the plans of the default and of the winner.
    inv_freq: the trained table, in radians per token.
    max_regression: the limit that the user set, as a ratio of perplexities, or None.
    text_fingerprint: a digest of the documents.
    runtime: the program that ran the model.
    notes: messages for the user.
    """

    source: str
    space: str
    trained_length: int
    target_length: int
    lengths: tuple[int, ...]
    runtimes: tuple[str, ...]
    seed: int
    minutes: float
    points: int
    steps: tuple[Generation, ...]
    searched: tuple[str, ...]
    unseen: tuple[str, ...]
    segments: tuple[int, int]
    winner: str
    judgement: Judgement | None
    default: Plan
    tuned: Plan | None
    inv_freq: Array
    max_regression: float | None
    text_fingerprint: str
    runtime: str
    notes: tuple[str, ...]

    @property
    def is_better(self) -> bool:
        """Return whether the winner is significantly better on text that the search did not use."""
        return self.judgement is not None and self.judgement.verdict == GAIN

    @property
    def verdict(self) -> str:
        """Return the verdict and its reason as a sentence."""
        if self.judgement is None:
            return "no gain: the search found nothing better than the default; use the default"
        if self.is_better:
            parts = ", ".join(part.name for part in self.judgement.parts if part.better)
            return f"better than the default on unseen {parts}; use the tuned plan"
        return f"no gain: {self.judgement.reason}; use the default"

    @property
    def plan(self) -> Plan:
        """Return the recommended plan: the tuned one if it is better, else the default."""
        return self.tuned if self.is_better and self.tuned is not None else self.default
