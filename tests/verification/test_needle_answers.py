"""Needle answers as key tokens: which trials count, and what models of known sight gain."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from word_reading import Blind, Reader, Vocabulary, make_corpus

from ropetool.verification.measures.long_pass import KeyTokenResult, key_tokens_check
from ropetool.verification.measures.needle_answers import NeedleAnswers, needle_answers
from ropetool.verification.measures.retrieval import Retrieval, prepare_retrieval
from ropetool.verification.scoring import BASELINE, TARGET, Done, Predictions, ignore
from ropetool.verification.statistics import lower_bound

TRAINED, LENGTHS = 256, [256, 512, 1024]
ASKED = re.compile(r"\n\[ (\w+)$")


class Finder(Reader):
    """Knows the value of a key in its sight, as sure as one in e, and guesses among a hundred words else."""

    def answer(self, text: str, words: Sequence[str]) -> str | None:
        return dict(re.findall(r"\[ (\w+) (\w+) ]", text)).get(ASKED.findall(text)[0])

    def predict(self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done) -> Predictions:
        found = super().predict(rows, candidates, done)
        return Predictions(np.where(found.log_probs > -2, -1.0, -math.log(100)), found.top)


def tasks(vocabulary: Vocabulary, trials: int = 40, names: Sequence[str] = ("keys", "many-keys")) -> list[Retrieval]:
    corpus = make_corpus(vocabulary)
    return [
        prepare_retrieval(name, corpus, vocabulary.tokenize, LENGTHS, TRAINED, trials=trials, seed=0) for name in names
    ]


def measured(reader: type[Reader], sees: int = 10**9, trials: int = 40) -> KeyTokenResult:
    vocabulary = Vocabulary()
    measurement = needle_answers(tasks(vocabulary, trials), (0,), TRAINED)
    target = measurement.run(reader(vocabulary, sees), TARGET, ignore)
    return measurement.result(target, measurement.run(Finder(vocabulary), BASELINE, ignore))


def test_only_answers_that_the_cut_text_does_not_have_count() -> None:
    vocabulary = Vocabulary()
    found = tasks(vocabulary)
    measurement = needle_answers(found, (0,), TRAINED)
    assert measurement.length == 1024
    for contexts, task in zip(measurement.tasks, found, strict=True):
        depths = {context.depth for context in contexts}
        assert {0.0, 0.25, 0.5} <= depths <= {0.0, 0.25, 0.5, 0.75}  # with much behind it, 0.75 may be out of reach
        assert len(contexts) < len(task.contexts[1024])
        for context in contexts:
            answer = context.candidates[context.answer]
            assert f"{vocabulary.text([answer])} ]" in vocabulary.text(context.row)
            assert answer not in context.row[-255:]
    count = sum(map(len, measurement.tasks))
    assert measurement.rows(TARGET) == {1024: count, 256: count}
    assert measurement.rows(BASELINE) == {256: count}


def test_a_model_that_reads_far_gains_what_the_answer_was_worth() -> None:
    found = measured(Finder, trials=60)
    assert found.tokens >= 300
    assert found.note == ""
    assert found.loss is not None
    assert found.truncated is not None
    assert found.gain is not None
    assert (found.loss.mean, found.truncated.mean) == (pytest.approx(1.0), pytest.approx(math.log(100)))
    assert lower_bound(found.gain) == pytest.approx(math.log(100) - 1)
    check = key_tokens_check(found, "needle answers")
    assert check.name == "needle answers"
    assert check.figure == pytest.approx(math.log(100) - 1)


@pytest.mark.parametrize(("reader", "sees"), [(Finder, TRAINED), (Blind, 10**9)])
def test_one_that_does_not_gains_nothing(reader: type[Reader], sees: int) -> None:
    found = measured(reader, sees, trials=60)
    assert found.gain is not None
    assert lower_bound(found.gain) <= 0


def test_too_few_are_not_judged() -> None:
    found = measured(Finder, trials=4)
    assert "300 are needed" in found.note
    assert key_tokens_check(found, "needle answers").figure is None
    none = NeedleAnswers((), (0,), TRAINED, TRAINED)
    assert none.rows(TARGET) == {}
    vocabulary = Vocabulary()
    assert none.result(none.run(Finder(vocabulary), TARGET, ignore), None).gain is None
