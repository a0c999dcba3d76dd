"""Intervals: closed forms, published tables, and how often they cover the truth."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from ropetool.verification.statistics import Estimate, clustered, paired_difference, t_quantile, wilson

# Two-sided 95 %: NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2, column 0.975.
PUBLISHED = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 15: 2.131, 30: 2.042, 100: 1.984}


@pytest.mark.parametrize(("degrees", "value"), PUBLISHED.items())
def test_t_quantile_is_the_published_one(degrees: int, value: float) -> None:
    assert round(t_quantile(0.95, degrees), 3) == value


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 8, 31, 64, 999])
@pytest.mark.parametrize("probability", [0.5, 0.9, 0.95, 0.999])
def test_t_quantile_inverts_the_incomplete_beta_function(degrees: int, probability: float) -> None:
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
    assert found.half_width == pytest.approx(2.570581835636314 * error, rel=1e-12)
    assert (found.documents, found.tokens) == (6, 768)


def test_unequal_documents_give_the_ratio_estimator_written_out() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(7, 10))
    documents = [4, 9, 4, 4, 2, 9, 4]
    found = clustered(values, documents)
    mean = sum(values.flat) / 70
    squares = 0.0
    for document in (2, 4, 9):
        total = sum(v - mean for row, d in zip(values, documents, strict=True) if d == document for v in row)
        squares += total**2
    assert found.mean == pytest.approx(mean, rel=1e-12)
    assert found.standard_error == pytest.approx(math.sqrt(3 / 2 * squares) / 70, rel=1e-12)
    assert clustered(values.mean(axis=1), documents).standard_error == pytest.approx(found.standard_error, rel=1e-12)


def test_one_document_has_no_interval() -> None:
    found = clustered(np.ones((4, 2)), [3, 3, 3, 3])
    assert found == Estimate(1.0, -math.inf, math.inf, math.inf, 1, 8)


def test_the_paired_difference_is_that_of_the_tokens() -> None:
    rng = np.random.default_rng(2)
    hard = rng.normal(3, 2, size=(16, 32)) + np.repeat(rng.normal(size=8), 2)[:, None]
    better = hard - 0.1 + rng.normal(0, 0.05, size=hard.shape)
    documents = np.repeat(np.arange(8), 2).tolist()
    found = paired_difference(better, hard, documents)
    means = (better - hard).reshape(8, -1).mean(axis=1)
    assert found.mean == pytest.approx(means.mean(), rel=1e-12)
    assert found.half_width == pytest.approx(2.364624251592785 * means.std(ddof=1) / math.sqrt(8), rel=1e-12)
    assert found.high < 0
    assert clustered(better, documents).half_width > 10 * found.half_width
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
