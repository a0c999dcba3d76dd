"""The checks of a checkpoint's settings, as parts for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ropetool.sections import Part, listing
from ropetool.verification.readback.terms import FILES, WEIGHTS
from ropetool.verification.results import FALSE, NOT_ASKED, TRUE
from ropetool.verification.verdict.checking import Checked

PARTS = (WEIGHTS, FILES)  # besides the RoPE settings


def checked_parts(checked: Checked) -> Iterator[Part]:
    """Yield a sentence, a row for each check, and the state of the certificate."""
    extension = checked.extension or {}
    method = f"{extension['method']}{_factor(extension)}" if extension.get("method") else "no extension"
    lengths = f"{checked.context_length:,} tokens"
    if checked.context_length != checked.trained_length:
        lengths = f"{checked.trained_length:,} -> {lengths}"
    verdict = {TRUE: "the file is correct", FALSE: "the file is not correct"}.get(
        checked.verdict, "the checks cannot decide whether the file is correct"
    )
    not_compared = [check.name for check in checked.checks if check.name in PARTS and check.verdict == NOT_ASKED]
    if checked.verdict == TRUE and not_compared:
        verdict = f"the RoPE settings are correct; not compared: {', '.join(not_compared)}"
    rows = [(check.name, check.verdict, check.detail) for check in checked.checks]
    rows.append(("measured", checked.measured.name, checked.measured.why))
    yield listing(f"{checked.target}: {method}, {lengths}: {verdict}", rows)


def _factor(extension: Mapping[str, Any]) -> str:
    factor = extension.get("factor")
    return f" x{factor:g}" if factor else ""
