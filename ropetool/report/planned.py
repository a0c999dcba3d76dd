"""A plan, and what applying it wrote, as text for a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint.edits import METADATA, TENSORS, FileEdit
from ropetool.escaping import escaped, number
from ropetool.files.counting import byte_size
from ropetool.files.hf import ABSENT
from ropetool.plans.basis import CURRENT, ORIGINAL, UNSCALED
from ropetool.plans.plan import BAKE, Plan
from ropetool.report.layout import columns, serving_text, sidecar_rows
from ropetool.runtimes.base import NO_FLAG

if TYPE_CHECKING:
    from ropetool.files.gguf.in_place import Edited
    from ropetool.plans.applying import Applied

SCHEMA = 1  # of what is printed; a plan has one of its own
_SHARED = {
    "hard-linked": "hard-linked: an edit in place changes the weights of the source too; pass --copy for separate files",
    "reflinked": "reflinked: the weights share storage with the source until you edit one; pass --copy for separate files",
}

BASES = {
    UNSCALED: "the unscaled table",
    ORIGINAL: "the original table: the current scaling is replaced",
    CURRENT: "the current table",
}


def plan_text(plan: Plan, output: str, flags: Sequence[str] = (), width: int | None = None) -> str:
    """Return what --dry-run prints: lengths, the encodings tried, every edit in full, and what goes into the weights.

    flags: the command lines of servers that reach the same without a file; they stay whole, to be copied. width: that
    of the terminal, None for lines of any length.
    """
    rows = [*_goal(plan), ("runtimes", ", ".join(plan.runtimes)), ("output", output)]
    tried = [
        (c.name, f"rejected: {c.rejected}" if c.rejected else "kept: decodes to the requested table")
        for c in plan.candidates
    ]
    edits = [(e.file, ".".join(e.path), _change(e)) for e in plan.edits]
    return (
        f"plan for {escaped(plan.family)}\n{columns(rows, width=width)}\n"
        + (f"encodings\n{columns(tried, width=width)}\n" if tried else "")
        + ("edits\n" + (columns(edits, width=width) if edits else f"  {_no_edits(plan)}\n"))
        + (f"\nbaked into the weights\n{columns([(w,) for w in plan.bakes], width=width)}" if plan.bakes else "")
        + (f"\nthe same without writing a file\n{_flags(flags, width)}" if flags else "")
    )  # fmt: skip


def _flags(flags: Sequence[str], width: int | None) -> str:
    """Return command lines whole, to be copied; where there is none, the reason."""
    return "".join(columns([(line,)], width=width if NO_FLAG in line else None) for line in flags)


def _goal(plan: Plan) -> list[tuple[str, str]]:
    """Return what was asked for, and the lengths that follow."""
    if plan.method == BAKE:
        what = {**plan.params}
        return [
            ("method", f"{BAKE} {what.pop(BAKE, '')}{_params(what)}"),
            ("context", f"{plan.max_position_embeddings}, unchanged"),
        ]
    # Whether a model that came scaled was trained further with its scaling is not in its files.
    before = "trained" if plan.reading == UNSCALED else "original"
    return [
        ("method", f"{plan.method}, factor {number(plan.factor)}{_params(plan.params)}"),
        ("lengths", f"{before} {plan.trained_length}, new context {plan.max_position_embeddings}"),
        ("from", BASES.get(plan.reading, plan.reading)),
    ]


def planned_json(plan: Plan, output: Path) -> dict[str, Any]:
    """Return what `ropetool extend --dry-run --json` prints."""
    return {"schema": SCHEMA, "plan": plan.to_json(), "output": str(output), "written": False}


def applied_text(plan: Plan, written: Applied) -> str:
    """Return what `ropetool extend` and `bake` print when they have written."""
    placed = ", ".join(f"{count} {how}" for how, count in sorted(written.placed.items())) or "none"
    reach = f"{plan.trained_length} -> {plan.max_position_embeddings} tokens"
    rows = [
        *([] if plan.method == BAKE else [("context", f"{reach}, {plan.method} factor {plan.factor:g}")]),
        *[("baked", words) for words in plan.bakes],
        *([("rounding", _rounding(written))] if written.baked else []),
        ("edited", ", ".join(written.edited) or "nothing"),
        *([("in place", in_place_text(written.in_place))] if written.in_place else [("other files", placed)]),
        *[("storage", words) for how, words in _SHARED.items() if how in written.placed],
        *([("left behind", ", ".join(written.left))] if written.left else []),
        *sidecar_rows(written.sidecars),
    ]
    return f"{escaped(written.output)}\n{columns(rows)}{serving_text(written.serving)}{_following_text(plan, written)}"


def _following_text(plan: Plan, written: Applied) -> str:
    """Return the memory of the new context and the command that measures it; empty for a bake."""
    follows = written.following
    if follows is None:
        return ""
    known = "not known" if follows.kv_cache_bytes is None else byte_size(follows.kv_cache_bytes)
    cache = f"{known} for one sequence of {plan.max_position_embeddings} tokens"
    return f"\nnext\n{columns([('KV cache', cache), ('measure it', follows.verify)])}"


def in_place_text(edited: Edited) -> str:
    """Return how a file was changed where it lies, or would be."""
    return f"{edited.words}; {edited.bytes_written:,} bytes written"


def in_place_json(edited: Edited) -> dict[str, Any]:
    """Return the same for --json."""
    return {"way": edited.way, "bytes_written": edited.bytes_written, "size": edited.size}


def _rounding(written: Applied) -> str:
    """Return the largest and the mean relative change that storing the products cost."""
    highest = max(tensor.max_error for tensor in written.baked)
    rows = sum(tensor.rows for tensor in written.baked)
    mean = sum(tensor.mean_error * tensor.rows for tensor in written.baked) / max(1, rows)
    types = ", ".join(sorted({tensor.dtype for tensor in written.baked}))
    return (
        f"{rows} rows of {len(written.baked)} tensors in {types}: relative error at most {highest:.2g}, "
        f"{mean:.2g} on average"
    )


def applied_json(plan: Plan, written: Applied) -> dict[str, Any]:
    """Return what `ropetool extend --json` prints when it has written."""
    return {
        "schema": SCHEMA, "plan": plan.to_json(), "output": str(written.output), "written": True,
        "placed": dict(written.placed), "edited": list(written.edited), "left": list(written.left),
        "baked": [{**vars(tensor), "reasons": list(tensor.reasons)} for tensor in written.baked],
        "serving": list(written.serving), "sidecars": [str(path) for path in written.sidecars],
        "notes": list(written.notes),
        **_following_json(written), **({"in_place": in_place_json(written.in_place)} if written.in_place else {}),
    }  # fmt: skip


def _following_json(written: Applied) -> dict[str, Any]:
    return {} if written.following is None else vars(written.following)


def _no_edits(plan: Plan) -> str:
    return "none: only weights change" if plan.bakes else "none: the source already has these settings"


def _params(params: Mapping[str, Any]) -> str:
    return "".join(f", {name} {number(v) if isinstance(v, float) else _value(v)}" for name, v in params.items())


def _change(edit: FileEdit) -> str:
    if edit.file == METADATA:
        return _typed_change(edit.old, edit.new)
    if edit.file == TENSORS:
        return f"{_divisors(edit.old)} -> {_divisors(edit.new)}"
    return f"{_value(edit.old)} -> {_value(edit.new)}"


def _typed_change(old: Any, new: Any) -> str:
    """Return the values of a GGUF key, with the type once where both have the same."""
    last = new if new is not ABSENT else old
    same_type = old is ABSENT or new is ABSENT or old["type"] == new["type"]
    before = _value(old if old is ABSENT else old.get("value", old.get("sha256")))
    after = _value(new if new is ABSENT else new["value"])
    return (
        f"{before} -> {after} ({last['type']})" if same_type else f"{before} ({old['type']}) -> {after} ({new['type']})"
    )


def _divisors(vector: Any) -> str:
    """Return a frequency vector: nine digits tell two float32 numbers apart."""
    if vector is ABSENT:
        return "(absent)"
    numbers = [f"{float(number):.9g}" for number in vector]
    alike = len(set(numbers)) == 1
    return f"{len(numbers)} divisors, all {numbers[0]}" if alike else f"{len(numbers)} divisors: {', '.join(numbers)}"


def _value(value: Any) -> str:
    return "(absent)" if value is ABSENT else json.dumps(value, ensure_ascii=False)
