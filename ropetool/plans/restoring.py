"""Undo edits in place by the log next to the file, and list the files to delete for an output that is a copy.

If the file differs from its log, another program has changed it since. ropetool then refuses, to keep that change.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ropetool import names
from ropetool.checkpoint import edit_log, listings, provenance
from ropetool.checkpoint.edit_log import LoggedEdit
from ropetool.errors import OutputError, PlanMismatch
from ropetool.escaping import Shown, command
from ropetool.files.gguf import GgufHeader, Patch, Value, read_vector, shards, write_patched
from ropetool.files.gguf.codec import shown
from ropetool.files.gguf.entries import AGAIN
from ropetool.files.gguf.header import read_unmapped
from ropetool.files.gguf.in_place import Edited, edit_in_place
from ropetool.files.gguf.in_place.copying import Beside, replace_by
from ropetool.files.gguf.in_place.editing import check_unchanged, edited_part
from ropetool.files.gguf.in_place.guard import held
from ropetool.files.gguf.in_place.planning import COPY
from ropetool.files.gguf.splitting import write_file
from ropetool.plans.in_place import editable, kept_record, resized

_INCOMPLETE = (
    "an earlier version of ropetool wrote the log and dropped its first edits, which cannot be undone; compare the file with "
    "the original by ropetool diff"
)
_CARD_NOTE = "{} is not compared, because verify writes into it; keep a copy if you edited it"


@dataclass(frozen=True)
class Restored(Shown):
    """Edits that were undone.

    edited: how the file was changed.
    undone: the entries of the log, the last edit first.
    left: the number of entries that the log still has.
    complete: whether the log had every edit since the first.
    """

    edited: Edited
    undone: tuple[LoggedEdit, ...]
    left: int
    complete: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the user."""
        return self.edited.notes if self.complete else (*self.edited.notes, _INCOMPLETE)


@dataclass(frozen=True)
class ToDelete(Shown):
    """An output that is a copy. Its files may be deleted, because the source has not changed.

    output: the output.
    source: the path of the source.
    paths: the files to delete.
    notes: messages for the user.
    """

    output: Path
    source: str
    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def restore(source: str | Path, *, every: bool = False, copy_if_needed: bool = False) -> Restored | ToDelete:
    """Undo the last edit in place of a GGUF file, or every edit. For any other output, return the files to delete.

    every: undo all edits.
    copy_if_needed: rewrite the whole file if the edit does not fit.
    Raises: PlanMismatch if the file differs from its log, or the source of a copy has changed. OutputError if there is
    nothing to undo, or the file cannot be edited. CheckpointError.
    """
    path = Path(source)
    if path.is_dir():
        return _to_delete(path)
    headers = editable(path)
    real = Path(os.path.realpath(headers[0].path))
    log = edit_log.read(real)
    if not log.edits:
        return _to_delete(headers[0].path)
    undone = tuple(reversed(log.edits if every else log.edits[-1:]))
    patch, added = undoing(headers, undone)
    rest = log.without_last(len(undone))
    record = next((entry.record for entry in reversed(undone) if entry.record is not None), None)

    def beside(way: str, size: int) -> Mapping[str, bytes]:
        return {
            edit_log.place(real).name: edit_log.text(rest) if rest.edits else b"",
            **_record(real, part, record, size),
        }

    dropping = replace(patch, drop=frozenset(added))
    part = edited_part(headers, dropping)[0]
    try:
        edited = edit_in_place(headers, dropping, copy_if_needed=copy_if_needed and not added, beside=beside)
    except OutputError:
        if not added or not copy_if_needed or len(headers) > 1:
            raise
        edited = _without(headers[0], patch, added, lambda size: beside(COPY, size))
    return Restored(edited, undone, len(rest.edits), log.complete)


def _record(file: Path, part: GgufHeader, replaced: str | None, size: int) -> Mapping[str, bytes]:
    """Return the record from before the edits, with the present size of the file. Empty if there was no record.

    replaced: the text in the log. None if the edits did not change the record.
    """
    if replaced is None:
        return kept_record(file, part, size)
    return {provenance.beside(file).name: resized(replaced, file, part, size) if replaced else b""}


