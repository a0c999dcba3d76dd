"""The divergence of two files, token by token: KL between the distributions of the reference and of the target.

Both models run at the same time, with a piece of the logits of each in memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ropetool.errors import CheckpointError, ConfigError
from ropetool.rope.tables import Array
from ropetool.verification.results import DivergenceResult, DivergenceSpan
from ropetool.verification.scoring import WIDER, Corpus, Done, Logits, Runner, ignore
from ropetool.verification.statistics import clustered
from ropetool.verification.texts import too_short

BLOCK_LOGITS = 2**18  # logits that are compared at a time: 2 MB in float64; 2**21 takes 2.4 times as long
NEVER = -1e30  # a lower logit belongs to a token that the class excludes, as chameleon excludes image tokens
MAX_PADDING = 0.01  # share of the probability, on average over a piece, that additional tokens of one file may have
MAX_SPANS = 16  # in steps of half an octave, they reach down to 1/128 of the length
MIN_SPAN = 16  # tokens; a shorter first span would be noise
WINDOW = 32  # positions; neither the mean of a thousand positions nor their 99th percentile shows damage to fewer
RARE_TOKENS = 4096  # the most tokens of a row of rare tokens
RARE_ROWS = 2
FEWEST_RARE = 64  # tokens of such a row; if fewer tokens are missing from the texts, they are repeated


_NOTE = "the vocabularies have {} and {} tokens; the first {} are compared, because the rest is padding"


@dataclass(frozen=True)
class Differences:
    """The differences at every token. Shapes: all (rows, length).

    kl: KL in nats.
    same: whether both have the same likeliest token.
    difference: the largest difference of two logits.
    largest: the largest absolute logit of the reference.
    """

    kl: Array
    same: npt.NDArray[np.bool_]
    difference: Array
    largest: Array


def divergence_rows(corpus: Corpus, length: int, count: int, seed: int) -> tuple[list[list[int]], list[int]]:
    """Return at most `count` rows of `length` tokens, each from a different document, and the indices of the documents.

    Raises: ConfigError if no document is long enough.
    """
    need = length - len(corpus.prefix)
    fitting = [document for document, tokens in enumerate(corpus.tokens) if len(tokens) >= need]
    if not fitting:
        raise too_short(length, need, max(map(len, corpus.tokens), default=0))
    rng = random.Random(seed)
    documents = sorted(rng.sample(fitting, min(count, len(fitting))))
    rows = []
    for document in documents:
        start = rng.randrange(len(corpus.tokens[document]) - need + 1)
        rows.append([*corpus.prefix, *corpus.tokens[document][start : start + need].tolist()])
    return rows, documents


def rare_rows(
    rows: Sequence[Sequence[int]], vocabulary: int, prefix: Sequence[int], length: int, seed: int
) -> list[list[int]]:
    """Return rows of at most `length` tokens that do not occur in `rows`, in random order; empty if all tokens occur.

    They find a wrong row of the embedding, which affects only its own token. All tokens occur once before any is
    repeated.
    """
    unseen = np.setdiff1d(np.arange(vocabulary), np.concatenate([np.asarray(row) for row in rows]))
    size = min(length, RARE_TOKENS) - len(prefix)
    if not unseen.size or size < 1:
        return []
    size = min(size, max(FEWEST_RARE, unseen.size))
    count = min(RARE_ROWS, -(-unseen.size // size))
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(unseen) for _ in range(-(-count * size // unseen.size))])
    return [[*prefix, *part.tolist()] for part in order[: count * size].reshape(count, size)]


def diverge(
    reference: Runner,
    target: Runner,
    rows: Sequence[Sequence[int]],
    trained_length: int,
    documents: Sequence[int],
    done: Done,
    seed: int | None = None,
) -> DivergenceResult:
    """Return KL(reference || target) within and beyond the trained length, and by position.

    Only tokens in both vocabularies are compared. The additional tokens of one vocabulary must be padding, with at most
    `MAX_PADDING` of the probability.

    rows: rows with the same length.
    documents: the index of each row's document. Shape: (rows,).
    done: called with the number of compared tokens of `rows`.
    seed: for additional rows of rare tokens; None does not use such rows.

    Raises: CheckpointError if a logit is not finite, with its position; ConfigError if the additional tokens of a
    vocabulary are not padding.
    """
    length = len(rows[0])
    differences, sizes = _differences(reference, target, rows, done)
    border = min(trained_length, length)
    edges = span_edges(length, border)
    rare = [] if seed is None else rare_rows(rows, min(sizes), reference.prefix, length, seed)
    return DivergenceResult(
        reference=reference.description,
        length=length,
        rows=len(rows),
        within=_span(differences, documents, 0, border),
        beyond=_span(differences, documents, border, length) if border < length else None,
        by_position=tuple(_span(differences, documents, start, end) for start, end in pairwise(edges)),
        rare=_span(_differences(reference, target, rare, ignore)[0], range(len(rare)), 0, len(rare[0]))
        if rare
        else None,
        note="" if sizes[0] == sizes[1] else _NOTE.format(*sizes, min(sizes)),
    )


def _differences(
    reference: Runner, target: Runner, rows: Sequence[Sequence[int]], done: Done
) -> tuple[Differences, tuple[int, int]]:
    """Return the differences at every token, and the sizes of both vocabularies."""
    shape = len(rows), len(rows[0])
    differences = Differences(np.empty(shape), np.empty(shape, dtype=np.bool_), np.empty(shape), np.empty(shape))
    sizes = 0, 0
    for index, row in enumerate(rows):
        for start, ours, theirs in _aligned(reference, target, row, index):
            sizes = ours.shape[1], theirs.shape[1]
            _refuse_other_vocabularies(ours, theirs)
            _compare(differences, index, start, ours, theirs)
            done(len(ours))
    return differences, sizes


def span_edges(length: int, border: int) -> list[int]:
    """Return the starts of the spans by position, and the end of the last one. Each span is half an octave wide.

    So all spans have the same width on a logarithmic axis. None crosses the border, the trained length. Spans shorter
    than `MIN_SPAN` or beyond `MAX_SPANS` are part of the first span, and a short rest is part of the last span.
    """
    edges = {round(border * 2 ** (step / 2)) for step in range(-40, 41)}
    inner = sorted(edge for edge in edges if MIN_SPAN <= edge < length / 2**0.25)
    return [0, *inner[1 - MAX_SPANS :], length]


def _aligned(reference: Runner, target: Runner, row: Sequence[int], index: int) -> Iterator[tuple[int, Logits, Logits]]:
    """Yield the pieces of both for the same positions, with the first position of each piece."""
    for (start, ours), (other, theirs) in zip(reference.logits(row), target.logits(row), strict=True):
        if (start, len(ours)) != (other, len(theirs)):
            raise ValueError(f"{len(ours)} positions from {start} do not align with {len(theirs)} from {other}")
        _refuse_not_finite(ours, reference, "reference", index, start)
        _refuse_not_finite(theirs, target, "target", index, start)
        yield start, ours, theirs


def _refuse_not_finite(logits: Logits, runner: Runner, role: str, index: int, start: int) -> None:
    for offset, token in np.argwhere(~np.isfinite(logits))[:1].tolist():
        raise CheckpointError(
            f"the {role} computes the logit {logits[offset, token]} at position {start + offset} of row {index}, token {token}",
            where=runner.description,
            try_=WIDER,
        )


def _refuse_other_vocabularies(ours: Logits, theirs: Logits) -> None:
    """Raise ConfigError if the additional tokens of the larger vocabulary are not padding."""
    sizes = ours.shape[1], theirs.shape[1]
    if sizes[0] == sizes[1]:
        return
    share = _share_beyond(min(sizes), ours if sizes[0] > sizes[1] else theirs)
    if share > MAX_PADDING:
        raise ConfigError(
            f"the reference has {sizes[0]} tokens in its vocabulary and the target {sizes[1]}; the additional tokens get "
            f"{share:.1%} of the probability, but padding gets at most {MAX_PADDING:.0%}",
            where="--against",
            try_="a file with the same tokenizer",
        )


def _share_beyond(common: int, wide: Logits) -> float:
    """Return the average probability of all tokens from index `common` on."""
    shares = []
    for block in _blocks(wide):
        weights = np.exp(block - block.max(axis=1, keepdims=True))
        shares.append(weights[:, common:].sum(axis=1) / weights.sum(axis=1))
    return float(np.concatenate(shares).mean())


def _compare(differences: Differences, index: int, start: int, ours: Logits, theirs: Logits) -> None:
    """Write the differences of a piece into `differences`. Tokens that the reference excludes do not count in either."""
    common = min(ours.shape[1], theirs.shape[1])
    for p, q in zip(_blocks(ours[:, :common]), _blocks(theirs[:, :common]), strict=True):
        never = p < NEVER
        p[never] = q[never] = NEVER
        place = index, slice(start, start + len(p))
        differences.same[place] = p.argmax(axis=1) == q.argmax(axis=1)
        differences.difference[place] = np.abs(p - q).max(axis=1)
        differences.largest[place] = np.where(never, 0, np.abs(p)).max(axis=1)
        differences.kl[place] = _kl(p, q)
        start += len(p)


def _blocks(logits: Logits) -> Iterator[Array]:
    """Yield a few rows at a time, in float64."""
    step = max(1, BLOCK_LOGITS // logits.shape[1])
    for start in range(0, len(logits), step):
        yield logits[start : start + step].astype(np.float64)


def _kl(p: Array, q: Array) -> Array:
    """Return KL(p || q) of each row of logits: the mean over p of log p - log q, in nats.

    Equal logits give exactly 0. Rounding errors are near 1e-15, so a KL of 1e-9 has six correct digits. A negative
    result is such an error, and becomes 0.

    Shapes: (tokens, vocabulary) twice -> (tokens,).
    """
    p = p - p.max(axis=1, keepdims=True)
    q = q - q.max(axis=1, keepdims=True)
    weights = np.exp(p)
    total = weights.sum(axis=1)
    # log p - log q is p - q plus the log of the ratio of the two sums, which is the same for all tokens.
    mean = np.einsum("tv,tv->t", weights, p - q) / total
    divergence: Array = np.maximum(mean + np.log(np.exp(q).sum(axis=1) / total), 0.0)
    return divergence


def _span(differences: Differences, documents: Sequence[int], start: int, end: int) -> DivergenceSpan:
    part = slice(None), slice(start, end)
    kl = differences.kl[part]
    window, worst = _worst_window(kl)
    return DivergenceSpan(
        start=start,
        end=end,
        mean=clustered(kl, documents),
        median=float(np.median(kl)),
        p99=float(np.quantile(kl, 0.99)),
        maximum=float(kl.max()),
        top1=float(differences.same[part].mean()),
        logit_difference=float(differences.difference[part].max() / differences.largest[part].max()),
        tokens=kl.size,
        window=worst,
        window_start=start + window,
    )


def _worst_window(kl: Array) -> tuple[int, float]:
    """Return the start of the `WINDOW` positions with the largest mean, and this mean. A rest is part of the last window.

    Shapes: (rows, length).
    """
    edges = range(0, max(1, kl.shape[1] - WINDOW + 1), WINDOW)
    sizes = np.diff([*edges, kl.shape[1]])
    means = np.add.reduceat(kl.mean(axis=0), list(edges)) / sizes
    return edges[int(means.argmax())], float(means.max())
