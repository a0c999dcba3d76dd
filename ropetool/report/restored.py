"""Edits in place that were undone, and the files of a copy to delete: as parts for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ropetool.checkpoint.edit_log import LoggedEdit
from ropetool.escaping import command
from ropetool.plans.restoring import Restored, ToDelete
from ropetool.report.gguf_keys import described
from ropetool.report.planned import in_place_json, in_place_text
from ropetool.sections import Part, listing

SCHEMA = 1
CONTENT = "as before; the bytes differ if an edit added room to the header, which stays"


def restored_parts(done: Restored | ToDelete) -> Iterator[Part]:
    """Yield the edits that were undone, key by key, or the command that deletes a copy."""
    if isinstance(done, ToDelete):
        yield f"{done.output} is a copy, and its source {done.source} is unchanged. To undo the edit, delete the copy:"
        yield listing("", [(_deletion(done),)], whole=True)
        return
    rows = [row for entry in done.undone for row in _rows(entry)]
    none = "no edits remain" if done.complete else "no edits remain in the log, which may lack the first edits"
    left = f"{done.left} earlier edit{'s remain' if done.left != 1 else ' remains'}" if done.left else none
    ends = [("in place", in_place_text(done.edited)), ("content", CONTENT), ("log", left)]
    yield listing(str(done.edited.path), [*rows, *ends])


def restored_json(done: Restored | ToDelete) -> dict[str, Any]:
    """Return what `restore --json` prints."""
    if isinstance(done, ToDelete):
        paths = [str(path) for path in done.paths]
        return {
            "schema": SCHEMA, "output": str(done.output), "source": done.source, "delete": paths, "notes": list(done.notes)
        }  # fmt: skip
    return {
        "schema": SCHEMA, "file": str(done.edited.path), "undone": [entry.to_json() for entry in done.undone],
        "left": done.left, "complete": done.complete, "in_place": in_place_json(done.edited), "notes": list(done.notes),
    }  # fmt: skip


def _deletion(done: ToDelete) -> str:
    options = ["-r"] if done.output.is_dir() else []
    return command("rm", *options, *done.paths)


def _rows(entry: LoggedEdit) -> list[tuple[str, str]]:
    """Return a row for each restored key and vector."""
    rows = [("undone", entry.command)] if entry.command else []
    rows += [(key, f"{described(new)} -> {described(old)}") for key, (old, new) in entry.keys.items()]
    rows += [
        (name, f"{len(new) // 4} numbers, {'gone' if old is None else 'as they were'}")
        for name, (old, new) in entry.tensors.items()
    ]
    return rows
