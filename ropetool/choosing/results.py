"""What a comparison found, as frozen data, as JSON, as rows, and as a data frame. Measures nothing."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ropetool.choosing.ranking import Ranking
from ropetool.escaping import Tabular
from ropetool.plans.plan import Plan
from ropetool.verification.results import Estimate, LengthResult, VerifyResult, plain

SCHEMA = 1
# What a candidate has of a verification, then newer measures, then its checks; the rest is the same for all, or of files.
MEASURED = (
    "verdict", "lengths", "protocols", "position", "far", "retrieval", "key_tokens", "needle_answers", "long_pass",
    "effective_length", "many_shot", "cache",
)  # fmt: skip


@dataclass(frozen=True)
class CandidateResult:
    """One candidate, or a yardstick, which has no plan. found: its measurements, as `verify` has them; refusal: why there are none.

    target_length: the context that its plan leads to. note: how its table stands for its file, where that needs a word.
    """

    name: str
    plan: Plan | None
    found: VerifyResult | None
    refusal: str = ""
    note: str = ""

    @property
    def target_length(self) -> int | None:
        """The context that its plan leads to, in tokens."""
        return None if self.plan is None else self.plan.max_position_embeddings

    @property
    def regression(self) -> LengthResult | None:
        """The worst length within the trained one, by its ratio: what a longer context costs the short ones."""
        if self.found is None:
            return None
        within = [entry for entry in self.found.lengths if entry.length <= self.found.trained_length]
        return max(within, key=lambda entry: entry.ratio, default=None)

    @property
    def reached(self) -> LengthResult | None:
        """The longest length within its own context at which it was scored."""
        if self.found is None:
            return None
        within = [entry for entry in self.found.lengths if entry.length <= self.found.context_length]
        return max(within, key=lambda entry: entry.length, default=None)

    def at(self, length: int) -> LengthResult | None:
        """Return what it costs at a length, if it was scored there."""
        return next((entry for entry in self.found.lengths if entry.length == length), None) if self.found else None


@dataclass(frozen=True)
class Comparison(Tabular):
    """Candidates measured in one loaded model on the same tokens.

    lengths: all that were measured. A candidate is scored at those up to its own context; where lengths were asked for, at all of
    them. baseline: the losses of the source as it is. rankings: one for each length up to which some candidate is scored, the
    shortest first. beside: candidates and yardsticks together, at the longest length; None without yardsticks.
    """

    source: str
    trained_length: int
    lengths: tuple[int, ...]
    suite: str
    grade: str
    scored: int
    seed: int
    baseline: Mapping[int, Estimate]
    candidates: tuple[CandidateResult, ...]
    rankings: tuple[Ranking, ...]
    documents: tuple[str, ...]
    text_fingerprint: str
    texts: Mapping[str, Any] | None
    runtime: str
    notes: tuple[str, ...]
    beside: Ranking | None = None

    def candidate(self, name: str) -> CandidateResult:
        """Return the candidate of a name. Raises: KeyError."""
        return {each.name: each for each in self.candidates}[name]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a JSON file; what is infinite there is null."""
        stated = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("baseline", "candidates", "rankings", "beside")
        }
        found: dict[str, Any] = plain({
            "schema": SCHEMA, **stated,
            "baseline": [{"length": length, "loss": dataclasses.asdict(loss)} for length, loss in self.baseline.items()],
            "candidates": list(map(_candidate_json, self.candidates)), "rankings": list(map(_ranking_json, self.rankings)),
            "beside": None if self.beside is None else _ranking_json(self.beside),
        })  # fmt: skip
        return found

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each candidate and length, the source itself first; losses in nats a token."""
        for length, loss in self.baseline.items():
            yield _row(self.source, "", None, None, length, loss, within=length <= self.trained_length)
        for each in self.candidates:
            for entry in each.found.lengths if each.found is not None else ():
                method, factor = (each.plan.method, each.plan.factor) if each.plan is not None else ("", None)
                yield _row(
                    each.name, method, factor, each.target_length, entry.length, entry.target,
                    entry, within=entry.length <= self.trained_length,
                )  # fmt: skip

    def to_csv(self) -> str:
        """Return the rows as CSV, figures in full, with a head; what there is none of is empty."""
        text = io.StringIO()
        table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows())
        return text.getvalue()


COLUMNS = (
    "candidate", "method", "factor", "target_length", "length", "within_trained", "loss", "loss_low", "loss_high", "ratio",
    "lower", "upper", "verdict", "segments", "documents",
)  # fmt: skip


def _row(
    name: str, method: str, factor: float | None, target: int | None, length: int, loss: Estimate,
    entry: LengthResult | None = None, *, within: bool,
) -> dict[str, Any]:  # fmt: skip
    judged: tuple[Any, ...] = (None, None, None, "", None, loss.documents)
    if entry is not None:
        judged = (entry.ratio, entry.lower, entry.upper, entry.verdict, entry.segments, entry.documents)
    values = (name, method, factor, target, length, within, loss.mean, loss.low, loss.high, *judged)
    return dict(zip(COLUMNS, values, strict=True))


def _candidate_json(each: CandidateResult) -> dict[str, Any]:
    plan, found = each.plan, {} if each.found is None else each.found.to_json()
    keys = dict.fromkeys([*MEASURED, *(each.found.measures if each.found is not None else ()), "checks"])
    return {
        "name": each.name, "method": plan.method if plan else None, "factor": plan.factor if plan else None,
        "params": dict(plan.params) if plan else None, "target_length": each.target_length,
        "refusal": each.refusal or None, "note": each.note, **{key: found.get(key) for key in keys},
    }  # fmt: skip


def _ranking_json(ranking: Ranking) -> dict[str, Any]:
    return {
        "length": ranking.length, "order": list(ranking.order), "best": ranking.best, "not_told_apart": list(ranking.tied),
        "pairs": [dataclasses.asdict(pair) for pair in ranking.pairs],
    }  # fmt: skip
