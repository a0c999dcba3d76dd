"""Intervals: closed forms, published tables, and how often they cover the truth."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from ropetool.sections import half_width
from ropetool.verification.results import Estimate
from ropetool.verification.statistics import (
    chance_of_less,
    chance_of_more,
    clustered,
    clustered_sums,
    effective_documents,
    lower_bound,
    paired_difference,
    rejected,
    t_quantile,
    upper_bound,
    wilson,
)

# Two-sided 95 %: NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2, column 0.975.
PUBLISHED = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 15: 2.131, 30: 2.042, 100: 1.984}


@pytest.mark.parametrize(("degrees", "value"), PUBLISHED.items())
def test_t_quantile_is_the_published_one(degrees: int, value: float) -> None:
    assert round(t_quantile(0.95, degrees), 3) == value


@pytest.mark.parametrize("degrees", [0.7, 1, 1.14, 2, 2.5, 3, 4, 7, 8, 31, 64, 999])
@pytest.mark.parametrize("probability", [0.5, 0.9, 0.95, 0.999])
def test_t_quantile_inverts_the_incomplete_beta_function(degrees: float, probability: float) -> None:
    t = t_quantile(probability, degrees)
    x = mpmath.mpf(degrees) / (degrees + mpmath.mpf(t) ** 2)
    outside = mpmath.betainc(mpmath.mpf(degrees) / 2, mpmath.mpf("0.5"), 0, x, regularized=True)
    assert float(1 - outside) == pytest.approx(probability, abs=1e-12)


def test_equal_documents_give_the_standard_error_of_their_means() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(12, 64)) + np.repeat(rng.normal(size=6), 2)[:, None]
    found = clustered(values, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    means = values.reshape(6, -1).mean(axis=1)
    error = means.std(ddof=1) / math.sqrt(6)
    assert found.mean == pytest.approx(means.mean(), abs=1e-14)
    assert found.standard_error == pytest.approx(error, rel=1e-12)
    assert half_width(found) == pytest.approx(2.570581835636314 * error, rel=1e-12)
    assert (found.documents, found.tokens) == (6, 768)


# coef_test and conf_int of R's clubSandwich 0.5.8 (R 4.2.2), lm(y ~ 1), vcov "CR2", Satterthwaite, 95 %, of the values that
# `as_in_r` makes: mean, standard error, degrees of freedom, upper end.
CLUBSANDWICH = {
    (8, 8, 8, 8): (-0.226250639328722, 0.395923929027439, 3, 1.03375600577806),
    (29, 1, 1, 1): (-0.604153736496824, 0.223155530739715, 1.13997627520759, 1.52753148072192),
    (16, 8, 4, 4): (-0.372929829488827, 0.246305115439064, 2.13043478260869, 0.627023199110138),
    (3, 1, 4, 1, 5, 9, 2, 6): (0.329822344269967, 0.247753090045982, 4.62377617017917, 0.982598475662482),
    (1, 1): (-0.0211524198946208, 0.346541209067265, 1, 4.38207113303557),
    (40, 2, 2): (-0.578391001240372, 0.287158686644532, 1.0997506234414, 2.37408373631448),
    (5, 2, 1) * 10: (0.00800563013779195, 0.183518422247871, 20.3404727916185, 0.390407980362604),
}


def as_in_r(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return n values and the document of each, as sin and cos make them in any program."""
    documents = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    return np.sin(1.7 * np.arange(1, len(documents) + 1)) + np.cos(2.3 * documents), documents


@pytest.mark.parametrize(("sizes", "published"), CLUBSANDWICH.items())
def test_errors_degrees_and_intervals_are_those_of_clubsandwich(
    sizes: tuple[int, ...], published: tuple[float, ...]
) -> None:
    values, documents = as_in_r(sizes)
    found = clustered(values, documents.tolist())
    assert (found.mean, found.standard_error, found.degrees, found.high) == pytest.approx(published, rel=1e-9)
    assert found.low == pytest.approx(2 * found.mean - found.high)
    assert found.effective == pytest.approx(sum(sizes) ** 2 / sum(n * n for n in sizes))
    totals = [float(values[documents == d].sum()) for d in np.unique(documents)]
    assert vars(clustered_sums(np.array(totals), sizes, range(len(sizes)))) == pytest.approx(vars(found))


