"""Comparison of a checkpoint with its source apart from tensors: the files of a directory, the keys of a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ropetool import names
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import edits_of_file
from ropetool.checkpoint.listings import LEFT_BEHIND
from ropetool.checkpoint.tensor_bytes import CountedDifferences
from ropetool.errors import PlanMismatch
from ropetool.files.gguf.codec import shown as quoted
from ropetool.files.hf import Directory, Edit, apply_edits, limits_of, parse_object, read_object
from ropetool.files.regular import same_content
from ropetool.verification.readback.keys import difference, is_read, pickled_weights

SPLIT_KEYS = "split."  # these keys number the files of a split model, which an output may split differently


# --- directories


def compare_files(target: Directory, source: Directory, edits: Sequence[FileEdit]) -> CountedDifferences:
    """Return the files of the target that differ from the source's files with the plan's edits.

    Weights, pickles and the record of ropetool are not compared, and neither is README, which users may rewrite. A file
    that only the target has counts if a program would read it; a pickle counts if it contains weights.
    """
    theirs, ours = _carried(source), _carried(target)
    added = [name for name in ours if name not in theirs and is_read(name)]
    added += sorted(pickled_weights(target.path) - pickled_weights(source.path))
    differences = [f"{name} is additional" for name in added]
    for name, path in theirs.items():
        reason = _file_difference(ours.get(name), path, edits_of_file(edits, name))
        if reason:
            differences.append(f"{name}{reason}")
    return CountedDifferences(len(theirs) + len(added), tuple(differences))


def _carried(directory: Directory) -> dict[str, Path]:
    """Return the files in a directory that `extend` copies, by relative path, in alphabetical order."""
    folder, weights = directory.path, {path.name for path in directory.weights}
    files_by_name = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        own = str(relative) == names.PROVENANCE_JSON or relative.name.lower().startswith("readme")
        pickled = relative.name.endswith(names.PICKLE_SUFFIXES) or relative.name == names.PICKLE_INDEX_JSON
        if LEFT_BEHIND.isdisjoint(relative.parts) and not own and not pickled and path.is_file():
            files_by_name[str(relative)] = path
    return {name: path for name, path in files_by_name.items() if name not in weights}


def _file_difference(target: Path | None, source: Path, edits: Sequence[Edit]) -> str:
    """Return the difference of a file as words that follow its name, or "". An edited file is compared by its JSON values."""
    if target is None:
        return " is missing"
    if not edits:
        return "" if same_content(target, source) else " differs"
    try:
        expected = apply_edits(read_object(source)[0], edits, str(source), limits_of(source.name))
    except PlanMismatch:
        return ": the plan's edits do not fit the source's file"
    text = difference(parse_object(expected, str(source), limits_of(source.name)), read_object(target)[1], "")
    return f": {text}" if text else ""


# --- GGUF


def compare_keys(target: GgufCheckpoint, source: GgufCheckpoint, edits: Sequence[FileEdit]) -> CountedDifferences:
    """Return the metadata keys of the target that differ from the source's keys with the plan's edits."""
    expected, ours = source.edited(edits).values, target.values
    keys = [k for k in dict.fromkeys([*expected, *ours]) if not k.startswith(SPLIT_KEYS)]
    differences = []
    for key in keys:
        if key not in ours or key not in expected:
            differences.append(f"{quoted(key)} is {'missing' if key not in ours else 'additional'}")
        elif ours[key] != expected[key]:
            differences.append(f"{quoted(key)} differs")
    return CountedDifferences(len(keys), tuple(differences))
