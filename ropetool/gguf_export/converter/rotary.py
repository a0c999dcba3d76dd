"""The rotary part of a converter's file: what the checkpoint computes, under the file's own division into kinds of layer.

What a file already computes stays as it is; else our encodings are tried on it, as `extend` tries them on any GGUF file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.gguf_edits import patch_of
from ropetool.errors import LossyExport, RopetoolError, sentence_of
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.rope.tables import RopeSet, in_words
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
class Turned:
    """A converter's file that computes the checkpoint's tables.

    patch: what makes it so, nothing where it did already. encoding: how it states its table. window: of the checkpoint's
    sliding layers, where llama.cpp is allowed to attend to everything.
    """

    patch: Patch
    target: RopeSet
    encoding: str
    window: int | None
    notes: tuple[str, ...]


def turned(source: RopeSet, file: GgufCheckpoint, *, allow_full_attention: bool, where: str) -> Turned:
    """Return the file with keys and vectors by which llama.cpp computes what transformers does of the checkpoint.

    Raises: LossyExport for what no file of this architecture holds, or the converter wrote otherwise.
    """
    mended, mended_notes = _mended(source, file, where)
    file = file.after(mended)
    found = _decoded(file, where)
    context, context_notes = reached_context(source)
    window, window_notes = _ignored_window(source, found, context, where, allow_full_attention)
    target = regrouped(source, found, context, where)
    objection = in_words(target.differences(found))
    if not objection:
        return Turned(mended, target, AS_CONVERTED, window, (*mended_notes, *context_notes, *window_notes))
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
    kept = replace(kept, set={**mended.set, **kept.set}, remove=mended.remove | kept.remove)
    return Turned(kept, target, tried[-1][0].name, window, (*mended_notes, *context_notes, *window_notes))


def _decoded(file: GgufCheckpoint, where: str) -> RopeSet:
    try:
        return decode(file)
    except (Refuses, RopetoolError) as error:
        raise LossyExport(
            f"llama.cpp does not load the file from the converter: {sentence_of(error)}", where=where
        ) from None


def _mended(source: RopeSet, file: GgufCheckpoint, where: str) -> tuple[Patch, tuple[str, ...]]:
    """Return what the converter left out or wrote otherwise beside the table itself, and notes."""
    found = _decoded(file, where)
    remove, notes = _sections(file)
    patch = Patch(_switch(source, file) | _pattern(source, found, file), remove)
    found = _decoded(file.after(patch), where)
    return replace(patch, set={**patch.set, **_dimensions(source, found, file)}), notes


def _switch(source: RopeSet, file: GgufCheckpoint) -> dict[str, Value]:
    """Return the key by which some graphs rotate at all, where the converter switches off what the checkpoint does."""
    key = f"{file.name}.{archs.FINETUNED}"
    rotates = any(entry.table is not None for entry in source.entries.values())
    wrong = (
        archs.FINETUNED in archs.reads(file.name) and rotates and key in file.values and not file.values[key].decode()
    )
    return {key: Value.of(ValueType.BOOL, True)} if wrong else {}


def _pattern(source: RopeSet, found: RopeSet, file: GgufCheckpoint) -> dict[str, Value]:
    """Return the list of sliding layers, where the converter leaves it to llama.cpp, which slides others."""
    wanted, theirs = _sliding(source), _sliding(found)
    if not wanted or wanted == theirs or archs.SLIDING_WINDOW_PATTERN not in archs.reads(file.name):
        return {}
    count = 1 + max(layer for entry in found.entries.values() for layer in entry.layers)
    listed = [layer in wanted for layer in range(count)]
    return {f"{file.name}.{archs.SLIDING_WINDOW_PATTERN}": Value.array(ValueType.BOOL, listed)}


def _sliding(rope: RopeSet) -> set[int]:
    return {layer for entry in rope.entries.values() if entry.sliding_window is not None for layer in entry.layers}


def _sections(file: GgufCheckpoint) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the key of image sections that llama.cpp rotates text wrongly by, and a note on what it is for."""
    key = f"{file.name}.{archs.DIMENSION_SECTIONS}"
    if archs.DIMENSION_SECTIONS not in archs.reads(file.name) or key not in file.values:
        return frozenset(), ()
    decoded: Any = file.values[key].decode()
    sections = [int(pairs) for pairs in decoded]
    if len(sections) < 4 or sections[3] <= 0:
        return frozenset(), ()
    said = f"{key} {sections} is left out, because llama.cpp sets the fourth position of text to 0; image input needs this key"
    return frozenset({key}), (said,)


def _dimensions(source: RopeSet, found: RopeSet, file: GgufCheckpoint) -> dict[str, Value]:
    """Return the keys that say how many channels rotate, where the converter has left them out or says another number."""
    by_layer = {layer: entry for entry in source.entries.values() for layer in entry.layers}
    keys = {names.FULL_ATTENTION: archs.DIMENSION_COUNT, names.SLIDING_ATTENTION: archs.DIMENSION_COUNT_SWA}
    wanted = {}
    for kind, key in keys.items():
        entry = found.entries.get(kind)
        ours = by_layer.get(entry.layers[0]) if entry is not None and entry.table is not None else None
        if entry is not None and ours is not None and ours.table is not None and ours.rotary_dim != entry.rotary_dim:
            wanted[f"{file.name}.{key}"] = Value.of(ValueType.U32, ours.rotary_dim)
    return wanted


def _ignored_window(
    source: RopeSet, found: RopeSet, context: int, where: str, allowed: bool
) -> tuple[int | None, tuple[str, ...]]:
    """Return the window that llama.cpp does not know of, if it is shorter than the context, and a note on it.

    Raises: LossyExport for such a one, unless full attention is allowed.
    """
    windows = {entry.sliding_window for entry in source.entries.values()} - {None}
    if not windows or any(entry.sliding_window is not None for entry in found.entries.values()):
        return None, ()
    window = min(one for one in windows if one is not None)
    notes = ignored_window_notes(window, context, where, allowed)
    return window if window < context else None, notes
