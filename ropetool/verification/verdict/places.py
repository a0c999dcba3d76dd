"""The places in documents that a default verification reads. Types of text take turns, and within a type authors do.

Only the necessary part of a document is tokenized. All tokenizers must return the same ids.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ropetool.errors import ConfigError
from ropetool.verification.corpus import PREFIX, refuse_other_ids
from ropetool.verification.scoring import TARGET, Tokenizes
from ropetool.verification.texts import Document

SAMPLE = 20_000  # characters that are tokenized to estimate the characters per token
SPARE = 1.2  # the factor on the estimated characters of a place, so that it has enough tokens
LONGER = 1.5  # the factor for the next try if it does not have enough


@dataclass(frozen=True)
class Place:
    """A part of a document as ids.

    author: the number of the author. Standard errors are clustered by author.
    name, kind: the name of the document, and its kind of text.
    start: the first character in the document.
    prefix: ids in front of every row (BOS).
    ids: the ids of the text, without the prefix.
    size: bytes per token.
    """

    author: int
    name: str
    kind: str
    start: int
    prefix: tuple[int, ...]
    ids: tuple[int, ...]
    size: float

    def row(self, end: int, length: int) -> list[int]:
        """Return a row of `length` tokens that ends at the same token as a row from the start with `end` tokens.

        Both numbers include the prefix.
        """
        stop = end - len(self.prefix)
        return [*self.prefix, *self.ids[stop - (length - len(self.prefix)) : stop]]


class Places:
    """The places of a run, in an order that follows from the seed.

    length: the tokens of a row, including the prefix.
    readers: the tokenizers by role; the target must be one of them.
    paths: the checkpoints by role, for errors.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        length: int,
        readers: Mapping[str, Tokenizes],
        paths: Mapping[str, Path],
        seed: int,
    ) -> None:
        self._documents, self._readers, self._paths = documents, readers, paths
        self._authors = authors_of(documents)
        target = readers[TARGET]
        self.prefix = tuple(target.prefix)
        for role, reader in readers.items():
            refuse_other_ids(PREFIX, self.prefix, reader.prefix, paths[TARGET], paths[role])
        self._characters = _characters(documents, target)
        self.length = length
        self._order = self._shuffled(seed)

    def _span(self) -> int:
        return int(self.length * self._characters * SPARE)

    def _shuffled(self, seed: int) -> list[tuple[int, int]]:
        """Return all places as (document, first character). Types of text, then authors, then documents take turns."""
        rng = random.Random(seed)
        span, by_kind = self._span(), dict[str, dict[int, list[list[tuple[int, int]]]]]()
        for number, document in enumerate(self._documents):
            room = len(document.text) - span
            count = max(1, len(document.text) // span)
            shift = rng.randrange(max(1, len(document.text) - count * span + 1))
            places = [(number, shift + index * span) for index in range(count)] if room >= 0 else [(number, 0)]
            rng.shuffle(places)
            by_kind.setdefault(document.kind, {}).setdefault(self._authors[number], []).append(places)
        by_authors = {kind: _by_author(each.values(), rng) for kind, each in by_kind.items()}
        lists = [places for _, places in sorted(by_authors.items())]
        rng.shuffle(lists)
        return _in_turn(lists)

    def __iter__(self) -> Iterator[Place]:
        """Yield the places with enough text. Raises: ConfigError if the tokenizers return different ids for a text."""
        for number, start in self._order:
            document = self._documents[number]
            begin = _at_a_line(document.text, start)
            place = self._place(number, document, begin)
            if place is not None:
                yield place

    def _place(self, number: int, document: Document, begin: int) -> Place | None:
        needed, size = self.length - len(self.prefix), self._span()
        while True:
            text = document.text[begin : begin + size]
            ids = self._readers[TARGET].tokenize(text)
            if len(ids) > needed:  # one more than needed, because the cut may change the last token
                break
            if begin + size >= len(document.text):
                return None
            size = int(LONGER * size)
        for role, reader in self._readers.items():
            if role != TARGET:
                refuse_other_ids(document.name, ids, reader.tokenize(text), self._paths[TARGET], self._paths[role])
        return Place(
            self._authors[number], document.name, document.kind, begin, self.prefix, tuple(ids[:needed]),
            len(text.encode()) / len(ids),
        )  # fmt: skip


def authors_of(documents: Sequence[Document]) -> list[int]:
    """Return the number of each document's author. Each document without an author gets a separate number."""
    numbers: dict[str | int, int] = {}
    return [numbers.setdefault(document.author or index, len(numbers)) for index, document in enumerate(documents)]


def longest_row(documents: Sequence[Document], target: Tokenizes) -> int:
    """Return the approximate number of tokens in the longest document. Raises: ConfigError without a document."""
    if not documents:
        raise ConfigError("the texts must contain at least one document", where="--text")
    return int(max(len(document.text) for document in documents) / _characters(documents, target) / SPARE)


def _characters(documents: Sequence[Document], target: Tokenizes) -> float:
    """Return the average number of characters per token at the beginning of the first document."""
    sample = documents[0].text[:SAMPLE]
    return len(sample) / max(1, len(target.tokenize(sample)))


def _at_a_line(text: str, start: int) -> int:
    """Return the first character of the next line after `start`; `start` if it is 0 or no line ends within 2000 characters."""
    if not start:
        return 0
    end = text.find("\n", start, start + 2000)
    return start if end < 0 else end + 1


def _by_author(authors: Iterable[list[list[tuple[int, int]]]], rng: random.Random) -> list[tuple[int, int]]:
    """Return the places of one kind of text. Authors take turns. authors: the places of each document, for each author."""
    lists = []
    for documents in authors:
        rng.shuffle(documents)
        lists.append(_in_turn(documents))
    rng.shuffle(lists)
    return _in_turn(lists)


def _in_turn(lists: Sequence[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Return the entries of all lists: the first of each, then the second of each, and so on."""
    return [
        entry
        for index in range(max(map(len, lists), default=0))
        for entry in (each[index] for each in lists if index < len(each))
    ]
