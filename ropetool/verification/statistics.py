"""Means with intervals that know which tokens belong to one document.

Tokens of a document share its difficulty: counted as independent they make intervals about four times too narrow.
Knows nothing of models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropetool.spec import Array

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over tokens, and its 95 % interval over documents. Infinite interval: fewer than two documents."""

    mean: float
    low: float
    high: float
    standard_error: float
    documents: int
    tokens: int

    @property
    def half_width(self) -> float:
        """How far the interval reaches to either side of the mean."""
        return (self.high - self.low) / 2


def clustered(values: Array, documents: Sequence[int]) -> Estimate:
    """Return the mean over all values, with a standard error clustered by document.

    The mean is a ratio of two sums over documents, total to count; its error is that of the documents' totals of
    residuals, with Student's t of one degree of freedom less than there are documents.

    Shapes: values (segments, tokens) or (segments,); documents (segments,), the document of each.
    Source: the ratio estimator of Cochran, Sampling Techniques (1977), chapter 6, with documents as sampling units.
    """
    rows = np.asarray(values, dtype=np.float64).reshape(len(documents), -1)
    mean = float(rows.mean())
    _, cluster = np.unique(np.asarray(documents), return_inverse=True)
    residuals = np.bincount(cluster, weights=(rows - mean).sum(axis=1))
    count = residuals.size
    if count < 2:
        return Estimate(mean, -math.inf, math.inf, math.inf, count, rows.size)
    error = math.sqrt(count / (count - 1) * float(residuals @ residuals)) / rows.size
    reach = t_quantile(CONFIDENCE, count - 1) * error
    return Estimate(mean, mean - reach, mean + reach, error, count, rows.size)


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
