"""What a checkpoint says and whether it is true, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool.report.layout import columns
from ropetool.verification.results import FALSE, TRUE
from ropetool.verification.verdict.checking import Checked


def checked_text(found: Checked, width: int | None = None) -> str:
    """Return a sentence, a row for each check, and what was measured."""
    made = found.extension or {}
    method = f"{made['method']}{_factor(made)}" if made.get("method") else "no extension"
    lengths = f"{found.context_length:,} tokens"
    if found.context_length != found.trained_length:
        lengths = f"{found.trained_length:,} -> {lengths}"
    words = {TRUE: "the file is correct", FALSE: "the file is not correct"}.get(
        found.verdict, "the checks cannot decide whether the file is correct"
    )
    rows = [(check.name, check.verdict, check.detail) for check in found.checks]
    rows.append(("measured", found.measured.name, found.measured.why))
    return f"{found.target}: {method}, {lengths}: {words}\n{columns(rows, width=width)}"


def _factor(made: Mapping[str, Any]) -> str:
    factor = made.get("factor")
    return f" x{factor:g}" if factor else ""
