"""Last segment: the loss of the same tokens with more and more context in front of them, compared with the baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ropetool.rope.tables import Array
from ropetool.sections import NONE, WARN, Cell, Section, Table, change, counted, number, optional, yes_no
from ropetool.sections import perplexity as perplexity_text
from ropetool.sections import row as cells
from ropetool.verification.gate import Evidence, loss_checks, reading_check
from ropetool.verification.measure import TONES, Grading, Measure, Setting
from ropetool.verification.measures.segments import Segment, choose_segments, lacking, scored_tokens
from ropetool.verification.results import (
    BETTER,
    NO_WORSE,
    NOT_JUDGED,
    UNDECIDED,
    WORSE,
    Check,
    Estimate,
    KindResult,
    LengthResult,
    VerifyResult,
)
from ropetool.verification.scoring import BASELINE, Corpus, Done, Measurement, Runner
from ropetool.verification.statistics import (
    ERROR,
    chance_of_less,
    chance_of_more,
    clustered,
    lower_bound,
    negated,
    paired_difference,
    rejected,
    upper_bound,
)

JUDGED = {**TONES, NOT_JUDGED: WARN}
OTHER = "other"  # the name for texts of unknown kind
Losses = Mapping[int, Array]
"""The losses by length, in nats. Shapes: (segments of this length, scored)."""


@dataclass(frozen=True)
class LastSegment:
    """The segments of each length, and of further lengths within the trained length for comparisons.

    asked: the lengths to report.
    trained_length, context_length: tokens; `context_length` is None if only the lengths count.
    margin: the largest allowed increase of the loss, in nats per token.
    scored: the number of scored tokens at the end of a segment.
    chosen: the segments by length.
    baseline_reach: the longest row that the baseline can read, in tokens; None for no limit.
    """

    corpus: Corpus
    asked: tuple[int, ...]
    trained_length: int
    context_length: int | None
    margin: float
    scored: int
    chosen: Mapping[int, tuple[Segment, ...]]
    baseline_reach: int | None = None
    name: str = "last-segment"

    def rows(self, role: str) -> Mapping[int, int]:
        return {length: len(self.chosen[length]) for length in self._lengths(role)}

    def _lengths(self, role: str) -> list[int]:
        """Return the lengths that a model reads, short ones first. The baseline reads none above `baseline_reach`."""
        limit = self.baseline_reach if role == BASELINE else None
        return [length for length in sorted(self.chosen) if limit is None or length <= limit]

    def run(self, runner: Runner, role: str, done: Done) -> Losses:
        """Return the losses for each length, short ones first."""
        losses = {}
        for length in self._lengths(role):
            rows = [row(self.corpus, segment, length) for segment in self.chosen[length]]
            losses[length] = runner.score(rows, self.scored, done).losses
        return losses

    def result(self, target: Losses, baseline: Losses | None) -> tuple[LengthResult, ...]:
        """Return the result at each length of `asked`. Without a baseline, the target is compared with itself."""
        before = {longer: shorter for shorter, longer in pairwise(self.asked)}
        results = [self._compared(length, before.get(length), target, baseline) for length in self.asked]
        return tuple(judged(results, self.margin))

    def documents(self) -> tuple[str, ...]:
        """Return the names of the documents that are read."""
        used = sorted({segment.document for segments in self.chosen.values() for segment in segments})
        return tuple(self.corpus.names[index] for index in used)

    def _compared(self, length: int, before: int | None, target: Losses, baseline: Losses | None) -> LengthResult:
        segments = self.chosen[length]
        documents = [segment.document for segment in segments]
        within = length <= self.trained_length
        # Each shorter length begins with the segments of the longer one, so these are the same tokens.
        reference = (target if baseline is None else baseline)[min(length, self.trained_length)][: len(segments)]
        shown = baseline.get(length) if baseline is not None else reference if within else None
        own_figure = baseline is None and within
        difference = None if own_figure else paired_difference(target[length], reference, documents)
        ratio = perplexity(float(target[length].mean() - reference.mean()))
        earlier = None if before is None else target[before][: len(segments)]
        return LengthResult(
            length=length,
            target=clustered(target[length], documents),
            baseline=None if shown is None else clustered(shown, documents),
            target_bits=self._bits_per_byte(target[length], segments),
            baseline_bits=None if shown is None else self._bits_per_byte(shown, segments),
            difference_to_truncation=difference,
            ratio=ratio,
            lower=None if difference is None else perplexity(lower_bound(difference)),
            upper=None if difference is None else perplexity(upper_bound(difference)),
            verdict=NOT_JUDGED,
            holds=False,
            useful=None,
            tax=difference if within else None,
            doubling=None if earlier is None else paired_difference(target[length], earlier, documents),
            segments=len(segments),
            documents=len(set(documents)),
            partial=bool(lacking(documents)),
            note=self._note(length, documents),
            kinds=() if difference is None else self._by_kind(target[length] - reference, documents),
        )

    def _by_kind(self, differences: Array, documents: Sequence[int]) -> tuple[KindResult, ...]:
        """Return the difference for each kind of text, or an empty tuple if there is only one kind."""
        kinds = self.corpus.kinds
        present = sorted({kinds[document] for document in documents}) if kinds else []
        if len(present) < 2:
            return ()
        chosen = {kind: [i for i, document in enumerate(documents) if kinds[document] == kind] for kind in present}
        return tuple(
            KindResult(kind or OTHER, clustered(differences[rows], [documents[i] for i in rows]))
            for kind, rows in chosen.items()
        )

    def _bits_per_byte(self, losses: Array, segments: Sequence[Segment]) -> float:
        lengths = self.corpus.byte_lengths
        bytes_ = sum(int(lengths[s.document][s.end - self.scored : s.end].sum()) for s in segments)
        return float(losses.sum()) / math.log(2) / bytes_ if bytes_ else math.inf

    def _note(self, length: int, documents: Sequence[int]) -> str:
        notes = []
        if self.context_length is not None and length > self.context_length:
            notes.append(f"beyond the context length of {self.context_length} tokens")
        if missing := lacking(documents):
            notes.append(f"partial: {missing}")
        return "; ".join(notes)


def prepare_last_segment(
    corpus: Corpus,
    lengths: Sequence[int],
    trained_length: int,
    *,
    context_length: int | None,
    margin: float,
    segments: int,
    seed: int,
    most_scored: int | None = None,
) -> LastSegment:
    """Return the measurement at these lengths. Raises: ConfigError if the texts are too short for the longest one."""
    measured = sorted({*lengths, *(min(length, trained_length) for length in lengths)})
    scored = scored_tokens(trained_length, measured)
    scored = scored if most_scored is None else min(scored, most_scored)
    sizes = [len(ids) for ids in corpus.tokens]
    chosen = choose_segments(sizes, measured, scored, segments, seed, len(corpus.prefix))
    return LastSegment(corpus, tuple(lengths), trained_length, context_length, margin, scored, chosen)


def judged(results: Sequence[LengthResult], margin: float) -> list[LengthResult]:
    """Return the lengths with their verdicts. Lengths without a comparison or with too little text stay not judged."""
    known = [entry for entry in results if not entry.partial and entry.difference_to_truncation is not None]
    each = verdicts([entry.difference_to_truncation for entry in known if entry.difference_to_truncation], margin)
    by_length = {entry.length: verdict for entry, verdict in zip(known, each, strict=True)}
    return [_with(entry, by_length[entry.length]) if entry.length in by_length else entry for entry in results]


def verdicts(differences: Sequence[Estimate], margin: float, error: float = ERROR) -> list[str]:
    """Return the verdict of the difference at each length. margin: nats per token.

    A length is better or worse if this is significant over all lengths together, by Holm's rule, because one of many
    lengths is always the worst. `no worse` does not need such a rule, because each length has its own verdict.
    """
    worse = rejected([chance_of_less(difference, margin) for difference in differences], error)
    better = rejected([chance_of_more(difference, 0.0) for difference in differences], error)
    return [_verdict(*each, margin, error) for each in zip(differences, worse, better, strict=True)]


def _verdict(difference: Estimate, worse: bool, better: bool, margin: float, error: float) -> str:
    if worse:
        return WORSE
    if better:
        return BETTER
    return NO_WORSE if upper_bound(difference, error) <= margin else UNDECIDED


def _with(entry: LengthResult, verdict: str) -> LengthResult:
    return replace(entry, verdict=verdict, holds=verdict in (BETTER, NO_WORSE), useful=verdict == BETTER)


def perplexity(loss: float) -> float:
    """Return e to the power of the loss, or infinity if this is too large for a float."""
    return math.exp(loss) if loss < 709 else math.inf


def row(corpus: Corpus, segment: Segment, length: int) -> list[int]:
    """Return the model input of `length` tokens that ends at the segment's end: the prefix, then the text."""
    tokens = corpus.tokens[segment.document]
    return [*corpus.prefix, *tokens[segment.end - length + len(corpus.prefix) : segment.end].tolist()]


