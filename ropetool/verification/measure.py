"""The contents of a measure file: how to choose rows, the checks, and the tables and charts of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropetool.charts import Chart
from ropetool.sections import BAD, GOOD, WARN, Section
from ropetool.verification.gate import Evidence, Limits
from ropetool.verification.results import BETTER, NO_WORSE, NOT_JUDGED, UNDECIDED, WORSE, Check, VerifyResult
from ropetool.verification.scoring import Corpus, Measurement, Tokenizes

TONES = {BETTER: GOOD, NO_WORSE: "", UNDECIDED: WARN, WORSE: BAD, NOT_JUDGED: "", "": ""}
"""How a report colours the verdict on a length or a score."""


@dataclass(frozen=True)
class Suite:
    """The measures of a run, and the amount of work for each.

    name: the name for --suite, or `custom` for single measures.
    measures: the names of the measures.
    segments: the number of scored segments at each length.
    passages: the number of passages for the use of long-range context.
    trials: the number of retrieval trials at each depth.
    ends: long-range context and retrieval are measured only at the trained and the longest length.
    most_scored: the largest number of scored tokens at the end of a segment; None for no limit.
    """

    name: str
    measures: tuple[str, ...]
    segments: int
    passages: int
    trials: int
    ends: bool = False
    most_scored: int | None = None


@dataclass(frozen=True)
class Setting:
    """The input of `prepare`: everything that determines the rows of a run.

    suite: the measures, and their amounts.
    corpus: the texts, as ids of the target's tokenizer.
    target: the tokenizer of the target.
    lengths: tokens, increasing.
    trained_length: tokens, before any extension.
    context_length: tokens, as configured; None if only the lengths count.
    limits: the limits of the gate.
    seed: the seed of all random choices.
    judged: a judge chooses the key tokens.
    baseline_reach: the longest text that the baseline can read, in tokens; None for no limit.
    """

    suite: Suite
    corpus: Corpus
    target: Tokenizes
    lengths: Sequence[int]
    trained_length: int
    context_length: int | None
    limits: Limits
    seed: int = 0
    judged: bool = False
    baseline_reach: int | None = None

    @property
    def context(self) -> int:
        """The configured context length, else the longest length, in tokens."""
        return self.context_length or max(self.lengths)


@dataclass(frozen=True)
class Grading:
    """The input of `checks` and `evidence`, besides the result of the measure.

    limits: the limits of the gate.
    trained_length: tokens, before any extension.
    context_length: tokens that the target must reach.
    results: the results of all measures, by name.
    evidence: gains of all measures that show the use of long-range context; empty while it is collected.
    """

    limits: Limits
    trained_length: int
    context_length: int
    results: Mapping[str, Any]
    evidence: Sequence[Evidence] = ()


@dataclass(frozen=True)
class VerdictSentence:
    """A sentence of the report for one verdict of a check. report/verdict.py fills in {names}.

    text: a clause about the checkpoint. step: the next step for the user, or "".
    """

    text: str
    step: str = ""


@dataclass(frozen=True)
class Judged:
    """The part of a judge in a measure: it runs one of the measurements too.

    measurement: the name of that measurement.
    result: calculates the result from the measurement and from the raw figures of target, baseline (or None) and judge.
    """

    measurement: str
    result: Callable[[Any, Any, Any, Any], Any]


def _nothing(*_: Any) -> list[Any]:
    return []


@dataclass(frozen=True)
class Measure:
    """One measure. A file lists its measures, mostly one, in `MEASURES`.

    name: the name for --measure and in suites.
    key: the key of the result in `VerifyResult.measures` and in --json.
    order: the place among all measures, a number of its own.
    prepare: returns the measurement with its rows, or None if there is nothing to measure. The second argument has the
      measurements that are prepared already.
    suites: the suites that contain the measure; () for a measure that only --measure selects.
    measurement: the name of the measurement, if it is not `name`.
    several: other measures have the same key, so the result under the key is a tuple.
    part_of: the measure that it is prepared with. --measure does not offer it then.
    by_tokens: it needs only probabilities of single tokens, which servers return.
    of_variants: --compare-with measures reference attention variants (lab/yardsticks) too.
    derive: calculates the result from the results of other measures and the trained length, without a measurement.
    judged: how the result is calculated if there is a judge.
    evidence: returns gains that show the use of long-range context.
    checks, checked: the lines of the gate, and their order if it differs.
    words: sentences by check and verdict.
    sections, shown: the tables of a report, from the result under the key, and their order if it differs.
    charts: the charts of a report, from the result under the key.
    """

    name: str
    key: str
    order: int
    prepare: Callable[[Setting, Sequence[Measurement]], Measurement | None]
    suites: tuple[str, ...] = ("full",)
    measurement: str = ""
    several: bool = False
    part_of: str = ""
    by_tokens: bool = False
    of_variants: bool = True
    derive: Callable[[Mapping[str, Any], int], Any] | None = None
    judged: Judged | None = None
    evidence: Callable[[Any, Grading], Sequence[Evidence]] = _nothing
    checks: Callable[[Any, Grading], Sequence[Check]] = _nothing
    checked: int | None = None
    words: Mapping[str, Mapping[str, VerdictSentence]] = field(default_factory=dict)
    sections: Callable[[Any, VerifyResult], Iterable[Section]] = _nothing
    charts: Callable[[Any, VerifyResult], Iterable[Chart]] = _nothing
    shown: int | None = None

    @property
    def measured_as(self) -> str:
        """The name of its measurement."""
        return self.measurement or self.name
