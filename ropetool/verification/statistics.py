"""Means with intervals that are clustered by document.

All tokens of a document share its difficulty. Intervals that treat tokens as independent are about four times too
narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from ropetool.rope.tables import Array
from ropetool.verification.results import Estimate

CONFIDENCE = 0.95
POWER = 0.20  # the probability of missing a mean that is `attainable`
ERROR = 0.05  # the probability of a wrong verdict, over all lengths together
TERMS = 200  # of a continued fraction; exact to the last digit at a thousand degrees of freedom
NORMAL = 1.959963984540054  # a normal variable is within plus and minus this value with a probability of CONFIDENCE


def clustered(values: Array, documents: Sequence[int]) -> Estimate:
    """Return the mean over all values, with the standard error CR2 clustered by document.

    The mean is a regression on a constant. Its residuals are smaller than the errors, most of all in the documents that
    decide the mean. CR2 divides each document's share of the variance by the part that remains if tokens are
    independent. Satterthwaite's degrees of freedom describe the variation of the sum of few shares. Documents of equal
    size give the usual error of their means, with one degree of freedom less than there are documents.

    With n_d tokens and the sum of residuals r_d of document d, N tokens in all, p_d = n_d / N and b_d = p_d^2 / (1 -
    p_d): error^2 = sum(r_d^2 / (1 - p_d)) / N^2, and degrees = 1 / (sum(p_d^2) + sum(b_d)^2 - sum(b_d^2)).

    Shapes: values (segments, tokens) or (segments,); documents (segments,), the document of each.
    Source: Bell and McCaffrey, Survey Methodology 28 (2002) 169; Pustejovsky and Tipton, J. Bus. Econ. Stat. 36 (2018)
    672, with the identity as working model.
    """
    rows = np.asarray(values, dtype=np.float64).reshape(len(documents), -1)
    mean = float(rows.mean())
    return _estimate(mean, (rows - mean).sum(axis=1), [rows.shape[1]] * len(rows), documents)


def clustered_sums(totals: Array, counts: Sequence[int], documents: Sequence[int]) -> Estimate:
    """Return the mean as `clustered` does, for parts with different numbers of tokens.

    totals: the sum of each part's values. counts: the number of its tokens. Shapes: all (parts,).
    """
    sizes = np.asarray(counts, dtype=np.float64)
    mean = float(np.sum(totals) / sizes.sum())
    return _estimate(mean, totals - mean * sizes, counts, documents)


def _estimate(mean: float, rests: Array, counts: Sequence[int], documents: Sequence[int]) -> Estimate:
    """Return the mean with its interval. rests: the sum of each part's residuals. counts: the number of its tokens."""
    _, index = np.unique(documents, return_inverse=True)
    residuals, tokens = np.bincount(index, weights=rests), np.bincount(index, weights=counts)
    total = float(tokens.sum())
    shares = tokens / total
    effective = 1 / float(shares @ shares)
    if len(shares) < 2:
        return Estimate(mean, -math.inf, math.inf, math.inf, 1, int(total), effective, 0.0)
    error = math.sqrt(float((residuals**2 / (1 - shares)).sum())) / total
    degrees = _degrees(shares)
    reach = t_quantile(CONFIDENCE, degrees) * error
    return Estimate(mean, mean - reach, mean + reach, error, len(shares), int(total), effective, degrees)


def _degrees(shares: Array) -> float:
    """Return Satterthwaite's degrees of freedom of the error, from each document's share of the tokens."""
    cross = shares**2 / (1 - shares)
    return 1 / float(shares @ shares + cross.sum() ** 2 - cross @ cross)


def paired_difference(values: Array, reference: Array, documents: Sequence[int]) -> Estimate:
    """Return the mean of values minus reference, token by token, clustered by document.

    The difficulty of a token is in both and cancels out. So the interval is far narrower than for separate means.
    """
    if values.shape != reference.shape:
        raise ValueError(f"losses of shape {values.shape} and {reference.shape} are not of the same tokens")
    return clustered(values - reference, documents)


def negated(estimate: Estimate) -> Estimate:
    """Return the estimate with the opposite sign, which turns a loss into a gain."""
    return replace(estimate, mean=-estimate.mean, low=-estimate.high, high=-estimate.low)


def effective_documents(documents: Sequence[int]) -> float:
    """Return the number of documents of equal size with the same information: (sum n)^2 / sum n^2, with n parts of each."""
    if not len(documents):
        return 0.0
    counts = np.unique(documents, return_counts=True)[1].astype(np.float64)
    return float(counts.sum() ** 2 / (counts @ counts))


# --- bounds and decisions


