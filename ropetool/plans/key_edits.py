"""Keys of GGUF files set and removed by hand: of which type a value must be, what speaks against it, and what follows.

Knows no key by its meaning: the rules are the runtime's. Where the result goes is key_output's concern.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ropetool.checkpoint import gguf_keys
from ropetool.checkpoint.gguf import ARCHITECTURE, GgufCheckpoint
from ropetool.errors import ConfigError, RopetoolError, did_you_mean
from ropetool.escaping import command
from ropetool.files.gguf import MAX_HEADER_BYTES, GgufHeader, Patch, Value, ValueType, split_patch
from ropetool.files.gguf.codec import shown
from ropetool.files.gguf.patch import patched_values
from ropetool.files.gguf.texts import value_of
from ropetool.rope.tables import RopeSet
from ropetool.runtimes.base import Refuses
from ropetool.runtimes.llama_cpp import architectures, decoding, key_rules, key_types

DESCRIPTIVE = frozenset({"general.name", "general.file_type"})  # loaded, and nothing is computed by them


@dataclass(frozen=True)
class KeyEdit:
    """One key of a model set or removed, checked and not yet written.

    patch: what it asks of the model, all of it of the first file. before and after: the
    value, None where there is none. tables: what llama.cpp rotates by before and after; None where that did not change, or
    nothing is known of it. notes: what to know, the objections among them that `force` overrode.
    """

    source: GgufCheckpoint
    key: str
    before: Value | None
    after: Value | None
    patch: Patch
    tables: tuple[RopeSet, RopeSet] | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def is_empty(self) -> bool:
        """Whether the model is so already."""
        return self.before == self.after


def set_key(files: tuple[GgufHeader, ...], key: str, text: str, label: str = "", *, force: bool = False) -> KeyEdit:
    """Return the edit that sets a key of a model to the value that a text states.

    files: the headers of all its files; unmapped ones where it will be edited in place. label: its type; empty for the one
    that llama.cpp wants, or that the key has, or that converters give it. force: take what llama.cpp would not load, which
    a note then says.
    Raises: ConfigError if the text is no value of the type, nothing says which type, or llama.cpp would not load the
    result; CheckpointError.
    """
    value = _typed(files[0], key, text, label)
    if value.type is ValueType.STR and not force:
        _check_text(text, key)
    return _edit(files, key, value, force)


def unset_key(files: tuple[GgufHeader, ...], key: str, *, force: bool = False) -> KeyEdit:
    """Return the edit that removes a key.

    Raises: ConfigError if there is none, or llama.cpp would not load the result; CheckpointError.
    """
    present(files[0], key)
    return _edit(files, key, None, force)


def present(header: GgufHeader, key: str) -> Value:
    """Return the value of a key that the file has.

    Raises: ConfigError if it has none of this name.
    """
    if key not in header.values:
        raise ConfigError(
            f"does not have a key {shown(key)}{did_you_mean(key, header.values)}", where=str(header.path),
            try_=f"{command('ropetool', 'gguf', 'list', header.path)}, which shows all of them",
        )  # fmt: skip
    return header.values[key]


# --- the value


def _typed(header: GgufHeader, key: str, text: str, label: str) -> Value:
    """Return the value of the first type that fits the text.

    Raises: ConfigError.
    """
    labels = [label] if label else _types(header, key)
    if not labels:
        known = did_you_mean(key, {*header.values, *key_types.known(_architecture(header))})
        raise ConfigError(
            f"its type is unknown: neither the file nor llama.cpp and its converters have this key{known}",
            where=key, try_=f"name the type: {command('ropetool', 'gguf', 'set', header.path, key, 'str', 'VALUE')} ...",
        )  # fmt: skip
    first: ConfigError | None = None
    for each in labels:
        try:
            return value_of(each, text)
        except ConfigError as error:
            first = first or error
    assert first is not None
    raise ConfigError(first.message, where=key, try_=first.try_)


def _types(header: GgufHeader, key: str) -> list[str]:
    """Return the types that a value may have without being told: llama.cpp's, that of the file, or the converters'."""
    present_label = header.values[key].label if key in header.values else ""
    architecture = _architecture(header)
    wanted = key_types.loaded(key, architecture)
    if wanted:
        return sorted(wanted, key=lambda each: each != present_label)
    written = key_types.written(key, architecture)
    return [each for each in (present_label, written) if each][:1]


def _architecture(header: GgufHeader) -> str:
    value = header.values.get(ARCHITECTURE)
    return str(value.decode()) if value is not None and value.type is ValueType.STR else ""


def _check_text(text: str, key: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"is not UTF-8 from character {error.start} on, but servers need UTF-8", where=key,
            try_="write the text as UTF-8, or add --force",
        ) from None  # fmt: skip


# --- the edit


def _edit(files: tuple[GgufHeader, ...], key: str, value: Value | None, force: bool) -> KeyEdit:
    source = GgufCheckpoint.of(files)
    before = files[0].values.get(key)
    patch = Patch(remove=frozenset({key})) if value is None else Patch({key: value})
    if before == value:
        return KeyEdit(source, key, before, value, Patch())
    if len(files) > 1:
        split_patch(files, patch)  # the keys that tie the files together stay, whatever is forced
    size = sum(len(each.raw) for each in patched_values(files[0], patch).values())
    if size > MAX_HEADER_BYTES:
        raise ConfigError(
            f"would make the header {size:,} bytes long; ropetool reads at most {MAX_HEADER_BYTES:,}", where=key
        )
    after = source.after(patch)
    found = key_rules.objections(source, after)
    if found and not force:
        instead = "--force" if value is None else "another value, or --force"
        error = ConfigError(
            f"after this edit, {found[0]}", where=source.where, try_=f"pass {instead} to write it anyway"
        )
        error.notes = tuple(found[1:4])
        raise error
    tables = _tables(source, after)
    stale = _stale(source, key, tables is not None)
    patch = Patch(patch.set, patch.remove | stale)
    notes = [f"llama.cpp rejects or misreads this file: {sentence}" for sentence in found]
    notes += _reading_notes(source, key) if value is not None else []
    if stale - {key}:
        notes.append(f"removed {len(stale - {key})} ropetool keys, which described the file before the edit")
    return KeyEdit(source, key, before, value, patch, tables, tuple(notes))


def _tables(source: GgufCheckpoint, after: GgufCheckpoint) -> tuple[RopeSet, RopeSet] | None:
    try:
        found = decoding.decode(source), decoding.decode(after)
    except (Refuses, RopetoolError):
        return None
    return found if found[0].differences(found[1]) else None


def _stale(source: GgufCheckpoint, key: str, rotates_anew: bool) -> frozenset[str]:
    """Return the keys of ours that say what is not so any more: all after another table, the verdict after any other edit
    that llama.cpp reads."""
    ours = frozenset(each for each in source.values if each.startswith(gguf_keys.PREFIX) and each != key)
    if rotates_anew:
        return ours
    read = bool(key_types.loaded(key, _architecture(source.files[0]))) and key not in DESCRIPTIVE
    return frozenset(each for each in ours if each.startswith(gguf_keys.VERIFIED)) if read else frozenset()


def _reading_notes(source: GgufCheckpoint, key: str) -> list[str]:
    """Return what to know of a key that is not read, or not by this architecture."""
    name = _architecture(source.files[0])
    if key_types.loaded(key, name) or key_types.written(key, name) or key in source.values:
        suffix = key.removeprefix(f"{name}.")
        rope = suffix in architectures.TYPES and suffix.startswith("rope.")
        try:
            ignored = rope and suffix not in architectures.reads(name)
        except Refuses:
            return []
        return [f"llama.cpp does not read {key} for {name} models, so the edit has no effect there"] if ignored else []
    near = did_you_mean(key, key_types.known(name))
    return [f"llama.cpp and its converters do not know {key}{near}, so the edit has no effect there"]
