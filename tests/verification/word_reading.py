"""A vocabulary of whole words, texts that have the words of the tasks, and readers that know what they see."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np

from ropetool.verification.measures.contexts import WORDS
from ropetool.verification.scoring import Corpus, Done, Predictions, Scores

PIECES = re.compile(r" ?[A-Za-z]+|\s|[^\sA-Za-z]| (?=[^A-Za-z])")


class Vocabulary:
    """Words with the space in front of them, line ends and signs as ids, and back. split: words of two tokens."""

    def __init__(self, split: Sequence[str] = ()) -> None:
        self.ids, self.split = {"<bos>": 0}, set(split)

    def tokenize(self, text: str) -> list[int]:
        pieces: list[str] = []
        for piece in PIECES.findall(text):
            pieces += [piece[:-1], f"+{piece[-1]}"] if piece.strip() in self.split else [piece]
        return [self.ids.setdefault(piece, len(self.ids)) for piece in pieces]

    def text(self, ids: Sequence[int]) -> str:
        pieces = {token: piece for piece, token in self.ids.items()}
        return "".join(pieces[token] for token in ids)


def make_corpus(vocabulary: Vocabulary) -> Corpus:
    """Documents whose every third word is one of those that the tasks are made of."""
    tokens = []
    for index in range(6):
        rng = random.Random(f"text {index}")
        words = [rng.choice(WORDS) if rng.random() < 0.3 else rng.choice("abcdefghij") * 2 for _ in range(900)]
        tokens.append(np.array(vocabulary.tokenize("".join(f" {word}" for word in words))[:900], dtype=np.int64))
    return Corpus(tuple("abcdef"), tuple(tokens), tuple(np.ones_like(t) for t in tokens), (0,))


class Reader:
    """Answers by what stands in the last tokens of a row, and guesses where it sees nothing."""

    prefix: tuple[int, ...] = ()
    description = "a reader"

    def __init__(self, vocabulary: Vocabulary, sees: int = 10**9) -> None:
        self.vocabulary, self.sees, self.rng = vocabulary, sees, np.random.default_rng(0)

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done) -> Scores:
        raise AssertionError

    def predict(self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done) -> Predictions:
        found = self.rng.uniform(-9, -8, size=(len(rows), len(candidates[0])))
        for index, (row, few) in enumerate(zip(rows, candidates, strict=True)):
            words = [self.vocabulary.text([token]).strip() for token in few]
            seen = self.answer(self.vocabulary.text(row[max(0, len(row) - self.sees) :]), words)
            if seen is not None:
                found[index, words.index(seen)] = -1.0
        done(sum(map(len, rows)))
        return Predictions(found, np.zeros(len(rows), dtype=np.int64))

    def answer(self, text: str, words: Sequence[str]) -> str | None:
        """Return which of the words the text asks for, None where it does not tell."""
        raise NotImplementedError


class Blind(Reader):
    def answer(self, text: str, words: Sequence[str]) -> str | None:
        return None
