"""Which of the compared candidates to take: the best at the target among those that cost short texts little.

Reads a comparison; measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ropetool.choosing.results import CandidateResult, Comparison
from ropetool.errors import ConfigError
from ropetool.plans.plan import Plan
from ropetool.verification.gate import GRADES

DEFAULT = "yarn"  # taken where the best is not surely better, since every published comparison knows it


@dataclass(frozen=True)
class Choice:
    """The candidate to take, its plan, and why in a sentence."""

    candidate: CandidateResult
    plan: Plan
    why: str


def choose(found: Comparison, max_regression: float | None = None) -> Choice:
    """Return which candidate to take for the longest context of a comparison.

    It is the one of the lowest loss there, of those whose worst ratio within the trained length is at most `max_regression` (by
    default what the comparison's grade allows; where none is, all are eligible, and that is said). Where YaRN is among
    those and not surely worse than the best, by Holm's rule over all pairs, it is YaRN.

    Raises: ConfigError where nothing was ranked.
    """
    if not found.rankings:
        raise ConfigError(
            "choosing a candidate needs losses, but none were measured",
            where="--measure",
            try_="--measure last-segment",
        )
    ranking = found.rankings[-1]
    limit = GRADES[found.grade].max_ratio if max_regression is None else max_regression
    each = {name: found.candidate(name) for name in ranking.order}
    within = [name for name in ranking.order if _regression(each[name]) <= limit]
    eligible = within or list(ranking.order)
    best = eligible[0]
    surely_worse = ranking.better_than(best)
    default = next((name for name in eligible if _method(each[name]) == DEFAULT and name not in surely_worse), best)
    chosen = each[default]
    assert chosen.plan is not None
    return Choice(chosen, chosen.plan, _why(found, default, best, eligible, surely_worse, limit, bool(within)))


def _why(
    found: Comparison, chosen: str, best: str, eligible: list[str], worse: tuple[str, ...], limit: float, within: bool
) -> str:
    ranking = found.rankings[-1]
    beaten = [name for name in eligible if name in worse]
    told = f"the lowest loss at {ranking.length} tokens"
    if chosen != best:
        told = (
            f"{best} has the lowest loss at {ranking.length} tokens, but is not significantly better than the default"
        )
    elif beaten:
        told = f"{told}, significantly better than {', '.join(beaten)}"
    ratio = _regression(found.candidate(chosen))
    cost = f"within {found.trained_length} tokens at most {ratio:.3g} times the source's perplexity"
    if not within:
        return f"{told}; {cost}; all candidates exceed {limit:g}"
    left_out = [name for name in ranking.order if name not in eligible]
    return f"{told}; {cost}" + (f"; above {limit:g}: {', '.join(left_out)}" if left_out else "")


def _regression(each: CandidateResult) -> float:
    return each.regression.ratio if each.regression is not None else float("inf")


def _method(each: CandidateResult) -> str:
    return each.plan.method if each.plan is not None else ""
