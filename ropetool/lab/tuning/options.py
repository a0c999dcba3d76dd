"""The options of a tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from ropetool.errors import ConfigError
from ropetool.lab.tuning.material import SEARCHED, UNSEEN, Amounts
from ropetool.lab.tuning.planning import DEFAULT
from ropetool.verification.options import not_minutes

MINUTES = 10.0  # for a search and its evaluation, if the user sets no budget


class TuneArguments(TypedDict, total=False):
    """The arguments of `tune`; `TuneOptions` explains them."""

    space: str
    budget: float | None
    max_regression: float | None
    reading: str | None
    for_runtimes: Sequence[str]
    texts: Sequence[str | Path]
    generations: int | None
    amounts: tuple[Amounts, Amounts]
    seed: int
    device: str
    dtype: str
    resume: bool


@dataclass(frozen=True)
class TuneOptions:
    """The options of a tuning.

    space: the name of the search space.
    budget: minutes for the search and the judgement; they determine the number of generations. None allows 10.
    max_regression: the allowed ratio of perplexities within the trained length, against the source. None allows the
      limit of grade usable, or the ratio of the default YaRN table if that is higher.
    reading: `original` or `current`, the interpretation of a source that already has a scaling; None for other sources.
    for_runtimes: the runtimes that must read the output. Empty means transformers.
    texts: documents, folders or .jsonl files; without any, the texts of the package.
    generations: their number, for the same search on any machine. None calculates it from the budget.
    amounts: the amount of text for the search, and for the judgement.
    seed: the random seed of the documents and the points.
    device, dtype: as torch names them, or "auto".
    resume: continue an interrupted run.

    Raises: ConfigError for a budget, a max_regression or a number of generations out of range.
    """

    space: str = DEFAULT
    budget: float | None = None
    max_regression: float | None = None
    reading: str | None = None
    for_runtimes: Sequence[str] = ()
    texts: Sequence[str | Path] = ()
    generations: int | None = None
    amounts: tuple[Amounts, Amounts] = (SEARCHED, UNSEEN)
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    resume: bool = False

    def __post_init__(self) -> None:
        budget, regression = self.budget, self.max_regression
        if budget is not None and not (math.isfinite(budget) and budget > 0):
            raise ConfigError(not_minutes(budget), where="--budget")
        if regression is not None and not (math.isfinite(regression) and regression >= 1):
            raise ConfigError(
                f"the ratio of perplexities must be at least 1, not {regression}",
                where="--max-regression",
                try_="--max-regression 1.1",
            )
        if self.generations is not None and self.generations < 1:
            raise ConfigError(
                f"the number of generations must be at least 1, not {self.generations}", where="generations"
            )

    @property
    def minutes(self) -> float:
        """Return the minutes for the search and the evaluation."""
        return self.budget or MINUTES