def _loss(result: VerifyResult) -> Section:
    trained, limit = result.trained_length, _limit(result)
    # "no worse" would look like a contradiction next to a ratio above 1.
    shown = {NOT_JUDGED: NONE, NO_WORSE: f"within {limit}"}
    rows = tuple(
        cells(
            str(entry.length),
            Cell(shown.get(entry.verdict, entry.verdict), JUDGED[entry.verdict]),
            number(entry.ratio),
            NONE if entry.upper is None else number(entry.upper),
            perplexity_text(entry.target),
            perplexity_text(entry.baseline),
            Cell(
                f"{entry.segments} in {counted(entry.documents, 'text')}{'!' if entry.partial else ''}",
                WARN if entry.partial else "",
            ),
            optional(entry.target_bits),
            optional(entry.baseline_bits),
        )
        for entry in result.lengths
    )
    legend = (
        ("length", "tokens of input; the last tokens are always the same"),
        (
            "verdict",
            f"better: significantly below 1; within {limit}: significantly not above {limit}, the limit of the grade; "
            "worse: significantly above it; undecided: too little text; -: not judged",
        ),
        ("ratio", f"perplexity of the target / perplexity of the baseline at min(length, {trained})"),
        ("at most", "upper bound of the true ratio, with 95 % confidence"),
        ("ppl", "exp(loss) of the scored tokens (95 % interval over documents; none for a single document)"),
        ("segments", f"places with {result.scored} scored tokens each, and the number of texts; ! means too few"),
        ("bits", "per byte of the scored text: loss x tokens / (ln 2 x bytes)"),
    )
    head = (
        "length",
        "verdict",
        "ratio",
        "at most",
        "ppl target",
        "ppl baseline",
        "segments",
        "bits target",
        "bits baseline",
    )
    notes = tuple(f"{entry.length}: {entry.note}" for entry in result.lengths if entry.note)
    return Section("loss", "Last segment: does quality hold?", Table(head, rows, words=(1,)), legend, notes)


