"""Text in front of scored tokens: passages, and filler from other documents, chosen by seed."""

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
    """A passage with its filler.

    document: the index of its document.
    tokens: the ids of the passage.
    filler: ids of other documents, as many as the longest row has room for.
    unrelated: a passage of other documents with the same length.
    """

    document: int
    tokens: tuple[int, ...]
    filler: tuple[int, ...]
    unrelated: tuple[int, ...]


def passage_length(trained_length: int, room: int) -> int:
    """Return the length of a passage in tokens. Half of it is scored, and the rest is context for the scored half.

    Two passages fit into the trained length, and into `room`, the tokens for text in the longest row.
    """
    return min(128, trained_length // 2, room // 2)


def passages(corpus: Corpus, size: int, filler: int, count: int, seed: int) -> tuple[Passage, ...]:
    """Return `count` passages, each with filler and an unrelated passage of other documents. Documents take turns.

    size, filler: the tokens of a passage, and of its filler.
    Raises: ConfigError if there is only one document, or none is long enough.
    """
    if sum(len(tokens) > 0 for tokens in corpus.tokens) < 2:
        raise ConfigError(
            "filler needs a second document, and the texts are only one", where="--text", try_="two texts or more"
        )
    chosen = choose_segments([len(ids) for ids in corpus.tokens], [size], size, count, seed)[size]
    with_filler = []
    for index, segment in enumerate(chosen):
        rng = random.Random(f"{seed} {index}")
        own = corpus.tokens[segment.document][segment.end - size : segment.end]
        with_filler.append(
            Passage(
                segment.document,
                tuple(own.tolist()),
                text_of_others(corpus, segment.document, filler, rng),
                text_of_others(corpus, segment.document, size, rng),
            )
        )
    return tuple(with_filler)


def text_of_others(
    corpus: Corpus, document: int | None, count: int, rng: random.Random, without: Collection[int] = (), kind: str = ""
) -> tuple[int, ...]:
    """Return the filler of `filler_of_others` without its document."""
    return filler_of_others(corpus, document, count, rng, without, kind)[0]


def filler_of_others(
    corpus: Corpus, document: int | None, count: int, rng: random.Random, without: Collection[int] = (), kind: str = ""
) -> tuple[tuple[int, ...], int | None]:
    """Return `count` tokens of other documents, and the index of the document in which they begin.

    The tokens are a part of this document, continued with the beginnings of the next documents. If all documents are
    too short, the tokens are repeated.

    Documents of the same kind are preferred, because code after verses is predicted worse than code after code at any
    position.

    document: the index of a document that is not used; None uses all.
    without: tokens that are left out.
    kind: the preferred kind of text without a `document`.

    Raises: ConfigError if nothing is left.
    """
    preferred = corpus.kinds[document] if corpus.kinds and document is not None else kind
    chosen = [index for index, tokens in enumerate(corpus.tokens) if index != document and len(tokens)]
    rng.shuffle(chosen)
    if corpus.kinds and preferred:
        chosen.sort(key=lambda index: corpus.kinds[index] != preferred)
    others = [corpus.tokens[index] for index in chosen]
    start = rng.randrange(max(1, len(others[0]) - count + 1)) if others else 0
    pieces = [others[0][start:], *others[1:], others[0][:start]] if others else []
    filler: list[int] = []
    for piece in pieces:
        if len(filler) < count:
            filler += piece[~np.isin(piece, list(without))][: count - len(filler)].tolist()
    if count and not filler:
        raise ConfigError("the texts contain no filler for the context", where="--text", try_="longer texts")
    return tuple(np.resize(filler, count).tolist()), next(iter(chosen), None)