def dense(values: np.ndarray, documents: np.ndarray) -> tuple[float, float]:
    """Return error and degrees by the matrices of the definition: residual maker, inverse square roots, quadratic form.

    Source: Pustejovsky and Tipton (2018), equations 4 to 6 and 11, with the identity as working model.
    """
    n = len(values)
    ones = np.ones((n, 1))
    bread = np.linalg.inv(ones.T @ ones)
    maker = np.eye(n) - ones @ bread @ ones.T
    variance, forms = 0.0, []
    for document in np.unique(documents):
        own = np.flatnonzero(documents == document)
        power, vectors = np.linalg.eigh(maker[np.ix_(own, own)])
        adjusted = vectors @ np.diag(1 / np.sqrt(power)) @ vectors.T
        meat = bread @ ones[own].T @ adjusted
        variance += float((meat @ (maker @ values)[own])[0]) ** 2
        forms.append((meat @ maker[own]).ravel())
    products = np.array(forms) @ np.array(forms).T
    return math.sqrt(variance), float(np.trace(products) ** 2 / (products**2).sum())


@pytest.mark.parametrize("sizes", [(4, 4, 4), (29, 1, 1, 1), (2, 7, 1, 8, 2, 8), (1,) * 9])
def test_the_closed_form_is_that_of_the_matrices(sizes: tuple[int, ...]) -> None:
    documents = np.repeat(np.arange(len(sizes)), sizes)
    values = np.random.default_rng(5).normal(size=len(documents)) + 0.5 * documents
    found = clustered(values, documents.tolist())
    assert (found.standard_error, found.degrees) == pytest.approx(dense(values, documents), rel=1e-9)


def test_the_order_of_documents_and_the_split_into_tokens_change_nothing() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(7, 10))
    documents = [4, 9, 4, 4, 2, 9, 4]
    found = clustered(values, documents)
    order = rng.permutation(7)
    assert clustered(values[order], [documents[i] for i in order]).standard_error == pytest.approx(found.standard_error)
    by_token = clustered(values.ravel(), np.repeat(documents, 10).tolist())
    assert (by_token.standard_error, by_token.degrees) == pytest.approx((found.standard_error, found.degrees))


def test_one_document_has_no_interval() -> None:
    found = clustered(np.ones((4, 2)), [3, 3, 3, 3])
    assert found == Estimate(1.0, -math.inf, math.inf, math.inf, 1, 8, 1.0, 0.0)
    assert (lower_bound(found), upper_bound(found)) == (-math.inf, math.inf)
    assert chance_of_less(found, -9.0) == chance_of_more(found, 9.0) == 1


@pytest.mark.parametrize(
    ("documents", "expected"), [([], 0), ([7], 1), ([0, 1, 2, 3], 4), ([5] * 29 + [1, 2, 3], 32**2 / (29**2 + 3))]
)
def test_effective_documents(documents: list[int], expected: float) -> None:
    assert effective_documents(documents) == pytest.approx(expected)


# One-sided 95 %: NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2, column 0.95.
ONE_SIDED = {1: 6.314, 2: 2.920, 3: 2.353, 5: 2.015, 14: 1.761, 31: 1.696}


@pytest.mark.parametrize(("degrees", "published"), ONE_SIDED.items())
def test_bounds_are_one_sided(degrees: int, published: float) -> None:
    found = Estimate(0.5, 0, 1, 0.1, degrees + 1, 9, degrees + 1.0, float(degrees))
    assert upper_bound(found) == pytest.approx(0.5 + 0.1 * published, abs=6e-5)
    assert lower_bound(found) == pytest.approx(0.5 - 0.1 * published, abs=6e-5)
    assert chance_of_less(found, lower_bound(found)) == pytest.approx(0.05, abs=1e-9)
    assert chance_of_more(found, upper_bound(found)) == pytest.approx(0.05, abs=1e-9)
    assert chance_of_less(found, upper_bound(found)) == pytest.approx(0.95, abs=1e-9)
    assert chance_of_less(found, 0.5) == chance_of_more(found, 0.5) == pytest.approx(0.5)


def test_without_spread_the_mean_is_known() -> None:
    found = Estimate(0.0, 0.0, 0.0, 0.0, 8, 9, 8.0, 7.0)
    assert (chance_of_less(found, -0.1), chance_of_less(found, 0.0), chance_of_less(found, 0.1)) == (0, 1, 1)
    assert (chance_of_more(found, -0.1), chance_of_more(found, 0.0), chance_of_more(found, 0.1)) == (1, 1, 0)


