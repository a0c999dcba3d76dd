"""Causal attention by bands of distance, a block of queries at a time, with an online softmax.

A block of keys that lies in one band for all queries of a block is computed once, with queries and keys as that band has them
rotated; only one that straddles an edge is computed for both bands. Never holds the scores of more than a block. In torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ropetool.lab.yardsticks.pairs import Pairs

QUERIES = 128  # of a block: a straddled block is as wide, and no more is computed twice
KEYS = 2048  # of a block at most


@dataclass(frozen=True)
class Stretch:
    """The keys from `start` up to but not including `end`, and the bands that they are in for queries of a block.

    masked: whether some query does not see some of them.
    """

    start: int
    end: int
    bands: range
    masked: bool


def attend(
    queries: Sequence[Any],
    keys: Sequence[Any],
    values: Any,
    pairs: Pairs,
    *,
    scaling: float,
    softcap: float | None = None,
    sinks: Any = None,
) -> Any:
    """Return what each query makes of the values of the keys before it and of its own.

    queries, keys: as each band has them rotated. softcap: scores are bent to stay within it, as Gemma 2 does. sinks: scores
    of no key by head, as gpt-oss has them, which take a part of the softmax. Computes in the type of `values`, which is
    float32 or float64.

    Shapes: queries (rows, heads, tokens, channels), keys (rows, key heads, tokens, channels), values and what is returned
    likewise with their own channels, sinks (heads,).
    """
    import torch

    rows, heads, tokens, _ = queries[0].shape
    key_heads = values.shape[1]
    group = heads // key_heads
    grouped = [each.unflatten(1, (key_heads, group)) * scaling for each in queries]
    turned = [each.mT for each in keys]
    found = values.new_empty(rows, key_heads, group, tokens, values.shape[-1])
    for first in range(0, tokens, QUERIES):
        last = min(first + QUERIES, tokens)
        block = [each[..., first:last, :].flatten(2, 3) for each in grouped]
        shape = (rows, key_heads, group * (last - first), 1)
        highest = values.new_full(shape, torch.finfo(values.dtype).min)  # not -inf, of which nothing can be subtracted
        weight, sums = values.new_zeros(shape), values.new_zeros(*shape[:-1], values.shape[-1])
        for stretch in stretches(pairs, first, last):
            scores = _scores(block, turned, pairs, stretch, (first, last), softcap)
            before, highest = highest, torch.maximum(highest, scores.amax(-1, keepdim=True))
            kept = torch.exp(before - highest)
            scores = scores.sub_(highest).exp_()
            weight = weight * kept + scores.sum(-1, keepdim=True)
            sums = sums * kept + scores @ values[:, :, stretch.start : stretch.end]
        if sinks is not None:
            of_heads = sinks.to(values.dtype).view(1, key_heads, group, 1, 1)
            weight = weight + torch.exp(
                of_heads.expand(rows, -1, -1, last - first, -1).reshape(shape) - highest
            )  # of a sink far above all scores it is infinite, and the query sees nothing, as by the definition
        found[..., first:last, :] = (sums / weight).unflatten(2, (group, last - first))
    return found.flatten(1, 2)


def stretches(pairs: Pairs, first: int, last: int) -> Iterator[Stretch]:
    """Yield the keys that some of the queries from `first` up to `last` see, the nearest ones first."""
    bands = pairs.bands
    edges = {0, first, last}
    for band in bands[1:]:
        # A key is in this band, or beyond, for the first query below the one edge, for the last query below the other.
        edges |= {place - band.first + 1 for place in (first, last - 1)}
    edges |= {band.seen for band in bands if band.seen}
    known = sorted(edge for edge in edges if 0 <= edge <= last)
    for start, end in reversed([*pairwise(known)]):
        nearest = _band(pairs, first - (end - 1))
        farthest = _band(pairs, last - 1 - start)
        if bands[nearest].seen is not None and start >= (bands[nearest].seen or 0):
            continue  # what is farther is seen no more either
        unseen = any(
            bands[at].seen is not None and start >= (bands[at].seen or 0) for at in range(nearest, farthest + 1)
        )
        masked = end - 1 > first or unseen
        for at in range(start, end, KEYS):
            yield Stretch(at, min(at + KEYS, end), range(nearest, farthest + 1), masked)


def _band(pairs: Pairs, distance: int) -> int:
    return max(at for at, band in enumerate(pairs.bands) if band.first <= max(distance, 0))


def _scores(
    block: Sequence[Any],
    turned: Sequence[Any],
    pairs: Pairs,
    stretch: Stretch,
    places: tuple[int, int],
    softcap: float | None,
) -> Any:
    """Return the scores of a block of queries with a stretch of keys, -inf where a key is not seen."""
    import torch

    part = slice(stretch.start, stretch.end)
    scores = block[stretch.bands[0]] @ turned[stretch.bands[0]][..., part]
    if len(stretch.bands) > 1 or stretch.masked:
        queries = torch.arange(*places, device=scores.device)[:, None]
        keys = torch.arange(stretch.start, stretch.end, device=scores.device)
        apart = queries - keys
        unseen = keys > queries
        repeats = (block[0].shape[2] // len(queries), 1)  # the queries of all heads of a group follow one another
        for at in stretch.bands:
            band = pairs.bands[at]
            inside = apart >= band.first
            if band.seen is not None:
                unseen |= inside & (keys >= band.seen)
            if at > stretch.bands[0] and (band.seen is None or stretch.start < band.seen):
                scores = torch.where(inside.repeat(repeats), block[at] @ turned[at][..., part], scores)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        return scores.masked_fill_(unseen.repeat(repeats), -torch.inf) if stretch.masked else scores
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap
