"""Effective length: what stands in a context, what readers of known sight score, and the bounds of a ratio."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from word_reading import Blind, Reader, Vocabulary, make_corpus

from ropetool.lab.measures import effective_length
from ropetool.lab.measures.effective_length import (
    EffectiveLength,
    EffectiveLengthResult,
    effective_length_check,
    prepare_effective_length,
)
from ropetool.lab.measures.ruler import TASKS, single_tokens
from ropetool.verification.measures.contexts import WORDS, Context
from ropetool.verification.results import NO_WORSE, NOT_ASKED, WORSE
from ropetool.verification.scoring import BASELINE, TARGET, Done, Predictions, ignore
from ropetool.verification.shares import PairedTrials, chance_of_so_low, paired_ratio, ratio_bounds

TRAINED, LENGTHS = 512, [128, 512, 1024, 2048]
STATED, COUNTED = re.compile(r"\[ (\w+) (\w+) ]"), re.compile(r"\[ (\w+) ]")
ASKED = re.compile(r"\n\[(?: (\w+))?$")


def prepared(
    vocabulary: Vocabulary, trials: int = 30, lengths: Sequence[int] = LENGTHS, seed: int = 0
) -> EffectiveLength:
    corpus = make_corpus(vocabulary)
    return prepare_effective_length(corpus, vocabulary.tokenize, lengths, TRAINED, trials=trials, seed=seed)


def answer(text: str, candidates: Sequence[str]) -> str | None:
    """What a careful reader of a row would choose: by the pairs that stand in it, or by counting single words."""
    (asked,) = ASKED.findall(text)
    if asked:
        named = [value for key, value in STATED.findall(text) if key == asked and value in candidates]
    else:
        named = COUNTED.findall(text)
    counts = Counter(word for word in named if word in candidates)
    return max(counts, key=counts.__getitem__) if counts else None


class Careful(Reader):
    def answer(self, text: str, words: Sequence[str]) -> str | None:
        return answer(text, words)


class Tied(Careful):
    """Finds every word equally likely."""

    def predict(self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done) -> Predictions:
        return Predictions(np.zeros((len(rows), len(candidates[0]))), np.zeros(len(rows), dtype=np.int64))


def measured(target: type[Reader], sees: int = 10**9, baseline: type[Reader] | None = None) -> EffectiveLengthResult:
    vocabulary = Vocabulary()
    measurement = prepared(vocabulary)
    own = None if baseline is None else measurement.run(baseline(vocabulary), BASELINE, ignore)
    return measurement.result(measurement.run(target(vocabulary, sees), TARGET, ignore), own)


# --- the contexts


def words_of(context: Context, vocabulary: Vocabulary) -> tuple[str, list[str]]:
    return vocabulary.text(context.row), [vocabulary.text([token]).strip() for token in context.candidates]


@pytest.mark.parametrize("task", [task.name for task in TASKS])
def test_the_text_alone_tells_the_answer_and_has_its_words_nowhere_else(task: str) -> None:
    vocabulary = Vocabulary()
    found = prepared(vocabulary).contexts
    assert list(found) == [512, 1024, 2048]
    for length in found:
        for context in found[length][task]:
            assert len(context.row) == length
            assert context.row[0] == 0
            text, words = words_of(context, vocabulary)
            assert len(set(words)) == len(words)
            assert context.answer == len(words) - 1  # so that equal likelihoods are no hit
            assert answer(text, words) == words[-1]
            bracketed = re.findall(r"\[ (\w+)(?: (\w+))?", text)
            for word in words:  # none in the filler, so none of the sentences tells it apart by its rarity
                assert len(re.findall(rf"\b{word}\b", text)) == sum(pair.count(word) for pair in bracketed)


def test_a_trial_has_the_same_sentences_and_question_at_every_length_at_the_same_shares_of_the_filler() -> None:
    vocabulary = Vocabulary()
    found = prepared(vocabulary).contexts
    for task in TASKS:
        for short, long in zip(found[512][task.name], found[2048][task.name], strict=True):
            assert short.candidates == long.candidates
            texts = [vocabulary.text(context.row) for context in (short, long)]
            said = [[match.group() for match in re.finditer(r"\[ \w+(?: \w+)? ]|\[(?: \w+)?$", text)] for text in texts]
            assert said[0] == said[1]
            shares = [[match.start() / len(text) for match in re.finditer(r"\n\[ ", text)] for text in texts]
            if task.name == "single":  # with more sentences, those in front take another share of a short row
                assert abs(shares[0][0] - shares[1][0]) < 0.05


def test_the_places_of_the_answers_are_spread_over_the_context() -> None:
    vocabulary = Vocabulary()
    places = []
    for context in prepared(vocabulary, trials=100).contexts[2048]["single"]:
        text, words = words_of(context, vocabulary)
        places.append(text.index(f" {words[-1]} ]") / len(text))
    assert np.quantile(places, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.12)


def test_seeds_give_other_trials_and_the_same_seed_the_same() -> None:
    rows = [prepared(Vocabulary(), 2, [TRAINED], seed).contexts[TRAINED]["multi-key"][0].row for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


def test_only_words_that_are_the_same_single_token_everywhere_are_asked_for() -> None:
    vocabulary = Vocabulary(split=["river", "stone"])
    found = single_tokens(vocabulary.tokenize)
    assert set(found) == {*WORDS} - {"river", "stone"}
    assert all(vocabulary.text([token]) == f" {word}" for word, token in found.items())


def test_a_task_without_words_or_room_is_left_out_and_named() -> None:
    vocabulary = Vocabulary(split=WORDS[15:])
    found = prepared(vocabulary)
    assert list(found.contexts[TRAINED]) == ["single", "common words", "frequent words"]
    assert "multi-key, multi-value, multi-query, variables" in found.note
    none = prepared(Vocabulary(split=WORDS))
    assert none.contexts == {}
    result = none.result({}, None)
    assert (result.longest, result.own) == (None, None)
    assert effective_length_check(result, 2048).figure is None
    short = prepare_effective_length(make_corpus(vocabulary), vocabulary.tokenize, [64, 128], 64, trials=2, seed=0)
    assert list(short.contexts[64]) == ["single"]


# --- readers of known sight


def test_a_reader_of_the_whole_context_keeps_its_score_everywhere() -> None:
    result = measured(Careful)
    assert result.own == 1.0
    assert [step.ratio for step in result.steps] == [1.0, 1.0]
    assert [step.verdict for step in result.steps] == [NO_WORSE, NO_WORSE]
    assert (result.longest, result.surely, result.possibly) == (2048, 2048, 2048)
    check = effective_length_check(result, 2048)
    assert (check.figure, check.limit, check.verdict) == (2048.0, 2048.0, NOT_ASKED)


@pytest.mark.parametrize(("sees", "longest"), [(1024, 1024), (512, 512)])
def test_what_lies_beyond_the_sight_does_not_count(sees: int, longest: int) -> None:
    """Beside a baseline that reads its trained length, so that this one is a step too."""
    result = measured(Careful, sees, baseline=Careful)
    assert (result.longest, result.surely, result.possibly) == (longest,) * 3
    assert [step.length for step in result.steps] == [512, 1024, 2048]
    assert [step.verdict for step in result.steps] == [NO_WORSE if n <= longest else WORSE for n in (512, 1024, 2048)]


def test_a_target_that_reads_less_than_its_baseline_at_the_trained_length_has_none() -> None:
    result = measured(Careful, 256, baseline=Careful)
    assert (result.longest, result.surely, result.possibly) == (0, 0, 0)
    assert "less than 512" in effective_length_check(result, 2048).detail


@pytest.mark.parametrize("reader", [Blind, Tied])
def test_a_model_that_answers_nothing_within_its_length_is_not_judged(reader: type[Reader]) -> None:
    result = measured(reader)
    assert (result.longest, result.surely, result.possibly, result.steps) == (None, None, None, ())
    assert result.own is not None
    assert result.own < 0.1
    assert "a verdict needs at least 0.2" in result.note
    check = effective_length_check(result, 2048)
    assert (check.figure, check.verdict) == (None, NOT_ASKED)
    assert "a verdict needs" in check.detail


def test_without_a_longer_length_there_is_nothing_to_say() -> None:
    vocabulary = Vocabulary()
    measurement = prepared(vocabulary, lengths=[256, TRAINED])
    result = measurement.result(measurement.run(Careful(vocabulary), TARGET, ignore), None)
    assert (result.longest, result.note) == (None, "no measured length is beyond the trained length")


def test_the_baseline_computes_the_trained_length_alone() -> None:
    measurement = prepared(Vocabulary(), trials=3)
    assert measurement.rows(TARGET) == {512: 21, 1024: 21, 2048: 21}
    assert measurement.rows(BASELINE) == {512: 21}


def test_a_hole_ends_the_effective_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds again behind a length that does not is not reached."""
    vocabulary = Vocabulary()
    measurement = prepared(vocabulary)
    found = dict(measurement.run(Careful(vocabulary), TARGET, ignore))
    found[1024] = np.zeros_like(found[1024])
    result = measurement.result(found, None)
    assert [step.verdict for step in result.steps] == [WORSE, NO_WORSE]
    assert (result.longest, result.surely, result.possibly) == (0, 0, 0)
    monkeypatch.setattr(effective_length, "takewhile", filter)  # the defect: any length that holds
    assert measurement.result(found, None).longest == 2048


