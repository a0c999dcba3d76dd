"""The places of scored tokens in the documents. They depend on the seed, and are the same at every length."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ropetool.verification.statistics import effective_documents
from ropetool.verification.texts import too_short

MIN_SEGMENTS = 8
MIN_DOCUMENTS = 4  # effective documents, that is, documents of equal size; with fewer, an interval is almost a guess
MAX_SCORED = 128


@dataclass(frozen=True)
class Segment:
    """A place in a text. Its scored tokens are the last ones before token `end` of the document with this index."""

    document: int
    end: int


def scored_tokens(trained_length: int, lengths: Iterable[int]) -> int:
    """Return the number of scored tokens at the end of a segment, which is the same at every length.

    It is at most a quarter of the trained length, so that most of that length is context for each token. It is at most
    half of the shortest length, so that each token there has at least this much context.
    """
    return min(MAX_SCORED, trained_length // 4, min(lengths) // 2)


def enough(segments: Sequence[Segment]) -> bool:
    """Return whether the segments are enough for a verdict: at least 8, from at least 4 effective documents."""
    return not lacking([s.document for s in segments])


def lacking(documents: Sequence[int], parts: str = "segments") -> str:
    """Return why these parts are not enough for a verdict, or "" if they are. documents: the document of each part."""
    count, effective = len(documents), effective_documents(documents)
    if count >= MIN_SEGMENTS and effective >= MIN_DOCUMENTS:
        return ""
    equal = f", as good as {effective:.1f} documents with equal shares" if effective < MIN_DOCUMENTS else ""
    amount = f"{count} {parts} of {len(set(documents))} documents{equal}"
    return f"only {amount}; a verdict needs {MIN_SEGMENTS} {parts} of {MIN_DOCUMENTS} documents"


def _spread(segments: Sequence[Segment]) -> bool:
    return effective_documents([s.document for s in segments]) >= MIN_DOCUMENTS


def choose_segments(
    document_tokens: Sequence[int], lengths: Sequence[int], scored: int, count: int, seed: int, prefix: int = 0
) -> dict[int, tuple[Segment, ...]]:
    """Return the segments for each length. Each shorter length begins with the segments of the longer one.

    Scored parts do not overlap, and documents take turns. No document has more than a quarter of `count`. A document
    gets fewer segments if that keeps the number of effective documents at 4 or more. If the documents that fit the
    longest length have `enough` segments, all lengths have the same segments. Otherwise shorter lengths get more
    segments.

    document_tokens: the number of tokens in each document.
    lengths: tokens of model input, including `prefix` tokens (BOS) that are not from the document.
    scored: the scored tokens of a segment.
    Raises: ConfigError if no document fits the longest length.
    """
    rng = random.Random(seed)
    needs = [length - prefix for length in lengths]
    grids = [(index, _grid(tokens, needs, scored, rng)) for index, tokens in enumerate(document_tokens)]
    rng.shuffle(grids)  # because the first documents are used if there are more documents than segments
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
    """Return the possible ends of segments in a document, the last one first. Their distance is one scored part.

    The last end is random, near the end of the document, so that places depend on the seed. Its distance from the end
    of the document is limited, so that the longest fitting length still fits.
    """
    spare = tokens - max((need for need in needs if need <= tokens), default=tokens)
    return range(tokens - rng.randrange(min(scored, spare + 1)), 0, -scored)


def _extended(
    pool: Sequence[Segment], grids: Sequence[tuple[int, range]], need: int, count: int, rng: random.Random
) -> list[Segment]:
    """Return the pool with more segments, up to `count`. Documents with `need` tokens before an end take turns."""
    places = []
    for document, grid in grids:
        used = [segment.end for segment in pool if segment.document == document]
        fitting = range(grid.start, need - 1, grid.step)
        fresh = [end for end in rng.sample(fitting, min(count, len(fitting))) if end not in used]
        places.append([Segment(document, end) for end in used + fresh])
    shares = range(math.ceil(count / MIN_DOCUMENTS), 0, -1)
    candidates = [_in_turns(pool, places, share, count) for share in shares]
    return next(filter(_spread, candidates), candidates[0])


def _in_turns(pool: Sequence[Segment], places: Sequence[Sequence[Segment]], share: int, count: int) -> list[Segment]:
    """Return the pool and the first `share` places of each document, up to `count`. Documents take turns."""
    turns = [segment for turn in zip_longest(*(some[:share] for some in places)) for segment in turn if segment]
    return [*pool, *(segment for segment in turns[:count] if segment not in pool)]
