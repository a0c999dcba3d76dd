"""What a checkpoint holds besides its tensors, against its source: files of a directory, keys of a GGUF.

Knows which parts a plan changes, and nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ropetool import names
from ropetool.checkpoint.edits import FileEdit, edits_of_file
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.listings import LEFT_BEHIND
from ropetool.checkpoint.tensor_bytes import Compared
from ropetool.errors import PlanMismatch
from ropetool.files.gguf.codec import shown as quoted
from ropetool.files.hf import Directory, Edit, apply_edits, limits_of, parse_object, read_object
from ropetool.files.regular import same_content
from ropetool.verification.readback.keys import difference, is_read, pickled_weights

SPLIT_KEYS = "split."  # of a model in several files; how many tensors there are follows from the plan


# --- directories


def compare_files(target: Directory, source: Directory, edits: Sequence[FileEdit]) -> Compared:
    """Return which files of the target are not the source's with the plan's edits.

    Left out: weights, pickles, the record of ropetool, and README, which anyone may rewrite. Files that only the
    target has count where a program would read them, pickles where they are weights.
    """
    theirs, ours = _carried(source), _carried(target)
    added = [name for name in ours if name not in theirs and is_read(name)]
    added += sorted(pickled_weights(target.path) - pickled_weights(source.path))
    differences = [f"{name} is additional" for name in added]
    for name, path in theirs.items():
        reason = _file_difference(ours.get(name), path, edits_of_file(edits, name))
        if reason:
            differences.append(f"{name}{reason}")
    return Compared(len(theirs) + len(added), tuple(differences))


def _carried(files: Directory) -> dict[str, Path]:
    """Return the files below a directory that `extend` carries along, by name, in the order of their names."""
    folder, weights = files.path, {path.name for path in files.weights}
    found = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        own = str(relative) == names.PROVENANCE_JSON or relative.name.lower().startswith("readme")
        pickled = relative.name.endswith(names.PICKLE_SUFFIXES) or relative.name == names.PICKLE_INDEX_JSON
        if LEFT_BEHIND.isdisjoint(relative.parts) and not own and not pickled and path.is_file():
            found[str(relative)] = path
    return {name: path for name, path in found.items() if name not in weights}


def _file_difference(found: Path | None, source: Path, edits: Sequence[Edit]) -> str:
    """Return what is wrong with a file, to be read after its name; an edited one is compared by its JSON values."""
    if found is None:
        return " is missing"
    if not edits:
        return "" if same_content(found, source) else " differs"
    try:
        wanted = apply_edits(read_object(source)[0], edits, str(source), limits_of(source.name))
    except PlanMismatch:
        return ": the plan's edits do not fit the source's file"
    apart = difference(parse_object(wanted, str(source), limits_of(source.name)), read_object(found)[1], "")
    return f": {apart}" if apart else ""


# --- GGUF


def compare_keys(target: GgufCheckpoint, source: GgufCheckpoint, edits: Sequence[FileEdit]) -> Compared:
    """Return which metadata keys of the target are not the source's with the plan's edits."""
    wanted, found = source.edited(edits).values, target.values
    keys = [k for k in dict.fromkeys([*wanted, *found]) if not k.startswith(SPLIT_KEYS)]
    differences = []
    for key in keys:
        if key not in found or key not in wanted:
            differences.append(f"{quoted(key)} is {'missing' if key not in found else 'additional'}")
        elif found[key] != wanted[key]:
            differences.append(f"{quoted(key)} differs")
    return Compared(len(keys), tuple(differences))