# --- the bounds


def test_the_bounds_are_the_roots_of_fiellers_quadratic() -> None:
    for pairs, chance in [
        (PairedTrials(60, 20, 25, 35), 0.1),
        (PairedTrials(200, 10, 10, 60), 0.12),
        (PairedTrials(140, 0, 0, 0), 0.1),
    ]:
        values = np.repeat(
            [[1, 1], [1, 0], [0, 1], [0, 0]], [2 * n + 1 for n in (pairs.both, pairs.gained, pairs.lost, pairs.neither)], axis=0
        ) - chance  # fmt: skip
        (a, b), cov, n = values.mean(axis=0), np.cov(values.T, bias=True), len(values) / 2
        t = 1.6448536269514722**2 / n
        roots = np.sort(np.roots([b * b - t * cov[1, 1], -2 * (a * b - t * cov[0, 1]), a * a - t * cov[0, 0]]).real)
        assert ratio_bounds(pairs, chance) == pytest.approx(tuple(roots), rel=1e-6)


@pytest.mark.parametrize(("own", "chance", "shared"), [(0.5, 0.1, 0.8), (0.9, 0.1, 0.9), (0.35, 0.12, 0.5)])
def test_each_bound_is_on_its_side_of_the_truth_in_95_of_100_draws(own: float, chance: float, shared: float) -> None:
    """Trials of which a share is decided alike for both, the rest apart, as many as the full suite has."""
    rng, right = np.random.default_rng(0), np.array([0, 0])
    first = chance + 0.9 * (own - chance)
    for _ in range(1500):
        same = rng.random(280) < shared
        u, v = rng.random((2, 280))
        other, here = u < own, np.where(same, u, v) < first
        pairs = PairedTrials((here & other).sum(), (here & ~other).sum(), (~here & other).sum(), (~here & ~other).sum())
        lower, upper = ratio_bounds(pairs, chance)
        right += [lower <= 0.9, upper >= 0.9]
    assert right / 1500 == pytest.approx([0.95, 0.95], abs=0.025)


def test_a_ratio_is_of_what_is_above_chance_and_few_pairs_that_agree_prove_little() -> None:
    assert paired_ratio(PairedTrials(30, 0, 30, 40), 0.2) == pytest.approx(0.25)
    assert ratio_bounds(PairedTrials(20, 0, 0, 0), 0.1)[0] < 0.95
    assert chance_of_so_low(PairedTrials(140, 0, 0, 0), 0.1, 0.9) > 0.99
    assert chance_of_so_low(PairedTrials(70, 0, 70, 0), 0.1, 0.9) < 1e-6
