"""The keys of a GGUF file: as parts for a terminal, and as JSON. Long arrays are shortened to their first elements."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ropetool.files.gguf import GgufHeader, Value, ValueType
from ropetool.files.gguf.codec import plain_number, utf8
from ropetool.files.gguf.texts import first
from ropetool.rope.tables import LayerRope, RopeSet, in_words
from ropetool.sections import Part, listing

if TYPE_CHECKING:
    from ropetool.plans.key_edits import KeyEdit
    from ropetool.plans.resharding import Resharded

SCHEMA = 1
FEW = 8  # elements of an array in a line, and 16 in the JSON of a list
LINE = 100  # characters of a value in a line
BESIDE = 48  # characters of a value if two values share a line
IN_JSON = 16


def keys_parts(files: Sequence[GgufHeader]) -> Iterator[Part]:
    """Yield the file in a line, then each key with type and value."""
    rows = [(key, value.label, shortened(value)) for key, value in files[0].values.items()]
    tensors = sum(len(header.tensors) for header in files)
    over = f" in {len(files)} files; the first file contains the keys" if len(files) > 1 else ""
    head = f"{files[0].path.name}: GGUF version {files[0].version}, {len(rows)} keys, {tensors} tensors{over}"
    yield listing(head, rows, whole=True)


def shortened(value: Value, line: int = LINE) -> str:
    """Return a value in one line. Long arrays are cut to their first elements and count, long texts to their start."""
    if value.element is not None:
        elements = [json.dumps(plain_number(one), ensure_ascii=False) for one in first(value, FEW)]
        if value.count <= FEW and len(", ".join(elements)) <= line:
            return f"[{', '.join(elements)}]"
        while len(elements) > 1 and len(", ".join(elements)) > line:
            elements.pop()
        return f"[{', '.join(elements)[:line]}, ...] {value.count:,} elements"
    if value.type is ValueType.STR:
        text = str(value.decode())
        return text if len(text) <= line else f"{text[:line]}... {len(text):,} characters"
    return number_text(value)


def number_text(value: Value) -> str:
    """Return a bool, or a number with enough digits to distinguish it from other numbers of its type."""
    number = value.number
    if isinstance(number, bool):
        return str(number).lower()
    return str(np.float32(number)) if value.type is ValueType.F32 else str(number)


def whole(value: Value) -> str:
    """Return a value as `gguf set` accepts it: a text unchanged, an array as JSON."""
    if value.type is ValueType.STR:
        return str(value.decode())
    return json.dumps(_plain(value), ensure_ascii=False) if value.element is not None else number_text(value)


def exact_bytes(value: Value) -> bytes:
    """Return the bytes of a value for a pipe: a text unchanged, any other value as a line."""
    return utf8(whole(value)) if value.type is ValueType.STR else utf8(f"{whole(value)}\n")


def keys_json(files: Sequence[GgufHeader]) -> dict[str, Any]:
    """Return what `gguf list --json` prints. It has at most the first 16 elements of an array."""
    return {
        "schema": SCHEMA, "file": str(files[0].path), "files": [str(header.path) for header in files],
        "version": files[0].version, "alignment": files[0].alignment,
        "tensors": sum(len(header.tensors) for header in files),
        "keys": [{"key": key, **_entry(value, short=True)} for key, value in files[0].values.items()],
    }  # fmt: skip


def key_json(header: GgufHeader, key: str) -> dict[str, Any]:
    """Return what `gguf get --json` prints."""
    return {"schema": SCHEMA, "file": str(header.path), "key": key, **_entry(header.values[key], short=False)}


def _entry(value: Value, *, short: bool) -> dict[str, Any]:
    if value.element is None:
        return {"type": value.label, "value": _plain(value)}
    if short and value.count > IN_JSON:
        return {
            "type": value.label,
            "count": value.count,
            "first": [plain_number(one) for one in first(value, IN_JSON)],
        }
    return {"type": value.label, "count": value.count, "value": _plain(value)}


def _plain(value: Value) -> Any:
    """Return a value as JSON can represent it."""
    decoded: Any = value.decode()
    if value.element is None:
        return plain_number(decoded)
    return [plain_number(one) for one in (decoded if isinstance(decoded, list) else decoded.tolist())]


# --- edits


def edit_parts(edit: KeyEdit, outcome: Sequence[tuple[str, str]]) -> Iterator[Part]:
    """Yield the values of a key before and after, the table if that changed, and then the rows of the outcome."""
    rows = [(edit.key, f"{described(edit.before)} -> {described(edit.after)}")]
    if edit.is_empty:
        rows = [(edit.key, f"{described(edit.after)} already")]
    if edit.tables is not None:
        rows.append(("rotation", rotation_text(*edit.tables)))
    yield listing("", [*rows, *outcome], depth=-1, whole=True)


def edit_json(edit: KeyEdit, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `gguf set --json` and `gguf unset --json` print."""
    values = {"before": edit.before, "after": edit.after}
    return {
        "schema": SCHEMA, "file": str(edit.source.path), "key": edit.key,
        **{name: None if value is None else _entry(value, short=True) for name, value in values.items()},
        "rotation": None if edit.tables is None else [_rope(rope) for rope in edit.tables],
        **more, "notes": list(edit.notes),
    }  # fmt: skip


def rotation_text(before: RopeSet, after: RopeSet) -> str:
    """Return the rotation in llama.cpp before and after an edit, in one line."""
    old, new = _rope(before), _rope(after)
    return f"{old} -> {new}" if old != new else f"{old}, but {in_words(before.differences(after))}"


def _rope(rope: RopeSet) -> str:
    several = len(rope.entries) > 1
    kinds = [(f"{name}: " if several else "") + _layer(entry) for name, entry in rope.entries.items()]
    return f"{'; '.join(kinds)}; context {rope.max_position_embeddings}"


def _layer(entry: LayerRope) -> str:
    theta = "" if entry.rope_theta is None else f", theta {entry.rope_theta:g}"
    factor = "" if entry.factor is None else f", factor {entry.factor:g}"
    attention = (
        "" if entry.table is None or entry.attention_factor == 1 else f", attention factor {entry.attention_factor:.6g}"
    )
    return f"{entry.rope_type}{theta}{factor}{attention}"


def described(value: Value | None) -> str:
    """Return the type and the value of a key, shortened."""
    return "absent" if value is None else f"{value.label} {shortened(value, line=BESIDE)}"


# --- models split and merged


def files_parts(done: Resharded) -> Iterator[Part]:
    """Yield the files of a model that was split or merged, and their size."""
    names = f"{done.files[0]}" + (f" to {done.files[-1].name}" if len(done.files) > 1 else "")
    contents = f"{done.tensors} tensors, {done.nbytes:,} bytes, in {len(done.files)} files"
    yield listing("", [("output", names), ("contents", contents)], depth=-1, whole=True)


def files_json(done: Resharded) -> dict[str, Any]:
    """Return what `gguf split --json` and `gguf merge --json` print."""
    return {
        "schema": SCHEMA, "output": [str(path) for path in done.files], "tensors": done.tensors, "bytes": done.nbytes,
        "notes": list(done.notes),
    }  # fmt: skip
