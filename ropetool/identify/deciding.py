"""Decide which hypothesis fits a server's answers, and by how much. Possibly none fits.

An answer and a hypothesis are two distributions over the tokens that the server shows, and one entry for all others.
The figure is their divergence in nats, as a mean over the prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ropetool.errors import ServerError
from ropetool.rope.tables import Array
from ropetool.servers.base import Answer, not_in_vocabulary
from ropetool.servers.http import OPTION

# The sign test's chance, for a hypothesis as good as the best, to be worse for this many prompts.
SURE = 1e-3
NOISE = 6.0  # no hypothesis fits beyond this multiple of the divergence from rounding
FLOOR = 1e-5  # nats: the divergence from float32
SHOWN = 20  # tokens that an answer of the reference model shows
OTHER_MODEL = 0.2  # nats after a single token: the weights differ, or quantisation has damaged them
LEAST = 1e-12  # the smallest probability that remains after a sum


@dataclass(frozen=True)
class Decision:
    """The hypothesis that fits, and the figures behind the decision. Hypotheses are numbers from 0.

    figures: the mean divergence from each hypothesis, in nats.
    best: the hypothesis that fits best. -1 if none fits.
    rivals: the hypotheses that the answers do not distinguish from `best`.
    margin: the difference to the nearest hypothesis that the answers do distinguish, in nats.
    noise: the divergence of answers that no table changes, in nats.
    limit: the largest divergence at which a hypothesis fits, in nats.
    """

    figures: tuple[float, ...]
    best: int
    rivals: tuple[int, ...]
    margin: float
    noise: float
    limit: float


def divergence(answer: Answer, log_probs: Array) -> float:
    """Return the divergence between an answer and the log probabilities of a hypothesis, in nats.

    Shapes: log_probs (vocabulary,).
    Raises: ServerError if the answer has a token beyond the vocabulary.
    """
    tokens = list(answer.shown)
    if max(tokens) >= len(log_probs):
        raise ServerError(not_in_vocabulary(max(tokens), len(log_probs)), where=OPTION)
    theirs = np.array([answer.shown[token] for token in tokens])
    ours = log_probs[tokens]
    rest = max(1.0 - float(np.exp(ours).sum()), LEAST)
    missing = max(answer.missing, LEAST)
    shown = float((np.exp(theirs) * (theirs - ours)).sum())
    return max(0.0, shown + missing * math.log(missing / rest))


def growth(singles: tuple[Array, Array], prompts: tuple[Array, Array]) -> float:
    """Return how many times more rounding changes answers to prompts than answers to single tokens, at least 1.

    Each argument has the log probabilities in float32, and in a coarser type. Shapes: (prompts, vocabulary) each.
    """
    means = []
    for fine, coarse in (singles, prompts):
        means.append(np.mean([divergence(_shown(theirs), ours) for ours, theirs in zip(fine, coarse, strict=True)]))
    return max(1.0, float(means[1] / max(means[0], LEAST)))


def _shown(log_probs: Array) -> Answer:
    top = np.argsort(-log_probs, kind="stable")[:SHOWN]
    return Answer({int(token): float(log_probs[token]) for token in top}, SHOWN)


def decide(divergences: Array, noise: Callable[[int], float], grown: Callable[[int], float]) -> Decision:
    """Return the decision that follows from divergences. Shapes: (prompts, hypotheses). Units: nats.

    noise: returns the divergence after single tokens under the hypothesis with this number.
    grown: returns how many times more rounding changes answers to prompts, under the hypothesis with this number.
    """
    means = divergences.mean(axis=0)
    best = int(np.argmin(means))
    known = noise(best)
    limit = NOISE * max(known * grown(best), FLOOR)
    rivals, margins = [], []
    for other in range(len(means)):
        if other == best:
            continue
        worse = divergences[:, other] - divergences[:, best]
        # For some prompts both have the same table, for example short prompts with longrope. Then neither is worse.
        differs = np.abs(worse) > FLOOR
        if _by_chance(int((worse[differs] > 0).sum()), int(differs.sum())) < SURE and worse.mean() > known:
            margins.append(float(worse.mean()))
        else:
            rivals.append(other)
    margin = min(margins, default=0.0)
    # With coarse weights, rounding can exceed the difference between tables. Then the best may not fit, either.
    fits = means[best] <= limit and (not margins or means[best] <= margin)
    return Decision(
        tuple(float(one) for one in means), best if fits else -1, tuple(rivals) if fits else (),
        margin, known, limit,
    )  # fmt: skip


def _by_chance(worse: int, prompts: int) -> float:
    """Return the chance that at least `worse` of the prompts are worse, if each one is worse with a chance of one half.

    This is a sign test, because a few divergences are large and many small: mean and deviation do not describe them.
    """
    return sum(math.comb(prompts, count) for count in range(worse, prompts + 1)) / 2.0**prompts


def is_another_model(noise: Sequence[float]) -> bool:
    """Return whether the weights differ, because the answers to single tokens already do."""
    return float(np.median(noise)) > OTHER_MODEL
