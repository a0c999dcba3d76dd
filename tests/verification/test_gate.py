"""The gate: figures beside limits, on made-up results at both sides of each limit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from ropetool.errors import ConfigError
from ropetool.verification import gate, measures
from ropetool.verification.gate import Limits
from ropetool.verification.measure import Grading
from ropetool.verification.measures.repeats import DistanceResult, FarResult
from ropetool.verification.results import FAIL, NOT_ASKED, NOT_RUN, PASS, UNDECIDED, Estimate, LengthResult

TRAINED = 256


def about(mean: float, reach: float = 0.01) -> Estimate:
    return Estimate(mean, mean - reach, mean + reach, reach / 2, 8, 100, 8.0, 7.0)


def at(length: int, verdict: str = "no worse", lower: float = 1.0, upper: float = 1.1, **changes: Any) -> LengthResult:
    entry = LengthResult(
        length=length, target=about(2.5), baseline=about(2.4), target_bits=1.5, baseline_bits=1.4,
        difference_to_truncation=about(0.1), ratio=1.1, lower=lower, upper=upper, verdict=verdict,
        holds=verdict in ("better", "no worse"), useful=verdict == "better", tax=None, doubling=None, segments=16,
        documents=8, partial=False, note="",
    )  # fmt: skip
    return replace(entry, **changes)


def verdicts(checks: list[Any]) -> dict[str, str]:
    return {check.name: check.verdict for check in checks}


RESEARCH = Limits(grade="research")


def test_the_largest_upper_bound_decides() -> None:
    lengths = [at(128, upper=1.2), at(256, upper=1.34), at(512, verdict="better", upper=0.9)]
    ratio, useful = gate.loss_checks(lengths, TRAINED, RESEARCH)
    assert (ratio.name, ratio.figure, ratio.limit, ratio.verdict) == ("ratio", 1.34, 1.5, PASS)
    assert ratio.detail == "largest 95 % upper bound, at 256 tokens"
    assert (useful.name, useful.verdict, useful.detail) == (
        "useful",
        NOT_ASKED,
        "useful lengths beyond the trained length: 512",
    )


def test_what_straddles_the_limit_is_undecided_and_what_is_surely_above_fails() -> None:
    unsure = at(512, verdict="undecided", lower=1.4, upper=1.7)
    (ratio, _) = gate.loss_checks([at(256), unsure], TRAINED, RESEARCH)
    assert (ratio.figure, ratio.verdict) == (1.7, UNDECIDED)
    assert ratio.detail == "largest 95 % upper bound, at 512 tokens; more text can decide at 512"
    worse = [at(1024, verdict="worse", lower=1.6, upper=1.9), at(2048, verdict="worse", lower=1.8, upper=2.1)]
    (ratio, _) = gate.loss_checks([at(256), unsure, *worse], TRAINED, RESEARCH)
    assert (ratio.figure, ratio.verdict) == (1.8, FAIL)
    assert ratio.detail == "95 % lower bound at 2048 tokens; worse than grade research allows at 1024, 2048"


def test_lengths_that_are_not_judged_neither_pass_nor_fail() -> None:
    thin = at(512, verdict="not judged", lower=2.0, upper=9.0, partial=True)
    alone = at(256, verdict="not judged", lower=None, upper=None, difference_to_truncation=None)
    checks = gate.loss_checks([at(256), thin], TRAINED, RESEARCH)
    assert verdicts(checks) == {"ratio": PASS, "useful": NOT_ASKED, "texts": NOT_RUN}
    assert checks[-1].detail == "too little text at 512 tokens"
    assert verdicts(gate.loss_checks([alone, thin], TRAINED, RESEARCH))["ratio"] == NOT_RUN


@pytest.mark.parametrize(
    ("found", "expected"),
    [(("better", "better"), PASS), (("better", "no worse"), FAIL), (("not judged", "better"), FAIL)],
)
def test_usefulness_gates_only_where_it_is_asked_for_and_only_beyond_the_trained_length(
    found: tuple[str, str], expected: str
) -> None:
    lengths = [at(256), at(512, verdict=found[0]), at(1024, verdict=found[1])]
    assert verdicts(gate.loss_checks(lengths, TRAINED, Limits()))["useful"] == NOT_ASKED
    assert verdicts(gate.loss_checks(lengths, TRAINED, Limits(require_useful=True)))["useful"] == expected


def gains(*means: float) -> list[gate.Evidence]:
    return [gate.Evidence(f"gain {number}", about(mean, 0.1)) for number, mean in enumerate(means)]


def test_publishable_and_usable_ask_for_proof_that_far_text_is_read() -> None:
    def checked(grade: str, *means: float, context: int = 1024) -> Any:
        return gate.reading_check(gains(*means), gate.GRADES[grade], TRAINED, context)

    # A standard error of .05 with 7 degrees of freedom: 1.895 of them below the mean.
    assert checked("usable", 0.1).verdict == checked("publishable", 0.1).verdict == PASS
    assert checked("usable", 0.1).figure == pytest.approx(0.1 - 1.895 * 0.05, abs=1e-4)
    assert checked("usable", 0.09).verdict == UNDECIDED  # its lower bound is -.005
    assert checked("usable", 0.1, 0.0).verdict == UNDECIDED  # of two that were tried, one has to be surer
    assert checked("usable", 0.0, 0.13).verdict == PASS
    assert "gain 1" in checked("usable", 0.0, 0.13).detail
    assert checked("usable").verdict == NOT_RUN
    assert checked("usable", context=256).verdict == checked("research", 0.0).verdict == NOT_ASKED


def evidence(lengths: list[LengthResult], far: FarResult, context: int) -> list[gate.Evidence]:
    results = {"last-segment": lengths, "far": far}
    grading = Grading(Limits(), TRAINED, context, results)
    return [
        each for measure in measures.every() if measure.name in results
        for each in measure.evidence(results[measure.name], grading)
    ]  # fmt: skip


def test_only_what_was_measured_at_the_stated_context_shows_that_it_is_read() -> None:
    far = FarResult(128, 64, 8, 8, tuple(DistanceResult(d, *[about(0.3)] * 3) for d in (128, 900)), "")
    lengths = [at(256), at(1024, difference_to_truncation=about(-0.2))]
    truncation, copy = evidence(lengths, far, 1024)
    assert (truncation.text, truncation.gain.mean) == ("gain over truncation at 1024 tokens", 0.2)
    assert (truncation.gain.low, truncation.gain.high) == pytest.approx((0.19, 0.21))
    assert (copy.text, copy.gain) == ("gain from a copy 900 tokens before", about(0.3))
    assert evidence(lengths, far, 2048) == []
    near = replace(far, distances=far.distances[:1])
    assert len(evidence(lengths, near, 1024)) == 1
    assert evidence([at(1024, partial=True)], far, 1024) == []


def test_a_text_known_by_heart_is_warned_of() -> None:
    assert gate.contamination([at(256, baseline_bits=0.41)]) == ""
    assert "only 0.39 bits per byte" in gate.contamination([at(128), at(256, baseline_bits=0.39)])
    assert gate.contamination([at(512, baseline_bits=None)]) == ""


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"grade": "usefull"}, "--grade"),
        ({"grade": ""}, "--grade"),
        ({"max_kl": 0.0}, "--max-kl"),
        ({"max_kl": math.inf}, "--max-kl"),
    ],
)
def test_limits_that_are_none_are_refused(options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Limits(**options)
    assert refused.value.where == where
