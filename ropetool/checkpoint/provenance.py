"""The record (ropetool.json) of an output: its source, its plan, its trained length and its certificate.

Unknown keys are ignored, but wrong types are refused, because the file may have been edited.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.errors import CheckpointError, CorruptFile, NotACheckpoint
from ropetool.files import hub
from ropetool.files.hf import read_optional_object
from ropetool.files.hf.jsontext import SMALL
from ropetool.files.json_types import (
    BOOLEAN,
    INTEGER,
    LIST,
    NUMBER,
    OBJECT,
    STRING,
    STRINGS,
    TEXT,
    JsonType,
    check_members,
    optional,
    whole,
)  # fmt: skip
from ropetool.files.regular import open_regular, read_regular, unreadable
from ropetool.rope.tables import MAX_LENGTH

SCHEMA = 1
CERTIFICATE = "certificate"
EXTENSION, EXPORT = "extension", "export"
FILES = "files"
EDITED = "the file was edited in place, so its original is gone"
_AWAY = "move it away, then run again"


@dataclass(frozen=True)
class Provenance:
    """The record of an output: its source, its plan and its files.

    source: an absolute path or a hub id. The file contains a relative path, a hub id or a name, so an output can move.
    source_fingerprint: the digest of the source, see `fingerprint`.
    trained_length: tokens; None if the source was not extended and its trained length is unknown.
    plan: how ropetool scaled the positions; empty for the export of a checkpoint that ropetool did not scale.
    export: for files from `export`, the type of the matrices and the encoding of the positions; else None.
    certificate: the unchecked value from the file.
    files: every file of the output, with its name relative to the record, and the keys that `listings` compares.
    """

    source: str
    source_fingerprint: str
    trained_length: int | None
    plan: Mapping[str, Any]
    export: Mapping[str, Any] | None = None
    certificate: Any = None
    files: Sequence[Mapping[str, Any]] = ()

    @property
    def kind(self) -> str:
        """`extension` if ropetool extended `source`, `export` if the output is the same model in a different format."""
        return EXTENSION if self.export is None else EXPORT

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file, without `export` and `certificate` if they are missing."""
        from ropetool import __version__

        more = {EXPORT: self.export, CERTIFICATE: self.certificate, FILES: list(self.files) or None}
        return {
            "schema": SCHEMA, "ropetool": __version__, "source": self.source,
            "source_fingerprint": self.source_fingerprint, "trained_length": self.trained_length, "plan": self.plan,
            **{key: value for key, value in more.items() if value is not None},
        }  # fmt: skip


def place(checkpoint: Path) -> Path:
    """Return the path of a checkpoint's record: inside a directory, or next to a file."""
    return checkpoint / names.PROVENANCE_JSON if checkpoint.is_dir() else beside(checkpoint)


def beside(file: Path) -> Path:
    """Return the path of the record next to this file."""
    return file.with_name(f"{file.name}.{names.PROVENANCE_JSON}")


def fingerprint(checkpoint: Path, config: str | None = None) -> str:
    """Return a digest of config.json's text and of every weight file's name, size and modification time.

    For a GGUF file, it covers the size, the time and the first MiB, which contains the rope keys. It is cheap, and only
    shows whether a source changed since ropetool wrote the output.

    config: the text of config.json, if the caller has already read it.
    Raises: CheckpointError if a file cannot be read.
    """
    try:
        return _file_fingerprint(checkpoint) if checkpoint.is_file() else _directory_fingerprint(checkpoint, config)
    except OSError as error:
        raise unreadable(error, str(error.filename or checkpoint)) from error


def _file_fingerprint(file: Path) -> str:
    status = file.stat()
    with open_regular(file) as opened:
        digest = hashlib.sha256(opened.read(2**20))
    digest.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _directory_fingerprint(directory: Path, config: str | None) -> str:
    text = read_regular(directory / names.CONFIG_JSON, SMALL.chars) if config is None else config.encode()
    digest = hashlib.sha256(text)
    for path in sorted(directory.glob("*.safetensors")):
        if path.exists():  # outputs omit broken links
            status = path.stat()
            digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def read(checkpoint: Path) -> Provenance | None:
    """Return the record of an output whose positions ropetool scaled, or None.

    Also returns None for the export of a checkpoint that ropetool did not scale: it can be extended like its source.

    Raises: CorruptFile if the record is invalid, or belongs to a different GGUF file.
    """
    provenance = record(checkpoint)
    problem = of_another(checkpoint, provenance)
    if problem:
        raise CorruptFile(problem, where=str(place(checkpoint)), try_=_AWAY)
    return None if provenance is None or (provenance.kind == EXPORT and not provenance.plan) else provenance


