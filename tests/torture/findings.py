"""What trials and readers report: plain data that goes through a pipe, and is counted by kind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

SHOWN = 5  # bad ones of a kind and place that are printed; all are counted


class Skipped(Exception):
    """The machine does not permit the trial; the text says why. It counts as skipped, neither as run nor as bad."""


@dataclass(frozen=True)
class Bad:
    """One thing that went wrong. place: what findings of one cause have in common; data: the input, where there is one."""

    kind: str
    number: int
    problem: str
    place: str = ""
    data: bytes = b""

    def to_json(self) -> dict[str, object]:
        return {**vars(self), "data": self.data.hex()}

    @classmethod
    def from_json(cls, plain: dict[str, object]) -> Bad:
        data = bytes.fromhex(str(plain["data"]))
        return cls(str(plain["kind"]), int(str(plain["number"])), str(plain["problem"]), str(plain["place"]), data)


@dataclass
class Report:
    """What happened in one turn of one kind: how many ran, which were bad, why some could not be held."""

    kind: str
    runs: int = 0
    bad: list[Bad] = field(default_factory=list)
    skipped: str = ""

    def to_line(self) -> bytes:
        """Return one line for a pipe."""
        return json.dumps({**vars(self), "bad": [one.to_json() for one in self.bad]}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Report:
        """Return what a line says."""
        plain = json.loads(line)
        return cls(**{**plain, "bad": [Bad.from_json(one) for one in plain["bad"]]})


class Table:
    """The counts of all kinds, in the order in which they are to be shown."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._kinds = list(kinds)
        self.runs: Counter[str] = Counter()
        self.bad: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self._places: Counter[tuple[str, str]] = Counter()

    def add(self, report: Report) -> list[Bad]:
        """Count a report; return those of its bad ones that are worth printing."""
        self.runs[report.kind] += report.runs
        self.bad[report.kind] += len(report.bad)
        if report.skipped:
            self.skipped[report.kind] = report.skipped
        shown = []
        for one in report.bad:
            self._places[one.kind, one.place] += 1
            if self._places[one.kind, one.place] <= SHOWN:
                shown.append(one)
        return shown

    def text(self) -> str:
        """Return the table: a line for each kind, and sums of those whose names begin alike."""
        kinds = [*self._kinds, *sorted(self.runs.keys() - set(self._kinds))]
        rows = [(kind, f"{self.runs[kind]:,}", f"{self.bad[kind]:,}", self._why(kind)) for kind in kinds]
        rows.append(("all", f"{self.runs.total():,}", f"{self.bad.total():,}", ""))
        width = max(len(row[0]) for row in rows)
        lines = [f"{'kind':<{width}}  {'runs':>10}  {'bad':>7}"]
        lines += [f"{kind:<{width}}  {runs:>10}  {bad:>7}{more}" for kind, runs, bad, more in rows]
        return "\n".join(lines)

    def _why(self, kind: str) -> str:
        return f"  skipped: {self.skipped[kind]}" if kind in self.skipped else ""


def together(table: Table, start: str) -> tuple[int, int]:
    """Return the runs and the bad ones of all kinds whose name begins so."""
    names: Sequence[str] = [name for name in table.runs if name.startswith(start)]
    return sum(table.runs[name] for name in names), sum(table.bad[name] for name in names)
