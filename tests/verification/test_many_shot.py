"""Many-shot learning: what the shots of each length show, and what readers of known sight make of them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from word_reading import Blind, Reader, Vocabulary, make_corpus

from ropetool.lab.measures.many_shot import LABELS, ManyShot, ManyShotResult, many_shot_check, prepare_many_shot
from ropetool.verification.measures.contexts import WORDS
from ropetool.verification.results import BETTER, NOT_ASKED, UNDECIDED, WORSE
from ropetool.verification.scoring import BASELINE, TARGET, Done, Predictions, ignore

TRAINED, LENGTHS = 256, [64, 256, 512, 1024]
SHOT, ASKED = re.compile(r"\n\[ (\w+) (\w+) ]\n"), re.compile(r"\n\[ (\w+)$")


class Learner(Reader):
    """Knows the label of a word that it has seen with one."""

    def answer(self, text: str, words: Sequence[str]) -> str | None:
        return dict(SHOT.findall(text)).get(ASKED.findall(text)[0])


class Confused(Learner):
    """Learns as far as 300 tokens reach, and takes any other label where there is more."""

    def predict(self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done) -> Predictions:
        found = super().predict(rows, candidates, done)
        if len(rows[0]) > 300:
            found.log_probs[:] = -found.log_probs
        return found


def prepared(vocabulary: Vocabulary, lengths: Sequence[int] = LENGTHS, trials: int = 80, seed: int = 0) -> ManyShot:
    corpus = make_corpus(vocabulary)
    return prepare_many_shot(corpus, vocabulary.tokenize, lengths, TRAINED, trials=trials, seed=seed)


def measured(target: type[Reader], sees: int = 10**9, baseline: type[Reader] | None = None) -> ManyShotResult:
    vocabulary = Vocabulary()
    measurement = prepared(vocabulary)
    own = None if baseline is None else measurement.run(baseline(vocabulary), BASELINE, ignore)
    return measurement.result(measurement.run(target(vocabulary, sees), TARGET, ignore), own)


def test_each_row_is_the_end_of_the_longer_one_and_shows_words_with_one_label_each() -> None:
    vocabulary = Vocabulary()
    measurement = prepared(vocabulary)
    rows: dict[int, list[tuple[int, ...]]] = {}

    class Seen(Blind):
        def predict(self, rows_: Sequence[Sequence[int]], few: Sequence[Sequence[int]], done: Done) -> Predictions:
            rows[len(rows_[0])] = [tuple(row) for row in rows_]
            return super().predict(rows_, few, done)

    measurement.run(Seen(vocabulary), TARGET, ignore)
    assert list(rows) == [256, 512, 1024]
    for index, lesson in enumerate(measurement.lessons):
        long = rows[1024][index]
        assert all(rows[length][index] == (0, *long[1 - length :]) for length in (256, 512))
        text, labels = vocabulary.text(long), [vocabulary.text([token]).strip() for token in lesson.labels]
        shots, (asked,) = SHOT.findall(text), ASKED.findall(text)
        assert len({word for word, _ in shots}) == len(set(shots))
        assert {label for _, label in shots} <= {*labels}
        assert dict(shots).get(asked, labels[-1]) == labels[-1]
        assert len(lesson.seen) == sum(word == asked for word, _ in shots)
        words = {word for word, _ in shots} | {*labels}  # none in the text between
        assert sum(len(re.findall(rf"\b{word}\b", text)) for word in words) <= 2 * len(shots) + 3  # a cut one in front
        assert len(shots) in (1024 // measurement.step, 1024 // measurement.step - 1)


def test_what_is_shown_is_what_a_learner_knows() -> None:
    vocabulary = Vocabulary()
    measurement = prepared(vocabulary)
    found = measurement.run(Learner(vocabulary), TARGET, ignore)
    for length, (losses, hits) in found.items():
        shown = measurement._seen(length)
        assert hits[shown].all()
        assert losses[shown].max() < 0.01
        assert losses[~shown] == pytest.approx(np.full((~shown).sum(), math.log(LABELS)), abs=1.0)


def test_a_learner_gets_better_with_every_length() -> None:
    result = measured(Learner)
    assert [entry.verdict for entry in result.lengths] == ["", BETTER, BETTER]
    assert [entry.shots for entry in result.lengths] == sorted(entry.shots for entry in result.lengths)
    shares = [entry.seen for entry in result.lengths]
    assert shares == sorted(shares)
    assert 0.3 < shares[0] < 0.5  # of words that are twice as many as the shots
    check = many_shot_check(result)
    assert check.verdict == NOT_ASKED
    assert check.figure is not None
    assert check.figure > 0


def test_one_that_does_not_look_back_farther_does_not() -> None:
    result = measured(Learner, TRAINED)
    assert [entry.verdict for entry in result.lengths] == ["", UNDECIDED, UNDECIDED]
    assert many_shot_check(result).figure == pytest.approx(0.0, abs=0.2)


def test_one_that_unlearns_is_worse_and_the_target_is_held_against_its_baseline() -> None:
    result = measured(Confused, baseline=Learner)
    assert [entry.verdict for entry in result.lengths] == [UNDECIDED, WORSE, WORSE]
    assert result.lengths[0].gain is not None
    assert result.lengths[0].gain.mean == pytest.approx(0.0, abs=0.1)


def test_a_model_that_learns_no_label_is_not_judged() -> None:
    result = measured(Blind)
    assert all(entry.gain is None and entry.verdict == "" for entry in result.lengths)
    assert "labels of shown words are right" in result.note
    assert many_shot_check(result).figure is None


def test_without_words_room_or_length_nothing_is_measured() -> None:
    few = prepared(Vocabulary(split=WORDS[10:]))
    assert (few.lessons, few.rows(TARGET)) == ((), {})
    result = few.result({}, None)
    assert "12 are needed" in result.note
    assert many_shot_check(result).figure is None
    vocabulary = Vocabulary()
    short = prepared(vocabulary, [128, TRAINED])
    result = short.result(short.run(Learner(vocabulary), TARGET, ignore), None)
    assert result.note == "no measured length is beyond the trained length"


def test_the_baseline_computes_the_trained_length_alone() -> None:
    measurement = prepared(Vocabulary(), trials=8)
    assert measurement.rows(TARGET) == {256: 8, 512: 8, 1024: 8}
    assert measurement.rows(BASELINE) == {256: 8}
