"""What default verifications say of planted defects: the table of docs/judging.md.

Reads tests/verification/default_verdicts.json, which default_verdicts.py measures, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from defects_page import VERDICTS, is_sound

CHANGED = 1.05  # times the perplexity without the defect, from which a defect should be found
KEEP, WORKS, BROKEN = "keep", "works", "broken"
PASSED = (KEEP, WORKS)
Row = Mapping[str, Any]


def known() -> dict[str, dict[str, dict[str, Row]]]:
    """Return the committed rows by model, form and defect; empty without any."""
    rows: dict[str, Any] = json.loads(VERDICTS.read_text(encoding="utf-8")) if VERDICTS.exists() else {}
    return rows


def planted(rows: Mapping[str, Row]) -> Iterator[tuple[str, Row]]:
    """Yield the defects of a form, and their rows."""
    yield from ((defect, row) for defect, row in rows.items() if not is_sound(defect))


def is_refused(row: Row) -> bool:
    """Return whether the model could not be run, so that there is no verdict."""
    return "change" not in row


def changing(rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return the defects that change the perplexity by 5 % or more."""
    return {name: row for name, row in planted(rows) if not is_refused(row) and row["change"] >= CHANGED}


def passes(row: Row) -> bool:
    """Return whether a whole default verification lets it pass, files and texts together."""
    return not row["file"] and row["verdict"] in PASSED


def passes_texts(row: Row) -> bool:
    """Return whether the texts alone let it pass."""
    return row["verdict"] in PASSED


def table() -> str:
    """Return a row for each model and form."""
    heads = (
        "model", "files", "planted", "refused", "cost 5 % or more", "of these, pass", "by texts, pass", "by texts, `keep`",
        "by texts, `broken`",
    )  # fmt: skip
    lines = [heads, ("---", "---", *["--:"] * (len(heads) - 2))]
    for model, forms in known().items():
        for form, rows in forms.items():
            all_rows, large = dict(planted(rows)), changing(rows).values()
            counts = (
                len(all_rows),
                sum(map(is_refused, all_rows.values())),
                len(large),
                sum(map(passes, large)),
                sum(map(passes_texts, large)),
                sum(row["verdict"] == KEEP for row in large),
                sum(row["verdict"] == BROKEN for row in large),
            )
            lines.append((model, form, *map(str, counts)))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
