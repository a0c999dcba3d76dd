"""Choose the best candidate of a comparison: the lowest loss at the target, with little regression below it."""

from __future__ import annotations

from dataclasses import dataclass

from ropetool.choosing.results import CandidateResult, Comparison
from ropetool.errors import ConfigError
from ropetool.plans.plan import Plan
from ropetool.verification.gate import GRADES

DEFAULT = "yarn"  # chosen unless another method is significantly better, because all published comparisons include it


@dataclass(frozen=True)
class Choice:
    """The chosen candidate.

    candidate: its result.
    plan: its plan.
    why: the reason, as a message.
    """

    candidate: CandidateResult
    plan: Plan
    why: str


def choose(comparison: Comparison, max_regression: float | None = None) -> Choice:
    """Return the best candidate for the longest context of a comparison.

    This is the candidate with the lowest loss at that length. Candidates whose worst ratio within the trained length
    exceeds `max_regression` are left out, unless all exceed it. If YaRN is not significantly worse by Holm's rule over
    all pairs, it is YaRN.
    max_regression: a ratio of perplexities. None uses the limit of the comparison's grade.
    Raises: ConfigError if there is no ranking.
    """
    if not comparison.rankings:
        raise ConfigError(
            "choosing a candidate needs losses, but none were measured",
            where="--measure",
            try_="--measure last-segment",
        )
    ranking = comparison.rankings[-1]
    limit = GRADES[comparison.grade].max_ratio if max_regression is None else max_regression
    results = {name: comparison.candidate(name) for name in ranking.order}
    within = [name for name in ranking.order if _regression(results[name]) <= limit]
    eligible = within or list(ranking.order)
    best = eligible[0]
    surely_worse = ranking.better_than(best)
    default = next((name for name in eligible if _method(results[name]) == DEFAULT and name not in surely_worse), best)
    chosen = results[default]
    assert chosen.plan is not None
    return Choice(chosen, chosen.plan, _why(comparison, default, best, eligible, surely_worse, limit, bool(within)))


def _why(
    comparison: Comparison,
    chosen: str,
    best: str,
    eligible: list[str],
    worse: tuple[str, ...],
    limit: float,
    within: bool,
) -> str:
    ranking = comparison.rankings[-1]
    beaten = [name for name in eligible if name in worse]
    reason = f"the lowest loss at {ranking.length} tokens"
    if chosen != best:
        reason = (
            f"{best} has the lowest loss at {ranking.length} tokens, but is not significantly better than the default"
        )
    elif beaten:
        reason = f"{reason}, significantly better than {', '.join(beaten)}"
    ratio = _regression(comparison.candidate(chosen))
    cost = f"within {comparison.trained_length} tokens at most {ratio:.3g} times the source's perplexity"
    if not within:
        return f"{reason}; {cost}; all candidates exceed {limit:g}"
    left_out = [name for name in ranking.order if name not in eligible]
    return f"{reason}; {cost}" + (f"; above {limit:g}: {', '.join(left_out)}" if left_out else "")


def _regression(each: CandidateResult) -> float:
    return each.regression.ratio if each.regression is not None else float("inf")


def _method(each: CandidateResult) -> str:
    return each.plan.method if each.plan is not None else ""
