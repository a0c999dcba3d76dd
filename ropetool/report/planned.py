"""A plan, and what applying it wrote, as text for a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.formats.hf import ABSENT
from ropetool.planning import SCHEMA, Plan
from ropetool.report.layout import columns

if TYPE_CHECKING:
    from ropetool.applying import Applied


def plan_text(plan: Plan, output: str) -> str:
    """Return what `ropetool extend --dry-run` prints: lengths, the encodings tried, and every edit."""
    rows = [
        ("method", f"{plan.method}, factor {plan.factor:g}{_params(plan)}"),
        ("lengths", f"trained {plan.trained_length}, new context {plan.max_position_embeddings}"),
        ("reading", plan.reading),
        ("runtimes", ", ".join(plan.runtimes)),
        ("output", output),
    ]
    tried = [
        (c.name, f"rejected: {c.rejected}" if c.rejected else "kept: decodes to the table asked for")
        for c in plan.candidates
    ]
    edits = [(e.file, ".".join(e.path), f"{_value(e.old)} -> {_value(e.new)}") for e in plan.edits]
    return (
        f"plan for a {plan.family}\n{columns(rows)}\nencodings\n{columns(tried)}\nedits\n"
        + (columns(edits) if edits else "  none: the source says it already\n")
    )  # fmt: skip


def planned_json(plan: Plan, output: Path) -> dict[str, Any]:
    """Return what `ropetool extend --dry-run --json` prints."""
    return {"schema": SCHEMA, "plan": plan.to_json(), "output": str(output), "written": False}


def applied_text(plan: Plan, written: Applied) -> str:
    """Return what `ropetool extend` prints when it has written."""
    placed = ", ".join(f"{count} {how}" for how, count in sorted(written.placed.items())) or "none"
    reach = f"{plan.trained_length} -> {plan.max_position_embeddings} tokens"
    rows = [
        ("context", f"{reach}, {plan.method} factor {plan.factor:g}"),
        ("edited", ", ".join(written.edited) or "nothing"),
        ("other files", placed),
        *([("left behind", ", ".join(written.left))] if written.left else []),
    ]
    return f"{written.output}\n{columns(rows)}"


def applied_json(plan: Plan, written: Applied) -> dict[str, Any]:
    """Return what `ropetool extend --json` prints when it has written."""
    return {
        "schema": SCHEMA, "plan": plan.to_json(), "output": str(written.output), "written": True,
        "placed": dict(written.placed), "edited": list(written.edited), "left": list(written.left),
    }  # fmt: skip


def _params(plan: Plan) -> str:
    return "".join(f", {name} {_value(value)}" for name, value in plan.params.items())


def _value(value: Any) -> str:
    if value is ABSENT:
        return "(absent)"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 90 else f"{text[:80]}... ({len(text)} characters)"
