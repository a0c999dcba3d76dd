"""What a verification found, as frozen data: losses, the checks of the gate, and the results of all measures together.

Plain numbers; knows nothing of how they are measured or shown.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ropetool.escaping import Tabular

if TYPE_CHECKING:
    from ropetool.verification.verdict.answers import Answers

SCHEMA = 1
CUSTOM = "custom"  # in place of a suite: single measurements
BETTER, NO_WORSE, WORSE, UNDECIDED, NOT_JUDGED = "better", "no worse", "worse", "undecided", "not judged"


@dataclass(frozen=True)
class Estimate:
    """A mean over tokens, and its 95 % interval over documents. Infinite interval: fewer than two documents.

    effective: how many documents of equal size would tell as much. degrees: of freedom, of the error; 0 without one.
    """

    mean: float
    low: float
    high: float
    standard_error: float
    documents: int
    tokens: int
    effective: float
    degrees: float

    @property
    def half_width(self) -> float:
        """How far the interval reaches to either side of the mean."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class KindResult:
    """What `difference_to_truncation` is on the texts of one kind: prose, code and the like."""

    kind: str
    difference: Estimate


@dataclass(frozen=True)
class LengthResult:
    """What the last tokens of each segment cost at one length, in tokens of model input.

    target, baseline: the loss in nats. bits: the same per byte of scored text, over ln 2. difference_to_truncation:
    the target's loss minus the baseline's on the last min(length, trained length) tokens of the same segments. ratio:
    the target's perplexity over the baseline's there. lower,
    upper: what the true ratio is above, and below, with 95 % confidence each; None where there is nothing to compare with.
    verdict: `worse` where the true ratio is above the limit of the grade, `better` where it is below 1, both sure over all
    lengths together; else `no worse` where the upper bound is within the limit, else `undecided`; `not judged` without a
    comparison or with thin texts. holds: better or no worse. useful: better; None where it is not judged. tax: the
    difference at this very length, where it is within the trained one. doubling: the target's loss minus its own at the
    length before. partial: too few segments or documents for a verdict.
    kinds: the same difference by kind of text; empty where all are of one.
    """

    length: int
    target: Estimate
    baseline: Estimate | None
    target_bits: float
    baseline_bits: float | None
    difference_to_truncation: Estimate | None
    ratio: float
    lower: float | None
    upper: float | None
    verdict: str
    holds: bool
    useful: bool | None
    tax: Estimate | None
    doubling: Estimate | None
    segments: int
    documents: int
    partial: bool
    note: str
    kinds: tuple[KindResult, ...] = ()


@dataclass(frozen=True)
class DivergenceSpan:
    """KL(reference || target) in nats a token over the positions from `start` up to but not including `end`.

    top1: how often both have the same likeliest token. logit_difference: the largest difference of two logits, as a part
    of the largest logit of the reference. window: the largest mean over a few positions in a row, of all rows, which
    begin at `window_start`.
    """

    start: int
    end: int
    mean: Estimate
    median: float
    p99: float
    maximum: float
    top1: float
    logit_difference: float
    tokens: int
    window: float
    window_start: int


@dataclass(frozen=True)
class DivergenceResult:
    """Two files against each other, token by token. within, beyond: the trained length; by_position: finer spans.

    rare: rows of tokens that the texts do not show; None where they show all.
    """

    reference: str
    length: int
    rows: int
    within: DivergenceSpan
    beyond: DivergenceSpan | None
    by_position: tuple[DivergenceSpan, ...]
    rare: DivergenceSpan | None
    note: str


@dataclass(frozen=True)
class Noise:
    """The divergence of a checkpoint from itself when torch rounds as ggml does.

    runs: the figures of each run. tied: the number of tokens for which rounding chooses other experts.
    tokens: the number of compared tokens. left_out: whether tied tokens count as equal.
    gelu: whether ggml looks the activation up in a table of float16 numbers.
    """

    runs: tuple[DivergenceResult, ...]
    tied: int
    tokens: int
    left_out: bool
    gelu: bool = False


@dataclass(frozen=True)
class YardstickResult:
    """What another way to attend, which no file can hold, gave on the tokens of the target.

    name: with its parameters. on: the checkpoint that it was put on. served: which program runs it, and how, in a sentence;
    empty where none is known. differences: at each length, the target's loss minus
    its own, paired; above 0 the target is the worse one. All else as of the target, held against the same baseline.
    """

    name: str
    on: str
    served: str
    lengths: tuple[LengthResult, ...]
    differences: tuple[Estimate, ...]
    measures: Mapping[str, Any]


PASS, FAIL, NOT_RUN, NOT_ASKED = "pass", "fail", "not run", "-"
INEXACT = "inexact"  # not the same, as whoever made it accepted and the file states
PARTIAL = "partial"


