"""The files that a record lists, and a check that they are unchanged. Only then may --force replace them.

Every byte counts, because a replaced or deleted file is gone. The check compares the SHA-256 of a written file, and the
inode or the source's bytes of a linked file.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint import provenance
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import RopetoolError
from ropetool.files import digests
from ropetool.files.hidden import set_aside
from ropetool.files.linking import HARD_LINKED, REFLINKED
from ropetool.files.output import Rule, anything, check_output

LEFT_BEHIND = frozenset({".git", ".cache", "__pycache__"})  # folders of a source that no output gets
_SHOWN = 5
NOT_LISTED = "is not listed in a ropetool record"
_REWRITTEN = {names.PROVENANCE_JSON, names.CARD}  # in a directory: `verify` writes figures into both
_NO_DIGEST = (
    "its record does not contain a digest: an earlier version wrote the record, or the file was edited in place"
)


# --- what a record lists


def of_directory(
    directory: Path, more: Collection[str] = (), placed: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return an entry for each file of a directory. `more` are files that are written later; they get only a name.

    placed: how `linking` placed a file of the source, by name.
    """
    how = placed or {}
    there = sorted(_files(directory) - set(more))
    return [_entry(directory / name, name, how.get(name, "")) for name in there] + _to_come(more)


def of_files(
    files: Iterable[Path], more: Collection[str] = (), placed: Mapping[Path, str] | None = None
) -> list[dict[str, Any]]:
    """Return an entry for each of these files. `more` are files that are written later; they get only a name."""
    how = placed or {}
    return [_entry(file, file.name, how.get(file, "")) for file in files] + _to_come(more)


def _to_come(more: Collection[str]) -> list[dict[str, Any]]:
    return [{"name": name} for name in sorted(more)]


def _entry(file: Path, name: str, placed: str = "") -> dict[str, Any]:
    """Return the entry of a file in a record. The bytes of a linked file are not read.

    placed: how `linking` placed the file, empty for a written file.
    """
    status = file.stat()
    listed = {"name": name, "size": status.st_size}
    if placed == HARD_LINKED:
        return {**listed, "device": status.st_dev, "inode": status.st_ino}
    if placed == REFLINKED:
        return {**listed, REFLINKED: True}
    return {**listed, "mtime_ns": status.st_mtime_ns, "sha256": digests.of_new(file)}


# --- whether a file is still the one that is listed


def digest_problem(record: Provenance, files: Sequence[Path]) -> str | None:
    """Return how the parts of a GGUF model differ from the digests in its record, empty if they are equal.

    None if the record has no digest of each part, for example because ropetool edited the file in place.
    Raises: CheckpointError if a file cannot be read.
    """
    listed = [each.get("sha256") for each in record.files if each["name"].endswith(".gguf")]
    if len(listed) != len(files) or None in listed:
        return None
    changed = [file.name for file, digest in zip(files, listed, strict=True) if digests.of_file(file) != digest]
    return f"the bytes of {', '.join(changed)} differ from the digest in the record" if changed else ""


@dataclass(frozen=True)
class _Output:
    """An output on the disk: its record, and its files by the names that the record lists."""

    record: Provenance
    files: Mapping[str, Path]

    def change(self, name: str) -> str:
        """Return how a file differs from its entry, empty if it is unchanged or the source has the same bytes.

        Raises: CheckpointError if it cannot be read.
        """
        file, listed = self.files[name], self._listed[name]
        status = os.lstat(file)
        if not stat.S_ISREG(status.st_mode):
            return "it is no longer a regular file"
        if listed.get("size", status.st_size) != status.st_size:
            return f"it has {status.st_size:,} bytes instead of {listed['size']:,}"
        if "sha256" in listed:
            if digests.of_file(file) == listed["sha256"]:
                return ""
            again = status.st_mtime_ns != listed.get("mtime_ns")
            return "it was rewritten" if again else "its bytes have changed, but not its modification time"
        if "inode" not in listed and REFLINKED not in listed:
            return _NO_DIGEST
        inode = (status.st_dev, status.st_ino)
        if (listed.get("device"), listed.get("inode")) == inode and status.st_nlink > self._links[inode]:
            return ""  # the same bytes have a name outside the output, so they are not lost
        source = self._sources.get(name)
        if source is not None and digests.of_file(file) == digests.of_file(source):
            return ""
        return "it was linked from the source, which now has different bytes"

    def changes(self, names_: Iterable[str]) -> dict[str, str]:
        """Return the changed files by name, with the change of each."""
        changes = {name: self.change(name) for name in names_}
        return {name: reason for name, reason in changes.items() if reason}

    @cached_property
    def _listed(self) -> dict[str, Mapping[str, Any]]:
        return {each["name"]: each for each in self.record.files}

    @cached_property
    def _links(self) -> Counter[tuple[int, int]]:
        """Return the number of names that a file has within the output, by device and inode."""
        statuses = (os.lstat(file) for file in self.files.values() if os.path.lexists(file))
        return Counter((status.st_dev, status.st_ino) for status in statuses)

    @cached_property
    def _sources(self) -> dict[str, Path]:
        """Return the files of the source by the names of their links in the output, unless both are one file."""
        source = Path(self.record.source)
        try:
            if source.is_dir():
                pairs = {name: source / name for name in self.files}
            else:
                from ropetool.files.gguf import shards  # only for GGUF models

                pairs = dict(zip(self.files, shards(source), strict=False))
            own = {os.path.realpath(file) for file in self.files.values()}
            return {name: file for name, file in pairs.items() if file.is_file() and os.path.realpath(file) not in own}
        except (OSError, ValueError, RopetoolError):  # an edited record can contain any text as its source
            return {}