# The smallest is held against .05 / k, the next against .05 / (k - 1), and so on. The first row: 1 and 4 fall, .03 > .025.
@pytest.mark.parametrize(
    ("chances", "expected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [True, False, False, True]),
        ([0.02, 0.02, 0.02], [False, False, False]),
        ([0.0124, 0.0166, 0.0249, 0.0499], [True, True, True, True]),
        ([0.05], [True]),
        ([], []),
        ([math.nan], [False]),
        ([math.nan, 0.001, math.nan], [False, True, False]),
        ([0.001, math.nan, 0.02], [True, False, True]),
        ([0.02, math.nan, math.nan], [False, False, False]),  # each of the three counts
    ],
)
def test_holm_goes_on_until_the_first_that_stands(chances: list[float], expected: list[bool]) -> None:
    assert rejected(chances) == expected


def test_the_paired_difference_is_that_of_the_tokens() -> None:
    rng = np.random.default_rng(2)
    hard = rng.normal(3, 2, size=(16, 32)) + np.repeat(rng.normal(size=8), 2)[:, None]
    better = hard - 0.1 + rng.normal(0, 0.05, size=hard.shape)
    documents = np.repeat(np.arange(8), 2).tolist()
    found = paired_difference(better, hard, documents)
    means = (better - hard).reshape(8, -1).mean(axis=1)
    assert found.mean == pytest.approx(means.mean(), rel=1e-12)
    assert half_width(found) == pytest.approx(2.364624251592785 * means.std(ddof=1) / math.sqrt(8), rel=1e-12)
    assert found.high < 0
    assert half_width(clustered(better, documents)) > 10 * half_width(found)
    with pytest.raises(ValueError, match="not of the same tokens"):
        paired_difference(better, hard[:, :-1], documents)


def draws(count: int) -> list[tuple[np.ndarray, list[int]]]:
    """Samples of mean 0 as texts give them: documents differ most, then segments, and sizes are unequal."""
    rng = np.random.default_rng(3)
    samples = []
    for _ in range(count):
        documents = [d for d in range(12) for _ in range(2 + d % 3)]
        values = rng.normal(size=(len(documents), 32)) + rng.normal(0, 0.2, size=(len(documents), 1))
        samples.append((values + rng.normal(0, 0.4, size=12)[documents][:, None], documents))
    return samples


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    found = [clustered(values, documents) for values, documents in draws(500)]
    assert 0.90 <= np.mean([e.low <= 0 <= e.high for e in found]) <= 0.98


def test_an_interval_over_tokens_would_not() -> None:
    found = [clustered(values.ravel(), range(values.size)) for values, _ in draws(100)]
    assert np.mean([e.low <= 0 <= e.high for e in found]) < 0.6


# Newcombe, Statistics in Medicine 17 (1998) 857, table I, method 3: the score interval without correction.
NEWCOMBE = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0, 0.1611), (1, 29): (0.0061, 0.1718)}


@pytest.mark.parametrize(("counted", "ends"), NEWCOMBE.items())
def test_wilsons_interval_is_the_published_one(counted: tuple[int, int], ends: tuple[float, float]) -> None:
    assert tuple(round(end, 4) for end in wilson(*counted)) == ends


@pytest.mark.parametrize(("hits", "trials"), [(1, 2), (4, 20), (19, 20), (500, 1000), (0, 7), (7, 7)])
def test_wilsons_ends_are_the_shares_that_the_hits_just_do_not_reject(hits: int, trials: int) -> None:
    for end in wilson(hits, trials):
        distance = abs(hits / trials - end)
        assert distance == pytest.approx(1.959963984540054 * math.sqrt(end * (1 - end) / trials), abs=1e-9)


@pytest.mark.parametrize(("hits", "trials"), [(0, 4), (1, 4), (3, 20)])
def test_wilsons_interval_stays_between_no_hit_and_all_and_has_no_side(hits: int, trials: int) -> None:
    low, high = wilson(hits, trials)
    assert 0 <= low <= hits / trials <= high < 1
    assert low < high
    assert wilson(trials - hits, trials) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_without_trials_nothing_is_known() -> None:
    assert wilson(0, 0) == (0, 1)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.85])
def test_wilsons_interval_covers_the_share_as_often_as_it_says(share: float) -> None:
    chances = (mpmath.binomial(40, k) * share**k * (1 - share) ** (40 - k) for k in range(41))
    covered = sum(chance for k, chance in enumerate(chances) if wilson(k, 40)[0] <= share <= wilson(k, 40)[1])
    assert 0.92 < covered < 0.98
