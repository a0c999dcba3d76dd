"""The checks of a verification as a table, and its verdict as one sentence. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterable

from ropetool.report.tables import TONES, Cell, Section, Table, exact, row
from ropetool.verification.results import FAIL, NOT_RUN, PASS, UNDECIDED, Check, VerifyResult


def gate_section(result: VerifyResult) -> Section:
    """Return every check with its figure and limit side by side."""
    rows = tuple(
        row(
            check.name,
            exact(check.figure),
            exact(check.limit),
            Cell(check.verdict, TONES.get(check.verdict, "")),
            check.detail,
        )
        for check in result.checks
    )
    legend = (
        (
            "verdict",
            "pass or fail: it gates; undecided: the texts were too few to tell; not run: it could not be measured, the "
            "result is partial; -: for information",
        ),
    )
    grade = f", grade {result.grade}" if result.grade else ""
    head = ("check", "figure", "limit", "verdict", "")
    return Section("gate", f"Gate, suite {result.suite}{grade}", Table(head, rows, words=(0, 3, 4)), legend)


def verdict_sentence(result: VerifyResult) -> str:
    """Return what follows the verdict: which checks failed or did not run, and where the context is useful."""
    failed, absent, unsure = (_with(result.checks, verdict) for verdict in (FAIL, NOT_RUN, UNDECIDED))
    passed = len(_with(result.checks, PASS))
    parts = [_reason(check) for check in failed]
    if absent:
        parts.append(f"not run: {', '.join(check.name for check in absent)}")
    if unsure:
        parts.append(f"more text decides {', '.join(check.name for check in unsure)}")
    grade = f" for grade {result.grade}" if result.grade else ""
    parts.append(f"{passed} of {passed + len(failed) + len(absent) + len(unsure)} checks passed{grade}")
    beyond = [entry for entry in result.lengths if entry.length > result.trained_length]
    if any(entry.useful is not None for entry in beyond):
        useful = ", ".join(str(entry.length) for entry in beyond if entry.useful)
        parts.append(f"useful at {useful or 'no length'}")
    elif result.lengths and result.context_length > result.trained_length:
        parts.append(f"nothing beyond {result.trained_length} was measured")
    return "; ".join(parts)


def _with(checks: Iterable[Check], verdict: str) -> list[Check]:
    return [check for check in checks if check.verdict == verdict]


def _reason(check: Check) -> str:
    if check.figure is None or check.limit is None:
        return f"{check.name}: {check.detail}" if check.detail else check.name
    return f"{check.name} {exact(check.figure)}, limit {exact(check.limit)}"