def _worth(result: VerifyResult) -> Section:
    trained = result.trained_length
    rows = tuple(
        cells(
            str(entry.length),
            change(entry.difference_to_truncation, -1),
            yes_no(entry.useful, WARN),
            change(entry.doubling, -1),
            change(entry.tax),
        )
        for entry in result.lengths
    )
    legend = (
        (
            "gain",
            f"loss of the baseline on the last min(length, {trained}) tokens minus loss of the target, nats per token (± 95 %, paired)",
        ),
        ("useful", "the verdict is better: the gain is significantly above 0, over all lengths together"),
        ("doubling", "loss of the target at the previous length minus its loss at this length, in nats per token"),
        ("regression", f"loss minus the baseline's loss at the same length, up to {trained} tokens, in nats per token"),
    )
    head = ("length", "gain over truncation", "useful", "gain of doubling", "regression")
    return Section("worth", "Last segment: does the longer context help?", Table(head, rows), legend)


def _kinds(result: VerifyResult) -> Section:
    """Return the table of differences by kind of text, at the trained length and at the longest length."""
    trained = [entry for entry in result.lengths if entry.length <= result.trained_length]
    shown = {entry.length: entry for entry in (*trained[-1:], result.lengths[-1])}
    rows = tuple(
        cells(
            str(length),
            of.kind,
            str(of.difference.documents),
            number(math.exp(of.difference.mean)),
            change(of.difference),
        )
        for length, entry in shown.items()
        for of in entry.kinds
    )
    legend = (("change", "target minus baseline, as for the ratio above, in nats per token, paired, ± 95 % interval"),)
    head = ("length", "type of text", "documents", "ratio", "change")
    return Section("kinds", "Last segment: by type of text", Table(head, rows, words=(1,)), legend)


def _limit(result: VerifyResult) -> str:
    """Return the limit of the ratio from the gate's check, in words."""
    limits = [check.limit for check in result.checks if check.name == "ratio" and check.limit is not None]
    return f"{limits[0]:g}" if limits else "the limit"


def _sections(lengths: Sequence[LengthResult], result: VerifyResult) -> Iterator[Section]:
    yield _loss(result)
    yield _worth(result)
    if any(entry.kinds for entry in lengths):
        yield _kinds(result)


def _prepare(setting: Setting, prepared: Sequence[Measurement]) -> LastSegment:
    measurement = prepare_last_segment(
        setting.corpus, setting.lengths, setting.trained_length, context_length=setting.context_length,
        margin=setting.limits.asked.margin, segments=setting.suite.segments, seed=setting.seed,
        most_scored=setting.suite.most_scored,
    )  # fmt: skip
    return replace(measurement, baseline_reach=setting.baseline_reach)


def _evidence(lengths: Sequence[LengthResult], grading: Grading) -> list[Evidence]:
    """Return the gain over truncation at the configured context length, in nats per token."""
    reached = reaching(lengths, grading.context_length)
    if not reached or reached[0].difference_to_truncation is None:
        return []
    gain = negated(reached[0].difference_to_truncation)
    return [Evidence(f"gain over truncation at {reached[0].length} tokens", gain)]


def _checks(lengths: Sequence[LengthResult], grading: Grading) -> list[Check]:
    trained, limits = grading.trained_length, grading.limits
    far_text = reading_check(grading.evidence, limits.asked, trained, grading.context_length)
    return [*loss_checks(lengths, trained, limits), far_text]


def reaching(lengths: Sequence[LengthResult], context_length: int) -> list[LengthResult]:
    """Return the results with enough text at the configured context length and beyond."""
    return [entry for entry in lengths if entry.length >= context_length and not entry.partial]


MEASURES = (
    Measure(
        "last-segment", "lengths", 10, _prepare, suites=("quick", "standard", "full"), by_tokens=True,
        evidence=_evidence, checks=_checks,
        sections=_sections,
    ),
)  # fmt: skip
