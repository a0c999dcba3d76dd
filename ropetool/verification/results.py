"""What a verification found, as frozen data: one class a measurement, the checks of the gate, and all of it together.

Plain numbers; knows nothing of how they are measured or shown.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
class OffsetResult:
    """The loss of the fixed passages behind `filler` tokens of other documents; `change` from no filler, paired.

    difference: from the baseline's behind as much of it as fits the trained length, paired; None without a baseline there.
    """

    filler: int
    loss: Estimate
    change: Estimate | None
    difference: Estimate | None = None


@dataclass(frozen=True)
class PositionResult:
    """The position probe: passages of `passage` tokens whose last `scored` are scored. baseline: without filler.

    within: the filler of which a row is as long as the trained length.
    """

    passage: int
    scored: int
    passages: int
    documents: int
    offsets: tuple[OffsetResult, ...]
    baseline: Estimate | None
    note: str
    within: int = 0


@dataclass(frozen=True)
class DistanceResult:
    """Next-token accuracy on a passage whose own copy (`repeated`) or another text (`unrelated`) stands `distance` before.

    The scored tokens are the same; `gain` is the paired difference, repeated minus unrelated. change: the gain minus that
    within the trained length, paired; None there. All are parts of 1, but for `nats`: by how much the copy lowers the loss
    of a token, paired.
    """

    distance: int
    repeated: Estimate
    unrelated: Estimate
    gain: Estimate
    change: Estimate | None = None
    nats: Estimate | None = None


@dataclass(frozen=True)
class FarResult:
    """Far dependence by distance, in tokens from a token to its copy.

    within: the largest distance within the trained length, 0 without one. own: the baseline's gain there, or the target's
    own without a baseline.
    """

    passage: int
    scored: int
    passages: int
    documents: int
    distances: tuple[DistanceResult, ...]
    note: str
    within: int = 0
    own: Estimate | None = None


@dataclass(frozen=True)
class RetrievalCell:
    """One cell of the grid: of `trials` contexts, how often the right value was the likeliest of the candidates.

    depth: where the key stands, 0 for the front and 1 for the end. generated: how often the value was the likeliest
    token of the whole vocabulary, which is what greedy generation writes. low, high: Wilson's 95 % interval of hits.
    """

    length: int
    depth: float
    hits: int
    generated: int
    trials: int
    low: float
    high: float


@dataclass(frozen=True)
class RetrievalPair:
    """The trials of a length beside their twins, the same keys and values within the trained length.

    depth: None for all of them together. generated: of what greedy generation writes. hits, own: right at this length, and
    of the twins. gained, lost: right at this length alone, and in the twin alone. difference: of the shares; lower, upper:
    what the true one is above, and below, with 95 % confidence each.
    """

    length: int
    depth: float | None
    generated: bool
    trials: int
    hits: int
    own: int
    gained: int
    lost: int
    difference: float
    lower: float
    upper: float


@dataclass(frozen=True)
class RetrievalResult:
    """The grid of one task: `keys` (the default), `many-keys`, `variables` or `needles`. chance: of a blind guess.

    pairs: against the baseline's twins, or without a baseline the target's own.
    """

    task: str
    keys: int
    chance: float
    cells: tuple[RetrievalCell, ...]
    baseline: tuple[RetrievalCell, ...]
    note: str
    pairs: tuple[RetrievalPair, ...] = ()


@dataclass(frozen=True)
class EffectiveLengthTask:
    """One task. chance: of a blind guess. own: right answers of the trained length; hits: the target's at each length."""

    name: str
    chance: float
    own: int
    hits: Mapping[int, int]


@dataclass(frozen=True)
class EffectiveLengthStep:
    """The score at one length: the share of right answers over all tasks, 0 for a blind guesser and 1 for all of them.

    ratio: to that of the same trials at the trained length. lower, upper: what the true one is above, and below, with 95 %
    confidence each. verdict: `no worse` where the lower bound is what has to be kept or more, `worse` where the ratio is
    surely below over all lengths together, else `undecided`.
    """

    length: int
    score: float
    ratio: float
    lower: float
    upper: float
    verdict: str


@dataclass(frozen=True)
class EffectiveLengthResult:
    """The longest length that, like every shorter one measured, keeps `kept` of the score at the trained length.

    trials: of each task. own: that score, the baseline's where there is one. longest: by the ratios; surely: by their lower
    bounds; possibly: the longest before one that is surely worse. 0: not even the first; all None where nothing is judged,
    which note explains.
    """

    kept: float
    tasks: tuple[EffectiveLengthTask, ...]
    trials: int
    own: float | None
    steps: tuple[EffectiveLengthStep, ...]
    longest: int | None
    surely: int | None
    possibly: int | None
    note: str


@dataclass(frozen=True)
class ManyShotLength:
    """What the label of a word costs behind all shots that a length holds, in nats among four labels.

    seen: the share of trials whose word is among the shots. hits: how often the right label was the likeliest. gain: the
    loss behind the trained length's shots, the baseline's where there is one, minus the target's here, paired by trial; None
    where nothing is judged. verdict: `better` or `worse` where that is sure over all lengths together, else `undecided`.
    """

    length: int
    shots: int
    seen: float
    hits: int
    loss: Estimate
    gain: Estimate | None
    verdict: str


