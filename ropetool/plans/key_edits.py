"""Set or remove a key of a GGUF file: find its type, check the result by llama.cpp's rules, and collect notes."""

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
from ropetool.rope.tables import RopeSet, is_number
from ropetool.runtimes.base import Refuses
from ropetool.runtimes.llama_cpp import architectures, decoding, key_rules, key_types

DESCRIPTIVE = frozenset({"general.name", "general.file_type"})  # llama.cpp loads them, but does not compute with them


@dataclass(frozen=True)
class KeyEdit:
    """A checked edit of a key.

    source: the model.
    key: the key.
    before, after: the values. None if the key is absent.
    patch: the changes in the first file.
    tables: llama.cpp's tables before and after. None if they are equal or unknown.
    notes: messages for the user, including objections that `force` overrode.
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
        """Return whether the model has the value already."""
        return self.before == self.after


def set_key(files: tuple[GgufHeader, ...], key: str, text: str, label: str = "", *, force: bool = False) -> KeyEdit:
    """Return the edit that sets a key of a model to the value in a text.

    files: the headers of all its files. For an edit in place, they must be unmapped.
    label: the type. Empty for the type that llama.cpp reads, or that the key has, or that converters write.
    force: allow a value that prevents llama.cpp from loading the file, and add a note.
    Raises: CheckpointError; ConfigError if the text is not a value of the type, the type is unknown, or llama.cpp would
    not load the result.
    """
    value = _typed(files[0], key, text, label)
    if value.type is ValueType.STR and not force:
        _check_text(text, key)
    return _edit(files, key, value, force)


def unset_key(files: tuple[GgufHeader, ...], key: str, *, force: bool = False) -> KeyEdit:
    """Return the edit that removes a key.

    Raises: ConfigError if the key does not exist, or llama.cpp would not load the result. CheckpointError.
    """
    present(files[0], key)
    return _edit(files, key, None, force)


def present(header: GgufHeader, key: str) -> Value:
    """Return the value of a key in the file.

    Raises: ConfigError if the file does not have the key.
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
    """Return the possible types of a value: those in llama.cpp, else the present type, else the type in converters."""
    present_label = header.values[key].label if key in header.values else ""
    architecture = _architecture(header)
    loaded = key_types.loaded(key, architecture)
    if loaded:
        return sorted(loaded, key=lambda each: each != present_label)
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
        split_patch(files, patch)  # raises an error for keys that connect the files, even with force
    size = sum(len(each.raw) for each in patched_values(files[0], patch).values())
    if size > MAX_HEADER_BYTES:
        raise ConfigError(
            f"would make the header {size:,} bytes long; ropetool reads at most {MAX_HEADER_BYTES:,}", where=key
        )
    after = source.after(patch)
    objections = key_rules.objections(source, after)
    if objections and not force:
        instead = "--force" if value is None else "another value, or --force"
        error = ConfigError(
            f"after this edit, {objections[0]}", where=source.where, try_=f"pass {instead} to write it anyway"
        )
        error.notes = tuple(objections[1:4])
        raise error
    tables = _tables(source, after)
    stale = _stale(source, key, tables is not None)
    patch = Patch(patch.set, patch.remove | stale)
    notes = [f"llama.cpp rejects or misreads this file: {sentence}" for sentence in objections]
    notes += _reading_notes(source, key) if value is not None else []
    notes += _context_notes(source, key, before, value)
    if stale - {key}:
        notes.append(f"removed {len(stale - {key})} ropetool keys, which described the file before the edit")
    return KeyEdit(source, key, before, value, patch, tables, tuple(notes))


def _tables(source: GgufCheckpoint, after: GgufCheckpoint) -> tuple[RopeSet, RopeSet] | None:
    try:
        tables = decoding.decode(source), decoding.decode(after)
    except (Refuses, RopetoolError):
        return None
    return tables if tables[0].differences(tables[1]) else None


def _stale(source: GgufCheckpoint, key: str, table_changes: bool) -> frozenset[str]:
    """Return ropetool's keys that would be wrong after the edit.

    If the table changes, these are all of its keys. After any other edit of a key that llama.cpp computes with, it is
    the verdict.
    """
    ours = frozenset(each for each in source.values if each.startswith(gguf_keys.PREFIX) and each != key)
    if table_changes:
        return ours
    read = bool(key_types.loaded(key, _architecture(source.files[0]))) and key not in DESCRIPTIVE
    return frozenset(each for each in ours if each.startswith(gguf_keys.VERIFIED)) if read else frozenset()


def _context_notes(source: GgufCheckpoint, key: str, before: Value | None, value: Value | None) -> list[str]:
    """Return a note if the edit raises the context length, which does not change any table."""
    if key != f"{_architecture(source.files[0])}.{architectures.CONTEXT_LENGTH}" or before is None or value is None:
        return []
    old, new = before.decode(), value.decode()
    if not (is_number(old) and is_number(new)) or new <= old:
        return []
    longer = command("ropetool", "extend", source.path, "--target-length", str(new))
    return [f"this does not extend the model: text beyond its trained length fails. `{longer}` scales the positions"]


def _reading_notes(source: GgufCheckpoint, key: str) -> list[str]:
    """Return a note if llama.cpp does not read the key, or not for this architecture."""
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
