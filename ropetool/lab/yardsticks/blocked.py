"""Causal attention in torch that differs by bands of distance.

It runs a block of queries at a time, with an online softmax.
If a block of keys is in a single band for all queries of a block, its scores are computed once, with queries and keys
rotated for this band. If it straddles an edge, they are computed for both bands. The scores of only one block are in
memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ropetool.lab.yardsticks.pairs import Bands

QUERIES = 128  # per block; a block that straddles an edge is as wide, and only its scores are computed twice
KEYS = 2048  # per block at most


@dataclass(frozen=True)
class Stretch:
    """Some consecutive keys.

    start, end: the first key, and the key after the last.
    bands: the bands that the keys are in, for the queries of a block.
    masked: whether at least one query does not see all of them.
    """

    start: int
    end: int
    bands: range
    masked: bool


def attend(
    queries: Sequence[Any],
    keys: Sequence[Any],
    values: Any,
    bands: Bands,
    *,
    scaling: float,
    softcap: float | None = None,
    sinks: Any = None,
) -> Any:
    """Return the attention output of each query over the values of the earlier keys and its own.

    Computes in the type of `values`: float32 or float64.

    queries, keys: rotated for each band.
    softcap: bends the scores to stay within this number, as in Gemma 2.
    sinks: scores by head that take a part of the softmax without a key, as in gpt-oss.

    Shapes: queries (rows, heads, tokens, channels), keys (rows, key heads, tokens, channels), values and the result
    likewise with their own channels, sinks (heads,).
    """
    import torch

    rows, heads, tokens, _ = queries[0].shape
    key_heads = values.shape[1]
    group = heads // key_heads
    grouped = [each.unflatten(1, (key_heads, group)) * scaling for each in queries]
    transposed = [each.mT for each in keys]
    attended = values.new_empty(rows, key_heads, group, tokens, values.shape[-1])
    for first in range(0, tokens, QUERIES):
        last = min(first + QUERIES, tokens)
        block = [each[..., first:last, :].flatten(2, 3) for each in grouped]
        shape = (rows, key_heads, group * (last - first), 1)
        highest = values.new_full(shape, torch.finfo(values.dtype).min)  # not -inf, because -inf - -inf is NaN
        weight, sums = values.new_zeros(shape), values.new_zeros(*shape[:-1], values.shape[-1])
        for stretch in stretches(bands, first, last):
            scores = _scores(block, transposed, bands, stretch, (first, last), softcap)
            before, highest = highest, torch.maximum(highest, scores.amax(-1, keepdim=True))
            rescaling = torch.exp(before - highest)
            scores = scores.sub_(highest).exp_()
            weight = weight * rescaling + scores.sum(-1, keepdim=True)
            sums = sums * rescaling + scores @ values[:, :, stretch.start : stretch.end]
        if sinks is not None:
            of_heads = sinks.to(values.dtype).view(1, key_heads, group, 1, 1)
            weight = weight + torch.exp(
                of_heads.expand(rows, -1, -1, last - first, -1).reshape(shape) - highest
            )  # infinite if a sink is far above all scores; then the query sees nothing, which is correct
        attended[..., first:last, :] = (sums / weight).unflatten(2, (group, last - first))
    return attended.flatten(1, 2)


def stretches(bands: Bands, first: int, last: int) -> Iterator[Stretch]:
    """Yield the keys that at least one of the queries from `first` up to `last` sees, the nearest ones first."""
    all_bands = bands.bands
    edges = {0, first, last}
    for band in all_bands[1:]:
        # Below the one edge, a key is in this band or beyond for the first query. Below the other, for the last query.
        edges |= {place - band.first + 1 for place in (first, last - 1)}
    edges |= {band.seen for band in all_bands if band.seen}
    known = sorted(edge for edge in edges if 0 <= edge <= last)
    for start, end in reversed([*pairwise(known)]):
        nearest = _band(bands, first - (end - 1))
        farthest = _band(bands, last - 1 - start)
        if all_bands[nearest].seen is not None and start >= (all_bands[nearest].seen or 0):
            continue  # no query sees any key farther away, either
        unseen = any(
            all_bands[index].seen is not None and start >= (all_bands[index].seen or 0)
            for index in range(nearest, farthest + 1)
        )
        masked = end - 1 > first or unseen
        for begin in range(start, end, KEYS):
            yield Stretch(begin, min(begin + KEYS, end), range(nearest, farthest + 1), masked)


def _band(bands: Bands, distance: int) -> int:
    return max(index for index, band in enumerate(bands.bands) if band.first <= max(distance, 0))


def _scores(
    block: Sequence[Any],
    transposed: Sequence[Any],
    bands: Bands,
    stretch: Stretch,
    places: tuple[int, int],
    softcap: float | None,
) -> Any:
    """Return the scores of a block of queries with a stretch of keys.

    They are -inf if the query does not see the key.
    """
    import torch

    part = slice(stretch.start, stretch.end)
    scores = block[stretch.bands[0]] @ transposed[stretch.bands[0]][..., part]
    if len(stretch.bands) > 1 or stretch.masked:
        queries = torch.arange(*places, device=scores.device)[:, None]
        keys = torch.arange(stretch.start, stretch.end, device=scores.device)
        distances = queries - keys
        unseen = keys > queries
        repeats = (block[0].shape[2] // len(queries), 1)  # the queries of a group's heads are one after the other
        for index in stretch.bands:
            band = bands.bands[index]
            inside = distances >= band.first
            if band.seen is not None:
                unseen |= inside & (keys >= band.seen)
            if index > stretch.bands[0] and (band.seen is None or stretch.start < band.seen):
                scores = torch.where(inside.repeat(repeats), block[index] @ transposed[index][..., part], scores)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        return scores.masked_fill_(unseen.repeat(repeats), -torch.inf) if stretch.masked else scores
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap
