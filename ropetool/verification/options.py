"""The options of a verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ropetool.errors import ConfigError
from ropetool.verification.readback.terms import Terms

if TYPE_CHECKING:
    from ropetool.verification.gate import Limits
    from ropetool.verification.runners.vllm_engine import Engine

MINUTES = 10.0  # of a default verification without a budget

_LOGITS = "it needs all logits, and a server does not return them"
_BOUND = "a certificate is bound to files, and the server may have read other files"
UNSERVED = {
    "against": _LOGITS,
    "judge": _LOGITS,
    "lm_eval": "the logs must come from a model that ropetool loads from files",
    "certificate_file": _BOUND,
    "full_hash": _BOUND,
    "engine": "the server runs the model",
    "cache_type": "the server has its own cache already",
    "compare_with": "reference attention variants need a model that ropetool loads from files",
}
"""The options that a verification of a server's model cannot have, with the reasons."""


class MeasureArguments(TypedDict, total=False):
    """The arguments that `verify` and `compare` share; `VerifyOptions` explains them."""

    texts: Sequence[str | Path]
    lengths: Sequence[int] | None
    suite: str | None
    measures: Sequence[str]
    segments: int | None
    trials: int | None
    limits: Limits | None
    budget: float | None
    seed: int
    device: str
    dtype: str
    resume: bool
    compare_with: str | None


class VerifyArguments(MeasureArguments, total=False):
    """The arguments of `verify`; `VerifyOptions` explains them."""

    baseline: str | Path | None
    against: str | Path | None
    judge: str | Path | None
    lm_eval: str | Path | None
    certificate_file: str | Path | None
    full_hash: bool
    terms: Terms | None
    command: str
    engine: Engine | None
    cache_type: str | None
    far_text: bool


@dataclass(frozen=True)
class VerifyOptions:
    """The options of a verification.

    baseline: the checkpoint to compare with. None uses the source that the record names if it is unchanged, else the
      target's own figures within its trained length.
    against: another file of the same model, to compare logits with.
    judge: a model that reads all lengths and chooses the key tokens.
    lm_eval: a folder with the logs of lm-evaluation-harness for both models.
    texts: documents, folders or .jsonl files; without any, the texts of the package.
    lengths: tokens, increasing. None doubles from a quarter of the trained length up to the configured context.
    suite, measures, segments, trials, limits: the measures of a suite, their amounts, and the limits of its grade.
    budget: minutes that the command may take. None allows 10, and an hour for a suite.
    seed: the seed of all random choices.
    device, dtype: as torch names them, or "auto". float32 makes llama.cpp compute in float32 too.
    resume: use the saved figures of an interrupted run.
    certificate_file: the file of the certificate, if it is not the target's record.
    full_hash: the certificate covers every byte of the target.
    terms: the user's statements about a target without a record, and about its trained length.
    command: the command line that the certificate records.
    engine: vLLM runs directories in this process; it returns single tokens, which allow part of the suites.
    cache_type: the type of llama.cpp's cache for the target. It belongs to the run and not to the file, so only
      `certificate_file` gets a certificate.
    compare_with: reference attention variants by name, with commas between them. They run on the baseline, or on the
      target without one. They never fail a run.
    far_text: a default verification asks a kept model whether it uses distant text, if time is left.

    Raises: ConfigError for a budget that is not a number of minutes above 0.
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
        """Whether these options select a suite instead of the three questions."""
        chosen = (self.suite, self.lengths, self.segments, self.trials, self.limits)
        others = (self.against, self.judge, self.lm_eval, self.engine, self.compare_with)
        return bool(self.measures) or any(each is not None for each in (*chosen, *others))

    @property
    def place(self) -> Path | None:
        """The file of the certificate, or None for the target's record."""
        return None if self.certificate_file is None else Path(self.certificate_file)


def not_minutes(budget: float) -> str:
    """Return the message for a time limit that is not above 0."""
    return f"the time must be a number of minutes above 0, not {budget}"


def check_budget(budget: float | None) -> None:
    """Raise ConfigError for a budget that is not a number of minutes above 0; infinity is one."""
    if budget is not None and not budget > 0:  # NaN too
        raise ConfigError(not_minutes(budget), where="--budget", try_="--budget none")
