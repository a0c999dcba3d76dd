"""Seven tasks after RULER: rows with sentences in filler, and a question at the end.

The model does not generate text. Each answer is one word, compared with other words.
Source: Hsieh et al., RULER: What's the real context size of your long-context language models?, arXiv 2404.06654,
section 3.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ropetool.verification.measures.contexts import WORDS, Context, woven
from ropetool.verification.measures.fillers import text_of_others
from ropetool.verification.scoring import Corpus

PAIR, WORD, GIVEN, ASKED = "\n[ {} {} ]\n", "\n[ {} ]\n", "\n[ {} {} ]", "\n[ {}"
KEYS, QUERIES, VALUES, OTHERS = 8, 4, 4, 8
LINKS, CHAINS = 3, 4
OFTEN, SELDOM, MANY, FEW = 3, 9, 5, 1  # three words occur five times each, nine words once
RANKED, MOST, RANKS = 3, 6, 10  # the first of ten words occurs six times, the others 6 / rank times, at least once


@dataclass(frozen=True)
class RulerTrial:
    """A trial.

    chains: lists of sentences. The sentences of one chain keep their order.
    question: the question at the end.
    right: the right word.
    wrong: the words that it is compared with.
    """

    chains: tuple[tuple[str, ...], ...]
    question: str
    right: str
    wrong: tuple[str, ...]


def _single(words: Sequence[str], rng: random.Random) -> RulerTrial:
    """Return one key with its value.

    Only the right candidate is in the context, so a model can find it without the key.
    """
    key, value, *others = words
    return RulerTrial(_pairs([key], [value]), ASKED.format(key), value, tuple(others))


def _multi_key(words: Sequence[str], rng: random.Random) -> RulerTrial:
    """Return several keys with values. The question is the value of one key."""
    keys, values = words[:KEYS], words[KEYS:]
    return RulerTrial(_pairs(keys, values), ASKED.format(keys[0]), values[0], tuple(values[1:]))


def _multi_query(words: Sequence[str], rng: random.Random) -> RulerTrial:
    """Return several keys with values, and several questions about values.

    The questions before the last have answers.
    """
    keys, values, last = words[:KEYS], words[KEYS:], rng.randrange(QUERIES)
    given = "".join(map(GIVEN.format, keys[:last], values[:last]))
    wrong = (*values[:last], *values[last + 1 :])
    return RulerTrial(_pairs(keys, values), given + ASKED.format(keys[last]), values[last], wrong)


def _multi_value(words: Sequence[str], rng: random.Random) -> RulerTrial:
    """Return a key with several values among keys with one value, and give some of its values."""
    key, own, rest = words[0], words[1 : 1 + VALUES], words[1 + VALUES :]
    keys, values, last = rest[:OTHERS], rest[OTHERS:], rng.randrange(VALUES)
    sentences = (*_pairs([key] * VALUES, own), *_pairs(keys, values))
    given = "".join(GIVEN.format(key, value) for value in own[:last])
    return RulerTrial(sentences, given + ASKED.format(key), own[last], tuple(values))


def _variables(words: Sequence[str], rng: random.Random) -> RulerTrial:
    """Return chains of names that lead to each other, and follow one chain to one of its names."""
    chains = [words[start : start + LINKS + 1] for start in range(0, len(words), LINKS + 1)]
    sentences = tuple(tuple(map(PAIR.format, chain, chain[1:])) for chain in chains)
    chain, last = chains[0], rng.randrange(LINKS)
    given = "".join(map(GIVEN.format, chain[:last], chain[1:]))
    wrong = tuple(name for other in chains[1:] for name in other[1:])
    return RulerTrial(sentences, given + ASKED.format(chain[last]), chain[last + 1], wrong)


def _common(words: Sequence[str], rng: random.Random) -> RulerTrial:
    """Return some frequent words among rare words. The question is a frequent word."""
    return _counted(words, [MANY] * OFTEN + [FEW] * SELDOM, OFTEN, rng)


def _frequent(words: Sequence[str], rng: random.Random) -> RulerTrial:
    """Return words with frequencies that fall with their rank. The question is one of the first words."""
    return _counted(words, [max(1, MOST // rank) for rank in range(1, RANKS + 1)], RANKED, rng)


def _counted(words: Sequence[str], counts: Sequence[int], asked: int, rng: random.Random) -> RulerTrial:
    sentences = tuple((WORD.format(word),) for word, count in zip(words, counts, strict=True) for _ in range(count))
    last = rng.randrange(asked)
    given = "".join(WORD.rstrip().format(word) for word in words[:last])
    return RulerTrial(sentences, f"{given}\n[", words[last], tuple(words[asked:]))


def _pairs(keys: Sequence[str], values: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple((PAIR.format(key, value),) for key, value in zip(keys, values, strict=True))


@dataclass(frozen=True)
class RulerTask:
    """A task.

    name: its name in the result.
    words: the number of different words in a trial, in random order.
    make: returns a trial with these words.
    """

    name: str
    words: int
    make: Callable[[Sequence[str], random.Random], RulerTrial]

    def drawn(self, words: Sequence[str], rng: random.Random) -> RulerTrial:
        """Return a trial with random words of this list."""
        return self.make(rng.sample(words, self.words), rng)


TASKS = (
    RulerTask("single", 2 + KEYS, _single),
    RulerTask("multi-key", 2 * KEYS, _multi_key),
    RulerTask("multi-value", 1 + VALUES + 2 * OTHERS, _multi_value),
    RulerTask("multi-query", 2 * KEYS, _multi_query),
    RulerTask("variables", CHAINS * (LINKS + 1), _variables),
    RulerTask("common words", OFTEN + SELDOM, _common),
    RulerTask("frequent words", RANKS, _frequent),
)


def single_tokens(tokenize: Callable[[str], list[int]]) -> dict[str, int]:
    """Return the words that are the same single token in every sentence and question, with their tokens."""
    front = tokenize(ASKED.format("").rstrip())
    frame = {*front, *tokenize(WORD.format("it")), *tokenize(PAIR.format("it", "it"))}
    tokens_by_word = {}
    for word in WORDS:
        ids = tokenize(ASKED.format(word))
        places = [tokenize(PAIR.format(word, word)), tokenize(WORD.format(word)), tokenize(GIVEN.format("it", word))]
        if ids[:-1] == front and ids[-1] not in frame and [row.count(ids[-1]) for row in places] == [2, 1, 1]:
            tokens_by_word[word] = ids[-1]
    uses = Counter(tokens_by_word.values())  # several unknown words may share the same token
    return {word: token for word, token in tokens_by_word.items() if uses[token] == 1}


def context_of(
    trial: RulerTrial,
    corpus: Corpus,
    tokenize: Callable[[str], list[int]],
    words: Mapping[str, int],
    length: int,
    rng: random.Random,
) -> Context:
    """Return a row of this length: sentences anywhere in the filler, which does not contain the requested words."""
    placed = []
    for chain in trial.chains:
        places = sorted(rng.random() for _ in chain)
        placed += list(zip(places, map(tokenize, chain), strict=True))
    question = tokenize(trial.question)
    room = length - len(corpus.prefix) - len(question) - sum(len(ids) for _, ids in placed)
    used = {token for _, ids in placed for token in ids}
    candidates = [words[word] for word in (*trial.wrong, trial.right)]
    unwanted = {*candidates, *(used & set(words.values()))}
    filler = text_of_others(corpus, None, room, rng, unwanted)
    row = (*corpus.prefix, *woven(filler, placed), *question)
    return Context(0.0, row, tuple(candidates), len(candidates) - 1)