@dataclass(frozen=True)
class Check:
    """One line of the gate: a figure beside its limit. `NOT_ASKED` and `INEXACT` lines inform and do not gate."""

    name: str
    figure: float | None
    limit: float | None
    verdict: str
    detail: str


TRUE, FALSE, NOT_KNOWN = "true", "false", "not known"


def is_true(checks: Iterable[Check]) -> str:
    """Return whether a file is what it says, by the checks that read it back: `TRUE`, `FALSE` or `NOT_KNOWN`."""
    found = {check.verdict for check in checks}
    return FALSE if FAIL in found else TRUE if PASS in found and NOT_RUN not in found else NOT_KNOWN


@dataclass(frozen=True)
class VerifyResult(Tabular):
    """The result of a verification: its subject, its figures and its checks.

    target, baseline, against: names of the checkpoints. baseline is None if the target was compared with itself.
    suite: `default` for the three questions.
    scored: the scored tokens at the end of a text.
    documents: the names of the documents that were read.
    text_fingerprint: of all documents that could be read.
    lengths: the losses. measures: the results of all other measures by their keys, which --json has too; None, or
      empty, for what was not measured.
    checks: the lines of the gate, from which `verdict` follows.
    runtime: a description of the program that computed the figures.
    notes: sentences for the reader.
    certificate: `file`, whether it was `written`, and why an earlier one was `kept`. None if there is none to write.
    extension: method, factor and params of the extension, by the record; by the keys without a record, params then None.
    texts: the documents as `verification.catalogue` describes them. None for documents of a caller.
    grade: the grade that was asked for.
    attainable: the smallest ratio that these texts can probably tell from 1, known before the run.
    cache_type: the type of llama.cpp's keys and values, or None for its default.
    answers: the answers to the three questions. None for a suite.
    """

    target: str
    baseline: str | None
    against: str | None
    suite: str
    trained_length: int
    context_length: int
    scored: int
    seed: int
    documents: tuple[str, ...]
    text_fingerprint: str
    lengths: tuple[LengthResult, ...]
    divergence: DivergenceResult | None
    bands: Mapping[str, Any] | None
    checks: tuple[Check, ...]
    runtime: str
    notes: tuple[str, ...]
    measures: Mapping[str, Any] = field(default_factory=dict)
    certificate: Mapping[str, Any] | None = None
    extension: Mapping[str, Any] | None = None
    texts: Mapping[str, Any] | None = None
    grade: str = ""
    attainable: float | None = None
    judge: str | None = None
    lm_eval: Any = None
    cache_type: str | None = None
    yardsticks: tuple[YardstickResult, ...] = ()
    answers: Answers | None = None

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each text of a default verification, or for each length of a suite; losses in nats per token."""
        if self.answers is not None:
            yield from map(dataclasses.asdict, self.answers.texts)
            return
        for entry in self.lengths:
            baseline = None if entry.baseline is None else entry.baseline.mean
            yield {
                "length": entry.length, "loss": entry.target.mean, "baseline_loss": baseline, "ratio": entry.ratio,
                "lower": entry.lower, "upper": entry.upper, "verdict": entry.verdict, "segments": entry.segments,
                "documents": entry.documents,
            }  # fmt: skip

    @property
    def verdict(self) -> str:
        """`fail` if a check failed, else `partial` if one could not run, else `undecided` if one is, else `pass`."""
        found = {check.verdict for check in self.checks}
        return FAIL if FAIL in found else PARTIAL if NOT_RUN in found else UNDECIDED if UNDECIDED in found else PASS

    @property
    def exit_code(self) -> int:
        """0 for a pass, 3 for a fail, 1 for what is partial or undecided."""
        return {PASS: 0, FAIL: 3, PARTIAL: 1, UNDECIDED: 1}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a JSON file; what is infinite there (an interval over one document) is null."""
        fields = dataclasses.asdict(self)
        fields["yardsticks"] = [_placed(each, OF_YARDSTICKS) for each in fields["yardsticks"]]
        return {"schema": SCHEMA, "verdict": self.verdict, **plain(_placed(fields, PLACES))}


# Keys of measures that --json always has, by the field that they follow. All others come last.
PLACES = {
    "lengths": ("protocols", "position", "far", "retrieval"),
    "judge": ("key_tokens", "long_pass", "effective_length", "many_shot", "cache"),
    "lm_eval": ("needle_answers",),
}
OF_YARDSTICKS = {
    "differences": (
        "protocols", "position", "far", "retrieval", "long_pass", "key_tokens", "needle_answers", "effective_length",
        "many_shot",
    )
}  # fmt: skip
LISTS = ("protocols", "retrieval")


def _placed(fields: Mapping[str, Any], places: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the fields with the results of measures among them, in the order of --json."""
    rest, placed = dict(fields["measures"]), {}
    for name, value in fields.items():
        if name != "measures":
            placed[name] = value
        placed |= {key: rest.pop(key, [] if key in LISTS else None) for key in places.get(name, ())}
    return {**placed, **rest}


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