def of_another(checkpoint: Path, provenance: Provenance | None) -> str:
    """Return the reason why a record belongs to a different GGUF file of the same name, or an empty string."""
    if provenance is None or not checkpoint.is_file():
        return ""
    sizes = {entry["name"]: entry.get("size") for entry in provenance.files}
    listed, size = sizes.get(checkpoint.name), checkpoint.stat().st_size
    if listed in (None, size):
        return ""
    return f"is the record of a different file with this name: it lists {listed:,} bytes, but {checkpoint.name} has {size:,}"


def is_of_itself(checkpoint: Path, provenance: Provenance) -> bool:
    """Return whether a file was edited in place, so that its source is its own earlier state."""
    try:
        return os.path.realpath(provenance.source) == os.path.realpath(checkpoint)
    except ValueError:  # an edited record can contain any text as its source
        return False


def record(checkpoint: Path, final: Path | None = None) -> Provenance | None:
    """Return the record of any output, or None if the file does not exist.

    final: the later path of a directory that is in a temporary place. The record names its source relative to it.
    Raises: CorruptFile if the record is invalid.
    """
    path = place(checkpoint)
    try:
        parsed = read_optional_object(path)
    except CorruptFile as error:
        error.try_ = error.try_ or _AWAY
        raise
    return None if parsed is None else _checked(parsed[1], path if final is None else final / path.name)


def unsuffixed(name: str, provenance: Provenance) -> str:
    """Return the name of an output without the suffix from its plan, or unchanged if it lacks the suffix."""
    suffix = provenance.plan.get("suffix")
    before, _, after = name.rpartition(f"-{suffix}")
    return before + after if suffix and before and after[:1] in ("", "-", ".") else name


def source_problem(provenance: Provenance) -> str:
    """Return how the source differs from the record, as the end of a sentence; empty if it is unchanged."""
    source = Path(provenance.source)
    if not (os.path.isfile(source) or os.path.isfile(source / names.CONFIG_JSON)):  # pathlib raises for some texts
        return "no longer exists"
    try:
        return "" if fingerprint(source) == provenance.source_fingerprint else "has changed"
    except CheckpointError:
        return "cannot be read"


def lineage(checkpoint: Path) -> Iterator[Provenance]:
    """Yield the record of an output, then the record of its source, and so on back to the first.

    Stops at a source that occurred before.
    Raises: CorruptFile if a record is invalid.
    """
    current, seen = record(checkpoint), set[str]()
    while current is not None and current.source not in seen:
        seen.add(current.source)
        yield current
        current = record(Path(current.source)) if os.path.exists(current.source) else None


def _checked(data: Mapping[str, Any], path: Path) -> Provenance:
    try:
        check(data)
    except CorruptFile as error:
        raise CorruptFile(f"not a valid ropetool record ({error.message})", where=str(path), try_=_AWAY) from None
    digest = data["source_fingerprint"]
    source = _located(data["source"], path, digest)
    files = tuple(data.get(FILES, ()))
    return Provenance(
        source, digest, data["trained_length"], data["plan"], data.get(EXPORT), data.get(CERTIFICATE), files
    )


# --- the rules of its data

