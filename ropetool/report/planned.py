"""A plan, and its written output: as parts for a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint.edits import METADATA, TENSORS, FileEdit
from ropetool.escaping import number
from ropetool.files.counting import byte_size
from ropetool.files.hf import ABSENT
from ropetool.plans.basis import CURRENT, ORIGINAL, UNSCALED
from ropetool.plans.plan import BAKE, Plan
from ropetool.runtimes.base import NO_FLAG
from ropetool.sections import Part, listing

if TYPE_CHECKING:
    from ropetool.files.gguf.in_place import Edited
    from ropetool.plans.applied import Applied
    from ropetool.weights.checking import LayerCheck

SCHEMA = 1  # of the printed JSON; the plan in it has a separate schema
_SHARED = {
    "hard-linked": "hard-linked: an edit in place changes the weights of the source too; pass --copy for separate files",
    "reflinked": "reflinked: the weights share storage with the source until you edit one; pass --copy for separate files",
}

BASES = {
    UNSCALED: "the unscaled table",
    ORIGINAL: "the original table: the current scaling is replaced",
    CURRENT: "the current table",
}


def plan_parts(plan: Plan, output: str, flags: Sequence[str] = ()) -> Iterator[Part]:
    """Yield lengths, the encodings that were tried, every edit in full, and the changes of the weights.

    flags: the command lines of servers that reach the same without a file, or the reason why a server has no such flag.
    """
    yield listing(f"plan for {plan.family}", [*_goal(plan), ("runtimes", ", ".join(plan.runtimes)), ("output", output)])
    tried = [
        (each.name, f"rejected: {each.rejected}" if each.rejected else "kept: decodes to the requested table")
        for each in plan.candidates
    ]
    if tried:
        yield listing("encodings", tried)
    edits = [(edit.file, ".".join(edit.path), _change(edit)) for edit in plan.edits]
    yield listing("edits", edits or [(_no_edits(plan),)])
    if plan.bakes:
        yield listing("baked into the weights", [(sentence,) for sentence in plan.bakes])
    if flags:
        yield listing("the same without writing a file", ())
        yield from (listing("", [(line,)], whole=NO_FLAG not in line) for line in flags)


def _goal(plan: Plan) -> list[tuple[str, str]]:
    """Return method, factor, lengths and the start table."""
    if plan.method == BAKE:
        what = {**plan.params}
        return [
            ("method", f"{BAKE} {what.pop(BAKE, '')}{_params(what)}"),
            ("context", f"{plan.max_position_embeddings}, unchanged"),
        ]
    # Files do not record whether a model with a scaling was trained further with the scaling.
    before = "trained" if plan.reading == UNSCALED else "original"
    return [
        ("method", f"{plan.method}, factor {number(plan.factor)}{_params(plan.params)}"),
        ("lengths", f"{before} {plan.trained_length}, new context {plan.max_position_embeddings}"),
        ("from", BASES.get(plan.reading, plan.reading)),
    ]


def planned_json(plan: Plan, output: Path) -> dict[str, Any]:
    """Return what `ropetool extend --dry-run --json` prints."""
    return {"schema": SCHEMA, "plan": plan.to_json(), "output": str(output), "written": False}


def applied_parts(plan: Plan, written: Applied) -> Iterator[Part]:
    """Yield what `ropetool extend` and `bake` wrote, how servers load it, and the next step."""
    placed = ", ".join(f"{count} {how}" for how, count in sorted(written.placed.items())) or "none"
    reach = f"{plan.trained_length} -> {plan.max_position_embeddings} tokens"
    rows = [
        *([] if plan.method == BAKE else [("context", f"{reach}, {plan.method} factor {plan.factor:g}")]),
        *[("baked", sentence) for sentence in plan.bakes],
        *([("rounding", _rounding(written))] if written.baked else []),
        ("edited", ", ".join(written.edited) or "nothing"),
        *([("in place", in_place_text(written.in_place))] if written.in_place else [("other files", placed)]),
        *[("storage", sentence) for how, sentence in _SHARED.items() if how in written.placed],
        *([("left behind", ", ".join(written.left))] if written.left else []),
        *sidecar_rows(written.sidecars),
    ]
    yield listing(str(written.output), rows)
    yield from serving_parts(written.serving)
    if written.following is not None:  # not after a bake
        memory = written.following.kv_cache_bytes
        cache = f"{'not known' if memory is None else byte_size(memory)} for one sequence"
        yield listing(
            "next",
            [
                ("KV cache", f"{cache} of {plan.max_position_embeddings} tokens"),
                ("measure it", written.following.verify),
            ],
        )


def sidecar_rows(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """Return a row with the model card and the Modelfile of an output, if it has any."""
    return [("sidecars", ", ".join(path.name for path in paths))] if paths else []


def serving_parts(lines: Sequence[str]) -> Iterator[Part]:
    """Yield the command lines that serve an output."""
    if lines:
        yield listing("served by", [(line,) for line in lines], whole=True)


def checks_parts(checks: Sequence[LayerCheck]) -> Iterator[Part]:
    """Yield what `ropetool bake --check` prints below the rest."""
    rows = [
        (str(check.layer), check.layer_type, f"{check.largest:.4g}", f"{check.difference:.2g}", f"{check.unbaked:.2g}")
        for check in checks
    ]
    head = ("layer", "kind", "largest score", "difference", "without bake")
    yield listing("scores on random activations, before and after", rows, head=head, whole=True)


def in_place_text(edited: Edited) -> str:
    """Return how an edit in place changes the file, and the number of bytes that it writes."""
    return f"{edited.words}; {edited.bytes_written:,} bytes written"


def in_place_json(edited: Edited) -> dict[str, Any]:
    """Return the same for --json."""
    return {"way": edited.way, "bytes_written": edited.bytes_written, "size": edited.size}


def _rounding(written: Applied) -> str:
    """Return the largest and the mean relative error from rounding the changed weights."""
    highest = max(tensor.max_error for tensor in written.baked)
    rows = sum(tensor.rows for tensor in written.baked)
    mean = sum(tensor.mean_error * tensor.rows for tensor in written.baked) / max(1, rows)
    types = ", ".join(sorted({tensor.dtype for tensor in written.baked}))
    return (
        f"{rows} rows of {len(written.baked)} tensors in {types}: relative error at most {highest:.2g}, "
        f"{mean:.2g} on average"
    )


def applied_json(plan: Plan, written: Applied) -> dict[str, Any]:
    """Return what `ropetool extend --json` prints after writing."""
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
    """Return the values of a GGUF key before and after, with the type once if both have the same type."""
    last = new if new is not ABSENT else old
    same_type = old is ABSENT or new is ABSENT or old["type"] == new["type"]
    before = _value(old if old is ABSENT else old.get("value", old.get("sha256")))
    after = _value(new if new is ABSENT else new["value"])
    return (
        f"{before} -> {after} ({last['type']})" if same_type else f"{before} ({old['type']}) -> {after} ({new['type']})"
    )


def _divisors(vector: Any) -> str:
    """Return a vector of divisors with nine digits, which distinguish any two float32 numbers."""
    if vector is ABSENT:
        return "(absent)"
    numbers = [f"{float(number):.9g}" for number in vector]
    alike = len(set(numbers)) == 1
    return f"{len(numbers)} divisors, all {numbers[0]}" if alike else f"{len(numbers)} divisors: {', '.join(numbers)}"


def _value(value: Any) -> str:
    return "(absent)" if value is ABSENT else json.dumps(value, ensure_ascii=False)
