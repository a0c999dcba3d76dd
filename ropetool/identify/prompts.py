"""Prompts behind which the hypotheses differ most, so that a few answers tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ropetool.identify.hypotheses import Hypothesis
from ropetool.identify.reference import Reference
from ropetool.rope.tables import Array

PLACES = 24  # of each text that may be asked about, where not more are asked for
SHORTEST = 32  # tokens of a prompt
ENOUGH = 12  # prompts that tell a pair apart: chance makes all of them the worse for one in 1 of 4096 cases
PLAIN = 0.01  # nats by which one prompt tells a pair apart, whatever a server rounds
NEAR = 0.01  # what the sum of all distances counts beside
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Prompt:
    """The ids of a prompt, and what each hypothesis finds likely behind it. Shapes: log_probs (hypotheses, vocabulary)."""

    ids: tuple[int, ...]
    log_probs: Array


def choose(
    reference: Reference, hypotheses: Sequence[Hypothesis], texts: Sequence[Sequence[int]], count: int, tell: Tell
) -> list[Prompt]:
    """Return `count` prompts, as many of each text, by which any two hypotheses are as far apart as can be, by as many as are needed."""
    share = max(1, -(-count // len(texts)))
    found: list[Prompt] = []
    apart, told_by = np.zeros((2, len(hypotheses), len(hypotheses)))
    total, finished = len(texts) * len(hypotheses), 0
    for ids in texts:
        ends = _places(len(ids), max(PLACES, 2 * share))
        probs = []
        for one in hypotheses:
            probs.append(reference.log_probs(one, ids, ends).astype(np.float32))  # a large vocabulary fills a memory
            finished += 1
            tell("reading the prompts with each table", finished, total)
        told = np.stack(probs)  # (hypotheses, places, vocabulary)
        distance = np.stack([_divergences(told[:, place].astype(np.float64)) for place in range(len(ends))])
        for _ in range(min(share, len(ends))):
            best = int(np.argmax([_gain(apart, told_by, one) for one in distance]))
            apart += distance[best]
            told_by += _tells(distance[best])
            distance[best] = 0  # asked once
            found.append(Prompt(tuple(int(token) for token in ids[: ends[best]]), told[:, best].copy()))
    return found[:count]


def known(
    reference: Reference, hypotheses: Sequence[Hypothesis], prompts: Sequence[Sequence[int]], tell: Tell
) -> list[Prompt]:
    """Return prompts that were chosen before, with what each hypothesis finds likely behind them."""
    rows: list[list[Array]] = [[] for _ in prompts]
    texts = texts_of(prompts)
    for number, one in enumerate(hypotheses):
        for row, found in zip(rows, behind(reference, one, prompts, texts), strict=True):
            row.append(found)
        tell("reading the prompts with each table", number + 1, len(hypotheses))
    return [Prompt(tuple(ids), np.stack(row)) for ids, row in zip(prompts, rows, strict=True)]


def texts_of(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the numbers of the prompts that begin one text, for each text; the first of them is the whole text."""
    texts: list[list[int]] = []
    for number in sorted(range(len(prompts)), key=lambda at: -len(prompts[at])):
        ids = list(prompts[number])
        own = next((text for text in texts if list(prompts[text[0]][: len(ids)]) == ids), None)
        if own is None:
            texts.append([number])
        else:
            own.append(number)
    return texts


def behind(
    reference: Reference, hypothesis: Hypothesis, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]
) -> list[Array]:
    """Return what a hypothesis finds likely behind each prompt, by one pass over each text and table."""
    found: list[Array] = [np.zeros(0)] * len(prompts)
    for numbers in texts:
        ends = [len(prompts[number]) for number in numbers]
        rows = reference.log_probs(hypothesis, prompts[numbers[0]], ends)
        for number, row in zip(numbers, rows, strict=True):
            found[number] = row
    return found


def _places(length: int, count: int) -> list[int]:
    """Return lengths of prompts up to that of a text, closer together where they are short."""
    first = min(SHORTEST, length)
    return sorted({round(one) for one in np.geomspace(first, length, count)})


def _divergences(log_probs: Array) -> Array:
    """Return KL(a || b) of each pair of rows. Shapes: (hypotheses, vocabulary) -> (hypotheses, hypotheses)."""
    probs = np.exp(log_probs)
    own = (probs * log_probs).sum(axis=1)
    found: Array = own[:, None] - probs @ log_probs.T
    return np.maximum(found, 0)


def _tells(distance: Array) -> Array:
    """Return what of a prompt counts as one that tells a pair apart, from 0 to 1."""
    found: Array = np.minimum(distance / PLAIN, 1)
    return found


def _gain(apart: Array, told_by: Array, more: Array) -> float:
    """Return what a prompt adds to telling all pairs apart.

    Pairs that too few prompts tell apart come first, as those of which most prompts see one table; then those that are near.
    """
    off = ~np.eye(len(apart), dtype=bool)
    needed = off & (told_by < ENOUGH)
    return float(_tells(more)[needed].sum() + NEAR * np.log1p(more[off] / (apart[off] + 1e-3)).sum())
