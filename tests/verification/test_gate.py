"""The gate: figures beside limits, on made-up results at both sides of each limit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from ropetool.errors import ConfigError
from ropetool.verification import gate
from ropetool.verification.gate import Limits
from ropetool.verification.results import (
    FAIL,
    NOT_ASKED,
    NOT_RUN,
    PASS,
    DistanceResult,
    DivergenceResult,
    DivergenceSpan,
    Estimate,
    FarResult,
    LengthResult,
    RetrievalCell,
    RetrievalResult,
)  # fmt: skip

TRAINED = 256


def about(mean: float, reach: float = 0.01) -> Estimate:
    return Estimate(mean, mean - reach, mean + reach, reach / 2, 8, 100, 8.0, 7.0)


def at(length: int, ratio: float = 1.1, tax: float | None = 0.1, **changes: Any) -> LengthResult:
    within = length <= TRAINED
    entry = LengthResult(
        length=length, target=about(2.5), baseline=about(2.4), target_bits=1.5, baseline_bits=1.4,
        difference_to_truncation=about(0.1), ratio=ratio, holds=ratio <= 1.5, useful=False,
        tax=about(tax) if within and tax is not None else None, doubling=None, segments=16, documents=8,
        partial=False, note="",
    )  # fmt: skip
    return replace(entry, **changes)


def verdicts(checks: list[Any]) -> dict[str, str]:
    return {check.name: check.verdict for check in checks}


def test_the_worst_ratio_and_the_worst_tax_decide() -> None:
    lengths = [at(128, tax=0.2), at(256, tax=0.34), at(512, ratio=1.49)]
    checks = gate.loss_checks(lengths, TRAINED, Limits())
    assert verdicts(checks) == {"ratio": PASS, "tax": PASS, "useful": NOT_ASKED}
    assert [(check.figure, check.limit) for check in checks[:2]] == [(1.49, 1.5), (0.34, 0.35)]
    assert "512" in checks[0].detail
    assert "256" in checks[1].detail
    broken = [at(128), at(256, tax=0.36), at(512, ratio=1.51)]
    assert verdicts(gate.loss_checks(broken, TRAINED, Limits())) == {"ratio": FAIL, "tax": FAIL, "useful": NOT_ASKED}
    assert verdicts(gate.loss_checks(broken, TRAINED, Limits(max_tax=0.4)))["tax"] == PASS


def test_no_baseline_has_no_tax_and_thin_texts_are_listed() -> None:
    checks = gate.loss_checks([at(256, tax=None), at(512, partial=True)], TRAINED, Limits())
    assert verdicts(checks) == {"ratio": PASS, "tax": NOT_ASKED, "useful": NOT_ASKED, "texts": NOT_RUN}
    assert checks[-1].detail == "too little text at 512"


@pytest.mark.parametrize(("useful", "expected"), [((True, True), PASS), ((True, False), FAIL), ((None, True), FAIL)])
def test_usefulness_gates_only_where_it_is_asked_for_and_only_beyond_the_trained_length(
    useful: tuple[bool, bool], expected: str
) -> None:
    lengths = [at(256, useful=False), at(512, useful=useful[0]), at(1024, useful=useful[1])]
    assert verdicts(gate.loss_checks(lengths, TRAINED, Limits()))["useful"] == NOT_ASKED
    assert verdicts(gate.loss_checks(lengths, TRAINED, Limits(require_useful=True)))["useful"] == expected


def grid(**scores: tuple[int, int]) -> RetrievalResult:
    def cell(length: int, hits: int) -> RetrievalCell:
        return RetrievalCell(length, 0.5, hits, 0, 10, 0.0, 1.0)

    cells = tuple(cell(int(length[1:]), target) for length, (target, _) in scores.items())
    own = tuple(cell(int(length[1:]), base) for length, (_, base) in scores.items() if int(length[1:]) <= TRAINED)
    return RetrievalResult("keys", 8, 0.125, cells, own, "")


def test_retrieval_beyond_is_held_against_the_baseline_within() -> None:
    check = gate.retrieval_check(grid(n256=(9, 10), n512=(9, 0), n1024=(8, 0)), None, TRAINED, Limits())
    assert (check.verdict, check.limit) == (PASS, 0.8)
    assert check.figure == pytest.approx(0.9433, abs=1e-4)  # Wilson's upper end of 8 of 10
    assert "8 of 10 right at 1024 tokens" in check.detail
    # 3 of 10 reach .603: below .8 of 10 of 10, above .8 of 7 of 10
    assert gate.retrieval_check(grid(n256=(9, 10), n512=(3, 0)), None, TRAINED, Limits()).verdict == FAIL
    assert gate.retrieval_check(grid(n256=(9, 7), n512=(3, 0)), None, TRAINED, Limits()).verdict == PASS
    assert (
        gate.retrieval_check(grid(n256=(9, 7), n512=(3, 0)), None, TRAINED, Limits(min_retrieval=0.9)).verdict == FAIL
    )
    assert gate.retrieval_check(grid(n256=(9, 10)), None, TRAINED, Limits()).verdict == NOT_RUN


def test_where_the_baseline_guesses_far_dependence_stands_in() -> None:
    blind = grid(n256=(2, 2), n512=(1, 0))

    def far(*gains: float) -> FarResult:
        distances = (128, 512, 1024)
        return FarResult(
            128, 64, 8, 8,
            tuple(DistanceResult(d, about(0.4), about(0.3), about(g)) for d, g in zip(distances, gains, strict=True)), "",
        )  # fmt: skip

    assert gate.retrieval_check(blind, far(-1.0, 0.02, 0.03), TRAINED, Limits()).verdict == PASS
    assert gate.retrieval_check(blind, far(1.0, 0.02, 0.009), TRAINED, Limits()).verdict == FAIL
    assert gate.retrieval_check(blind, None, TRAINED, Limits()).verdict == NOT_RUN


def spans(within: float, beyond: float | None) -> DivergenceResult:
    def span(mean: float) -> DivergenceSpan:
        return DivergenceSpan(0, 1, about(mean), mean, mean, mean, 1.0, 0.1, 100)

    return DivergenceResult("other", 512, 4, span(within), None if beyond is None else span(beyond), (), "")


def test_unquantised_formats_may_differ_by_their_rounding_alone() -> None:
    assert verdicts(gate.kl_checks(spans(9e-5, 1e-5), None, False, Limits())) == {"KL": PASS}
    assert verdicts(gate.kl_checks(spans(1e-5, 2e-4), None, False, Limits())) == {"KL": FAIL}
    assert verdicts(gate.kl_checks(spans(1e-5, 2e-4), None, False, Limits(max_kl=1e-3))) == {"KL": PASS}


def test_a_quantised_file_is_held_against_its_own_rounding() -> None:
    own = spans(0.06, None)
    assert verdicts(gate.kl_checks(spans(0.11, 0.2), own, True, Limits())) == {"KL": PASS, "KL beyond": PASS}
    assert verdicts(gate.kl_checks(spans(0.13, 0.2), own, True, Limits())) == {"KL": FAIL, "KL beyond": PASS}
    assert verdicts(gate.kl_checks(spans(0.06, 0.13), own, True, Limits())) == {"KL": PASS, "KL beyond": FAIL}
    assert verdicts(gate.kl_checks(spans(0.06, 0.1), None, True, Limits())) == {"KL": NOT_RUN, "KL beyond": PASS}
    assert verdicts(gate.kl_checks(spans(0.06, 0.1), None, True, Limits(max_kl=0.2))) == {"KL": PASS}


def test_a_text_known_by_heart_is_warned_of() -> None:
    assert gate.contamination([at(256, baseline_bits=0.41)]) == ""
    assert "only 0.39 bits a byte" in gate.contamination([at(128), at(256, baseline_bits=0.39)])
    assert gate.contamination([at(512, baseline_bits=None)]) == ""


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"max_ratio": 0.0}, "--max-ratio"),
        ({"max_ratio": math.nan}, "--max-ratio"),
        ({"max_tax": -1.0}, "--max-tax"),
        ({"max_kl": math.inf}, "--max-kl"),
        ({"min_retrieval": 1.1}, "--min-retrieval"),
        ({"min_retrieval": math.nan}, "--min-retrieval"),
    ],
)
def test_limits_that_are_none_are_refused(options: dict[str, float], where: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Limits(**options)
    assert refused.value.where == where
