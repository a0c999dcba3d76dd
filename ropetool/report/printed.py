"""The text of each result in print() and in notebooks: a sentence, and the output of its command."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

WIDTH = 100  # characters of a line in a notebook
# By the name of a result's class: the module of its parts, their function, its arguments after the result, and the width.
PARTS: dict[str, tuple[str, str, dict[str, Any], int | None]] = {
    "Inspection": ("inspected", "inspection_parts", {}, WIDTH),
    "Advice": ("advised", "advice_parts", {}, WIDTH),
    "Plan": ("planned", "plan_parts", {"output": ""}, WIDTH),
    "Restored": ("restored", "restored_parts", {}, None),
    "ToDelete": ("restored", "restored_parts", {}, None),
    "VerifyResult": ("verified", "verify_parts", {}, WIDTH),
    "Comparison": ("compared", "compare_parts", {}, WIDTH),
    "Exported": ("exported", "exported_parts", {}, None),
    "Imported": ("exported", "imported_parts", {}, None),
    "Diff": ("differing", "diff_parts", {}, None),
    "Diagnosis": ("diagnosed", "diagnosis_parts", {}, WIDTH),
}


def text(result: Any) -> str:
    """Return the output of the result's command, or the sentence of a result without a command."""
    if type(result).__name__ not in PARTS:
        return sentence(result)
    module, name, options, width = PARTS[type(result).__name__]
    return str(_function("terminal", "terminal_text")(_function(module, name)(result, **options), width))


def sentence(result: Any) -> str:
    """Return the result in one line, or in a line for each ranking."""
    return SENTENCES[type(result).__name__](result)


def _function(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(f"ropetool.report.{module}"), name)
    return function


def _inspection(result: Any) -> str:
    head = f"{result.source}: {_function('inspected', 'named')(result)}"
    if result.rope is None:
        return head
    types = ", ".join(dict.fromkeys(entry.rope_type for entry in result.rope.entries.values()))
    return f"{head}, {types}, {result.rope.max_position_embeddings:,} tokens"


def _advice(result: Any) -> str:
    advised = result.reason if result.chosen is None else f"{result.command}\n  {result.why}"
    return f"{result.inspection.source}: {advised}"


def _plan(result: Any) -> str:
    baked = f", {len(result.tensors)} tensors baked" if result.bakes else ""
    return (
        f"{result.family}: {result.method} x{result.factor:g}, {result.trained_length:,} -> "
        f"{result.max_position_embeddings:,} tokens, for {', '.join(result.runtimes)}, "
        f"{len(result.edits)} edits{baked}"
    )


def _written(result: Any) -> str:
    dtype = getattr(result, "outtype", None) or result.dtype
    return f"{result.output}: {result.tensors} tensors in {dtype}, {result.context_length:,} tokens of context"


def _diff(result: Any) -> str:
    outcome = "the same in meaning" if result.same else f"differs: {'; '.join(result.differences)}"
    return f"{result.a.source}, {result.b.source}: {outcome}"


SENTENCES: dict[str, Callable[[Any], str]] = {
    "Inspection": _inspection,
    "Advice": _advice,
    "Plan": _plan,
    "Applied": lambda result: f"{result.output}: edited {', '.join(result.edited) or 'nothing'}",
    "Recovered": lambda result: f"{result.path}: {result.sentence}",
    "Restored": lambda result: text(result).rstrip("\n"),
    "ToDelete": lambda result: text(result).rstrip("\n"),
    "VerifyResult": lambda result: str(_function("verdict", "summary")(result)),
    "Comparison": lambda result: "\n".join(_function("compared", "sentences")(result)),
    "TuneResult": lambda result: f"{result.source}: {result.verdict}",
    "Exported": _written,
    "Imported": _written,
    "Diff": _diff,
    "Diagnosis": lambda result: str(_function("diagnosed", "counts_text")(result)),
}
