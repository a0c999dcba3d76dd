"""The position probe and the text that stands in front of what is scored: which tokens, from where, how many."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ropetool.errors import ConfigError
from ropetool.verification.measures import fillers
from ropetool.verification.measures.fillers import passage_length, passages, text_of_others
from ropetool.verification.measures.position import PositionProbe, PositionResult, prepare_position
from ropetool.verification.scoring import BASELINE, TARGET, Corpus, Done, Scores, ignore

TRAINED = 256
SIZE = 128  # of a passage
LENGTHS = [64, 128, 256, 512, 1024]
WIDTH = 10_000  # of a document's ids, so that an id says where it comes from
SIZES = (2000, 1500, 3000, 1200, 1100, 2500)


def make_corpus(sizes: Sequence[int] = SIZES, prefix: tuple[int, ...] = (0,)) -> Corpus:
    tokens = tuple(WIDTH * (index + 1) + np.arange(size) for index, size in enumerate(sizes))
    return Corpus(tuple(map(str, sizes)), tokens, tuple(np.ones_like(t) for t in tokens), prefix)


def document(token: int) -> int:
    return token // WIDTH - 1


def worth(token: int) -> float:
    """What makes a token hard, some of it its document's."""
    return 2 + math.sin(token) + document(token) / 10


class Fake:
    """A model whose loss is what the token is worth, and 3 nats more in rows beyond its reach. Remembers the rows."""

    prefix: tuple[int, ...] = ()
    description = "a fake"

    def __init__(self, reach: float = math.inf) -> None:
        self.reach = reach
        self.rows: dict[int, list[list[int]]] = {}
        self.told = 0

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done) -> Scores:
        (length,) = {len(row) for row in rows}
        self.rows[length] = [list(row) for row in rows]
        done(sum(map(len, rows)))
        losses = np.array([[worth(token) for token in row[-scored:]] for row in rows]) + 3 * (length > self.reach)
        return Scores(losses, losses < 0)


def probe(corpus: Corpus | None = None, *, lengths: Sequence[int] = LENGTHS, **options: Any) -> PositionProbe:
    return prepare_position(corpus or make_corpus(), lengths, TRAINED, **{"count": 12, "seed": 0, **options})


def rows_of(measurement: PositionProbe, role: str = TARGET) -> dict[int, list[list[int]]]:
    fake = Fake()
    measurement.run(fake, role, ignore)
    return fake.rows


# --- the rows


def check_rows(measurement: PositionProbe) -> None:
    """Raise AssertionError unless the rows are those that the probe speaks of."""
    prefix, rows = measurement.corpus.prefix, rows_of(measurement)
    assert {length: len(found) for length, found in rows.items()} == dict(measurement.rows(TARGET))
    assert [length for length in rows if length > len(prefix) + SIZE] == [256, 512, 1024]
    assert min(rows) == len(prefix) + SIZE
    for found in rows.values():
        for row in found:
            passage = row[-SIZE:]
            assert tuple(row[: len(prefix)]) == prefix
            assert passage == list(range(passage[0], passage[0] + SIZE))  # in one piece
            assert len({document(token) for token in passage}) == 1
            assert document(passage[0]) not in map(document, row[len(prefix) : -SIZE])
    for shorter, longer in pairwise(rows.values()):
        for short, long in zip(shorter, longer, strict=True):
            # Not the passage alone: what stands right in front of it is the same too.
            assert long[len(long) - len(short) + len(prefix) :] == short[len(prefix) :]


