"""Which files of an output its record lists, and so what --force may replace: those and nothing else.

Knows names and sizes of files, not what is in them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint import identity, provenance
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import RopetoolError
from ropetool.files.hidden import set_aside
from ropetool.files.output import Rule

_ENDS = 1 << 20  # bytes at either end of a file: the head of a GGUF file holds its keys
_BLOCK, _BLOCKS = (
    4 << 10,
    6,
)  # of a weight file, with its ends eight: a fine-tuned one often has the size, head and tail that it had
_WEIGHTS = ".safetensors"
_SHOWN = 5
NOT_LISTED = "no record of ropetool lists it"


# --- what a record lists


def of_directory(directory: Path, more: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the files of a directory with their sizes, and by name alone those that are still to come.

    Those with weights have a sample of their content too.
    """
    found = [_entry(directory, name) for name in sorted(_files(directory)) if name not in more]
    return found + [{"name": name} for name in sorted(more)]


def _entry(directory: Path, name: str) -> dict[str, Any]:
    path = directory / name
    entry = {"name": name, "size": path.stat().st_size}
    return entry | {"sample": _sample(path)} if name.endswith(_WEIGHTS) and path.is_file() else entry


def _sample(file: Path) -> str:
    """Return a digest of blocks spread evenly over a file."""
    digest = hashlib.sha256()
    identity.feed(digest, file, 0, _BLOCKS, block=_BLOCK)
    return f"blocks:{digest.hexdigest()[:32]}"


def of_files(files: Iterable[Path], more: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return files by name and size, and by name alone those that are still to come."""
    return [{"name": file.name, "size": file.stat().st_size} for file in files] + [{"name": name} for name in more]


def set_id(files: Sequence[Path]) -> str:
    """Return what tells the files of a model, in order, from any others: a digest of their sizes, heads and tails."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            digest.update(f"{size}\n".encode() + opened.read(_ENDS))
            opened.seek(max(0, size - _ENDS))
            digest.update(opened.read(_ENDS))
    return f"ends:{digest.hexdigest()}"


# --- what may be replaced


def directory_rule(written: Collection[str]) -> Rule:
    """Return the rule for directories: one may be replaced if a valid record in it lists all that it holds.

    A file of weights has to be as the record says: somebody may have trained it since.
    written: the names that stand for the list in a record that has none.
    """

    def rule(directory: Path) -> str:
        if not (directory / names.PROVENANCE_JSON).is_file():
            return f"is a directory that ropetool did not write (it holds no {names.PROVENANCE_JSON})"
        made = _valid(directory)
        if made is None:
            return f"is a directory that ropetool did not write (its {names.PROVENANCE_JSON} is another program's)"
        listed = {entry["name"]: entry for entry in made.files} or {name: {"name": name} for name in written}
        held = _files(directory)
        others = sorted(held - listed.keys())
        if others:
            return f"holds what its record does not list: {_shown(others)}"
        changed = [
            name for name in sorted(held) if name.endswith(_WEIGHTS) and not _is_as_listed(directory, listed[name])
        ]
        return f"holds weights that are not those that its record lists: {_shown(changed)}" if changed else ""

    return rule


def _is_as_listed(directory: Path, entry: Mapping[str, Any]) -> bool:
    """Return whether a file has the size and the sample of its entry, as far as that has them."""
    now = _entry(directory, entry["name"])
    return all(now.get(key, listed) == listed for key, listed in entry.items())


def files_rule(files: Sequence[Path], written: Collection[Path]) -> Rule:
    """Return the rule for the files of a GGUF model and what stands beside them, as the record of the first has it.

    A file of weights has to be as the record says. written: what stands for the list in a record that has none.
    """

    def rule(path: Path) -> str:
        record = provenance.beside(files[0])
        made = _valid(files[0])
        if made is None:
            return NOT_LISTED if path != record or not os.path.lexists(record) else "is not a record of ropetool"
        sizes = {entry["name"]: entry.get("size") for entry in made.files} or {p.name: None for p in written}
        if path != record and path.name not in sizes:
            return NOT_LISTED
        if path in files and (sizes[path.name] or path.stat().st_size) != path.stat().st_size:
            return "is not the file that its record lists: it has another size"
        if path == files[0] and made.set_id and all(map(os.path.isfile, files)) and set_id(files) != made.set_id:
            return "is not the file that its record was written for"
        return ""

    return rule


def leftovers(first: Path, written: Collection[Path]) -> list[Path]:
    """Return what stood beside an earlier file of this name by its record, is as it was, and is not written again."""
    made = _valid(first)
    sizes = {} if made is None else {entry["name"]: entry.get("size") for entry in made.files}
    beside = (name for name in sizes if name.startswith(f"{first.name}.") and Path(name).name == name)
    found = (path for path in map(first.with_name, beside) if path not in written)
    return [path for path in found if os.path.isfile(path) and path.stat().st_size == sizes[path.name]]


def _valid(checkpoint: Path) -> Provenance | None:
    try:
        return provenance.record(checkpoint)
    except RopetoolError:
        return None


def _files(directory: Path) -> set[str]:
    """Return all that a directory holds, as paths with slashes; a folder only if nothing is in it."""
    return {path.relative_to(directory).as_posix() for path in _walk(directory)}


def _walk(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        earlier = set_aside(path)
        if earlier is not None:  # what else the dead have left is rubbish
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
