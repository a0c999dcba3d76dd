"""Far dependence: where the copy stands, that nothing else differs, and what models of known reach get."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ropetool.errors import ConfigError
from ropetool.sections import half_width
from ropetool.verification.measures import fillers
from ropetool.verification.measures.fillers import Passage, text_of_others
from ropetool.verification.measures.repeats import FarDependence, FarResult, prepare_far
from ropetool.verification.scoring import BASELINE, TARGET, Corpus, Done, Scores, ignore

TRAINED, SIZE = 256, 128
LENGTHS = [256, 512, 1024, 2048]
WIDTH = 10_000  # of a document's ids, so that an id says where it comes from
SIZES = (2500, 1500, 3000, 2200, 2100, 2500)


def make_corpus(sizes: Sequence[int] = SIZES, prefix: tuple[int, ...] = (0,)) -> Corpus:
    tokens = tuple(WIDTH * (index + 1) + np.arange(size) for index, size in enumerate(sizes))
    return Corpus(tuple(map(str, sizes)), tokens, tuple(np.ones_like(t) for t in tokens), prefix)


def documents(tokens: Sequence[int]) -> set[int]:
    return {token // WIDTH - 1 for token in tokens}


class Copier:
    """Says what came after the last earlier occurrence of the token before, within the tokens that it sees."""

    prefix: tuple[int, ...] = ()
    description = "a copier"

    def __init__(self, sees: int = 10**9) -> None:
        self.sees = sees

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done) -> Scores:
        (length,) = {len(row) for row in rows}
        done(length * len(rows))
        hits = [[self.next(list(row[max(0, at - self.sees) : at])) == row[at] for at in range(length)] for row in rows]
        found = np.array(hits)[:, -scored:]
        return Scores(1.0 - found, found)

    def next(self, seen: list[int]) -> int | None:
        if not seen[:-1]:
            return None
        front = seen[:-1]
        return next((seen[at + 1] for at in range(len(front) - 1, -1, -1) if front[at] == seen[-1]), None)


class Guesser(Copier):
    """Right now and then, whatever it reads."""

    def next(self, seen: list[int]) -> int | None:
        raise AssertionError

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done) -> Scores:
        hits = np.random.default_rng(len(rows[0])).random((len(rows), scored)) < 0.3
        return Scores(1.0 - hits, hits)


def far(corpus: Corpus | None = None, *, lengths: Sequence[int] = LENGTHS, **options: Any) -> FarDependence:
    return prepare_far(corpus or make_corpus(), lengths, TRAINED, **{"count": 6, "seed": 0, **options})


def rows_of(measurement: FarDependence) -> dict[int, list[list[int]]]:
    """The rows by distance."""
    recorder = Guesser()
    found: dict[int, list[list[int]]] = {}

    def remember(rows: Sequence[Sequence[int]], scored: int, done: Done) -> Scores:
        found[len(rows[0]) - SIZE - len(measurement.corpus.prefix)] = [list(row) for row in rows]
        return Guesser.score(recorder, rows, scored, done)

    recorder.score = remember  # type: ignore[method-assign]
    measurement.run(recorder, TARGET, ignore)
    return found


def measured(runner: Copier, **options: Any) -> FarResult:
    measurement = far(**options)
    return measurement.result(measurement.run(runner, TARGET, ignore), None)


# --- the rows


def check_rows(measurement: FarDependence) -> None:
    """Raise AssertionError unless the rows are those that far dependence speaks of."""
    prefix, found = measurement.corpus.prefix, rows_of(measurement)
    assert list(found) == list(measurement.distances)
    scored = None
    for distance, rows in found.items():
        half = len(rows) // 2
        assert measurement.rows(TARGET)[len(prefix) + distance + SIZE] == len(rows) == 2 * len(measurement.passages)
        for repeated, unrelated in zip(rows[:half], rows[half:], strict=True):
            assert len(repeated) == len(unrelated) == len(prefix) + distance + SIZE
            assert tuple(repeated[: len(prefix)]) == tuple(unrelated[: len(prefix)]) == prefix
            text, other = repeated[len(prefix) :], unrelated[len(prefix) :]
            passage = text[-SIZE:]
            assert passage == list(range(passage[0], passage[0] + SIZE))
            assert len(documents(passage)) == 1
            assert text[:SIZE] == passage  # the token `distance` before each is itself
            assert all(text[at - distance] == text[at] for at in range(distance, len(text)))
            assert text[SIZE:] == other[SIZE:]  # all that differs is what stands in front
            assert not documents(passage) & documents(other[:distance])
        tokens = [row[-SIZE:] for row in rows]
        assert scored in (None, tokens)  # the same ones at every distance
        scored = tokens


@pytest.mark.parametrize("prefix", [(), (0,), (7, 9)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_passage_stands_behind_its_copy_or_another_text_at_the_distance(prefix: tuple[int, ...], seed: int) -> None:
    check_rows(far(make_corpus(prefix=prefix), seed=seed))


def one_late(self: FarDependence, passage: Passage, front: Sequence[int], distance: int) -> list[int]:
    between = distance - SIZE - 1
    return [*self.corpus.prefix, *front, *passage.filler[len(passage.filler) - between :], 1, *passage.tokens][:-1]


def copied_off_by_one(self: FarDependence, passage: Passage, front: Sequence[int], distance: int) -> list[int]:
    return RIGHT_ROW(self, passage, [1, *front[:-1]] if front == passage.tokens else front, distance)


def with_other_filler(self: FarDependence, passage: Passage, front: Sequence[int], distance: int) -> list[int]:
    changed = passage if front == passage.tokens else replace(passage, filler=passage.filler[::-1])
    return RIGHT_ROW(self, changed, front, distance)


def related(self: FarDependence, passage: Passage, front: Sequence[int], distance: int) -> list[int]:
    return RIGHT_ROW(self, passage, passage.tokens, distance)


RIGHT_ROW = FarDependence._row
ROW_DEFECTS = [one_late, copied_off_by_one, with_other_filler, related]


@pytest.mark.parametrize("defect", ROW_DEFECTS, ids=lambda defect: defect.__name__)
def test_a_wrong_row_is_seen(monkeypatch: pytest.MonkeyPatch, defect: Callable[..., list[int]]) -> None:
    monkeypatch.setattr(FarDependence, "_row", defect)
    with pytest.raises(AssertionError):
        check_rows(far())


def test_text_of_the_own_document_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fillers, "text_of_others", lambda corpus, document, *rest: text_of_others(corpus, None, *rest))
    with pytest.raises(AssertionError):
        check_rows(far())


def test_the_baseline_gets_the_distances_within_its_trained_length() -> None:
    measurement = far()
    assert measurement.within == TRAINED // 2
    assert measurement.rows(BASELINE) == {1 + TRAINED: 12}
    assert list(measurement.run(Copier(), BASELINE, ignore)) == [TRAINED // 2]
    assert far(distances=[1000, 300]).rows(BASELINE) == {}


def test_the_ends_alone_can_be_asked_for() -> None:
    assert far(ends=True).distances == (128, 1919)
    assert far(lengths=[256], ends=True).distances == (128,)


def test_the_seed_chooses() -> None:
    first, again, other = (rows_of(far(seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert all(first[distance] != other[distance] for distance in first)


def test_all_work_is_told() -> None:
    measurement = far()
    told: list[int] = []
    measurement.run(Copier(1), TARGET, told.append)
    assert sum(told) == sum(length * count for length, count in measurement.rows(TARGET).items())


# --- the distances


@pytest.mark.parametrize(
    ("lengths", "prefix", "distances"),
    [
        ([2048], (0,), (128, 256, 512, 1024, 2048 - 128 - 1)),
        ([256, 1000], (), (128, 256, 512, 1000 - 128)),
        ([1152], (), (128, 256, 512, 1024)),  # the last one of the doubling is the longest
        ([256], (), (128,)),
        ([256], (0,), (128,)),
        ([64], (0,), (32,)),  # a passage of 31
        ([8], (0,), (4,)),
    ],
)
def test_distances_double_and_the_longest_fills_the_longest_length(
    lengths: list[int], prefix: tuple[int, ...], distances: tuple[int, ...]
) -> None:
    measurement = far(make_corpus(prefix=prefix), lengths=lengths)
    assert measurement.distances == distances
    assert max(measurement.rows(TARGET)) == max(lengths)


def test_distances_can_be_asked_for() -> None:
    measurement = far(distances=[1000, 300, SIZE])
    assert measurement.distances == (1000, 300, SIZE)
    check_rows(measurement)
    with pytest.raises(ConfigError, match="a copy 127 tokens before a passage of 128 tokens would overlap the passage"):
        far(distances=[1000, 127])


# --- the figures


def test_a_perfect_copier_repeats_all_and_knows_nothing_else() -> None:
    found = measured(Copier())
    assert [entry.distance for entry in found.distances] == [128, 256, 512, 1024, 1919]
    for entry in found.distances:
        assert (entry.repeated.mean, entry.unrelated.mean, entry.gain.mean) == (1, 0, 1)
        assert (entry.gain.low, entry.gain.high) == (1, 1)
        assert (entry.gain.tokens, entry.gain.documents) == (6 * SIZE // 2, 6)
    assert (found.passage, found.scored, found.passages, found.documents) == (SIZE, SIZE // 2, 6, 6)


@pytest.mark.parametrize("distance", [SIZE, 256, 512, 1024])
def test_a_copier_repeats_what_it_sees(distance: int) -> None:
    """To copy a token it must see both its copy, `distance` before, and the token before that."""
    for sees, reached in [(distance, False), (distance + 1, True)]:
        found = measured(Copier(sees), lengths=[256, 512, 1024, 1280])
        expected = {d: float(d < distance or (d == distance and reached)) for d in (128, 256, 512, 1024, 1151)}
        assert {entry.distance: entry.repeated.mean for entry in found.distances} == expected
        assert {entry.distance: entry.gain.mean for entry in found.distances} == expected


def test_a_copy_one_late_would_be_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    def a_token_more(self: FarDependence, passage: Passage, front: Sequence[int], distance: int) -> list[int]:
        row = RIGHT_ROW(self, passage, front, distance)
        return [*row[:-SIZE], 1, *row[-SIZE:]]

    assert measured(Copier(1025), distances=[1024]).distances[0].repeated.mean == 1
    monkeypatch.setattr(FarDependence, "_row", a_token_more)
    assert measured(Copier(1025), distances=[1024]).distances[0].repeated.mean == 0


def test_who_reads_nothing_gains_nothing() -> None:
    found = measured(Guesser(), count=24)
    for entry in found.distances:
        assert entry.repeated.mean == pytest.approx(0.3, abs=0.06)
        assert entry.unrelated.mean == pytest.approx(0.3, abs=0.06)
        assert abs(entry.gain.mean) < 0.06
        assert entry.gain.low < 0.02
    covered = [entry.gain.low <= 0 <= entry.gain.high for entry in found.distances]
    assert sum(covered) >= 4


@pytest.mark.parametrize(("sees", "own", "changes"), [(600, 10**6, [0, 0, -1, -1]), (10**6, 1, [1, 1, 1, 1])])
def test_the_change_is_from_the_baselines_gain_within_its_trained_length(
    sees: int, own: int, changes: list[float]
) -> None:
    measurement = far()
    target = measurement.run(Copier(sees), TARGET, ignore)
    found = measurement.result(target, measurement.run(Copier(own), BASELINE, ignore))
    assert found.own is not None
    assert (found.within, found.own.mean) == (128, float(own > 1))
    assert found.distances[0].change is None
    assert [entry.change and entry.change.mean for entry in found.distances[1:]] == changes
    alone = measurement.result(target, None)  # its own gain is 1
    assert [entry.change and entry.change.mean for entry in alone.distances[1:]] == [
        change - (own == 1) for change in changes
    ]


def test_the_gain_is_paired() -> None:
    class Hard(Copier):
        """Misses both copies in half of the documents."""

        def next(self, seen: list[int]) -> int | None:
            return None if documents(seen[-1:]) & {0, 1, 2} else super().next(seen)

    (entry,) = measured(Hard(), distances=[300]).distances
    assert (entry.repeated.mean, entry.gain.mean) == (0.5, 0.5)
    # Six documents, three of 1 and three of 0: standard deviation sqrt(.3), Student's t of 5 degrees of freedom 2.571.
    assert half_width(entry.gain) == pytest.approx(2.571 * math.sqrt(0.3 / 6), rel=1e-3)


# --- too little


def test_one_document_or_short_ones_are_refused() -> None:
    with pytest.raises(ConfigError, match="filler needs a second document"):
        far(make_corpus([9000]))
    with pytest.raises(ConfigError, match="needs a document of 128, and the longest has 100"):
        far(make_corpus([100] * 20))


@pytest.mark.parametrize(
    ("sizes", "count", "note"),
    [
        (SIZES, 8, ""),
        (SIZES, 6, "only 6 passages of 6 documents; a verdict needs 8 passages of 4 documents"),
        (
            (900, 900, 900),
            9,
            "only 9 passages of 3 documents, as good as 3.0 documents with equal shares; a verdict needs 8 passages of 4 documents",
        ),
    ],
)
def test_few_passages_are_noted(sizes: Sequence[int], count: int, note: str) -> None:
    assert measured(Guesser(), corpus=make_corpus(sizes), count=count).note == note


def test_short_documents_fill_a_long_distance() -> None:
    corpus = make_corpus([200] * 6)
    check_rows(far(corpus))
    rng = random.Random(0)
    assert len(set(text_of_others(corpus, 0, 1900, rng))) == 1000  # all of the others
