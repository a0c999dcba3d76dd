"""Text that stands in front of what is scored: passages, and filler from other documents, by seed.

Counts tokens; knows nothing of models.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ropetool.errors import ConfigError
from ropetool.verification.measures.segments import choose_segments
from ropetool.verification.scoring import Corpus


@dataclass(frozen=True)
class Passage:
    """Some tokens of a document, and as much other text as the longest row has room for."""

    document: int
    tokens: tuple[int, ...]
    filler: tuple[int, ...]
    unrelated: tuple[int, ...]


def passage_length(trained_length: int, room: int) -> int:
    """Return how long a passage is: half of it is scored, and the rest gives it a context of its own.

    Two of them fit into the trained length, and into the `room` that the longest row has for text.
    """
    return min(128, trained_length // 2, room // 2)


def passages(corpus: Corpus, size: int, filler: int, count: int, seed: int) -> tuple[Passage, ...]:
    """Return `count` passages, documents taking turns, each with filler and an unrelated passage of other documents.

    Raises: ConfigError if there is no other document, or none long enough.
    """
    if sum(len(tokens) > 0 for tokens in corpus.tokens) < 2:
        raise ConfigError(
            "filler needs a second document, and the texts are only one", where="--text", try_="two texts or more"
        )
    chosen = choose_segments([len(ids) for ids in corpus.tokens], [size], size, count, seed)[size]
    found = []
    for index, segment in enumerate(chosen):
        rng = random.Random(f"{seed} {index}")
        own = corpus.tokens[segment.document][segment.end - size : segment.end]
        found.append(
            Passage(
                segment.document,
                tuple(own.tolist()),
                text_of_others(corpus, segment.document, filler, rng),
                text_of_others(corpus, segment.document, size, rng),
            )
        )
    return tuple(found)


def text_of_others(
    corpus: Corpus,
    document: int | None,
    count: int,
    rng: random.Random,
    without: Collection[int] = (),
    kind: str = "",
) -> tuple[int, ...]:
    """Return the tokens of `filler_of_others`."""
    return filler_of_others(corpus, document, count, rng, without, kind)[0]


def filler_of_others(
    corpus: Corpus,
    document: int | None,
    count: int,
    rng: random.Random,
    without: Collection[int] = (),
    kind: str = "",
) -> tuple[tuple[int, ...], int | None]:
    """Return `count` tokens of other documents, and the document that they begin in.

    They are one stretch of that document, and where it ends the next one's start.

    Documents of the same kind come first, that of the document or the one named: code behind verses is predicted worse
    than code behind code, however far away positions reach. Tokens of `without` are left out. Where the documents are too
    short for the count, they are repeated.

    Raises: ConfigError if nothing is left.
    """
    wanted = corpus.kinds[document] if corpus.kinds and document is not None else kind
    chosen = [index for index, tokens in enumerate(corpus.tokens) if index != document and len(tokens)]
    rng.shuffle(chosen)
    if corpus.kinds and wanted:
        chosen.sort(key=lambda index: corpus.kinds[index] != wanted)
    others = [corpus.tokens[index] for index in chosen]
    start = rng.randrange(max(1, len(others[0]) - count + 1)) if others else 0
    pieces = [others[0][start:], *others[1:], others[0][:start]] if others else []
    found: list[int] = []
    for piece in pieces:
        if len(found) < count:
            found += piece[~np.isin(piece, list(without))][: count - len(found)].tolist()
    if count and not found:
        raise ConfigError("the texts contain no filler for the context", where="--text", try_="longer texts")
    return tuple(np.resize(found, count).tolist()), next(iter(chosen), None)
