"""Choose prompts for which the hypotheses differ most, so that few answers distinguish them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ropetool.identify.hypotheses import Hypothesis
from ropetool.identify.reference import Reference
from ropetool.rope.tables import Array

PLACES = 24  # candidate prompts per text, unless the user requests more prompts
SHORTEST = 32  # tokens in a prompt
# Prompts that distinguish a pair. By chance, one given hypothesis is worse for all of them in 1 of 4096 cases.
ENOUGH = 12
PLAIN = 0.01  # nats: a prompt with this divergence distinguishes a pair despite the server's rounding
NEAR = 0.01  # the weight of the sum of all distances
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Prompt:
    """A prompt, and the log probabilities of the next token under each hypothesis.

    Shapes: log_probs (hypotheses, vocabulary). Units: nats.
    """

    ids: tuple[int, ...]
    log_probs: Array


def choose(
    reference: Reference, hypotheses: Sequence[Hypothesis], texts: Sequence[Sequence[int]], count: int, tell: Tell
) -> list[Prompt]:
    """Return `count` prompts, evenly from all texts, that distinguish every pair of hypotheses as well as possible."""
    share = max(1, -(-count // len(texts)))
    prompts: list[Prompt] = []
    apart, distinguishing = np.zeros((2, len(hypotheses), len(hypotheses)))
    total, finished = len(texts) * len(hypotheses), 0
    for ids in texts:
        ends = _places(len(ids), max(PLACES, 2 * share))
        probs = []
        for one in hypotheses:
            # float32 saves memory for large vocabularies.
            probs.append(reference.log_probs(one, ids, ends).astype(np.float32))
            finished += 1
            tell("reading the prompts with each table", finished, total)
        log_probs = np.stack(probs)  # (hypotheses, places, vocabulary)
        distance = np.stack([_divergences(log_probs[:, index].astype(np.float64)) for index in range(len(ends))])
        for _ in range(min(share, len(ends))):
            best = int(np.argmax([_gain(apart, distinguishing, one) for one in distance]))
            apart += distance[best]
            distinguishing += _distinguishes(distance[best])
            distance[best] = 0  # each prompt is used only once
            prompts.append(Prompt(tuple(int(token) for token in ids[: ends[best]]), log_probs[:, best].copy()))
    return prompts[:count]


def known(
    reference: Reference, hypotheses: Sequence[Hypothesis], prompts: Sequence[Sequence[int]], tell: Tell
) -> list[Prompt]:
    """Return given prompts with the log probabilities under each hypothesis."""
    rows: list[list[Array]] = [[] for _ in prompts]
    texts = texts_of(prompts)
    for number, one in enumerate(hypotheses):
        for row, log_probs in zip(rows, behind(reference, one, prompts, texts), strict=True):
            row.append(log_probs)
        tell("reading the prompts with each table", number + 1, len(hypotheses))
    return [Prompt(tuple(ids), np.stack(row)) for ids, row in zip(prompts, rows, strict=True)]


def texts_of(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each text the numbers of the prompts that are its beginnings. The first number is the whole text."""
    texts: list[list[int]] = []
    for number in sorted(range(len(prompts)), key=lambda index: -len(prompts[index])):
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
    """Return the log probabilities after each prompt under a hypothesis, with a single pass for each text and table."""
    by_prompt: list[Array] = [np.zeros(0)] * len(prompts)
    for numbers in texts:
        ends = [len(prompts[number]) for number in numbers]
        rows = reference.log_probs(hypothesis, prompts[numbers[0]], ends)
        for number, row in zip(numbers, rows, strict=True):
            by_prompt[number] = row
    return by_prompt


def _places(length: int, count: int) -> list[int]:
    """Return prompt lengths up to the length of a text. Short lengths are closer together."""
    first = min(SHORTEST, length)
    return sorted({round(one) for one in np.geomspace(first, length, count)})


def _divergences(log_probs: Array) -> Array:
    """Return KL(a || b) for each pair of rows.

    Shapes: (hypotheses, vocabulary) -> (hypotheses, hypotheses). Units: nats.
    """
    probs = np.exp(log_probs)
    own = (probs * log_probs).sum(axis=1)
    divergences: Array = own[:, None] - probs @ log_probs.T
    return np.maximum(divergences, 0)


def _distinguishes(distance: Array) -> Array:
    """Return the share, from 0 to 1, to which a prompt distinguishes each pair.

    Shapes: (hypotheses, hypotheses).
    """
    share: Array = np.minimum(distance / PLAIN, 1)
    return share


def _gain(apart: Array, distinguishing: Array, more: Array) -> float:
    """Return how much a prompt helps to distinguish all pairs.

    Pairs that too few prompts distinguish have priority, because for most prompts both may have the same table. Then
    the pairs with small distances follow.
    """
    off = ~np.eye(len(apart), dtype=bool)
    needed = off & (distinguishing < ENOUGH)
    return float(_distinguishes(more)[needed].sum() + NEAR * np.log1p(more[off] / (apart[off] + 1e-3)).sum())
