"""An edit of keys carried out: a copy of the model with them, its record beside it, all of it or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.checkpoint import provenance
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.gguf_edits import plain_value
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import RopetoolError
from ropetool.files import hub, linking
from ropetool.files.counting import counted, nobody
from ropetool.files.gguf import write_patched
from ropetool.files.hf import ABSENT
from ropetool.plans.applying import Progress
from ropetool.plans.gguf_output import gguf_output
from ropetool.plans.key_edits import KeyEdit
from ropetool.runtimes import inspection


@dataclass(frozen=True)
class KeyWritten:
    """What was written: the files of the model, how the unchanged ones got there, and what to know."""

    files: tuple[Path, ...]
    placed: Mapping[str, int]
    notes: tuple[str, ...]


def write_copy(
    edit: KeyEdit, target: Path, *, force: bool = False, copy: bool = False, progress: Progress | None = None
) -> KeyWritten:
    """Write the edited model to `target`; of one split over files, all but the first are linked unless `copy` is given.

    Raises: OutputError if the target cannot be written; PlanMismatch if the source changes meanwhile.
    """
    headers = edit.source.files
    placed = Counter[str]()
    total, done = sum(header.file_size for header in headers), 0
    tell = progress or nobody

    def moved(nbytes: int) -> None:
        nonlocal done
        done = min(done + nbytes, total)
        tell(target.name, done, total)

    with gguf_output(target, headers[0].path, force=force) as made, counted(moved):
        for header, patch, stage in zip(headers, edit.patches, made.stage(len(headers)), strict=True):
            if header is headers[0]:
                write_patched(header, patch, stage)
            else:
                placed[linking.carry(header.path, stage, copy=copy)] += 1
        made.finish(_record(edit), {})
    return KeyWritten(tuple(made.files), dict(placed), made.notes)


def _record(edit: KeyEdit) -> Provenance:
    """Return the record of the copy: the same model as its source, but for the key, which it states."""
    source = edit.source
    made = _made(source)
    change = {"key": edit.key, "old": plain_value(edit.before), "new": plain_value(edit.after)}
    stated: dict[str, Any] = {name: value for name, value in change.items() if value is not ABSENT}
    keys = {"keys": [stated], **({"rotates_anew": True} if edit.tables is not None else {})}
    plan = made.plan if made is not None and edit.tables is None else {}
    return Provenance(
        str(hub.absolute(source.path)),
        provenance.fingerprint(source.path),
        _trained_length(source, made),
        plan,
        export=keys,
    )


def _made(source: GgufCheckpoint) -> Provenance | None:
    """Return the record of the source; one that is of another file says nothing of this one."""
    try:
        return source.record
    except RopetoolError:
        return None


def _trained_length(source: GgufCheckpoint, made: Provenance | None) -> int | None:
    if made is not None:
        return made.trained_length
    try:
        return inspection.inspect_checkpoint(source).trained_length
    except RopetoolError:  # of a file that is no language model, or one that llama.cpp refuses
        return None
