"""Means with intervals that know which tokens belong to one document.

Tokens of a document share its difficulty: counted as independent they make intervals about four times too narrow.
Knows nothing of models.
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
POWER = 0.20  # the chance to miss what is `attainable`
ERROR = 0.05  # of a verdict over all lengths together
TERMS = 200  # of a continued fraction: the last digit at a thousand degrees of freedom
NORMAL = 1.959963984540054  # the two-sided CONFIDENCE of a normal variable


def clustered(values: Array, documents: Sequence[int]) -> Estimate:
    """Return the mean over all values, with the standard error CR2 clustered by document.

    The mean is a regression on nothing but a constant. Its residuals are smaller than the errors, most in the documents
    that decide the mean; CR2 divides each document's share of the variance by what is left of it where tokens are
    independent, and Satterthwaite's degrees of freedom say how much the sum of so few shares varies. Documents of equal
    size give the usual error of their means, with one degree less than there are documents.

    With n_d tokens and the sum of residuals r_d of document d, N tokens in all, p_d = n_d / N and b_d = p_d^2 / (1 - p_d):
    error^2 = sum(r_d^2 / (1 - p_d)) / N^2, and degrees = 1 / (sum(p_d^2) + sum(b_d)^2 - sum(b_d^2)).

    Shapes: values (segments, tokens) or (segments,); documents (segments,), the document of each.
    Source: Bell and McCaffrey, Survey Methodology 28 (2002) 169; Pustejovsky and Tipton, J. Bus. Econ. Stat. 36 (2018) 672,
    with the identity as working model.
    """
    rows = np.asarray(values, dtype=np.float64).reshape(len(documents), -1)
    mean = float(rows.mean())
    return _estimate(mean, (rows - mean).sum(axis=1), [rows.shape[1]] * len(rows), documents)


def clustered_sums(totals: Array, counts: Sequence[int], documents: Sequence[int]) -> Estimate:
    """Return what `clustered` does, of parts with different numbers of tokens: the total of each and its tokens.

    Shapes: all (parts,).
    """
    sizes = np.asarray(counts, dtype=np.float64)
    mean = float(np.sum(totals) / sizes.sum())
    return _estimate(mean, totals - mean * sizes, counts, documents)


def _estimate(mean: float, rests: Array, counts: Sequence[int], documents: Sequence[int]) -> Estimate:
    """Return the mean with the interval that the documents' totals of residuals give it."""
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

    What makes a token hard is in both and drops out, so the interval is far narrower than the two apart.
    """
    if values.shape != reference.shape:
        raise ValueError(f"losses of shape {values.shape} and {reference.shape} are not of the same tokens")
    return clustered(values - reference, documents)


def negated(found: Estimate) -> Estimate:
    """Return the estimate of the opposite: what is lost as what is gained."""
    return replace(found, mean=-found.mean, low=-found.high, high=-found.low)


def effective_documents(documents: Sequence[int]) -> float:
    """Return how many documents of equal size would tell as much as these: (sum n)^2 / sum n^2, with n parts of each."""
    if not len(documents):
        return 0.0
    counts = np.unique(documents, return_counts=True)[1].astype(np.float64)
    return float(counts.sum() ** 2 / (counts @ counts))


# --- bounds and decisions


def upper_bound(found: Estimate, error: float = ERROR) -> float:
    """Return what the true mean is below, but for a chance of `error`; infinite for a single document."""
    return found.mean + _one_sided(found, error)


def lower_bound(found: Estimate, error: float = ERROR) -> float:
    """Return what the true mean is above, but for a chance of `error`."""
    return found.mean - _one_sided(found, error)


def _one_sided(found: Estimate, error: float) -> float:
    return math.inf if not found.degrees else t_quantile(1 - 2 * error, found.degrees) * found.standard_error


def chance_of_less(found: Estimate, value: float) -> float:
    """Return the one-sided p value of the hypothesis that the true mean is at most `value`."""
    if not found.degrees:
        return 1.0
    distance = found.mean - value
    if not found.standard_error:
        return 0.0 if distance > 0 else 1.0
    outside = _outside(abs(distance) / found.standard_error, found.degrees) / 2
    return outside if distance > 0 else 1 - outside


def chance_of_more(found: Estimate, value: float) -> float:
    """Return the one-sided p value of the hypothesis that the true mean is at least `value`."""
    if not found.degrees:
        return 1.0
    if not found.standard_error:
        return 0.0 if found.mean < value else 1.0
    return 1 - chance_of_less(found, value)


def attainable(documents: Sequence[int], spread: float) -> float:
    """Return the mean that is told from 0 with a power of 80 %, by a one-sided test at 5 %; infinite for one document.

    documents: of each part. spread: the standard deviation of what documents mean, in the unit of the answer.
    """
    counts = np.unique(documents, return_counts=True)[1].astype(np.float64)
    if len(counts) < 2:
        return math.inf
    shares = counts / counts.sum()
    degrees = _degrees(shares)
    quantiles = t_quantile(1 - 2 * ERROR, degrees) + t_quantile(1 - 2 * POWER, degrees)
    return quantiles * spread * math.sqrt(float(shares @ shares))


def rejected(chances: Sequence[float], level: float = ERROR) -> list[bool]:
    """Return which hypotheses fall, so that with a chance of at most `level` any true one does.

    A chance that is not a number counts as 1: its hypothesis never falls, and it still counts as one of all.

    Source: Holm, Scand. J. Statist. 6 (1979) 65.
    """
    found = [False] * len(chances)
    numbers = [1.0 if math.isnan(chance) else chance for chance in chances]
    for done, index in enumerate(sorted(range(len(chances)), key=numbers.__getitem__)):
        if numbers[index] > level / (len(chances) - done):
            break
        found[index] = True
    return found


# --- distributions


@cache
def t_quantile(probability: float, degrees: float) -> float:
    """Return the t that Student's variable with that many degrees of freedom stays within, up to sign.

    degrees: above 0, and not only whole ones.
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
    """Return I_x(a, b), rest being 1 - x, by a continued fraction that converges fast for x < (a + 1) / (a + b + 2).

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
    """Return the ends of Wilson's 95 % interval for a share of `hits` in independent trials; all of 0 to 1 without any.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927) 209, without correction for continuity.
    """
    if not trials:
        return 0.0, 1.0
    z2 = NORMAL * NORMAL
    middle = (hits + z2 / 2) / (trials + z2)
    reach = math.sqrt(z2 * (hits * (trials - hits) / trials + z2 / 4)) / (trials + z2)
    return max(0.0, middle - reach), min(1.0, middle + reach)