def upper_bound(estimate: Estimate, error: float = ERROR) -> float:
    """Return the upper bound of the true mean, with a probability of error of `error`; infinite for a single document."""
    return estimate.mean + _one_sided(estimate, error)


def lower_bound(estimate: Estimate, error: float = ERROR) -> float:
    """Return the lower bound of the true mean, as `upper_bound` does."""
    return estimate.mean - _one_sided(estimate, error)


def _one_sided(estimate: Estimate, error: float) -> float:
    """Return the distance of a one-sided bound from the mean."""
    return math.inf if not estimate.degrees else t_quantile(1 - 2 * error, estimate.degrees) * estimate.standard_error


def chance_of_less(estimate: Estimate, value: float) -> float:
    """Return the one-sided p value of the hypothesis that the true mean is at most `value`."""
    if not estimate.degrees:
        return 1.0
    distance = estimate.mean - value
    if not estimate.standard_error:
        return 0.0 if distance > 0 else 1.0
    outside = _outside(abs(distance) / estimate.standard_error, estimate.degrees) / 2
    return outside if distance > 0 else 1 - outside


def chance_of_more(estimate: Estimate, value: float) -> float:
    """Return the one-sided p value of the hypothesis that the true mean is at least `value`."""
    if not estimate.degrees:
        return 1.0
    if not estimate.standard_error:
        return 0.0 if estimate.mean < value else 1.0
    return 1 - chance_of_less(estimate, value)


def attainable(documents: Sequence[int], spread: float) -> float:
    """Return the smallest mean that a one-sided test at 5 % distinguishes from 0 with a power of 80 %.

    It is infinite for a single document.
    documents: the document of each part. spread: the standard deviation of the documents' means, in the unit of the
      result.
    """
    counts = np.unique(documents, return_counts=True)[1].astype(np.float64)
    if len(counts) < 2:
        return math.inf
    shares = counts / counts.sum()
    degrees = _degrees(shares)
    quantiles = t_quantile(1 - 2 * ERROR, degrees) + t_quantile(1 - 2 * POWER, degrees)
    return quantiles * spread * math.sqrt(float(shares @ shares))


def rejected(chances: Sequence[float], level: float = ERROR) -> list[bool]:
    """Return which hypotheses are rejected. The probability of rejecting any true one is at most `level`.

    chances: the p value of each hypothesis. NaN counts as 1: this hypothesis is never rejected, but counts in the
      number of hypotheses.
    Source: Holm, Scand. J. Statist. 6 (1979) 65.
    """
    rejections = [False] * len(chances)
    numbers = [1.0 if math.isnan(chance) else chance for chance in chances]
    for done, index in enumerate(sorted(range(len(chances)), key=numbers.__getitem__)):
        if numbers[index] > level / (len(chances) - done):
            break
        rejections[index] = True
    return rejections


# --- distributions


@cache
def t_quantile(probability: float, degrees: float) -> float:
    """Return the t for which Student's variable is between -t and t with this probability.

    degrees: the degrees of freedom, any number above 0.
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if 1 - _outside(math.sqrt(degrees) * math.tan(middle), degrees) < probability:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(middle)


def _outside(t: float, degrees: float) -> float:
    """Return P(|T| > t). Source: Abramowitz and Stegun 26.7.1 and 26.5.2, DLMF 8.17.4."""
    square = t * t
    beyond, within = degrees / (degrees + square), square / (degrees + square)
    a, b = degrees / 2, 0.5
    if beyond < (a + 1) / (a + b + 2):
        return _incomplete_beta(a, b, beyond, within)
    return 1 - _incomplete_beta(b, a, within, beyond)


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Return I_x(a, b) from a continued fraction that converges fast for x < (a + 1) / (a + b + 2). rest: 1 - x.

    Source: DLMF 8.17.22.
    """
    if not x:
        return 0.0
    value = 1.0
    for n in range(TERMS, 0, -1):
        k = n // 2
        top = -(a + k) * (a + b + k) if n % 2 else k * (b - k)
        value = 1 + top * x / ((a + n - 1) * (a + n)) / value
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    return math.exp(logarithm) / (a * value)


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Return the ends of Wilson's 95 % interval for a share of `hits` in independent trials; 0 and 1 without trials.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927) 209, without correction for continuity.
    """
    if not trials:
        return 0.0, 1.0
    z2 = NORMAL * NORMAL
    middle = (hits + z2 / 2) / (trials + z2)
    reach = math.sqrt(z2 * (hits * (trials - hits) / trials + z2 / 4)) / (trials + z2)
    return max(0.0, middle - reach), min(1.0, middle + reach)
