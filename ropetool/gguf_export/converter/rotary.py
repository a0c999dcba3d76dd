"""Add the checkpoint's tables to a converter's file, by the file's own layer types.

If the file already computes the tables, its keys stay. Otherwise the encodings are tried in turn, as in `extend`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint, patch_of
from ropetool.errors import LossyExport, RopetoolError, sentence_of
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import Refuses
from ropetool.runtimes.decoded import first_that_serves
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp.decoding import decode
from ropetool.runtimes.llama_cpp.encodings import GgufEncoding, edits_of, gguf_encodings, rotating_entry
from ropetool.runtimes.llama_cpp.exported import objection_to, reached_context, rejections
from ropetool.runtimes.llama_cpp.exported_layers import ignored_window_notes
from ropetool.runtimes.llama_cpp.regrouped import regrouped

AS_CONVERTED = "as converted"


@dataclass(frozen=True)
class FileRotation:
    """A converter's file that computes the checkpoint's tables.

    patch: the changes to the file; empty if it already had the tables.
    target: the tables.
    encoding: the name of the form in which the file contains them.
    window: the sliding window in tokens that llama.cpp ignores; None without one.
    notes: on image sections that are left out, the context length and an ignored window.
    """

    patch: Patch
    target: RopeSet
    encoding: str
    window: int | None
    notes: tuple[str, ...]


def with_rotation(source: RopeSet, file: GgufCheckpoint, *, allow_full_attention: bool, where: str) -> FileRotation:
    """Return the changes to the file that make llama.cpp compute the checkpoint's positions as transformers does.

    Raises: LossyExport for tables that no file of this architecture can contain, or if llama.cpp cannot load the file.
    """
    corrections, correction_notes = _corrections(source, file, where)
    file = file.after(corrections)
    theirs = _decoded(file, where)
    context, context_notes = reached_context(source)
    window, window_notes = _ignored_window(source, theirs, context, where, allow_full_attention)
    target = regrouped(source, theirs, context, where)
    notes = (*correction_notes, *context_notes, *window_notes)
    objection = target.mismatch(theirs)
    if not objection:
        return FileRotation(corrections, target, AS_CONVERTED, window, notes)
    entry = rotating_entry(target)
    if entry.table is None or entry.rope_theta is None:
        raise LossyExport(f"the file from the converter computes something else: {objection}", where=where)

    def attempt(encoding: GgufEncoding) -> tuple[Patch | None, str]:
        patch = patch_of(edits_of(encoding, file.name, file))
        against = objection_to(target, file.after(patch))
        return (None, against) if against else (patch, "")

    kept, tried = first_that_serves(gguf_encodings(target, file.name, entry.rope_theta), attempt)
    if kept is None:
        reasons = "; ".join(rejections(tried)) or objection
        raise LossyExport(f"{file.name} files cannot store the table of the checkpoint: {reasons}", where=where)
    kept = replace(kept, set={**corrections.set, **kept.set}, remove=corrections.remove | kept.remove)
    return FileRotation(kept, target, tried[-1][0].name, window, notes)


def _decoded(file: GgufCheckpoint, where: str) -> RopeSet:
    try:
        return decode(file)
    except (Refuses, RopetoolError) as error:
        raise LossyExport(
            f"llama.cpp does not load the file from the converter: {sentence_of(error)}", where=where
        ) from None


def _corrections(source: RopeSet, file: GgufCheckpoint, where: str) -> tuple[Patch, tuple[str, ...]]:
    """Return corrections of keys besides the table (sections, switch, sliding layers, rotating channels), and notes."""
    theirs = _decoded(file, where)
    remove, notes = _sections(file)
    patch = Patch(_switch(source, file) | _pattern(source, theirs, file), remove)
    theirs = _decoded(file.after(patch), where)
    return replace(patch, set={**patch.set, **_dimensions(source, theirs, file)}), notes


def _switch(source: RopeSet, file: GgufCheckpoint) -> dict[str, Value]:
    """Return the key that makes some graphs rotate, if the converter wrote false although the checkpoint rotates."""
    key = f"{file.name}.{archs.FINETUNED}"
    rotates = any(entry.table is not None for entry in source.entries.values())
    wrong = (
        archs.FINETUNED in archs.reads(file.name) and rotates and key in file.values and not file.values[key].decode()
    )
    return {key: Value.of(ValueType.BOOL, True)} if wrong else {}


def _pattern(source: RopeSet, theirs: RopeSet, file: GgufCheckpoint) -> dict[str, Value]:
    """Return the list of sliding layers, if the converter did not write it and llama.cpp assumes different layers."""
    sliding = _sliding(source)
    if not sliding or sliding == _sliding(theirs) or archs.SLIDING_WINDOW_PATTERN not in archs.reads(file.name):
        return {}
    count = 1 + max(layer for entry in theirs.entries.values() for layer in entry.layers)
    listed = [layer in sliding for layer in range(count)]
    return {f"{file.name}.{archs.SLIDING_WINDOW_PATTERN}": Value.array(ValueType.BOOL, listed)}


def _sliding(rope: RopeSet) -> set[int]:
    return {layer for entry in rope.entries.values() if entry.sliding_window is not None for layer in entry.layers}


def _sections(file: GgufCheckpoint) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the key of image sections if it makes llama.cpp rotate text incorrectly, and a note on its purpose."""
    key = f"{file.name}.{archs.DIMENSION_SECTIONS}"
    if archs.DIMENSION_SECTIONS not in archs.reads(file.name) or key not in file.values:
        return frozenset(), ()
    decoded: Any = file.values[key].decode()
    sections = [int(pairs) for pairs in decoded]
    if len(sections) < 4 or sections[3] <= 0:
        return frozenset(), ()
    note = f"{key} {sections} is left out, because llama.cpp sets the fourth position of text to 0; image input needs this key"
    return frozenset({key}), (note,)


def _dimensions(source: RopeSet, theirs: RopeSet, file: GgufCheckpoint) -> dict[str, Value]:
    """Return the keys with the number of rotating channels, if the converter left them out or wrote a wrong number."""
    by_layer = {layer: entry for entry in source.entries.values() for layer in entry.layers}
    keys = {names.FULL_ATTENTION: archs.DIMENSION_COUNT, names.SLIDING_ATTENTION: archs.DIMENSION_COUNT_SWA}
    dimensions = {}
    for layer_type, key in keys.items():
        entry = theirs.entries.get(layer_type)
        ours = by_layer.get(entry.layers[0]) if entry is not None and entry.table is not None else None
        if entry is not None and ours is not None and ours.table is not None and ours.rotary_dim != entry.rotary_dim:
            dimensions[f"{file.name}.{key}"] = Value.of(ValueType.U32, ours.rotary_dim)
    return dimensions


def _ignored_window(
    source: RopeSet, theirs: RopeSet, context: int, where: str, allowed: bool
) -> tuple[int | None, tuple[str, ...]]:
    """Return the window that llama.cpp ignores if it is shorter than the context, else None, and a note on it.

    Raises: LossyExport for such a window, unless full attention is allowed.
    """
    windows = {entry.sliding_window for entry in source.entries.values()} - {None}
    if not windows or any(entry.sliding_window is not None for entry in theirs.entries.values()):
        return None, ()
    window = min(one for one in windows if one is not None)
    notes = ignored_window_notes(window, context, where, allowed)
    return window if window < context else None, notes
