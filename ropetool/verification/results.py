"""The results of a verification as frozen data: losses, the checks of the gate, and the results of all measures."""

from __future__ import annotations

import dataclasses
import math
import re
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.escaping import Tabular

if TYPE_CHECKING:
    from ropetool.verification.verdict.answers import Answers

SCHEMA = 1
CUSTOM = "custom"  # the suite name of single measurements
# The checks of a comparison of logits
KL, TAIL, WORST, RARE, BEYOND = "KL", "KL p99", "KL window", "KL rare tokens", "KL beyond"
KL_NAMES = (KL, TAIL, WORST, RARE, BEYOND)
COMPARING_LOGITS = "comparing the logits"  # the stage whose progress counts tokens
_PLACES = re.compile(r"^JSON_PLACES = (\(.*?\))$", re.MULTILINE | re.DOTALL)  # in a file of measures
BETTER, NO_WORSE, WORSE, UNDECIDED, NOT_JUDGED = "better", "no worse", "worse", "undecided", "not judged"


@dataclass(frozen=True)
class Estimate:
    """A mean over tokens with its 95 % interval, clustered by document.

    mean: in the unit of the values, mostly nats per token.
    low, high: the ends of the interval; infinite for fewer than two documents.
    standard_error: infinite for fewer than two documents.
    documents, tokens: the number of documents and of values.
    effective: the number of documents of equal size that would give the same information.
    degrees: the degrees of freedom of the standard error; 0 for fewer than two documents.
    """

    mean: float
    low: float
    high: float
    standard_error: float
    documents: int
    tokens: int
    effective: float
    degrees: float


@dataclass(frozen=True)
class KindResult:
    """The `difference_to_truncation` on texts of one kind, for example prose or code."""

    kind: str
    difference: Estimate


@dataclass(frozen=True)
class LengthResult:
    """The losses of the last tokens of each segment at one length.

    length: tokens of model input.
    target, baseline: the loss in nats per token. A baseline that was not measured at this length is None.
    target_bits, baseline_bits: the loss in bits per byte of scored text.
    difference_to_truncation: the target's loss minus the baseline's loss on the last min(length, trained length) tokens
      of the same segments, in nats per token; None without a comparison.
    ratio: the target's perplexity divided by the baseline's perplexity in this comparison.
    lower, upper: bounds of the true ratio with 95 % confidence each; None without a comparison.
    verdict: `worse` if the true ratio is significantly above the limit of the grade, `better` if it is significantly
      below 1, both over all lengths together. Else `no worse` if the upper bound is within the limit, and `undecided`
      if not. `not judged` without a comparison or with too little text.
    holds: the verdict is better or no worse.
    useful: the verdict is better; None if it is not judged.
    tax: the short-context regression: the difference of the losses at this length, in nats per token; None beyond the
      trained length.
    doubling: the target's loss minus its loss at the previous length, in nats per token; None at the shortest length.
    segments, documents: the number of segments and of their documents.
    partial: there are too few segments or documents for a verdict.
    note: the reason for `partial`, or another remark; may be empty.
    kinds: the difference for each kind of text; empty if all texts have the same kind.
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
    """KL(reference || target) in nats per token, over a range of positions.

    start, end: the range; `end` is excluded.
    mean: the mean with its interval. median, p99, maximum: over all tokens.
    top1: the share of tokens with the same likeliest token in both.
    logit_difference: the largest difference of two logits, divided by the largest logit of the reference.
    tokens: the number of compared tokens.
    window: the largest mean over a few adjacent positions of all rows. window_start: the first of these positions.
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
    """The divergence of two files, token by token.

    reference: the name of the reference.
    length, rows: the tokens of a row, and the number of rows.
    within, beyond: the spans within and beyond the trained length; `beyond` is None for shorter rows.
    by_position: finer spans.
    rare: rows of tokens that do not occur in the texts; None if all tokens occur there.
    note: a remark on different sizes of the vocabularies, or "".
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

    runs: the figures of each run.
    tied: the number of tokens for which rounding chooses other experts.
    tokens: the number of compared tokens.
    left_out: whether tied tokens count as equal.
    gelu: whether ggml looks the activation up in a table of float16 numbers.
    """

    runs: tuple[DivergenceResult, ...]
    tied: int
    tokens: int
    left_out: bool
    gelu: bool = False


@dataclass(frozen=True)
class YardstickResult:
    """The figures of a reference attention variant on the target's tokens. No file can contain such a variant.

    name: the name with parameters.
    on: the checkpoint that it was applied to.
    served: a sentence about the program that runs this variant; "" if none is known.
    lengths, measures: as for the target, compared with the same baseline.
    differences: the target's loss minus the variant's loss at each length, paired, in nats per token.
    """

    name: str
    on: str
    served: str
    lengths: tuple[LengthResult, ...]
    differences: tuple[Estimate, ...]
    measures: Mapping[str, Any]


PASS, FAIL, NOT_RUN, NOT_ASKED = "pass", "fail", "not run", "-"
INEXACT = "inexact"  # the tables differ; the user accepted this on export, and the file declares it
PARTIAL = "partial"