@dataclass(frozen=True)
class ManyShotResult:
    """Many-shot learning in context. own: the loss behind the shots of the trained length, None where there is none."""

    trials: int
    own: Estimate | None
    lengths: tuple[ManyShotLength, ...]
    note: str


@dataclass(frozen=True)
class CacheLength:
    """Generation of the last tokens of rows of `length` behind a prompt, against whole passes over all before each token.

    mean, maximum: of KL(whole pass || generation), in nats a token. same: how often both have the same likeliest token.
    crosses: whether generation goes from within the trained length beyond it.
    """

    length: int
    prompt: int
    tokens: int
    crosses: bool
    mean: float
    maximum: float
    same: float


@dataclass(frozen=True)
class CacheResult:
    """Cached generation by length. rounding: the type computed in. moving: whether the table follows the length."""

    lengths: tuple[CacheLength, ...]
    rounding: str
    moving: bool


EXACT, NUMERIC, UNPAIRED = "exact", "numeric", "unpaired"


@dataclass(frozen=True)
class HarnessScore:
    """One metric of a task of lm-evaluation-harness, for both models, as a part of a full score.

    filter: how answers were taken out of what was generated. samples: the target's. own: the baseline's score. difference:
    what the target gains, also where a lower score is better; lower, upper: what the true one is above, and below, with 95 %
    confidence each. kind: of right and wrong paired, of numbers paired, or unpaired. verdict: `worse` where more than the
    grade allows is surely lost, over all scores together; `no worse` where the lower bound is within it; else `undecided`,
    and `not judged` of too few samples.
    """

    task: str
    metric: str
    filter: str
    samples: int
    own: float
    score: float
    difference: float
    lower: float
    upper: float
    kind: str
    verdict: str


@dataclass(frozen=True)
class HarnessResult:
    """What other people's tasks gave. note: which metrics are left out."""

    scores: tuple[HarnessScore, ...]
    note: str


@dataclass(frozen=True)
class PassSpan:
    """What the tokens at the positions from `start` up to but not including `end` cost in one long pass, in nats.

    truncated: what the baseline makes of the same tokens in windows of its trained length. difference: paired.
    """

    start: int
    end: int
    loss: Estimate
    truncated: Estimate
    difference: Estimate


@dataclass(frozen=True)
class LongPassResult:
    """The loss by position in passes of `length` tokens, beyond the trained length. note: why it decides little."""

    length: int
    places: int
    documents: int
    spans: tuple[PassSpan, ...]
    note: str


@dataclass(frozen=True)
class KeyTokenResult:
    """What the tokens cost that a judge predicts from far text alone: `tokens` of `scored`, in nats.

    loss: of the target behind `length` tokens. truncated: of the baseline behind those that fit its trained length. gain:
    the second minus the first, paired. All None where the judge chose none. Without a judge the tokens are those of the
    farthest copies, and the gain is from the copy. note: why nothing is judged.
    """

    length: int
    tokens: int
    scored: int
    places: int
    documents: int
    loss: Estimate | None
    truncated: Estimate | None
    gain: Estimate | None
    note: str


@dataclass(frozen=True)
class ProtocolLength:
    """Perplexity by a published protocol with windows of `length` tokens; token-weighted."""

    length: int
    target: Estimate
    baseline: Estimate | None
    target_bits: float
    baseline_bits: float | None
    difference: Estimate | None


@dataclass(frozen=True)
class ProtocolResult:
    """protocol: `yarn` or `llama.cpp`."""

    protocol: str
    lengths: tuple[ProtocolLength, ...]
    note: str


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
    protocols: tuple[ProtocolResult, ...]
    position: PositionResult | None
    far: FarResult | None
    retrieval: tuple[RetrievalResult, ...]
    long_pass: LongPassResult | None
    key_tokens: KeyTokenResult | None
    needle_answers: KeyTokenResult | None
    effective_length: EffectiveLengthResult | None
    many_shot: ManyShotResult | None


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
class VerifyResult:
    """The result of a verification: its subject, its figures and its checks.

    target, baseline, against: names of the checkpoints. baseline is None if the target was compared with itself.
    suite: `default` for the three questions.
    scored: the scored tokens at the end of a text.
    documents: the names of the documents that were read.
    text_fingerprint: of all documents that could be read.
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
    protocols: tuple[ProtocolResult, ...]
    position: PositionResult | None
    far: FarResult | None
    retrieval: tuple[RetrievalResult, ...]
    divergence: DivergenceResult | None
    bands: Mapping[str, Any] | None
    checks: tuple[Check, ...]
    runtime: str
    notes: tuple[str, ...]
    certificate: Mapping[str, Any] | None = None
    extension: Mapping[str, Any] | None = None
    texts: Mapping[str, Any] | None = None
    grade: str = ""
    attainable: float | None = None
    judge: str | None = None
    key_tokens: KeyTokenResult | None = None
    long_pass: LongPassResult | None = None
    effective_length: EffectiveLengthResult | None = None
    many_shot: ManyShotResult | None = None
    cache: CacheResult | None = None
    lm_eval: HarnessResult | None = None
    needle_answers: KeyTokenResult | None = None
    cache_type: str | None = None
    yardsticks: tuple[YardstickResult, ...] = ()
    answers: Answers | None = None

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
        return {"schema": SCHEMA, "verdict": self.verdict, **plain(dataclasses.asdict(self))}


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