_LENGTH = whole(1, MAX_LENGTH)
_RECORD = {"source": STRING, "source_fingerprint": TEXT, "trained_length": _LENGTH, "plan": OBJECT}
_PARTS = {EXPORT: OBJECT, FILES: LIST}
# The keys of a check that verification and export write.
CHECK: Mapping[str, JsonType] = {
    "name": STRING, "figure": optional(NUMBER), "limit": optional(NUMBER), "verdict": STRING, "detail": STRING,
}  # fmt: skip
# The keys of a listed file. A written file has mtime_ns and sha256, a linked file has the others.
_FILE = {
    "size": INTEGER, "mtime_ns": INTEGER, "sha256": STRING, "device": INTEGER, "inode": INTEGER, "reflinked": BOOLEAN,
}  # fmt: skip
# The keys of these parts that are read without a Plan. There may be others.
_PLAN = {
    "method": STRING, "reading": STRING, "suffix": STRING, "factor": NUMBER, "params": OBJECT, "bakes": STRINGS,
    "edits": LIST,
}  # fmt: skip
_EXPORT = {"outtype": STRING, "encoding": STRING, "bakes": STRINGS, "checks": LIST}


def check(data: Mapping[str, Any]) -> None:
    """Check the data of a record. Raises: CorruptFile, with the key, its value and its rule."""
    exported = {"trained_length": optional(_LENGTH)} if EXPORT in data else {}  # a source may have an unknown length
    check_members(data, {**_RECORD, **exported}, _PARTS)
    for number, file in enumerate(data.get(FILES, ())):
        check_members(file, {"name": STRING}, _FILE, f"file {number}")
    check_members(data["plan"], {}, _PLAN, "plan")
    export = data.get(EXPORT, {})
    check_members(export, {}, _EXPORT, "export")
    for number, entry in enumerate(export.get("checks", ())):
        check_members(entry, CHECK, place=f"export.checks[{number}]")


def write(provenance: Provenance, destination: Path, final: Path | None = None) -> None:
    """Write a record as ASCII, so that a path that is not UTF-8 survives.

    If the name of the source in the record does not lead back to the source, the cache of this machine keeps its path.

    final: the later path of the record, if it is written to a temporary place.
    """
    place = final or destination
    named = _name_in(place, Path(provenance.source))
    if _located(named, place, "") != provenance.source:
        from ropetool import machine

        machine.remember(provenance.source_fingerprint, Path(provenance.source))
    destination.write_text(json.dumps({**provenance.to_json(), "source": named}, indent=2) + "\n", encoding="ascii")


# --- the name of the source


def _name_in(record: Path, source: Path) -> str:
    """Return the name of a source in a record: its hub id, its path relative to the record, or its file name.

    It is the file name if a relative path would lead up to the root of the disk.
    """
    origin = hub.origin(source)
    if origin is not None:
        return str(origin)
    folder = hub.absolute(record.parent)
    try:
        shared = os.path.commonpath([source, folder])
    except ValueError:  # different drives, or a name that is not a path
        shared = source.anchor
    if shared == source.anchor:
        return source.name
    named = Path(os.path.relpath(source, folder)).as_posix()
    return f"./{named}" if "/" in named and not named.startswith("../") else named  # FOLDER/NAME looks like a hub id


def _located(named: str, record: Path, digest: str) -> str:
    """Return the path of the source on this machine.

    It is relative to the record, in the hub's cache, or saved in this machine's cache. If the source is in none of
    these places, returns the first of these paths, or the hub id. A plain name can also mean a file next to the output.
    An absolute path, as in records of earlier versions, is returned unchanged.
    """
    folder = hub.absolute(record.parent)
    expected = Path(os.path.normpath(folder / named))
    if Path(named).name == named and record.name == names.PROVENANCE_JSON:  # inside its output
        expected = folder.parent / named
    if os.path.isabs(named) or os.path.lexists(expected):
        return named if os.path.isabs(named) else str(expected)
    hub_id = _hub_id(named)
    place = None
    if hub_id is not None:
        from ropetool.files.hub.snapshots import on_disk  # few sources are on the hub

        place = on_disk(hub_id)
    if not place and digest:
        from ropetool import machine  # imported here because it is seldom needed

        place = machine.recall(digest)
    return str(place or hub_id or expected)


def _hub_id(named: str) -> hub.HubId | None:
    """Return the commit on the hub that a record names, or None.

    Hub ids in records always have a commit; relative paths seldom do.
    """
    try:
        hub_id = hub.hub_id(named)
    except NotACheckpoint:
        return None
    return hub_id if hub_id is not None and hub_id.revision else None
