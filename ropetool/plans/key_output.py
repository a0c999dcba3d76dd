"""Write an edit of a key: as a copy of the model with its record, or in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropetool.checkpoint.gguf import plain_value
from ropetool.checkpoint.provenance import Provenance
from ropetool.files import linking
from ropetool.files.gguf import write_patched
from ropetool.files.gguf.in_place import Edited
from ropetool.files.hf import ABSENT
from ropetool.plans.applied import Progress
from ropetool.plans.gguf_output import copied_record, counted_bytes, gguf_output, record_of
from ropetool.plans.in_place import edit_model
from ropetool.plans.key_edits import KeyEdit


@dataclass(frozen=True)
class KeyWritten:
    """A written copy.

    files: the files of the model.
    placed: the number of unchanged files that were linked, reflinked and copied.
    notes: messages for the user.
    """

    files: tuple[Path, ...]
    placed: Mapping[str, int]
    notes: tuple[str, ...]


def write_copy(
    edit: KeyEdit, target: Path, *, force: bool = False, copy: bool = False, progress: Progress | None = None
) -> KeyWritten:
    """Write the edited model to `target`.

    In a model with several files, all but the first are linked unless `copy` is set.
    Raises: OutputError if the target cannot be written; PlanMismatch if the source changes meanwhile.
    """
    headers = edit.source.files
    placed: dict[Path, str] = {}
    total = sum(header.file_size for header in headers)
    with gguf_output(target, headers[0].path, force=force) as output, counted_bytes(target.name, total, progress):
        for header, stage in zip(headers, output.stage(len(headers)), strict=True):
            if header is headers[0]:
                write_patched(header, edit.patch, stage)
            else:
                placed[stage] = linking.carry(header.path, stage, copy=copy)
        output.finish(_record(edit), placed=placed)
    return KeyWritten(tuple(output.files), Counter(placed.values()), output.notes)


def write_in_place(edit: KeyEdit, *, copy_if_needed: bool = False, command: str = "") -> Edited:
    """Change the key in the model file itself. Its headers must be unmapped. The log next to it keeps the old value.

    Raises: as `edit_model`.
    """
    edited = edit_model(edit.source.files, edit.patch, copy_if_needed=copy_if_needed, command=command)
    record = record_of(edit.source) if edit.tables is not None else None
    if record is None or not record.plan:
        return edited
    note = "its record still describes the old table, so `ropetool verify` reports a difference; `ropetool restore` undoes the edit"
    return replace(edited, notes=(*edited.notes, note))


def _record(edit: KeyEdit) -> Provenance:
    """Return the record of the copy: the same model as its source, and the changed key."""
    change = {"key": edit.key, "old": plain_value(edit.before), "new": plain_value(edit.after)}
    export: dict[str, Any] = {"keys": [{name: value for name, value in change.items() if value is not ABSENT}]}
    return copied_record(edit.source, export, same_table=edit.tables is None)
