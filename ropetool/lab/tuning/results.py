"""What a tuning found, as plain data. Knows nothing of how it is shown."""

from __future__ import annotations

from dataclasses import dataclass

from ropetool.escaping import Shown
from ropetool.lab.tuning.judging import GAIN, Judgement
from ropetool.lab.tuning.searching import Step
from ropetool.plans.plan import Plan
from ropetool.rope.tables import Array


@dataclass(frozen=True, eq=False)
class TuneResult(Shown):
    """The search and its judgement.

    winner: the best point in words, empty where the search found nothing before the default. judgement: None then.
    lengths: beyond the trained one, in tokens. searched, unseen: the documents of each, by name. segments: of both. points:
    how many were tried. default, tuned: their plans. inv_freq: what the model was trained with, in radians per token. minutes:
    what was asked for.
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
    steps: tuple[Step, ...]
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
        """Whether the winner is surely better on text that the search never saw."""
        return self.judgement is not None and self.judgement.verdict == GAIN

    @property
    def verdict(self) -> str:
        """The judgement in a sentence."""
        if self.judgement is None:
            return "no gain: the search found nothing better than the default; use the default"
        if self.is_better:
            parts = ", ".join(part.name for part in self.judgement.parts if part.better)
            return f"better than the default on unseen {parts}; use the tuned plan"
        return f"no gain: {self.judgement.reason}; use the default"

    @property
    def plan(self) -> Plan:
        """The plan that is recommended: the winner's where that is better, else the default's."""
        return self.tuned if self.is_better and self.tuned is not None else self.default
