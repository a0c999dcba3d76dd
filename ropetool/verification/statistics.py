"""Means with intervals that know which tokens belong to one document.

Tokens of a document share its difficulty: counted as independent they make intervals about four times too narrow.
Knows nothing of models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ropetool.rope.tables import Array
from ropetool.verification.results import Estimate

CONFIDENCE = 0.95
NORMAL = 1.959963984540054  # the same for a normal variable


def clustered(values: Array, documents: Sequence[int]) -> Estimate:
    """Return the mean over all values, with a standard error clustered by document.

    The mean is a ratio of two sums over documents, total to count; its error is that of the documents' totals of
    residuals, with Student's t of one degree of freedom less than there are documents.

    Shapes: values (segments, tokens) or (segments,); documents (segments,), the document of each.
    Source: the ratio estimator of Cochran, Sampling Techniques (1977), chapter 6, with documents as sampling units.
    """
    rows = np.asarray(values, dtype=np.float64).reshape(len(documents), -1)
    mean = float(rows.mean())
    return _estimate(mean, (rows - mean).sum(axis=1), documents, rows.size)


def clustered_sums(totals: Array, counts: Sequence[int], documents: Sequence[int]) -> Estimate:
    """Return what `clustered` does, of parts with different numbers of tokens: the total of each and its tokens.

    Shapes: all (parts,).
    """
    sizes = np.asarray(counts, dtype=np.float64)
    mean = float(np.sum(totals) / sizes.sum())
    return _estimate(mean, totals - mean * sizes, documents, int(sizes.sum()))


def _estimate(mean: float, rests: Array, documents: Sequence[int], tokens: int) -> Estimate:
    """Return the mean with its interval. Shapes: rests (parts,), the total of each less what the mean makes it."""
    _, cluster = np.unique(np.asarray(documents), return_inverse=True)
    residuals = np.bincount(cluster, weights=rests)
    count = residuals.size
    if count < 2:
        return Estimate(mean, -math.inf, math.inf, math.inf, count, tokens)
    error = math.sqrt(count / (count - 1) * float(residuals @ residuals)) / tokens
    reach = t_quantile(CONFIDENCE, count - 1) * error
    return Estimate(mean, mean - reach, mean + reach, error, count, tokens)


def paired_difference(values: Array, reference: Array, documents: Sequence[int]) -> Estimate:
    """Return the mean of values minus reference, token by token, clustered by document.

    What makes a token hard is in both and drops out, so the interval is far narrower than the two apart.
    """
    if values.shape != reference.shape:
        raise ValueError(f"losses of shape {values.shape} and {reference.shape} are not of the same tokens")
    return clustered(values - reference, documents)


def t_quantile(probability: float, degrees: int) -> float:
    """Return the t that Student's variable with that many degrees of freedom stays within, up to sign.

    Source: bisection on Abramowitz and Stegun 26.7.3 and 26.7.4, which are finite sums.
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _within(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(middle)


def _within(angle: float, degrees: int) -> float:
    """Return P(|T| <= sqrt(degrees) tan(angle))."""
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= k / (k + 1) * math.cos(angle) ** 2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Return the ends of Wilson's 95 % interval for a share of `hits` in independent trials; all of 0 to 1 without any.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927) 209, without correction for continuity.
    """
    if not trials:
        return 0.0, 1.0
    z2 = NORMAL * NORMAL
    middle = (hits + z2 / 2) / (trials + z2)
    reach = math.sqrt(z2 * (hits * (trials - hits) / trials + z2 / 4)) / (trials + z2)
    return max(0.0, middle - reach), min(1.0, middle + reach)
