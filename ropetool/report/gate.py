"""The checks of a verification as a table, and its verdict as one sentence. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterable

from ropetool.report.tables import TONES, Cell, Section, Table, exact, row
from ropetool.verification.results import Check, VerifyResult

SHOWN = {"tax": "regression"}


def gate_section(result: VerifyResult) -> Section:
    """Return every check with its figure and limit side by side."""
    rows = tuple(
        row(
            shown_name(check),
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
            "pass or fail: it gates; not run: it could not be measured, the result is partial; -: for information",
        ),
    )
    head = ("check", "figure", "limit", "verdict", "")
    return Section("gate", f"Gate, suite {result.suite}", Table(head, rows, words=(0, 3, 4)), legend)


def verdict_sentence(result: VerifyResult) -> str:
    """Return what follows the verdict: which checks failed or did not run, and where the context is useful."""
    failed, absent = _with(result.checks, "fail"), _with(result.checks, "not run")
    passed = len(_with(result.checks, "pass"))
    parts = [_reason(check) for check in failed]
    if absent:
        parts.append(f"not run: {', '.join(map(shown_name, absent))}")
    parts.append(f"{passed} of {passed + len(failed) + len(absent)} checks passed")
    beyond = [entry for entry in result.lengths if entry.length > result.trained_length]
    if any(entry.useful is not None for entry in beyond):
        useful = ", ".join(str(entry.length) for entry in beyond if entry.useful)
        parts.append(f"useful at {useful or 'no length'}")
    elif result.lengths and result.context_length > result.trained_length:
        parts.append(f"nothing beyond {result.trained_length} was measured")
    return "; ".join(parts)


def shown_name(check: Check) -> str:
    """Return what a check is called in a report; results and certificates name it as ever."""
    return SHOWN.get(check.name, check.name)


def _with(checks: Iterable[Check], verdict: str) -> list[Check]:
    return [check for check in checks if check.verdict == verdict]


def _reason(check: Check) -> str:
    if check.figure is None or check.limit is None:
        return f"{shown_name(check)}: {check.detail}" if check.detail else shown_name(check)
    return f"{shown_name(check)} {exact(check.figure)}, limit {exact(check.limit)}"
