"""Contexts with a question at the end: sentences with keys and values, woven into filler.

With several keys, the model cannot find the answer only by its form, as it could find a single number in prose. The
answer is one token, so the probabilities of all values can be compared.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ropetool.verification.measures.fillers import filler_of_others
from ropetool.verification.scoring import Corpus

KEYS = "keys"  # the task of the measure `retrieval`
PROSE = "prose"  # a kind of text in the catalogue
MOST_OF_CONTEXT = 0.5  # the largest share of sentences in a context; the rest is filler
# Common words. All are one token in the vocabularies of Llama 3, Qwen2 and GPT-2, and 37 in the demo's vocabulary of 2048.
WORDS = """
air animal answer arm army bed bird blood blue board boat body book box bread bridge brother building call camp car
case chair change child church city class clothes color control corner country cover cross daughter day death door
earth east end example eye face family farm father field file fire fish floor flower food foot form friend front fruit
game garden gate glass gold grass green ground group hair hand hat head heart heat hill history home horse hour house
ice idea iron island key kind king kitchen lake land letter level life light line list love machine man map mark
market master meat message milk mind money month moon morning mother mountain mouth music name neck night north number
office oil order page paper part path peace pen people picture place plant point port power price prince problem
program queen question rain reason red result river road rock room root rule salt school sea season seed servant set
sheep ship shop side silver sister size skin sky sleep snow son song sound south space spring star state stone store
story street string summer sun system table teacher test thing time tower town tree truth type valley value village
voice wall war water way week west wheel white wife wind window wine winter woman wood word work world year
""".split()  # noqa: SIM905  # a list would need a line for each word


@dataclass(frozen=True)
class RetrievalTask:
    """The sentences and the question of a task.

    keys: the largest number of `{key}` and `{value}` pairs.
    statement: the sentence with a key and its value.
    question: the end of the context.
    hop: the sentence that gives a key a second name. hops: the number of names between a key and its value.
    in_prose: put each sentence between two sentences of prose, if the texts have prose.
    """

    name: str
    keys: int
    statement: str
    question: str
    hop: str = ""
    hops: int = 0
    in_prose: bool = False

    @property
    def words(self) -> int:
        """The number of words for each key: its value and all its names."""
        return 2 + self.hops


TASKS = {
    task.name: task
    for task in (
        RetrievalTask(KEYS, 8, "\n[ {key} {value} ]\n", "\n[ {key}"),
        RetrievalTask("many-keys", 32, "\n[ {key} {value} ]\n", "\n[ {key}"),
        RetrievalTask(
            "variables", 4, "\nThe secret word of {key} is {value}.\n", "\nThe secret word of {key} is",
            hop="\nThe secret word of {key} is that of {value}.\n", hops=1,
        ),
        RetrievalTask("needles", 8, " The secret word of {key} is {value}.", " The secret word of {key} is", in_prose=True),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Context:
    """One row with its question.

    depth: the place of the sentence, 0 for the start and 1 for the end.
    row: the ids, with the question at the end.
    candidates: the ids of all values. answer: the index of the correct one.
    document: the document in which the filler begins, or None if it is unknown.
    """

    depth: float
    row: tuple[int, ...]
    candidates: tuple[int, ...]
    answer: int
    document: int | None = None


def single_tokens(task: RetrievalTask, tokenize: Callable[[str], list[int]]) -> dict[str, int]:
    """Return the words that are one token after the question and do not occur in the sentences, with their tokens.

    A separate " word" cannot be tokenized instead, because SentencePiece vocabularies add a space in front of a text.
    """
    question = task.question.format(key="it")
    front = tokenize(question)
    frame = {*front, *tokenize(task.statement.format(key="it", value="it"))}
    frame.update(tokenize(task.hop.format(key="it", value="it")))
    behind = {word: tokenize(f"{question} {word}") for word in WORDS}
    tokens = {word: ids[-1] for word, ids in behind.items() if ids[:-1] == front and ids[-1] not in frame}
    uses = Counter(tokens.values())  # the token for unknown words stands for many
    return {word: token for word, token in tokens.items() if uses[token] == 1}


def sentence_ends(tokenize: Callable[[str], list[int]]) -> frozenset[int]:
    """Return the tokens that a sentence may end with."""
    return frozenset(tokenize(f"it{mark}")[-1] for mark in (".", "?", "!", ".\n", "\n"))


class ContextMaker:
    """Makes contexts of one length. keys: the largest number of keys that fit."""

    def __init__(
        self,
        task: RetrievalTask,
        corpus: Corpus,
        tokenize: Callable[[str], list[int]],
        words: Mapping[str, int],
        length: int,
    ) -> None:
        self._task, self._corpus, self._tokenize, self._length = task, corpus, tokenize, length
        self._words = words
        self._ends = sentence_ends(tokenize) if task.in_prose else frozenset()
        one = len(tokenize(task.statement.format(key="it", value="it")))
        one += task.hops * len(tokenize(task.hop.format(key="it", value="it")))
        self.keys = min(task.keys, int(length * MOST_OF_CONTEXT) // one, len(words) // task.words)

    def make(self, keys: int, depth: float, rng: random.Random) -> Context:
        """Return a context with this number of keys. The key in the question is at this depth, the others anywhere.

        Sentences with further names of a key are behind its first sentence. No word of the sentences occurs in the
        filler, because each occurrence would be a wrong place to find it.
        """
        task, tokenize = self._task, self._tokenize
        words = rng.sample(list(self._words), keys * task.words)
        values, names = words[:keys], words[keys:]
        answer = rng.randrange(keys)
        placed: list[tuple[float, list[int]]] = []
        last = []
        for index, value in enumerate(values):
            chain = names[index * (1 + task.hops) : (index + 1) * (1 + task.hops)]
            place = depth if index == answer else rng.random()
            places = [place, *sorted(rng.uniform(place, 1) for _ in chain[1:])]
            sentences = [task.statement.format(key=chain[0], value=value)]
            sentences += [task.hop.format(key=new, value=old) for old, new in pairwise(chain)]
            placed += zip(places, map(tokenize, sentences), strict=True)
            last.append(chain[-1])
        question = tokenize(task.question.format(key=last[answer]))
        room = self._length - len(self._corpus.prefix) - len(question) - sum(len(ids) for _, ids in placed)
        text_kind = PROSE if task.in_prose else ""
        unwanted = {self._words[word] for word in words}
        filler, document = filler_of_others(self._corpus, None, room, rng, unwanted, text_kind)
        row = [*self._corpus.prefix, *woven(filler, placed, self._ends), *question]
        return Context(depth, tuple(row), tuple(self._words[value] for value in values), answer, document)


def woven(filler: Sequence[int], placed: Sequence[tuple[float, list[int]]], ends: Collection[int] = ()) -> list[int]:
    """Return the filler with the sentences in it, each after its share of the filler.

    placed: the share and the ids of each sentence.
    ends: if the filler has one of these tokens, each sentence is put behind the nearest of them.
    """
    row: list[int] = []
    start = 0
    breaks = [at + 1 for at, token in enumerate(filler) if token in ends]
    breaks = [0, *breaks] if breaks else []
    for depth, sentence in sorted(placed, key=lambda entry: entry[0]):
        end = round(depth * len(filler))
        end = _nearest(breaks, end) if breaks else end
        row += [*filler[start:end], *sentence]
        start = end
    return [*row, *filler[start:]]


def _nearest(places: Sequence[int], position: int) -> int:
    """Return the place that is nearest to the position. places: in increasing order."""
    after = bisect_left(places, position)
    return min(places[max(0, after - 1) : after + 1], key=lambda place: abs(place - position))
