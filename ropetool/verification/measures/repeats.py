"""Use of long-range context: the gain in predicting a passage from a distant copy of it.

The scored tokens, and the text between copy and passage, are the same with and without the copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ropetool import charts
from ropetool.errors import ConfigError
from ropetool.rope.tables import Array
from ropetool.sections import Section, Table, change, row, with_interval
from ropetool.verification.gate import NOTHING_BEYOND, Evidence, Grade
from ropetool.verification.measure import Grading, Measure, Setting, VerdictSentence
from ropetool.verification.measures.fillers import Passage, passage_length, passages
from ropetool.verification.measures.loss import reaching
from ropetool.verification.measures.segments import lacking
from ropetool.verification.results import FAIL, NOT_RUN, PASS, UNDECIDED, Check, Estimate, VerifyResult
from ropetool.verification.scoring import TARGET, Corpus, Done, Measurement, Runner
from ropetool.verification.statistics import (
    chance_of_more,
    clustered,
    lower_bound,
    paired_difference,
    rejected,
    upper_bound,
)
from ropetool.verification.suites import FAR, LAST_SEGMENT

COPIES = "copies"  # the check


@dataclass(frozen=True)
class DistanceResult:
    """The share of correctly predicted tokens, `distance` tokens after a copy (`repeated`) or other text (`unrelated`).

    gain: repeated minus unrelated, paired.
    change: the gain minus the gain within the trained length, paired. None within it.
    nats: the decrease of the loss by the copy, in nats per token, paired.
    """

    distance: int
    repeated: Estimate
    unrelated: Estimate
    gain: Estimate
    change: Estimate | None = None
    nats: Estimate | None = None


@dataclass(frozen=True)
class FarResult:
    """The gain from copies by distance, which is the number of tokens from a token to its copy.

    passage, scored: the tokens of a passage, and of its scored end.
    passages, documents: the number of passages, and of their documents.
    distances: the gain at each distance.
    note: the reason why nothing is judged, or "".
    within: the largest distance within the trained length, or 0.
    own: the gain of the baseline at this distance, or of the target without a baseline.
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
class FarDependence:
    """The passages, and the distances from a token to its copy. The baseline gets distances within its trained length.

    size: the tokens of a passage.
    within: the largest distance within the trained length, without the prefix, or 0.
    """

    corpus: Corpus
    passages: tuple[Passage, ...]
    size: int
    distances: tuple[int, ...]
    within: int
    name: str = "far"

    @property
    def scored(self) -> int:
        """The number of scored tokens at the end of a passage."""
        return self.size // 2

    def rows(self, role: str) -> Mapping[int, int]:
        front = len(self.corpus.prefix) + self.size
        return {front + distance: 2 * len(self.passages) for distance in self._distances(role)}

    def run(self, runner: Runner, role: str, done: Done) -> Mapping[int, Array]:
        """Return for each distance whether each token was the likeliest one, and its loss in nats.

        Shapes: (2, 2, passages, scored), hits before losses, and repeated before unrelated.
        """
        figures = {}
        for distance in self._distances(role):
            rows = [self._row(p, p.tokens, distance) for p in self.passages]
            rows += [self._row(p, p.unrelated, distance) for p in self.passages]
            scores = runner.score(rows, self.scored, done)
            both = np.stack([scores.hits.astype(float), scores.losses])
            figures[distance] = both.reshape(2, 2, len(self.passages), self.scored)
        return figures

    def result(self, target: Mapping[int, Array], baseline: Mapping[int, Array] | None) -> FarResult:
        """Return the shares and the gain at each distance, compared with the gain within the trained length.

        This is the gain of the baseline, or of the target without a baseline, at the largest distance there.
        """
        documents = [passage.document for passage in self.passages]
        gains = {distance: hits[0] - hits[1] for distance, (hits, _) in target.items()}
        own = None
        if self.within:
            hits, _ = (target if baseline is None else baseline)[self.within]
            own = hits[0] - hits[1]
        distances = tuple(
            DistanceResult(
                distance,
                clustered(hits[0], documents),
                clustered(hits[1], documents),
                clustered(gains[distance], documents),
                None if own is None or distance <= self.within else paired_difference(gains[distance], own, documents),
                paired_difference(losses[1], losses[0], documents),
            )
            for distance, (hits, losses) in target.items()
        )
        return FarResult(
            self.size, self.scored, len(self.passages), len(set(documents)), distances, lacking(documents, "passages"),
            self.within, None if own is None else clustered(own, documents),
        )  # fmt: skip

    def _distances(self, role: str) -> list[int]:
        return [distance for distance in self.distances if role == TARGET or distance <= self.within]

    def _row(self, passage: Passage, front: Sequence[int], distance: int) -> list[int]:
        between = distance - self.size
        return [*self.corpus.prefix, *front, *passage.filler[len(passage.filler) - between :], *passage.tokens]


