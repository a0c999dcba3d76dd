"""Retrieval: what stands where in a context, and what models of known sight and wit get."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ropetool.errors import ConfigError
from ropetool.verification.measures.contexts import TASKS, WORDS, Context, ContextMaker, single_tokens
from ropetool.verification.measures.fillers import filler_of_others
from ropetool.verification.measures.retrieval import DEPTHS, Retrieval, RetrievalResult, prepare_retrieval
from ropetool.verification.scoring import BASELINE, TARGET, Corpus, Done, Predictions, Scores, ignore
from ropetool.verification.shares import paired_bounds
from ropetool.verification.statistics import wilson

TRAINED = 512
LENGTHS = [128, 256, 512, 1024, 2048]
BOS = 0
PIECES = re.compile(r" ?[A-Za-z]+|\s|[^\sA-Za-z]| (?=[^A-Za-z])")


class Vocabulary:
    """Words with the space in front of them, line ends and signs as ids, and back.

    split: words that take two tokens. unknown: words that share one. marker: put in front of every text, as
    SentencePiece does.
    """

    def __init__(self, split: Sequence[str] = (), unknown: Sequence[str] = (), marker: bool = False) -> None:
        self.ids: dict[str, int] = {"<bos>": BOS, "<unk>": 1, "<marker>": 2}
        self.split, self.unknown, self.marker = set(split), set(unknown), marker

    def tokenize(self, text: str) -> list[int]:
        pieces = ["<marker>"] if self.marker else []
        for piece in PIECES.findall(text):
            if piece.strip() in self.unknown:
                pieces.append("<unk>")
            elif piece.strip() in self.split:
                pieces += [piece[:-1], f"+{piece[-1]}"]
            else:
                pieces.append(piece)
        return [self.ids.setdefault(piece, len(self.ids)) for piece in pieces]

    def text(self, ids: Sequence[int]) -> str:
        pieces = {token: piece for piece, token in self.ids.items()}
        return "".join(pieces[token] for token in ids).replace("<marker>", "").replace("<bos>", "")


def make_corpus(vocabulary: Vocabulary, prefix: tuple[int, ...] = (BOS,), sizes: Sequence[int] = (900,) * 6) -> Corpus:
    """Documents whose every third word is one of those that the tasks hide."""
    tokens = []
    for index, size in enumerate(sizes):
        rng = random.Random(f"text {index}")
        words = [rng.choice(WORDS) if rng.random() < 0.3 else rng.choice("abcdefghij") * 2 for _ in range(size)]
        tokens.append(np.array(vocabulary.tokenize(" ".join(words))[:size], dtype=np.int64))
    return Corpus(tuple(map(str, sizes)), tuple(tokens), tuple(np.ones_like(t) for t in tokens), prefix)


def prepared(
    task: str = "keys", vocabulary: Vocabulary | None = None, corpus: Corpus | None = None, **options: Any
) -> Retrieval:
    vocabulary = vocabulary or Vocabulary()
    corpus = make_corpus(vocabulary) if corpus is None else corpus
    options = {"lengths": LENGTHS, "trained_length": TRAINED, "trials": 4, "seed": 0, **options}
    return prepare_retrieval(task, corpus, vocabulary.tokenize, **options)


PAIR = re.compile(r"\n\[ (\w+) (\w+) ]\n")
VALUE = re.compile(r"\sThe secret word of (\w+) is (\w+)\.")
LINK = re.compile(r"\nThe secret word of (\w+) is that of (\w+)\.\n")
ASKED = re.compile(r"[\n ](?:\[|The secret word of) (\w+)(?: is)?$")


class Reader:
    """Reads the sentences in the last tokens of a row, follows the links, and answers; guesses where it sees none."""

    prefix: tuple[int, ...] = ()
    description = "a reader"

    def __init__(self, vocabulary: Vocabulary, sees: int = 10**9) -> None:
        self.vocabulary, self.sees = vocabulary, sees
        self.rng = np.random.default_rng(0)
        self.rows: dict[int, int] = {}

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done) -> Scores:
        raise AssertionError

    def predict(self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done) -> Predictions:
        (length,) = {len(row) for row in rows}
        self.rows[length] = len(rows)
        done(length * len(rows))
        answers = [self.answer(self.vocabulary.text(row[max(0, length - self.sees) :])) for row in rows]
        log_probs = self.rng.uniform(-9, -8, size=(len(rows), len(candidates[0])))
        for row, (answer, of_row) in enumerate(zip(answers, candidates, strict=True)):
            if answer is not None:
                log_probs[row, list(of_row).index(self.vocabulary.ids[f" {answer}"])] = -1.0
        tops = np.array([99_999 if answer is None else self.vocabulary.ids[f" {answer}"] for answer in answers])
        return Predictions(log_probs, tops)

    def answer(self, text: str) -> str | None:
        values, links = dict([*PAIR.findall(text), *VALUE.findall(text)]), dict(LINK.findall(text))
        key = ASKED.findall(text)[0]
        while key in links:
            key = links[key]
        return values.get(key)


class Blind(Reader):
    def answer(self, text: str) -> str | None:
        return None


def hits(found: RetrievalResult) -> dict[int, float]:
    shares = {}
    for length in sorted({cell.length for cell in found.cells}):
        cells = [cell for cell in found.cells if cell.length == length]
        shares[length] = sum(cell.hits for cell in cells) / sum(cell.trials for cell in cells)
    return shares


def judged(
    reader: type[Reader] = Reader, task: str = "keys", sees: int = 10**9, split: Sequence[str] = (), **options: Any
) -> RetrievalResult:
    vocabulary = Vocabulary(split=split)
    measurement = prepared(task, vocabulary, **options)
    return measurement.result(measurement.run(reader(vocabulary, sees), TARGET, ignore), None)


# --- the contexts


def sentences(context: Context, vocabulary: Vocabulary) -> tuple[dict[str, str], dict[str, str], str]:
    """What a person reads in the row: the values, the links, and the name that is asked for."""
    text = vocabulary.text(context.row)
    pairs = [*PAIR.findall(text), *VALUE.findall(text)]
    links = LINK.findall(text)
    assert len({key for key, _ in pairs}) == len(pairs)
    assert len(dict(links)) == len(links)
    (asked,) = ASKED.findall(text)
    return dict(pairs), dict(links), asked


def check(measurement: Retrieval, vocabulary: Vocabulary, prefix: tuple[int, ...] = (BOS,)) -> None:
    """Raise AssertionError unless the contexts are those that retrieval speaks of."""
    task = measurement.task
    for length, contexts in measurement.contexts.items():
        assert Counter(context.depth for context in contexts) == dict.fromkeys(DEPTHS, 4)
        for context in contexts:
            assert len(context.row) == length
            assert context.row[: len(prefix)] == prefix
            values, links, asked = sentences(context, vocabulary)
            key = asked
            for _ in range(task.hops):
                key = links[key]
            answer = context.candidates[context.answer]
            assert vocabulary.ids[f" {values[key]}"] == answer
            assert sorted(vocabulary.ids[f" {value}"] for value in values.values()) == sorted(context.candidates)
            assert len(links) == task.hops * len(values)
            assert [context.row.count(candidate) for candidate in context.candidates] == [1] * len(values)
            for name in {*values, *links}:  # said once, in each link that leads to it, and in the question
                assert context.row.count(vocabulary.ids[f" {name}"]) == 1 + (name in links.values()) + (name == asked)
            said = {name: task.statement.format(key=name, value=value) for name, value in values.items()}
            said.update({name: task.hop.format(key=name, value=other) for name, other in links.items()})
            places = {name: located(context.row, vocabulary.tokenize(text)) for name, text in said.items()}
            assert all(places[name] > places[other] for name, other in links.items())  # known when it is read
            at, _ = places[key]
            question = vocabulary.tokenize(task.question.format(key=asked))
            filler = length - len(prefix) - len(question) - sum(size for _, size in places.values())
            before = at - len(prefix) - sum(size for place, size in places.values() if place < at)
            assert before == round(context.depth * filler)
            assert filler >= length / 2 - len(question)


def located(row: Sequence[int], sentence: Sequence[int]) -> tuple[int, int]:
    """Return where a sentence stands in a row, which is once, and its length."""
    size = len(sentence)
    (at,) = (start for start in range(len(row)) if list(row[start : start + size]) == list(sentence))
    return at, size


@pytest.mark.parametrize("prefix", [(), (BOS,)])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("seed", [0, 1])
def test_all_values_stand_once_in_the_context_and_the_asked_one_where_it_says(
    task: str, prefix: tuple[int, ...], seed: int
) -> None:
    vocabulary = Vocabulary()
    measurement = prepared(task, vocabulary, make_corpus(vocabulary, prefix), seed=seed)
    assert list(measurement.contexts) == [512, 1024, 2048]
    check(measurement, vocabulary, prefix)


def test_needles_stand_between_sentences_of_prose() -> None:
    """No sentence is cut, the shares of the filler are met as near as its sentences allow, and code is left out."""
    vocabulary = Vocabulary()
    prose = "the rope turns far. near it lies a pair.\nwhich is read? " * 40
    texts = ["x = y " * 400, prose, "z = w " * 400, prose]
    tokens = tuple(np.array(vocabulary.tokenize(text), dtype=np.int64) for text in texts)
    corpus = Corpus(("a", "b", "c", "d"), tokens, tokens, (BOS,), ("code", "prose", "code", "prose"))
    found = prepared("needles", vocabulary, corpus).contexts
    for context in found[1024]:
        text = vocabulary.text(context.row)
        assert "=" not in text
        starts = [match.start() for match in VALUE.finditer(text)]
        assert len(starts) == 8
        assert all(start == 0 or text[start - 1] in ".?\n" for start in starts)
        asked = ASKED.findall(text)[0]
        place = next(m.start() for m in VALUE.finditer(text) if m.group(1) == asked) / len(text)
        assert abs(place - context.depth) < 0.1


def test_every_candidate_is_asked_for() -> None:
    (contexts,) = prepared(lengths=[TRAINED], trials=40).contexts.values()
    asked = Counter(context.answer for context in contexts)
    assert sorted(asked) == list(range(8))
    assert max(asked.values()) < 45  # of 200


def with_change(change: Callable[[Context], Context]) -> Callable[..., Context]:
    right = ContextMaker.make
    return lambda *given: change(right(*given))


def candidate_missing(context: Context) -> Context:
    other = context.candidates[context.answer - 1]
    filler = context.row[1] if context.row[1] != other else context.row[2]
    return replace(context, row=tuple(filler if token == other else token for token in context.row))


def said_twice(context: Context) -> Context:
    answer = context.candidates[context.answer]
    return replace(context, row=(context.row[0], answer, *context.row[2:]))


def one_short(context: Context) -> Context:
    return replace(context, row=(context.row[0], *context.row[2:]))


def wrong_answer(context: Context) -> Context:
    return replace(context, answer=context.answer - 1)


def wrong_depth(context: Context) -> Context:
    return replace(context, depth=DEPTHS[DEPTHS.index(context.depth) - 1])


CHANGES = [candidate_missing, said_twice, one_short, wrong_answer, wrong_depth]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("task", TASKS)
def test_a_wrong_context_is_seen(
    monkeypatch: pytest.MonkeyPatch, task: str, change: Callable[[Context], Context]
) -> None:
    monkeypatch.setattr(ContextMaker, "make", with_change(change))
    vocabulary = Vocabulary()
    with pytest.raises((AssertionError, KeyError)):
        check(prepared(task, vocabulary), vocabulary)


def test_filler_that_holds_the_words_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ropetool.verification.measures.contexts.filler_of_others", lambda *given: filler_of_others(*given[:4])
    )
    vocabulary = Vocabulary()
    with pytest.raises(AssertionError):
        check(prepared("keys", vocabulary), vocabulary)


def test_the_seed_chooses() -> None:
    first, again, other = (prepared(seed=seed).contexts for seed in (1, 1, 2))
    assert first == again
    assert all(one.row != another.row for one, another in zip(first[512], other[512], strict=True))
    assert len({context.row for context in first[512]}) == len(first[512])


def test_the_baseline_gets_the_same_contexts_within_the_trained_length() -> None:
    measurement = prepared()
    assert measurement.rows(TARGET) == {512: 20, 1024: 20, 2048: 20}
    assert measurement.rows(BASELINE) == {512: 20}
    for role in (TARGET, BASELINE):
        reader, told = Reader(Vocabulary()), []
        reader.answer = lambda text: None  # type: ignore[method-assign]
        reader.vocabulary.text = lambda ids: ""  # type: ignore[method-assign]
        measurement.run(reader, role, told.append)
        assert reader.rows == measurement.rows(role)
        assert sum(told) == sum(length * count for length, count in measurement.rows(role).items())


# --- the figures


@pytest.mark.parametrize(("task", "keys"), [("keys", 8), ("many-keys", 32), ("variables", 4), ("needles", 8)])
def test_who_reads_all_is_always_right(task: str, keys: int) -> None:
    found = judged(task=task)
    assert hits(found) == {512: 1, 1024: 1, 2048: 1}
    assert (found.task, found.keys, found.chance, found.note) == (task, keys, 1 / keys, "")
    assert [(cell.length, cell.depth) for cell in found.cells] == [(n, d) for n in (512, 1024, 2048) for d in DEPTHS]
    for cell in found.cells:
        assert (cell.hits, cell.generated, cell.trials) == (4, 4, 4)
        assert (cell.low, cell.high) == wilson(4, 4)


@pytest.mark.parametrize("task", TASKS)
def test_who_reads_nothing_is_right_by_chance(task: str) -> None:
    found = judged(Blind, task, lengths=[TRAINED], trials=80)
    right, trials = sum(cell.hits for cell in found.cells), sum(cell.trials for cell in found.cells)
    deviation = (trials * found.chance * (1 - found.chance)) ** 0.5
    assert trials == 400
    assert abs(right - trials * found.chance) < 3 * deviation
    assert sum(cell.generated for cell in found.cells) == 0


@pytest.mark.parametrize("value", [0.0, -3.0])
def test_who_finds_all_alike_is_right_by_chance(value: float) -> None:
    class Even(Blind):
        def predict(self, rows: Any, candidates: Any, done: Done) -> Predictions:
            return Predictions(np.full(np.shape(candidates), value), np.zeros(len(rows), dtype=np.int64))

    found = judged(Even, lengths=[TRAINED], trials=80)
    assert abs(hits(found)[TRAINED] - 1 / 8) < 3 * (1 / 8 * 7 / 8 / 400) ** 0.5


def test_who_sees_the_last_tokens_finds_the_keys_among_them() -> None:
    found = judged(sees=1100, trials=8)
    assert hits(found)[512] == hits(found)[1024] == 1
    by_depth = {cell.depth: cell.hits for cell in found.cells if cell.length == 2048}
    assert by_depth[0.5] == by_depth[0.75] == by_depth[1.0] == 8
    assert by_depth[0.0] < 5
    assert by_depth[0.25] < 5
    assert judged(sees=40, trials=8).cells[4].hits == 8  # depth 1: right in front of the question


def test_who_answers_for_another_key_is_wrong() -> None:
    class Late(Reader):
        """Takes the first pair for the asked one."""

        def answer(self, text: str) -> str | None:
            return dict(PAIR.findall(text))[PAIR.findall(text)[0][0]]

    by_depth = Counter[float]()
    for cell in judged(Late, trials=20).cells:
        by_depth[cell.depth] += cell.hits
    assert by_depth[0.0] == 60
    assert by_depth[1.0] == 0


def test_the_likeliest_candidate_need_not_be_the_likeliest_token() -> None:
    class Mute(Reader):
        def predict(self, rows: Any, candidates: Any, done: Done) -> Predictions:
            return replace(super().predict(rows, candidates, done), top=np.full(len(rows), BOS))

    found = judged(Mute)
    assert {(cell.hits, cell.generated) for cell in found.cells} == {(4, 0)}


def test_the_baseline_is_shown_within_the_trained_length() -> None:
    vocabulary = Vocabulary()
    measurement = prepared(vocabulary=vocabulary)
    seeing, blind = Reader(vocabulary), Blind(vocabulary)
    found = measurement.result(measurement.run(seeing, TARGET, ignore), measurement.run(blind, BASELINE, ignore))
    assert {cell.length for cell in found.baseline} == {512}
    assert sum(cell.hits for cell in found.baseline) < 10
    alone = measurement.result(measurement.run(seeing, TARGET, ignore), None)
    assert alone.baseline == alone.cells[:5]


@pytest.mark.parametrize("task", TASKS)
def test_each_trial_has_a_twin_within_the_trained_length(task: str) -> None:
    """The same sentences, question and answer, the asked one behind the same share of the filler."""
    vocabulary = Vocabulary()
    measurement = prepared(task, vocabulary)
    for contexts in zip(*measurement.contexts.values(), strict=True):
        assert [len(context.row) for context in contexts] == [512, 1024, 2048]
        assert len({(context.depth, context.candidates, context.answer) for context in contexts}) == 1
        read = [sentences(context, vocabulary) for context in contexts]
        assert read[0] == read[1] == read[2]


def test_pairs_count_what_one_of_two_twins_alone_has_right() -> None:
    vocabulary = Vocabulary()
    measurement = prepared(vocabulary=vocabulary, trials=8)
    seeing, short = Reader(vocabulary), Reader(vocabulary, sees=700)
    target, own = measurement.run(short, TARGET, ignore), measurement.run(seeing, BASELINE, ignore)
    found = {(pair.length, pair.depth): pair for pair in measurement.result(target, own).pairs if pair.generated}
    assert [found[512, None].lost, found[512, None].gained, found[512, None].trials] == [0, 0, 40]
    front, end = found[2048, 0.0], found[2048, 1.0]
    assert (front.lost, front.gained, front.hits, front.own, front.difference) == (8, 0, 0, 8, -1.0)
    assert (end.lost, end.gained, end.hits, end.own, end.difference) == (0, 0, 8, 8, 0.0)
    assert (front.lower, front.upper) == paired_bounds(0, 8, 8)
    back = measurement.result(
        measurement.run(seeing, TARGET, ignore), measurement.run(Blind(vocabulary), BASELINE, ignore)
    )
    (pair,) = (pair for pair in back.pairs if (pair.length, pair.depth, pair.generated) == (1024, None, True))
    assert (pair.gained, pair.lost, pair.hits, pair.own) == (40, 0, 40, 0)
    alone = measurement.result(target, None).pairs
    assert {pair.length for pair in alone} == {1024, 2048}
    assert prepared(lengths=[64, 128]).result({}, {}).pairs == ()


# --- words


def test_only_words_of_one_token_are_hidden() -> None:
    vocabulary = Vocabulary(split=WORDS[40:], marker=True)
    for task in TASKS.values():
        found = single_tokens(task, vocabulary.tokenize)
        assert list(found) == WORDS[:40]
        assert list(found.values()) == [vocabulary.ids[f" {word}"] for word in WORDS[:40]]
    measurement = prepared("keys", vocabulary)
    allowed = set(found.values())
    assert all(set(context.candidates) <= allowed for context in measurement.contexts[512])
    check(prepared(vocabulary=(own := Vocabulary(split=WORDS[40:]))), own)


def test_words_without_a_token_of_their_own_are_not_hidden() -> None:
    assert list(single_tokens(TASKS["keys"], Vocabulary(unknown=WORDS[10:]).tokenize)) == WORDS[:10]
    assert single_tokens(TASKS["keys"], Vocabulary(unknown=WORDS).tokenize) == {}


def test_words_of_the_sentences_are_not_hidden() -> None:
    everywhere = set(WORDS)
    for task in TASKS.values():
        texts = (text.format(key="", value="") for text in (task.statement, task.question, task.hop))
        said = set(re.findall(r"\w+", " ".join(texts))) & everywhere
        assert set(single_tokens(task, Vocabulary().tokenize)) == everywhere - said
    assert "word" not in single_tokens(TASKS["variables"], Vocabulary().tokenize)


def test_the_words_are_different_and_plain() -> None:
    assert len(set(WORDS)) == len(WORDS) > 200
    assert all(re.fullmatch("[a-z]{3,8}", word) for word in WORDS)


# --- too little


@pytest.mark.parametrize(("known", "keys"), [(40, 20), (16, 8), (7, 3), (6, 3)])
def test_a_small_vocabulary_hides_fewer_keys(known: int, keys: int) -> None:
    found = judged(task="many-keys", split=WORDS[known:])
    assert (found.keys, found.chance, found.note) == (keys, 1 / keys, "")
    assert hits(found) == {512: 1, 1024: 1, 2048: 1}


@pytest.mark.parametrize(("task", "known", "needed"), [("keys", 5, 6), ("variables", 8, 9), ("many-keys", 0, 6)])
def test_a_vocabulary_with_hardly_any_words_is_noted(task: str, known: int, needed: int) -> None:
    found = judged(task=task, split=WORDS[known:])
    assert found.cells == found.baseline == ()
    assert found.note == f"the vocabulary has only {known} common words as single tokens, and {needed} are needed"


def test_lengths_that_do_not_hold_the_sentences_are_left_out_and_noted() -> None:
    found = judged(lengths=[24, 30, 64, 256], trained_length=24)
    assert sorted({cell.length for cell in found.cells}) == [64, 256]
    assert found.note == "the sentences do not fit into 24, 30 tokens"
    assert (found.keys, found.baseline) == (4, ())  # 32 tokens for sentences of 7, at every length alike


def test_nothing_is_measured_where_all_lengths_are_short_of_the_trained_one() -> None:
    measurement = prepared(lengths=[64, 128])
    assert (measurement.contexts, measurement.note) == ({}, "")
    assert measurement.rows(TARGET) == measurement.rows(BASELINE) == {}
    assert measurement.result({}, {}).cells == ()


def test_texts_that_are_too_few_are_repeated_and_none_are_refused() -> None:
    vocabulary = Vocabulary()
    check(prepared(vocabulary=vocabulary, corpus=make_corpus(vocabulary, sizes=[300])), vocabulary)
    with pytest.raises(ConfigError, match="the texts contain no filler for the context"):
        prepared(vocabulary=vocabulary, corpus=make_corpus(vocabulary, sizes=[]))


def test_the_measurement_is_named_after_its_task() -> None:
    assert [prepared(task, lengths=[TRAINED], trials=1).name for task in TASKS] == [
        "retrieval", "many-keys", "variables", "needles",
    ]  # fmt: skip
