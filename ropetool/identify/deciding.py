"""What a server's answers say: which of the hypotheses they fit, by how much, or that they fit none.

An answer and a hypothesis are two distributions over the tokens that are shown and all the others together; the
figure is the divergence of the two, in nats, the mean over the prompts.
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

SURE = (
    1e-3  # chance that a hypothesis as good as the best is worse behind so many of the prompts, as the sign test has it
)
NOISE = 6.0  # times what rounding makes of the answers, beyond which none fits
FLOOR = 1e-5  # nats: what float32 leaves of it
SHOWN = 20  # tokens of an answer that is made here
OTHER_MODEL = 0.2  # nats behind a single token: other weights, or quantised beyond use
LEAST = 1e-12  # a probability that a sum leaves


@dataclass(frozen=True)
class Decision:
    """figures: the mean divergence from each hypothesis. best: the one that fits best, -1 where none fits.

    rivals: those that the answers do not tell from it. margin: how much worse the next one is that they do, in nats. noise:
    the divergence of answers that no table changes. limit: beyond which none fits.
    """

    figures: tuple[float, ...]
    best: int
    rivals: tuple[int, ...]
    margin: float
    noise: float
    limit: float


def divergence(answer: Answer, log_probs: Array) -> float:
    """Return the divergence of an answer from what a hypothesis finds likely. Shapes: (vocabulary,). Units: nats."""
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
    """Return how many times more rounding makes behind prompts than behind single tokens, 1 at least.

    Of each: what is found likely in float32, and in a coarser type. Shapes: (prompts, vocabulary).
    """
    means = []
    for fine, coarse in (singles, prompts):
        means.append(np.mean([divergence(_shown(theirs), ours) for ours, theirs in zip(fine, coarse, strict=True)]))
    return max(1.0, float(means[1] / max(means[0], LEAST)))


def _shown(log_probs: Array) -> Answer:
    top = np.argsort(-log_probs, kind="stable")[:SHOWN]
    return Answer({int(token): float(log_probs[token]) for token in top}, SHOWN)


def decide(divergences: Array, noise: Callable[[int], float], grown: Callable[[int], float]) -> Decision:
    """Return what the divergences come to. Shapes: (prompts, hypotheses).

    noise: what is left behind single tokens, and grown: how much more rounding makes behind prompts, both under the hypothesis of
    this number.
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
        # Behind a prompt where both are one table, as behind short ones of two lists, neither is worse.
        told = np.abs(worse) > FLOOR
        if _by_chance(int((worse[told] > 0).sum()), int(told.sum())) < SURE and worse.mean() > known:
            margins.append(float(worse.mean()))
        else:
            rivals.append(other)
    margin = min(margins, default=0.0)
    # Where rounding is as large as what tells tables apart, as in coarse weights, the best of them may be none.
    fits = means[best] <= limit and (not margins or means[best] <= margin)
    return Decision(
        tuple(float(one) for one in means), best if fits else -1, tuple(rivals) if fits else (),
        margin, known, limit,
    )  # fmt: skip


def _by_chance(worse: int, prompts: int) -> float:
    """Return the chance of so many or more of the prompts, where each falls either way.

    A sign test: divergences are a few large ones among many small, which no mean and deviation describe.
    """
    return sum(math.comb(prompts, count) for count in range(worse, prompts + 1)) / 2.0**prompts


def is_another_model(noise: Sequence[float]) -> bool:
    """Return whether even behind single tokens the answers are not those of the weights at hand."""
    return float(np.median(noise)) > OTHER_MODEL