def prepare_far(
    corpus: Corpus,
    lengths: Sequence[int],
    trained_length: int,
    *,
    count: int,
    seed: int,
    distances: Sequence[int] | None = None,
    ends: bool = False,
) -> FarDependence:
    """Return the measurement at distances that double from half of the trained length, up to the longest length.

    count: the number of passages.
    distances: replaces these distances.
    ends: use only the shortest and the longest distance.

    Raises: ConfigError if the texts are too few or too short, or a distance is shorter than a passage.
    """
    room = max(lengths) - len(corpus.prefix)
    size = passage_length(trained_length, room)
    if distances is None:
        doubling = (trained_length // 2 << n for n in range(32))
        distances = [*(distance for distance in doubling if distance < room - size), room - size]
        distances = sorted({distances[0], distances[-1]}) if ends else distances
    if min(distances) < size:
        raise ConfigError(
            f"a copy {min(distances)} tokens before a passage of {size} tokens would overlap the passage",
            where="distances",
        )
    within = max((distance for distance in distances if distance + size <= trained_length), default=0)
    chosen = passages(corpus, size, max(distances) - size, count, seed)
    return FarDependence(corpus, chosen, size, tuple(distances), within)


def copies_check(result: FarResult, grade: Grade) -> Check:
    """Return the check that copies beyond the trained length help as much as within it, and that the farthest ones help."""
    beyond = [(entry, entry.change) for entry in result.distances if entry.change is not None]
    if result.note or not beyond:
        return Check(COPIES, None, None, NOT_RUN, result.note or NOTHING_BEYOND)
    own = result.own.mean if result.own is not None else 0.0
    limit = own - grade.max_lost
    lost = rejected([chance_of_more(change, -grade.max_lost) for _, change in beyond])
    worse = [entry for (entry, _), sure in zip(beyond, lost, strict=True) if sure]
    entry, change = max(beyond, key=lambda each: each[0].distance)
    if worse:
        entry = min(worse, key=lambda each: each.gain.mean)
        change = entry.change or change
    detail = (
        f"gain from a copy {entry.distance} tokens before; at {result.within} tokens {own:.2f}: difference {change.mean:+.2f}, "
        f"95 % bounds {lower_bound(change):+.2f} and {upper_bound(change):+.2f}"
    )
    if worse:
        return Check(COPIES, entry.gain.mean, limit, FAIL, f"{detail}; significantly worse")
    if not grade.reads_far:
        return Check(COPIES, entry.gain.mean, limit, PASS, f"{detail}; not significantly worse")
    if lower_bound(entry.gain) <= 0:
        return Check(COPIES, entry.gain.mean, limit, UNDECIDED, f"{detail}; not significantly above 0")
    return Check(COPIES, entry.gain.mean, limit, PASS if lower_bound(change) >= -grade.max_lost else UNDECIDED, detail)


def _far(result: FarResult) -> Section:
    rows = tuple(
        row(
            str(entry.distance),
            change(entry.gain),
            change(entry.change),
            with_interval(entry.repeated),
            with_interval(entry.unrelated),
        )
        for entry in result.distances
    )
    legend = (
        ("distance", "tokens from a token to its copy"),
        ("gain", "repeated minus unrelated, paired, ± 95 % interval; above 0, the model uses text at this distance"),
        ("change", "the gain minus the baseline's gain within its trained length, paired"),
        (
            "repeated",
            f"share of the last {result.scored} of {result.passage} tokens that are predicted after their own copy",
        ),
        ("unrelated", "the same after another text (95 % intervals over documents)"),
    )
    head = ("distance", "gain", "change", "repeated", "unrelated")
    title = f"Far dependence: {result.passages} passages of {result.documents} documents"
    notes = (result.note,) if result.note else ()
    return Section("far", title, Table(head, rows), legend, notes)


def _charts(result: FarResult, of: VerifyResult) -> Iterator[charts.Chart]:
    """Yield the accuracy on the second copy of a passage, and the gain from the first copy, by distance."""
    if not result.distances:
        return
    caption = (
        "Above: share of right next tokens in a passage, with a copy of it or other text at this distance before it. The "
        "same tokens are scored. Below: gain = accuracy(own copy) - accuracy(other text), paired, with 95 % interval. "
        "A gain above zero shows that the model uses text at this distance."
    )
    distances = charts.Axis(
        "distance to the copy", charts.TOKENS, tokens=tuple(entry.distance for entry in result.distances)
    )
    shares = (
        charts.series(
            "after other text", charts.BASELINE, [(entry.distance, entry.unrelated) for entry in result.distances]
        ),
        charts.series(
            "after its own copy", charts.TARGET, [(entry.distance, entry.repeated) for entry in result.distances]
        ),
    )
    gains = charts.series(
        "gain", charts.Look("ink", "D"), [(entry.distance, entry.gain) for entry in result.distances], charts.BARS
    )
    panels = (
        charts.Panel(distances, charts.Axis("accuracy"), shares),
        charts.Panel(distances, charts.Axis("gain"), (charts.Guide("", charts.THIN, 0, level=True), gains)),
    )
    yield charts.Chart("far", "far", "Far dependence by distance", caption, panels, 4.6)


def _prepare(setting: Setting, prepared: Sequence[Measurement]) -> FarDependence:
    suite = setting.suite
    return prepare_far(
        setting.corpus,
        setting.lengths,
        setting.trained_length,
        count=suite.passages,
        seed=setting.seed,
        ends=suite.ends,
    )


def _evidence(far: FarResult, grading: Grading) -> list[Evidence]:
    """Return the gain from the farthest copy, as a share of 1, if the losses reach the configured context length."""
    distant = [entry for entry in far.distances if entry.distance > grading.trained_length]
    if not distant or not reaching(grading.results.get(LAST_SEGMENT, ()), grading.context_length):
        return []
    last = max(distant, key=lambda entry: entry.distance)
    return [Evidence(f"gain from a copy {last.distance} tokens before", last.gain)]


SENTENCES = {
    COPIES: {
        FAIL: VerdictSentence(
            "distant copies of a passage help it significantly less than copies within {trained} tokens", "{milder}"
        ),
        UNDECIDED: VerdictSentence(
            "these passages are too few to show that distant copies help as much as copies within {trained} tokens",
            "{larger}",
        ),
        NOT_RUN: VerdictSentence("its use of distant copies was not measured ({detail})", "{larger}"),
    },
}


JSON_PLACES = ({"key": "far", "after": "lengths", "order": 30},)
MEASURES = (
    Measure(
        FAR, "far", 30, _prepare, suites=("standard", "full"), by_tokens=True, evidence=_evidence, words=SENTENCES,
        checks=lambda far, grading: [copies_check(far, grading.limits.asked)],
        sections=lambda far, result: [_far(far)], charts=_charts,
    ),
)  # fmt: skip
