"""One long pass: losses by position and on key tokens, with judges and targets of known sight."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from ropetool.verification.measures.long_pass import (
    JUDGE,
    LONG,
    SHORT,
    KeyTokenResult,
    LongPass,
    key_tokens,
    prepare_long_pass,
)
from ropetool.verification.scoring import BASELINE, TARGET, Corpus, Done, Scores, ignore

TRAINED, LENGTH, APART = 64, 512, 300
EASY, HARD = 1.0, 6.0


def make_corpus(sizes: Sequence[int] = (2000,) * 8, prefix: tuple[int, ...] = (0,)) -> Corpus:
    """Documents of numbers that never come twice, but for every tenth, which is the one `APART` tokens before."""
    tokens = []
    for index, size in enumerate(sizes):
        ids = np.arange(size, dtype=np.int64) + 1 + 10_000 * index
        for place in range(APART, size):
            if place % 10 == 0:
                ids[place] = ids[place - APART]
        tokens.append(ids)
    return Corpus(tuple(map(str, sizes)), tuple(tokens), tuple(np.ones_like(t) for t in tokens), prefix)


class Rememberer:
    """Knows a token that it has seen among the last `sees`, and no other; asked for whole rows."""

    def __init__(self, sees: int) -> None:
        self.sees = sees
        self.rows: dict[int, int] = {}

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done) -> Scores:
        (length,) = {len(row) for row in rows}
        self.rows[length] = self.rows.get(length, 0) + len(rows)
        done(length * len(rows))
        losses = np.array([[self.loss(row, at) for at in range(length - scored, length)] for row in rows])
        return Scores(losses, losses < 1)

    def loss(self, row: Sequence[int], at: int) -> float:
        return EASY if row[at] in row[max(0, at - self.sees) : at] else HARD


def measured(
    sees: int, own: int | None = TRAINED, judge: int = 10**6, corpus: Corpus | None = None, count: int = 16
) -> KeyTokenResult:
    measurement = prepare_long_pass(corpus or make_corpus(), LENGTH, TRAINED, count=count, seed=0)
    return measurement.key_tokens(
        measurement.run(Rememberer(sees), TARGET, ignore),  # type: ignore[arg-type]
        None if own is None else measurement.run(Rememberer(own), BASELINE, ignore),  # type: ignore[arg-type]
        measurement.run(Rememberer(judge), JUDGE, ignore),  # type: ignore[arg-type]
    )


def test_a_token_is_key_where_the_long_context_helps_and_suffices() -> None:
    long = np.array([[0.5, 1.99, 2.01, 0.5, 3.0]])
    short = np.array([[2.51, 4.1, 9.0, 2.49, 9.0]])
    assert key_tokens(long, short).tolist() == [[True, True, False, False, False]]


def test_the_judge_chooses_what_only_far_text_tells() -> None:
    found = measured(10**6)
    # Of the 448 tokens beyond the trained length every tenth is one of 300 before, which a row of 512 holds from there on.
    assert (found.scored, found.places, found.documents, found.note) == (16 * 448, 16, 8, "")
    share = found.tokens / found.scored
    assert share == pytest.approx(0.1 * (LENGTH - APART) / 448, abs=0.005)
    assert found.loss is not None
    assert found.truncated is not None
    assert found.gain is not None
    assert (found.loss.mean, found.truncated.mean, found.gain.mean) == pytest.approx((EASY, HARD, HARD - EASY))


@pytest.mark.parametrize(("sees", "gain"), [(10**6, 5.0), (APART, 5.0), (APART - 1, 0.0), (TRAINED, 0.0)])
def test_who_never_looks_back_gains_nothing(sees: int, gain: float) -> None:
    found = measured(sees)
    assert found.gain is not None
    assert found.gain.mean == pytest.approx(gain)
    assert (found.gain.low > 0) == (gain > 0)


def test_the_target_itself_serves_where_there_is_no_baseline() -> None:
    found = measured(10**6, own=None)
    assert found.gain is not None
    assert found.gain.mean == pytest.approx(HARD - EASY)


def test_few_key_tokens_say_nothing() -> None:
    assert measured(10**6, count=8).note == "only 168 key tokens; 300 are needed"
    assert measured(10**6, judge=TRAINED).note == "only 0 key tokens; 300 are needed"
    assert measured(10**6, judge=TRAINED).gain is None
    assert "2 documents" in measured(10**6, corpus=make_corpus((9000, 9000)), count=32).note


@pytest.mark.parametrize("prefix", [(), (0,)])
def test_each_token_is_scored_behind_both_contexts(prefix: tuple[int, ...]) -> None:
    """The same tokens in the same order: the loss is a token's own number here."""

    class Reader(Rememberer):
        def loss(self, row: Sequence[int], at: int) -> float:
            assert list(row[: len(prefix)]) == list(prefix)
            return float(row[at])

    measurement = prepare_long_pass(make_corpus(prefix=prefix), LENGTH, TRAINED, count=4, seed=1)
    reader = Reader(0)
    found = measurement.run(reader, JUDGE, ignore)  # type: ignore[arg-type]
    assert np.array_equal(found[LONG], found[SHORT])
    assert reader.rows == dict(measurement.rows(JUDGE)) == {LENGTH: 4, TRAINED: 4 * 448 // 32}
    assert dict(measurement.rows(BASELINE)) == {TRAINED: 4 * 448 // 32}
    for place, values in zip(measurement.places, found[LONG], strict=True):
        text = measurement.corpus.tokens[place.document]
        assert values.tolist() == text[place.end - 448 : place.end].tolist()


def test_a_length_hardly_beyond_the_trained_one_scores_half_of_it() -> None:
    measurement: LongPass = prepare_long_pass(make_corpus(), 80, TRAINED, count=4, seed=0)
    assert (measurement.scored, measurement.step) == (32, 32)


def test_the_difference_by_position_is_where_the_pass_does_harm() -> None:
    class Broken(Rememberer):
        """Pays 2 nats more from the position 300 on, whatever the token."""

        def loss(self, row: Sequence[int], at: int) -> float:
            return row[at] % 7 + 2.0 * (at >= 300)

    measurement = prepare_long_pass(make_corpus(), LENGTH, TRAINED, count=16, seed=0)
    target = measurement.run(Broken(0), TARGET, ignore)  # type: ignore[arg-type]
    found = measurement.result(target, measurement.run(Broken(0), BASELINE, ignore))  # type: ignore[arg-type]
    assert (found.length, found.places, found.documents, found.note) == (512, 16, 8, "")
    assert [(span.start, span.end) for span in found.spans] == [(at, at + 32) for at in range(64, 512, 32)]
    for span in found.spans:
        expected = 2 * max(0, min(32, span.end - 300)) / 32
        assert (span.difference.mean, span.difference.standard_error) == pytest.approx((expected, 0), abs=1e-12)
        assert span.loss.mean == pytest.approx(span.truncated.mean + expected)
    assert found == measurement.result(target, None)  # its own windows end before the position


def test_spans_are_few_whatever_the_length() -> None:
    measurement = prepare_long_pass(make_corpus((5000,) * 8), 4000, TRAINED, count=8, seed=0)
    target = measurement.run(Rememberer(0), TARGET, ignore)  # type: ignore[arg-type]
    spans = measurement.result(target, None).spans
    assert 8 < len(spans) <= 16
    assert (spans[0].start, spans[-1].end) == (4000 - measurement.scored, 4000)
    assert all(one.end == other.start for one, other in pairwise(spans))
