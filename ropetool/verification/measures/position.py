"""Position probe: the loss of fixed passages with more and more other text in front of them. It should not change.

Shifted position_ids would not change the loss, because RoPE is relative. So the passages get other text in front of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ropetool import charts
from ropetool.rope.tables import Array
from ropetool.sections import NONE, Section, Table, change, row, with_interval
from ropetool.verification.gate import NOTHING_BEYOND, Grade
from ropetool.verification.measure import Measure, Setting, VerdictSentence
from ropetool.verification.measures.fillers import Passage, passage_length, passages
from ropetool.verification.measures.segments import lacking
from ropetool.verification.results import NOT_ASKED, NOT_RUN, PASS, Check, Estimate, VerifyResult
from ropetool.verification.scoring import TARGET, Corpus, Done, Measurement, Runner
from ropetool.verification.statistics import (
    chance_of_less,
    clustered,
    lower_bound,
    paired_difference,
    rejected,
    upper_bound,
)

POSITION = "position"  # the check


@dataclass(frozen=True)
class OffsetResult:
    """The loss of the passages after `filler` tokens of other documents, in nats per token.

    change: the loss minus the loss without filler, paired; None without filler.
    difference: the loss minus the baseline's loss with as much filler as fits its trained length, paired. Without a
      baseline, the target within its trained length is the baseline, and the value is None there.
    """

    filler: int
    loss: Estimate
    change: Estimate | None
    difference: Estimate | None = None


@dataclass(frozen=True)
class PositionResult:
    """The result of the position probe.

    passage, scored: the tokens of a passage, and of its scored end.
    passages, documents: the number of passages, and of their documents.
    offsets: the losses by filler.
    baseline: the baseline's loss without filler, or None without a baseline.
    note: the reason why nothing is judged, or "".
    within: the filler that makes a row as long as the trained length.
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
class PositionProbe:
    """The passages and the lengths of filler. The baseline gets the fillers within its trained length.

    size: the tokens of a passage.
    fillers: the tokens of filler in front of a passage.
    within: the filler that makes a row as long as the trained length.
    """

    corpus: Corpus
    passages: tuple[Passage, ...]
    size: int
    fillers: tuple[int, ...]
    within: int
    name: str = "position"

    @property
    def scored(self) -> int:
        """The number of scored tokens at the end of a passage."""
        return self.size // 2

    def rows(self, role: str) -> Mapping[int, int]:
        return {self._length(filler): len(self.passages) for filler in self._fillers(role)}

    def run(self, runner: Runner, role: str, done: Done) -> Mapping[int, Array]:
        """Return the losses by filler. Shapes: (passages, scored)."""
        return {
            filler: runner.score([self._row(p, filler) for p in self.passages], self.scored, done).losses
            for filler in self._fillers(role)
        }

    def result(self, target: Mapping[int, Array], baseline: Mapping[int, Array] | None) -> PositionResult:
        """Return the loss after each filler, compared with no filler and with the baseline within the trained length.

        Without a baseline, the target is compared with itself beyond the trained length.
        """
        documents = [passage.document for passage in self.passages]
        reference = target if baseline is None else baseline
        offsets = tuple(
            OffsetResult(
                filler,
                clustered(losses, documents),
                None if filler == 0 else paired_difference(losses, target[0], documents),
                None
                if baseline is None and filler <= self.within
                else paired_difference(losses, reference[min(filler, self.within)], documents),
            )
            for filler, losses in target.items()
        )
        own = None if baseline is None else clustered(baseline[0], documents)
        return PositionResult(
            self.size,
            self.scored,
            len(self.passages),
            len(set(documents)),
            offsets,
            own,
            lacking(documents, "passages"),
            self.within,
        )

    def _fillers(self, role: str) -> tuple[int, ...]:
        return tuple(filler for filler in self.fillers if role == TARGET or filler <= self.within)

    def _length(self, filler: int) -> int:
        return len(self.corpus.prefix) + filler + self.size

    def _row(self, passage: Passage, filler: int) -> list[int]:
        # The end of the filler, so that the text right before the passage is the same at every length.
        return [*self.corpus.prefix, *passage.filler[len(passage.filler) - filler :], *passage.tokens]


def prepare_position(
    corpus: Corpus, lengths: Sequence[int], trained_length: int, *, count: int, seed: int
) -> PositionProbe:
    """Return the probe with rows of exactly these lengths, if a passage fits, and with a row without filler.

    The trained length is one of them if it does not exceed all lengths.

    Raises: ConfigError if the texts are too few or too short.
    """
    size = passage_length(trained_length, max(lengths) - len(corpus.prefix))
    measured = {*lengths, min(trained_length, max(lengths))}
    rest = sorted({0, *(length - len(corpus.prefix) - size for length in measured)})
    fillers = tuple(filler for filler in rest if filler >= 0)
    within = max(filler for filler in fillers if filler <= max(0, trained_length - len(corpus.prefix) - size))
    return PositionProbe(corpus, passages(corpus, size, fillers[-1], count, seed), size, fillers, within)


