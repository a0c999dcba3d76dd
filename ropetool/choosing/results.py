"""The result of `compare` as data, JSON, CSV rows and a data frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ropetool.choosing.ranking import Ranking
from ropetool.escaping import Tabular
from ropetool.plans.plan import Plan
from ropetool.sections import Table, csv_text, row
from ropetool.verification.results import Estimate, LengthResult, VerifyResult, json_places, plain

SCHEMA = 1


@dataclass(frozen=True)
class CandidateResult:
    """The result of a candidate or of a reference attention variant.

    name: its name.
    plan: its plan. None for a reference attention variant.
    measured: the measurements, as in `verify`. None if the candidate was refused.
    refusal: why it was refused, else empty.
    note: how its tables differ from the tables in its file. Empty if they do not.
    """

    name: str
    plan: Plan | None
    measured: VerifyResult | None
    refusal: str = ""
    note: str = ""

    @property
    def target_length(self) -> int | None:
        """Return the context length of its plan in tokens, or None without a plan."""
        return None if self.plan is None else self.plan.max_position_embeddings

    @property
    def regression(self) -> LengthResult | None:
        """Return the result at the length within the trained length that has the worst ratio, or None."""
        if self.measured is None:
            return None
        within = [entry for entry in self.measured.lengths if entry.length <= self.measured.trained_length]
        return max(within, key=lambda entry: entry.ratio, default=None)

    @property
    def reached(self) -> LengthResult | None:
        """Return the result at the longest scored length within its own context, or None."""
        if self.measured is None:
            return None
        within = [entry for entry in self.measured.lengths if entry.length <= self.measured.context_length]
        return max(within, key=lambda entry: entry.length, default=None)

    def at(self, length: int) -> LengthResult | None:
        """Return the result at a length, or None if it was not scored there."""
        return (
            next((entry for entry in self.measured.lengths if entry.length == length), None) if self.measured else None
        )


@dataclass(frozen=True)
class Comparison(Tabular):
    """Candidates measured in one loaded model on the same tokens.

    source: the source's path or Hub id.
    trained_length: the trained length in tokens.
    lengths: all measured lengths in tokens. By default, a candidate is scored at the lengths up to its own context. If
      the user passed lengths, it is scored at all of them.
    suite, grade: the suite and the grade of the measures.
    scored: the scored tokens per segment. 0 if losses were not measured.
    seed: the seed that selects the texts.
    baseline: the losses of the unchanged source, by length.
    candidates: the results of all candidates, including refused ones.
    rankings: a ranking for each length up to which a candidate is scored, shortest first.
    documents: the names of the documents.
    text_fingerprint: a digest of the documents.
    texts: a description of the documents.
    runtime: the program that ran the model.
    notes: messages for the user.
    beside: the ranking of candidates and reference attention variants together, at the longest length. None without
      variants.
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
        """Return the result of the candidate with this name. Raises: KeyError."""
        return {each.name: each for each in self.candidates}[name]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data for JSON. Infinities are null."""
        own_fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("baseline", "candidates", "rankings", "beside")
        }
        data: dict[str, Any] = plain({
            "schema": SCHEMA, **own_fields,
            "baseline": [{"length": length, "loss": dataclasses.asdict(loss)} for length, loss in self.baseline.items()],
            "candidates": list(map(_candidate_json, self.candidates)), "rankings": list(map(_ranking_json, self.rankings)),
            "beside": None if self.beside is None else _ranking_json(self.beside),
        })  # fmt: skip
        return data

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each candidate and length, first for the source itself. Losses are in nats per token."""
        for length, loss in self.baseline.items():
            yield _row(self.source, "", None, None, length, loss, within=length <= self.trained_length)
        for each in self.candidates:
            for entry in each.measured.lengths if each.measured is not None else ():
                method, factor = (each.plan.method, each.plan.factor) if each.plan is not None else ("", None)
                yield _row(
                    each.name, method, factor, each.target_length, entry.length, entry.target,
                    entry, within=entry.length <= self.trained_length,
                )  # fmt: skip

    def to_csv(self) -> str:
        """Return the rows as CSV with a header. Missing values are empty."""
        texts = (["" if value is None else str(value) for value in each.values()] for each in self.rows())
        return csv_text(Table(COLUMNS, tuple(row(*cells) for cells in texts)))


COLUMNS = (
    "candidate", "method", "factor", "target_length", "length", "within_trained", "loss", "loss_low", "loss_high", "ratio",
    "lower", "upper", "verdict", "segments", "documents",
)  # fmt: skip


def _row(
    name: str, method: str, factor: float | None, target: int | None, length: int, loss: Estimate,
    entry: LengthResult | None = None, *, within: bool,
) -> dict[str, Any]:  # fmt: skip
    figures: tuple[Any, ...] = (None, None, None, "", None, loss.documents)
    if entry is not None:
        figures = (entry.ratio, entry.lower, entry.upper, entry.verdict, entry.segments, entry.documents)
    values = (name, method, factor, target, length, within, loss.mean, loss.low, loss.high, *figures)
    return dict(zip(COLUMNS, values, strict=True))


def _candidate_json(result: CandidateResult) -> dict[str, Any]:
    plan, measured = result.plan, {} if result.measured is None else result.measured.to_json()
    # The keys of a verification that differ between candidates. The other keys are equal for all, or concern files.
    placed = [place.key for place in json_places()]
    more = result.measured.measures if result.measured is not None else ()
    keys = dict.fromkeys(["verdict", "lengths", *placed, *more, "checks"])
    return {
        "name": result.name, "method": plan.method if plan else None, "factor": plan.factor if plan else None,
        "params": dict(plan.params) if plan else None, "target_length": result.target_length,
        "refusal": result.refusal or None, "note": result.note, **{key: measured.get(key) for key in keys},
    }  # fmt: skip


def _ranking_json(ranking: Ranking) -> dict[str, Any]:
    return {
        "length": ranking.length, "order": list(ranking.order), "best": ranking.best, "not_told_apart": list(ranking.tied),
        "pairs": [dataclasses.asdict(pair) for pair in ranking.pairs],
    }  # fmt: skip
