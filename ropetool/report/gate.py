"""The checks of a verification as a table. Judges nothing."""

from __future__ import annotations

from ropetool.sections import TONES, Cell, Section, Table, exact, row
from ropetool.verification.results import FAIL, INEXACT, NOT_ASKED, NOT_RUN, PASS, UNDECIDED, VerifyResult

ORDER = (FAIL, NOT_RUN, UNDECIDED, INEXACT, PASS, NOT_ASKED)


def gate_section(result: VerifyResult) -> Section:
    """Return every check with its figure and limit side by side, those that decide the verdict first."""
    rows = tuple(
        row(
            check.name,
            exact(check.figure),
            exact(check.limit),
            Cell(check.verdict, TONES.get(check.verdict, "")),
            check.detail,
        )
        for check in sorted(result.checks, key=lambda check: ORDER.index(check.verdict))
    )
    legend = (
        (
            "verdict",
            "pass, fail: decides the verdict; undecided: too little data; not run: could not be measured, so the result "
            "is partial; inexact: differs, as --allow-inexact accepted; -: only informs",
        ),
    )
    grade = f", grade {result.grade}" if result.grade else ""
    head = ("check", "figure", "limit", "verdict", "")
    return Section("gate", f"Gate, suite {result.suite}{grade}", Table(head, rows, words=(0, 3, 4)), legend)