def position_check(result: PositionResult, grade: Grade) -> Check:
    """Return the check that the loss after much filler is not above the baseline's loss within its trained length.

    It passes or informs, because a correct extension of a small model may have a higher loss there and still work.
    """
    judged = [(entry, entry.difference) for entry in result.offsets if entry.difference is not None]
    if result.note or not any(entry.filler > result.within for entry, _ in judged):
        return Check(POSITION, None, grade.margin, NOT_RUN, result.note or NOTHING_BEYOND)
    uppers = [upper_bound(difference) for _, difference in judged]
    worse = rejected([chance_of_less(difference, grade.margin) for _, difference in judged])
    places: Sequence[int] = [i for i, is_worse in enumerate(worse) if is_worse] or range(len(judged))
    at = max(places, key=lambda i: judged[i][1].mean if any(worse) else uppers[i])
    entry, difference = judged[at]
    where = f"loss after {entry.filler} tokens of other text, minus the baseline's loss within its trained length, nats per token"
    if any(worse):
        return Check(POSITION, lower_bound(difference), grade.margin, NOT_ASKED, f"95 % lower bound: {where}")
    verdict = PASS if uppers[at] <= grade.margin else NOT_ASKED
    return Check(POSITION, uppers[at], grade.margin, verdict, f"largest 95 % upper bound: {where}")


def _position(result: PositionResult) -> Section:
    rows = tuple(
        row(str(entry.filler), with_interval(entry.loss), change(entry.change), change(entry.difference))
        for entry in result.offsets
    )
    if result.baseline is not None:
        rows = (*rows, row("baseline", with_interval(result.baseline), NONE, NONE))
    legend = [
        ("filler", "tokens of other documents before the passage"),
        (
            "loss",
            f"nats per token, over the last {result.scored} of {result.passage} tokens (95 % interval over documents)",
        ),
        ("change", "loss minus the loss without filler, paired, ± 95 % interval; above 0, a later position does harm"),
    ]
    if any(entry.difference for entry in result.offsets):
        legend.append(
            ("difference", "loss minus the baseline's loss after the filler that fits its trained length, paired")
        )
    if result.baseline is not None:
        legend.append(("baseline", "without filler"))
    title = f"Position probe: {result.passages} passages of {result.documents} documents after filler"
    notes = (result.note,) if result.note else ()
    return Section("position", title, Table(("filler", "loss", "change", "difference"), rows), tuple(legend), notes)


def _charts(result: PositionResult, of: VerifyResult) -> Iterator[charts.Chart]:
    """Yield the loss of the same passages after filler of increasing length."""
    if not result.offsets:
        return
    caption = (
        f"Mean loss of the last {result.scored} tokens of the same passages of {result.passage} tokens, after more and more "
        "text of other documents. Band: 95 % interval over documents. The filler is unrelated to the passage, so only the "
        "position can raise the loss."
    )
    marks: list[charts.Series | charts.Guide] = [
        charts.series("target", charts.TARGET, enumerate(entry.loss for entry in result.offsets))
    ]
    if result.baseline is not None:
        look = charts.Look(charts.BASELINE.colour, dashes="--")
        marks.append(charts.Guide("baseline without filler", look, result.baseline.mean, level=True))
    fillers = charts.Axis(
        "filler before the passage", charts.EVEN_TOKENS, tokens=tuple(entry.filler for entry in result.offsets)
    )
    panel = charts.Panel(fillers, charts.Axis("loss (nats per token)"), tuple(marks))
    yield charts.Chart("position", "position", "Loss by position", caption, (panel,), 3.0)


def _prepare(setting: Setting, prepared: Sequence[Measurement]) -> PositionProbe:
    count, seed = setting.suite.passages, setting.seed
    return prepare_position(setting.corpus, setting.lengths, setting.trained_length, count=count, seed=seed)


SENTENCES = {POSITION: {NOT_RUN: VerdictSentence("the cost of late positions was not measured ({detail})", "{larger}")}}


JSON_PLACES = ({"key": "position", "after": "lengths", "order": 20},)
MEASURES = (
    Measure(
        "position", "position", 20, _prepare, suites=("standard", "full"), by_tokens=True, words=SENTENCES,
        checks=lambda probed, grading: [position_check(probed, grading.limits.asked)],
        sections=lambda probed, result: [_position(probed)], charts=_charts,
    ),
)  # fmt: skip
