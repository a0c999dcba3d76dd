"""Edit GGUF models in place: by a plan, or by a patch of keys and vectors. Update the log and the record next to them.

`files.gguf.in_place` writes the bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ropetool.checkpoint import edit_log, provenance
from ropetool.checkpoint.edit_log import EditLog, LoggedEdit
from ropetool.checkpoint.gguf import GgufCheckpoint, patch_of
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import ConfigError, CorruptFile, LossyExport, OutputError
from ropetool.files import hub
from ropetool.files.gguf import GgufHeader, Patch, read_shards
from ropetool.files.gguf.entries import AGAIN
from ropetool.files.gguf.header import read_unmapped
from ropetool.files.gguf.in_place import Edited, edit_in_place, way_in_place
from ropetool.files.gguf.in_place.editing import edited_part
from ropetool.files.hf import parse_object, read_optional_object
from ropetool.plans.applied import Applied
from ropetool.plans.gguf_applying import checked_gguf, following_gguf
from ropetool.plans.plan import Plan
from ropetool.plans.serving import gguf_lines

_COPY = "pass -o instead of --in-place to write a copy"


def apply_in_place(plan: Plan, source: str | Path, *, copy_if_needed: bool = False, command: str = "") -> Applied:
    """Apply a plan to the model file itself. The log next to it keeps the old values.

    command: the user's command line, for the log. A card and a Modelfile are not written.
    Raises: PlanMismatch if the source differs from the plan's source; LossyExport if the plan changes weights;
    ConfigError for a directory; OutputError if the file cannot be edited.
    """
    checkpoint = _checkpoint(plan, source)
    record = Provenance(
        str(hub.absolute(checkpoint.path)), provenance.fingerprint(checkpoint.path), plan.trained_length, plan.to_json()
    )
    follows = following_gguf(plan, checkpoint, checkpoint.path)
    edited = edit_model(
        checkpoint.files, patch_of(plan.edits), copy_if_needed=copy_if_needed, command=command, record=record
    )
    lines = gguf_lines(str(checkpoint.path), plan.max_position_embeddings, None)
    changed = () if edited.way == "nothing" else (edited.path.name,)
    return Applied(
        checkpoint.path, {}, changed, (), serving=tuple(lines), notes=edited.notes, in_place=edited, following=follows
    )


def way_of(plan: Plan, source: str | Path, *, copy_if_needed: bool = False) -> Edited:
    """Return how `apply_in_place` would change the file, without writing. Raises: as `apply_in_place`."""
    checkpoint = _checkpoint(plan, source)
    patch = patch_of(plan.edits)
    _to_log(Path(os.path.realpath(checkpoint.path)), checkpoint.files, patch, "", with_record=True)
    return way_in_place(checkpoint.files, patch, copy_if_needed=copy_if_needed)


def editable(path: str | Path) -> tuple[GgufHeader, ...]:
    """Return the headers of all files of a model, for an edit in place.

    Raises: CheckpointError. OutputError for a file in the Hub's cache.
    """
    path = Path(path)
    blobs = path.resolve().parent  # the target of a link into the cache
    if hub.origin(path.absolute()) is not None or (blobs.name == "blobs" and blobs.parent.name.startswith("models--")):
        raise OutputError("is in the hub's local cache, which must not change", where=str(path), try_=_COPY)
    return read_shards(path, read_unmapped)


def edit_model(
    headers: Sequence[GgufHeader], patch: Patch, *, copy_if_needed: bool = False, command: str = "",
    record: Provenance | None = None,
) -> Edited:  # fmt: skip
    """Change keys and vectors of a model in place, and log the old values.

    headers: from `editable`.
    record: the new record of its positions. None if the edit does not change them.
    Raises: as `edit_in_place`. CorruptFile if the log or the record is invalid, or if the new record would replace the
    record of a different file.
    """
    real = Path(os.path.realpath(headers[0].path))  # for a link, the log is next to the linked file
    part = edited_part(headers, patch)[0]
    if record is not None:
        provenance.read(real)
    log, entry = _to_log(real, headers, patch, command, with_record=record is not None)

    def beside(way: str, size: int) -> Mapping[str, bytes]:
        return {
            edit_log.place(real).name: edit_log.text(log.and_then(replace(entry, way=way, size=size))),
            **(_new_record(real, record, part, size) if record is not None else kept_record(real, part, size)),
        }

    return edit_in_place(headers, patch, copy_if_needed=copy_if_needed, beside=beside)


def _to_log(
    file: Path, headers: Sequence[GgufHeader], patch: Patch, command: str, *, with_record: bool
) -> tuple[EditLog, LoggedEdit]:
    """Return the log of a file, and its next entry. Raises: ConfigError if the log is full."""
    log, entry = edit_log.read(file), LoggedEdit.of(headers, patch, command)
    entry = replace(entry, record=_record_text(file)) if with_record else entry
    edit_log.check_room(log, entry, file)
    return log, entry


def _record_text(file: Path) -> str:
    """Return the text of the record next to a file, or an empty string."""
    content = read_optional_object(provenance.beside(file))
    return "" if content is None else content[0]


def _new_record(file: Path, record: Provenance, part: GgufHeader, size: int) -> Mapping[str, bytes]:
    """Return a new record of the file, by its file name."""
    name = Path(os.path.realpath(part.path)).name
    data = {**record.to_json(), "source": file.name, "files": [{"name": name, "size": size}]}
    return {provenance.beside(file).name: f"{json.dumps(data, indent=2)}\n".encode("ascii")}


def kept_record(file: Path, part: GgufHeader, size: int) -> Mapping[str, bytes]:
    """Return the record next to the file, by its file name, with the new size of the changed part.

    Empty without a record. A record of a different file with this name stays unchanged. With the new size it would look
    like this file's record.

    Raises: CorruptFile if ropetool did not write it.
    """
    record = provenance.record(file)
    if record is None or provenance.of_another(file, record):
        return {}
    return {provenance.beside(file).name: resized(_record_text(file), file, part, size)}


def resized(record: str, file: Path, part: GgufHeader, size: int) -> bytes:
    """Return the text of a file's record with a new size for one part of the model.

    Drops the digest of that part, because reading the whole file would take longer than the edit.
    Raises: CorruptFile if the text is not a record. It may be from a log.
    """
    name = Path(os.path.realpath(part.path)).name
    try:
        data = parse_object(record, "")
        provenance.check(data)
    except CorruptFile as error:
        raise CorruptFile(
            f"contains an old record that is not valid ({error.message})", where=str(edit_log.place(file)),
            try_=AGAIN,
        ) from None  # fmt: skip
    if provenance.FILES in data:
        changed = {"name": name, "size": size}
        data[provenance.FILES] = [changed if one["name"] == name else one for one in data[provenance.FILES]]
    return f"{json.dumps(data, indent=2)}\n".encode("ascii")


def _checkpoint(plan: Plan, source: str | Path) -> GgufCheckpoint:
    """Return the model that a plan is for. Raises: as `apply_in_place`."""
    if plan.format != "gguf":
        raise ConfigError("is a directory; only GGUF files can be edited in place", where=str(source), try_=_COPY)
    checkpoint = GgufCheckpoint.of(editable(source))
    if plan.tensors:
        raise LossyExport(
            f"the plan changes {len(plan.tensors)} weights, but an edit in place changes only keys and vectors",
            where=str(source), try_=_COPY,
        )  # fmt: skip
    checked_gguf(plan, checkpoint)
    return checkpoint
