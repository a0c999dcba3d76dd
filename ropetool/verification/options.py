"""The options of a verification of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ropetool.errors import ConfigError
from ropetool.verification.readback.terms import Terms

if TYPE_CHECKING:
    from ropetool.verification.gate import Limits
    from ropetool.verification.runners.vllm_engine import Engine

MINUTES = 10.0  # of a default verification without a budget


@dataclass(frozen=True)
class VerifyOptions:
    """The options of `verify_checkpoint`, which explains them.

    far_text: a default verification asks a kept model whether it uses distant text, if time is left.
    Raises: ConfigError for a budget that is no number of minutes above 0.
    """

    baseline: str | Path | None = None
    against: str | Path | None = None
    judge: str | Path | None = None
    lm_eval: str | Path | None = None
    texts: Sequence[str | Path] = ()
    lengths: Sequence[int] | None = None
    suite: str | None = None
    measures: Sequence[str] = ()
    segments: int | None = None
    trials: int | None = None
    limits: Limits | None = None
    budget: float | None = None
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    resume: bool = False
    certificate_file: str | Path | None = None
    full_hash: bool = False
    terms: Terms | None = None
    command: str = ""
    engine: Engine | None = None
    cache_type: str | None = None
    compare_with: str | None = None
    far_text: bool = True

    def __post_init__(self) -> None:
        check_budget(self.budget)

    @property
    def of_suites(self) -> bool:
        """Whether whole suites are asked for, and not the three questions."""
        chosen = (self.suite, self.lengths, self.segments, self.trials, self.limits)
        others = (self.against, self.judge, self.lm_eval, self.engine, self.compare_with)
        return bool(self.measures) or any(each is not None for each in (*chosen, *others))

    @property
    def place(self) -> Path | None:
        """The file of the certificate, where it is not the target's record."""
        return None if self.certificate_file is None else Path(self.certificate_file)


def check_budget(budget: float | None) -> None:
    """Raise ConfigError for a budget that is not a number of minutes above 0; infinity is one."""
    if budget is not None and not budget > 0:  # NaN too
        raise ConfigError(f"{budget} is not a number of minutes above 0", where="--budget", try_="--budget none")