@pytest.mark.parametrize("prefix", [(), (0,), (7, 9)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_passage_stands_behind_ever_more_text_of_other_documents(prefix: tuple[int, ...], seed: int) -> None:
    check_rows(probe(make_corpus(prefix=prefix), seed=seed))


def of_the_own_document(corpus: Corpus, document: int | None, *rest: Any) -> tuple[int, ...]:
    return text_of_others(corpus, None, *rest)


def from_the_front(self: PositionProbe, passage: Any, filler: int) -> list[int]:
    return [*self.corpus.prefix, *passage.filler[:filler], *passage.tokens]


def one_more(self: PositionProbe, passage: Any, filler: int) -> list[int]:
    return [*self.corpus.prefix, *passage.filler[len(passage.filler) - filler - 1 :], *passage.tokens]


def without_prefix(self: PositionProbe, passage: Any, filler: int) -> list[int]:
    return [*passage.filler[: len(self.corpus.prefix)], *from_the_front(self, passage, filler)[1:]]


def moved(self: PositionProbe, passage: Any, filler: int) -> list[int]:
    shift = int(filler > 200)
    return [*self.corpus.prefix, *passage.filler[len(passage.filler) - filler :], *(t + shift for t in passage.tokens)]


@pytest.mark.parametrize("defect", [from_the_front, one_more, without_prefix, moved], ids=lambda d: d.__name__)
def test_a_wrong_row_is_seen(monkeypatch: pytest.MonkeyPatch, defect: Callable[..., Any]) -> None:
    monkeypatch.setattr(PositionProbe, "_row", defect)
    with pytest.raises(AssertionError):
        check_rows(probe())


def test_filler_of_the_own_document_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fillers, "text_of_others", of_the_own_document)
    with pytest.raises(AssertionError):
        check_rows(probe())


def test_the_baseline_gets_the_same_passages_within_the_trained_length() -> None:
    measurement = probe()
    assert list(measurement.rows(BASELINE)) == [1 + SIZE, TRAINED]
    assert rows_of(measurement, BASELINE) == {length: rows_of(measurement)[length] for length in (1 + SIZE, TRAINED)}
    assert list(probe(lengths=[1024]).rows(BASELINE)) == [1 + SIZE, TRAINED]  # measured though nobody asked for it


def test_the_seed_chooses_passages_and_filler() -> None:
    first, again, other = (rows_of(probe(seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first[129] != other[129]
    assert first[1024] != other[1024]


def test_documents_take_turns_and_passages_do_not_overlap() -> None:
    found = passages(make_corpus(), SIZE, 10, 30, seed=3)
    assert sorted(document(passage.tokens[0]) for passage in found[:6]) == [0, 1, 2, 3, 4, 5]
    tokens = [token for passage in found for token in passage.tokens]
    assert len(tokens) == len(set(tokens)) == 30 * SIZE
    assert all(passage.document == document(passage.tokens[0]) for passage in found)


# --- the figures


def judged(reach: float, baseline: float | None = math.inf) -> PositionResult:
    measurement = probe()
    own = None if baseline is None else measurement.run(Fake(baseline), BASELINE, ignore)
    return measurement.result(measurement.run(Fake(reach), TARGET, ignore), own)


@pytest.mark.parametrize(
    ("reach", "own", "differences"),
    [
        (math.inf, math.inf, [0, 0, 0, 0]),
        (512, math.inf, [0, 0, 0, 3]),
        (math.inf, 200, [0, -3, -3, -3]),  # of a baseline that pays within its trained length
        (200, 200, [0, 0, 0, 0]),
    ],
)
def test_the_difference_is_from_the_baselines_behind_what_fits_its_trained_length(
    reach: float, own: float, differences: list[float]
) -> None:
    found = judged(reach, own)
    assert found.within == TRAINED - 1 - SIZE
    for offset, difference in zip(found.offsets, differences, strict=True):
        assert offset.difference is not None
        assert offset.difference.mean == pytest.approx(difference, abs=1e-12)
    alone = judged(reach, None)
    assert [offset.difference is None for offset in alone.offsets] == [True, True, False, False]


@pytest.mark.parametrize(("reach", "changes"), [(math.inf, [0, 0, 0]), (512, [0, 0, 3]), (255, [3, 3, 3])])
def test_the_change_is_what_the_text_in_front_costs(reach: float, changes: list[float]) -> None:
    found = judged(reach)
    hard = np.mean([worth(token) for row in rows_of(probe())[1024] for token in row[-SIZE // 2 :]])
    assert [offset.filler for offset in found.offsets] == [0, 127, 383, 895]
    assert found.offsets[0].change is None
    for offset, change in zip(found.offsets[1:], changes, strict=True):
        assert offset.change is not None
        assert (offset.change.mean, offset.change.standard_error) == pytest.approx((change, 0), abs=1e-12)
        assert offset.loss.mean == pytest.approx(hard + change, abs=1e-12)
        assert offset.loss.standard_error > 0.01  # documents differ; the change is paired and does not
    assert (found.passage, found.scored, found.passages, found.documents, found.note) == (128, 64, 12, 6, "")
    assert (found.offsets[0].loss.tokens, found.offsets[0].loss.documents) == (12 * 64, 6)


def test_the_baseline_is_told_beside_it() -> None:
    found = judged(math.inf, baseline=100)
    assert found.baseline is not None
    assert found.baseline.mean == pytest.approx(found.offsets[0].loss.mean + 3, abs=1e-12)
    assert judged(math.inf, baseline=None).baseline is None


def test_all_work_is_told() -> None:
    measurement = probe()
    told: list[int] = []
    measurement.run(Fake(), TARGET, told.append)
    assert sum(told) == sum(length * count for length, count in measurement.rows(TARGET).items())


# --- too little


def test_one_document_is_no_other_document() -> None:
    with pytest.raises(ConfigError, match="filler needs a second document") as refused:
        probe(make_corpus([5000]))
    assert (refused.value.where, refused.value.try_) == ("--text", "two texts or more")
    with pytest.raises(ConfigError, match="the texts are only one"):
        probe(make_corpus([5000, 0]))  # an empty text is none


def test_texts_shorter_than_a_passage_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs a document of 128, and the longest has 127"):
        probe(make_corpus([127, 100, 127]))
    assert len(probe(make_corpus([128, 127])).passages) == 1


@pytest.mark.parametrize(
    ("sizes", "count", "note"),
    [
        (SIZES, 8, ""),
        (SIZES, 7, "only 7 passages of 6 documents; a verdict needs 8 passages of 4 documents"),
        (
            (3000, 3000, 3000),
            12,
            "only 9 passages of 3 documents, as good as 3.0 documents with equal shares; a verdict needs 8 passages of 4 documents",
        ),
    ],
)
def test_few_passages_or_documents_are_noted(sizes: Sequence[int], count: int, note: str) -> None:
    measurement = probe(make_corpus(sizes), count=count)
    assert measurement.result(measurement.run(Fake(), TARGET, ignore), None).note == note


@pytest.mark.parametrize(("lengths", "size"), [([64], 31), ([8, 16], 7), ([8], 3), ([300], 128), ([256], 127)])
def test_no_row_is_longer_than_was_asked_for(lengths: list[int], size: int) -> None:
    rows = rows_of(probe(lengths=lengths))
    assert max(rows) == max(lengths)
    assert min(rows) == 1 + size


def test_a_passage_leaves_half_of_a_short_trained_length() -> None:
    assert [passage_length(trained, 10**6) for trained in (8, 64, 255, 256, 4096)] == [4, 32, 127, 128, 128]


# --- filler


def test_filler_is_one_stretch_where_a_document_is_long_enough() -> None:
    corpus = make_corpus()
    starts = set()
    for seed in range(40):
        found = text_of_others(corpus, 2, 1000, random.Random(seed))
        assert list(found) == list(range(found[0], found[0] + 1000))
        assert len({document(token) for token in found}) == 1
        starts.add(found[0])
    assert {document(start) for start in starts} == {0, 1, 3, 4, 5}
    assert len(starts) > 30


def test_filler_is_of_the_same_kind_first() -> None:
    corpus = replace(make_corpus(), kinds=("prose", "code", "prose", "code", "code", "prose"))
    for seed in range(20):
        rng = random.Random(seed)
        assert {document(token) for token in text_of_others(corpus, 1, 900, rng)} <= {3, 4}
        assert {document(token) for token in text_of_others(corpus, None, 900, rng, kind="prose")} <= {0, 2, 5}
        assert {document(token) for token in text_of_others(corpus, 1, 900, rng, kind="prose")} <= {3, 4}
        more = text_of_others(corpus, 1, 5000, rng)  # the others follow where it has too few
        assert {document(token) for token in more[:1000]} <= {3, 4} < {document(token) for token in more}


def test_any_document_may_serve_where_none_is_the_own_one() -> None:
    first = {document(text_of_others(make_corpus(), None, 5, random.Random(seed))[0]) for seed in range(60)}
    assert first == set(range(len(SIZES)))


def test_every_stretch_of_a_document_can_come() -> None:
    found = {text_of_others(make_corpus([5, 5]), 0, 3, random.Random(seed)) for seed in range(60)}
    base = 2 * WIDTH
    assert found == {tuple(range(base + start, base + start + 3)) for start in range(3)}


def test_short_documents_follow_each_other_and_are_then_repeated() -> None:
    corpus = make_corpus([50, 30, 20, 500])
    for seed in range(20):
        found = text_of_others(corpus, 3, 250, random.Random(seed))
        assert len(found) == 250
        assert len(set(found[:100])) == 100  # all three, once
        assert found[:150] == found[100:]


def test_some_tokens_are_left_out() -> None:
    corpus = make_corpus([50, 50, 50])
    without = {token for token in range(3 * WIDTH + 50) if token % 3}
    for count in (5, 16, 60):
        found = text_of_others(corpus, 0, count, random.Random(4), without)
        assert len(found) == count
        assert not without & set(found)
        assert {document(token) for token in found} <= {1, 2}


@pytest.mark.parametrize("sizes", [[], [0, 0], [10]])
def test_nothing_to_fill_with_is_refused(sizes: list[int]) -> None:
    with pytest.raises(ConfigError, match="contain no filler for the context"):
        text_of_others(make_corpus(sizes), 0, 4, random.Random(0))
    with pytest.raises(ConfigError, match="contain no filler"):
        text_of_others(make_corpus([10, 10]), 0, 4, random.Random(0), range(10**6))


def test_no_filler_is_none() -> None:
    assert text_of_others(make_corpus(), 0, 0, random.Random(0)) == ()