@dataclass(frozen=True)
class Check:
    """One line of the gate.

    name: the name of the check, which selects the sentences of a report.
    figure, limit: None if the check has no number.
    verdict: a verdict of this module. `NOT_ASKED` and `INEXACT` do not affect the verdict of a run.
    detail: an explanation of the figure.
    """

    name: str
    figure: float | None
    limit: float | None
    verdict: str
    detail: str


TRUE, FALSE, NOT_KNOWN = "true", "false", "not known"


def is_true(checks: Iterable[Check]) -> str:
    """Return whether a file equals its record or implied extension, by the checks of readback.

    The result is `TRUE`, `FALSE` or `NOT_KNOWN`.
    """
    verdicts = {check.verdict for check in checks}
    return FALSE if FAIL in verdicts else TRUE if PASS in verdicts and NOT_RUN not in verdicts else NOT_KNOWN


@dataclass(frozen=True)
class VerifyResult(Tabular):
    """The result of a verification: its subject, its figures and its checks.

    target, baseline, against: names of the checkpoints. Without a baseline, the target was compared with itself.
    suite: `default` for the three questions.
    trained_length, context_length: the trained and the configured context length in tokens.
    scored: the scored tokens at the end of a text.
    seed: the seed of all random choices.
    documents: the names of the documents that were read.
    text_fingerprint: the fingerprint of all documents that were available.
    lengths: the losses by length.
    divergence: the comparison of logits with `against`, or None.
    bands: the frequencies before and after the extension, or None.
    checks: the lines of the gate, which determine `verdict`.
    runtime: a description of the program that computed the figures.
    notes: sentences for the reader.
    measures: the results of all other measures by their keys, which --json has too; None or empty for a measure without
      a result.
    certificate: `file`, whether it was `written`, and why an earlier one was `kept`. None without a certificate.
    extension: method, factor and params of the extension in the record. Without a record they follow from the keys,
      without params. None without an extension.
    texts: the documents as `verification.catalogue` describes them. None for documents from the caller.
    grade: the requested grade.
    attainable: the smallest ratio that these texts can probably distinguish from 1, calculated before the run.
    judge: the name of the judge, or None.
    lm_eval: the result of the logs of lm-evaluation-harness, or None.
    cache_type: the type of llama.cpp's keys and values, or None for its default.
    yardsticks: the figures of reference attention variants.
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
        verdicts = {check.verdict for check in self.checks}
        if FAIL in verdicts:
            return FAIL
        if NOT_RUN in verdicts:
            return PARTIAL
        return UNDECIDED if UNDECIDED in verdicts else PASS

    @property
    def exit_code(self) -> int:
        """0 for a pass, 3 for a fail, 1 for partial or undecided."""
        return {PASS: 0, FAIL: 3, PARTIAL: 1, UNDECIDED: 1}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a JSON file. Infinite numbers, such as the interval of one document, become None."""
        fields = dataclasses.asdict(self)
        places = json_places()
        of_variants = [replace(each, after="differences") for each in variant_places()]
        fields["yardsticks"] = [_placed(each, of_variants) for each in fields["yardsticks"]]
        return {"schema": SCHEMA, "verdict": self.verdict, **plain(_placed(fields, places))}


@dataclass(frozen=True)
class JsonPlace:
    """The place of a measure's result in --json. The key is there without a result too.

    A file of measures lists its places in JSON_PLACES, as literals: the text is read, and the file is not imported. The
    keys of a measure without a place come last, and only with a result.

    key: the key of the result, as in `Measure`.
    after: the field of `VerifyResult` before it.
    order: its number among the keys after this field, and among the keys of a candidate of `compare`.
    several: the result is a list.
    of_variants: reference attention variants have the key too.
    variant_order: its number in a variant; None for `order`.
    """

    key: str
    after: str
    order: int
    several: bool = False
    of_variants: bool = True
    variant_order: int | None = None


def json_places() -> tuple[JsonPlace, ...]:
    """Return the places of all measures in --json, in their order."""
    from ropetool.registry import MEASURE_PACKAGES

    return _places_in(MEASURE_PACKAGES)


@cache
def _places_in(packages: Sequence[str]) -> tuple[JsonPlace, ...]:
    places = []
    for package in packages:
        top, *below = package.split(".")  # only `top` is imported, because the packages load every measure
        for file in Path(import_module(top).__path__[0]).joinpath(*below).glob("*.py"):
            listed = _PLACES.search(file.read_text(encoding="utf-8"))
            places += [] if listed is None else [JsonPlace(**place) for place in literal_eval(listed[1])]
    return tuple(sorted(places, key=lambda place: (place.order, place.key)))


def variant_places() -> list[JsonPlace]:
    """Return the places in a reference attention variant, in their order."""
    measured = [place for place in json_places() if place.of_variants]
    return sorted(measured, key=lambda place: place.variant_order or place.order)


def _placed(fields: Mapping[str, Any], places: Iterable[JsonPlace]) -> dict[str, Any]:
    """Return the fields and the results of measures, in the order of --json."""
    rest, placed = dict(fields["measures"]), {}
    for name, value in fields.items():
        if name != "measures":
            placed[name] = value
        placed |= {
            place.key: rest.pop(place.key, [] if place.several else None) for place in places if place.after == name
        }
    return {**placed, **rest}


def plain(value: Any) -> Any:
    """Return the value with lists instead of tuples. Numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