def _without(header: GgufHeader, patch: Patch, added: Sequence[str], beside: Beside) -> Edited:
    """Rewrite the file without tensors that were added and are no longer its last ones.

    Raises: OutputError.
    """
    real = Path(os.path.realpath(header.path))
    remaining = [(header, tensor) for tensor in header.tensors if tensor.name not in added]
    without = real.with_name(f".{real.name}.ropetool-without")

    def write(new: Path) -> None:
        try:
            write_file(without, header.values, remaining)
            write_patched(read_unmapped(without), patch, new)
        finally:
            without.unlink(missing_ok=True)

    with held(real) as holding:
        check_unchanged(header, real)
        size = replace_by(write, holding, beside)
    return Edited(real, COPY, size, size, tuple(holding.notes))


def undoing(headers: Sequence[GgufHeader], undone: Sequence[LoggedEdit]) -> tuple[Patch, list[str]]:
    """Return the patch that undoes these edits, last edit first, and the names of the tensors that they added.

    Raises: PlanMismatch if the file does not contain the result of the last edit.
    """
    where = str(headers[0].path)
    if len(headers) == 1 and headers[0].file_size != undone[0].size:
        raise _changed(f"has {headers[0].file_size:,} bytes, but its log lists {undone[0].size:,}", where)
    values: dict[str, Value | None] = dict(headers[0].values)
    owners = {info.name: (header, info) for header in headers for info in header.tensors}
    vectors: dict[str, bytes | None] = {}
    touched: set[str] = set()
    for entry in undone:
        for key, (old, new) in entry.keys.items():
            if values.get(key) != new:
                raise _changed(f"{shown(key)} has changed since the last edit", where)
            values[key] = old
            touched.add(key)
        for name, (before, after) in entry.tensors.items():
            if name not in vectors:
                vectors[name] = read_vector(*owners[name]).tobytes() if name in owners else None
            if vectors[name] != after:
                raise _changed(f"the numbers of {shown(name)} have changed since the last edit", where)
            vectors[name] = before
    now = headers[0].values
    back = {key: values[key] for key in sorted(touched)}
    return Patch(
        {key: value for key, value in back.items() if value is not None},
        frozenset(key for key, value in back.items() if value is None and key in now),
        {name: np.frombuffer(raw, "<f4") for name, raw in vectors.items() if raw is not None},
    ), [name for name, raw in vectors.items() if raw is None]


def _changed(reason: str, where: str) -> PlanMismatch:
    return PlanMismatch(
        f"{reason}: a different program has written the file", where=where,
        try_="ropetool gguf set, which changes single keys",
    )  # fmt: skip


def _to_delete(first: Path) -> ToDelete:
    """Return the files to delete of an output. Raises: OutputError, PlanMismatch."""
    record = provenance.record(first)
    if record is None:
        raise OutputError(
            "nothing to undo: it has no ropetool edit log or record", where=str(first),
            try_=f"{command('ropetool', 'inspect', first)}, which shows the file",
        )  # fmt: skip
    if provenance.is_of_itself(first, record):
        raise OutputError(
            f"cannot be undone: its record lists an edit in place, but the log {edit_log.place(first).name} is missing",
            where=str(first), try_=AGAIN,
        )  # fmt: skip
    problem = provenance.source_problem(record)
    if problem:
        raise PlanMismatch(
            f"is a copy of {record.source}, which {problem}: deleting it may lose the only copy", where=str(first)
        )
    files = [first] if first.is_dir() else shards(first)
    rule = listings.directory_rule(first) if first.is_dir() else listings.files_rule(files)
    for file in files:
        problem = rule(file)
        if problem:
            raise PlanMismatch(
                f"{problem}: deleting it may lose the only copy", where=str(file),
                try_=f"{command('ropetool', 'diff', record.source, first)}, which shows all differences from its source",
            )  # fmt: skip
    if first.is_dir():
        card = first / names.CARD
        return ToDelete(first, record.source, (first,), (_CARD_NOTE.format(card),) if card.is_file() else ())
    beside = listings.beside(first)
    unchanged = [path for path, reason in beside.items() if not reason]
    notes = tuple(f"{path} is not deleted: {reason}" for path, reason in beside.items() if reason)
    return ToDelete(first, record.source, (*files, *unchanged, provenance.beside(first)), notes)