# --- what may be replaced


def check_unused(output: Path, source: Path, *, force: bool, directory: bool) -> None:
    """Return if a model may be written to `output`, as a directory or a file, without reading the source.

    With `force`, an earlier output is not compared with its record, because the writer reads all its bytes for this.
    Raises: OutputError.
    """
    rule = anything if force else directory_rule(output) if directory else files_rule([output])
    check_output(output, source, force=force, directory=directory, may_replace=rule)


def directory_rule(output: Path) -> Rule:
    """Return the rule for a directory: its record must list every file in it, and each must be unchanged."""
    return lambda directory: _objection(directory, output)


def _objection(directory: Path, output: Path) -> str:
    """Return why a directory may not be replaced, empty if it may. output: its final path, if it was moved."""
    if not (directory / names.PROVENANCE_JSON).is_file():
        return f"is a directory that ropetool did not write (it does not contain {names.PROVENANCE_JSON})"
    record = _valid(directory, output)
    if record is None:
        return f"is a directory that ropetool did not write (a different program wrote its {names.PROVENANCE_JSON})"
    present = _files(directory)
    others = sorted(present - {each["name"] for each in record.files})
    if others:
        return f"contains files that its record does not list: {_shown(others)}"
    rewritten = {name for name in present & _REWRITTEN if stat.S_ISREG(os.lstat(directory / name).st_mode)}
    files = {name: directory / name for name in sorted(present - rewritten)}
    changed = _Output(record, files).changes(files)
    return f"contains files that do not match its record: {_reasons(changed)}" if changed else ""


def _reasons(changed: Mapping[str, str]) -> str:
    """Return the names of changed files as text, grouped by the change."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in changed.items():
        by_reason.setdefault(reason, []).append(name)
    return "; ".join(f"{_shown(named)} ({reason})" for reason, named in by_reason.items())


def files_rule(files: Sequence[Path]) -> Rule:
    """Return the rule for a GGUF model and its sidecars: the record next to the first file must list each of them.

    The files must be unchanged, except the model card, into which `verify` writes.
    """

    def rule(path: Path) -> str:
        record_file = provenance.beside(files[0])
        record = _valid(files[0])
        if record is None:
            return NOT_LISTED if path != record_file or not os.path.lexists(record_file) else "is not a ropetool record"
        if path == record_file:
            return ""
        if path.name not in {each["name"] for each in record.files}:
            return NOT_LISTED
        if path not in files and path.name.endswith(names.CARD):
            return ""
        reason = _Output(record, {file.name: file for file in (*files, path)}).change(path.name)
        return f"does not match its record: {reason}" if reason else ""

    return rule


def beside(first: Path) -> dict[Path, str]:
    """Return the sidecars of a GGUF model that its record lists, with the change of each, empty if it is unchanged."""
    record = _valid(first)
    listed = [each["name"] for each in record.files] if record is not None else []
    own = [name for name in listed if name.startswith(f"{first.name}.") and Path(name).name == name]
    files = {name: first.with_name(name) for name in own if os.path.isfile(first.with_name(name))}
    files.pop(provenance.beside(first).name, None)
    return {} if record is None else {file: _Output(record, files).change(name) for name, file in files.items()}


def leftovers(first: Path, written: Collection[Path]) -> list[Path]:
    """Return the unchanged sidecars of an earlier file of this name that are not written again."""
    return [path for path, reason in beside(first).items() if path not in written and not reason]


def _valid(checkpoint: Path, output: Path | None = None) -> Provenance | None:
    try:
        return provenance.record(checkpoint, output)
    except RopetoolError:
        return None


def _files(directory: Path) -> set[str]:
    """Return the relative paths of the files in a directory, with slashes, and of empty folders."""
    return {path.relative_to(directory).as_posix() for path in _walk(directory)}


def _walk(directory: Path) -> Iterator[Path]:
    """Yield the files and empty folders below a directory."""
    for path in directory.iterdir():
        earlier = set_aside(path)
        if earlier is not None:  # all other remains of a killed process can go
            yield from earlier
            continue
        if path.is_symlink() or not path.is_dir():
            yield path
            continue
        inner = list(_walk(path))
        yield from inner or [path]


def _shown(names_: Sequence[str]) -> str:
    more = len(names_) - _SHOWN
    return ", ".join(names_[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
