"""Where in the documents the scored tokens lie: seeded places, the same ones at every length.

Counts tokens; knows nothing of models, and no text.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ropetool.verification.statistics import effective_documents
from ropetool.verification.texts import too_short

MIN_SEGMENTS = 8
MIN_DOCUMENTS = 4  # effective ones: so many of equal size, below which an interval is hardly more than a guess
MAX_SCORED = 128


@dataclass(frozen=True)
class Segment:
    """A place in a text: its scored tokens are the last ones before token `end` of a document."""

    document: int
    end: int


def scored_tokens(trained_length: int, lengths: Iterable[int]) -> int:
    """Return how many tokens at the end of a segment are scored, at every length alike.

    At most a quarter of the trained length, so that all of them have most of it as context, and at most half of
    the shortest length, so that there too every one has as much context as there are scored tokens.
    """
    return min(MAX_SCORED, trained_length // 4, min(lengths) // 2)


def enough(segments: Sequence[Segment]) -> bool:
    """Return whether the segments carry a verdict: 8 or more of them, from 4 effective documents or more."""
    return not lacking([s.document for s in segments])


def lacking(documents: Sequence[int], parts: str = "segments") -> str:
    """Return why parts of these documents, one entry a part, carry no verdict; empty if they do."""
    count, effective = len(documents), effective_documents(documents)
    if count >= MIN_SEGMENTS and effective >= MIN_DOCUMENTS:
        return ""
    equal = f", as good as {effective:.1f} documents with equal shares" if effective < MIN_DOCUMENTS else ""
    found = f"{count} {parts} of {len(set(documents))} documents{equal}"
    return f"only {found}; a verdict needs {MIN_SEGMENTS} {parts} of {MIN_DOCUMENTS} documents"


def _spread(segments: Sequence[Segment]) -> bool:
    return effective_documents([s.document for s in segments]) >= MIN_DOCUMENTS


def choose_segments(
    document_tokens: Sequence[int], lengths: Sequence[int], scored: int, count: int, seed: int, prefix: int = 0
) -> dict[int, tuple[Segment, ...]]:
    """Return the segments for each length; those of a length are the first ones of every shorter length.

    Scored parts do not overlap, and documents take turns. No document gives more than a quarter of `count`, nor so many
    that the effective documents fall below 4 where fewer would leave as many. When the documents that fit the longest
    length give `enough` segments, all lengths have the same ones. Otherwise shorter lengths add segments until they have.

    Units: lengths in tokens of model input, of which `prefix` (BOS) do not come from the document.
    Raises: ConfigError if no document fits the longest length.
    """
    rng = random.Random(seed)
    needs = [length - prefix for length in lengths]
    grids = [(index, _grid(tokens, needs, scored, rng)) for index, tokens in enumerate(document_tokens)]
    rng.shuffle(grids)  # who comes first matters when there are more documents than segments
    pool: list[Segment] = []
    chosen = {}
    for length in sorted(lengths, reverse=True):
        if not enough(pool):
            pool = _extended(pool, grids, length - prefix, count, rng)
        if not pool:
            raise too_short(length, length - prefix, max(document_tokens, default=0))
        chosen[length] = tuple(pool)
    return chosen


def _grid(tokens: int, needs: Sequence[int], scored: int, rng: random.Random) -> range:
    """Return the ends, a scored part apart, that segments of a document may have, last one first.

    The grid hangs from a random end near the document's, so that places vary with the seed and scored parts never
    overlap; it keeps as close to it as the longest length that fits asks for.
    """
    spare = tokens - max((need for need in needs if need <= tokens), default=tokens)
    return range(tokens - rng.randrange(min(scored, spare + 1)), 0, -scored)


def _extended(
    pool: Sequence[Segment], grids: Sequence[tuple[int, range]], need: int, count: int, rng: random.Random
) -> list[Segment]:
    """Return the pool and what documents with `need` tokens in front of an end add, taking turns, up to `count`."""
    places = []
    for document, grid in grids:
        used = [segment.end for segment in pool if segment.document == document]
        fitting = range(grid.start, need - 1, grid.step)
        fresh = [end for end in rng.sample(fitting, min(count, len(fitting))) if end not in used]
        places.append([Segment(document, end) for end in used + fresh])
    shares = range(math.ceil(count / MIN_DOCUMENTS), 0, -1)
    found = [_in_turns(pool, places, share, count) for share in shares]
    return next(filter(_spread, found), found[0])


def _in_turns(pool: Sequence[Segment], places: Sequence[Sequence[Segment]], share: int, count: int) -> list[Segment]:
    """Return the pool and the first `share` places of each document, all first ones before any second one."""
    turns = [segment for turn in zip_longest(*(some[:share] for some in places)) for segment in turn if segment]
    return [*pool, *(segment for segment in turns[:count] if segment not in pool)]
