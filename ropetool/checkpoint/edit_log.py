"""The log of in-place edits, next to a GGUF file: the keys and vectors before and after each edit, to revert it.

`provenance` records how ropetool scaled the positions. This log records the old values of every edit, regardless of its
purpose.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint.gguf import plain_value
from ropetool.errors import ConfigError, CorruptFile
from ropetool.escaping import command
from ropetool.files.gguf import GgufHeader, Patch, Value, ValueType, read_vector
from ropetool.files.hf import ABSENT, read_optional_object
from ropetool.files.hf.jsontext import LARGE, check_size, shown
from ropetool.files.json_types import LIST, OBJECT, STRING, JsonType, check_members, optional, whole

SCHEMA = 1


@dataclass(frozen=True)
class LoggedEdit:
    """One edit.

    command: the command line.
    way: how the file was edited, as `files.gguf.in_place` names it.
    size: the size of the file after the edit, in bytes.
    keys: the old and the new value of each changed key; None if the key was or is missing.
    tensors: the old and the new bytes of each changed vector; None if the vector was missing.
    record: the text of the record that the edit replaced, empty if there was no record; None if the edit did not change
      it.
    """

    command: str
    way: str
    size: int
    keys: Mapping[str, tuple[Value | None, Value | None]]
    tensors: Mapping[str, tuple[bytes | None, bytes]]
    record: str | None = None

    @classmethod
    def of(cls, headers: Sequence[GgufHeader], patch: Patch, command: str, way: str = "", size: int = 0) -> LoggedEdit:
        """Return the entry for a patch before it is written.

        The entry omits keys and vectors that the patch does not change.
        """
        values = headers[0].values
        keys = {key: (values.get(key), value) for key, value in patch.set.items() if values.get(key) != value}
        gone: dict[str, tuple[Value | None, Value | None]] = {key: (values[key], None) for key in sorted(patch.remove)}
        owners = {info.name: (header, info) for header in headers for info in header.tensors}
        tensors = {}
        for name, vector in patch.tensors.items():
            old = read_vector(*owners[name]).tobytes() if name in owners else None
            if old != vector.tobytes():
                tensors[name] = (old, vector.astype("<f4").tobytes())
        return cls(command, way, size, {**keys, **gone}, tensors)

    def to_json(self) -> dict[str, Any]:
        replaced = {} if self.record is None else {"record": self.record}
        return {
            **replaced, "command": self.command, "way": self.way, "size": self.size,
            "keys": {key: {"old": _value_json(old), "new": _value_json(new)} for key, (old, new) in self.keys.items()},
            "tensors": {name: {"old": _text(old), "new": _text(new)} for name, (old, new) in self.tensors.items()},
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Any, number: int) -> LoggedEdit:
        """Return the entry in this data. number: its position in the log. Raises: CorruptFile if it is invalid."""
        check_members(data, _EDIT, _REPLACED, f"edit {number}")
        for name, both in data["keys"].items():
            check_members(both, {"old": _VALUE, "new": _VALUE}, place=f"{shown(name)} in edit {number}")
        for name, both in data["tensors"].items():
            check_members(both, {"old": optional(_BASE64), "new": _BASE64}, place=f"{shown(name)} in edit {number}")
        keys = {key: (_value(both["old"]), _value(both["new"])) for key, both in data["keys"].items()}
        tensors = {name: (_bytes(both["old"]), base64.b64decode(both["new"])) for name, both in data["tensors"].items()}
        return cls(data["command"], data["way"], data["size"], keys, tensors, data.get("record"))


def _is_base64(value: Any) -> bool:
    try:
        return isinstance(value, str) and base64.b64decode(value, validate=True) is not None
    except ValueError:
        return False


def _is_value(value: Any) -> bool:
    if value is None:
        return True
    types = ValueType.__members__
    return (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and value["type"].upper() in types
        and _is_base64(value.get("raw"))
    )


_BASE64 = JsonType("bytes in base64", _is_base64)
_VALUE = JsonType("a value with its type and its bytes in base64, or null", _is_value)
_EDIT = {
    "command": STRING, "way": STRING, "size": whole(0, 2**63), "keys": OBJECT, "tensors": OBJECT,
}  # fmt: skip
_REPLACED = {"record": optional(STRING)}  # missing if the edit did not change it, and in logs of earlier versions


@dataclass(frozen=True)
class EditLog:
    """The in-place edits of a file.

    edits: the oldest edit first.
    complete: whether the log has every edit since its start. Versions before 0.1.0 dropped the first edits of a long
      log without a note.
    """

    edits: tuple[LoggedEdit, ...] = ()
    complete: bool = True

    def and_then(self, edit: LoggedEdit) -> EditLog:
        """Return the log with one more edit."""
        return replace(self, edits=(*self.edits, edit))

    def without_last(self, count: int) -> EditLog:
        """Return the log without its last `count` edits."""
        return replace(self, edits=self.edits[: len(self.edits) - count])


def place(file: Path) -> Path:
    """Return the path of a file's log."""
    return file.with_name(f"{file.name}.{names.EDITS_JSON}")


def read(file: Path) -> EditLog:
    """Return the log of a file, or an empty log.

    Raises: CorruptFile if ropetool did not write it.
    """
    path = place(file)
    parsed = read_optional_object(path, LARGE)
    if parsed is None:
        return EditLog()
    data = parsed[1]
    try:
        check_members(data, {"edits": LIST})
        edits = tuple(LoggedEdit.from_json(edit, number) for number, edit in enumerate(data["edits"]))
    except CorruptFile as error:
        raise CorruptFile(
            f"not a valid ropetool edit log ({error.message})", where=str(path), try_="move it away, then run again"
        ) from None
    return EditLog(edits, data.get("complete") is True)


def first_value(file: Path, key: str) -> Value | None:
    """Return the value that a key had before all logged edits, or None if no edit changed it.

    Raises: CorruptFile if ropetool did not write the log.
    """
    changed = (edit.keys[key][0] for edit in read(file).edits if key in edit.keys)
    return next(changed, None)


def text(log: EditLog) -> bytes:
    """Return the content of a log."""
    from ropetool import __version__

    data = {"schema": SCHEMA, "ropetool": __version__, **({"complete": True} if log.complete else {})}
    data["edits"] = [edit.to_json() for edit in log.edits]
    return f"{json.dumps(data, indent=2)}\n".encode("ascii")


def check_room(log: EditLog, edit: LoggedEdit, file: Path) -> None:
    """Return if the log of a file has room for one more edit. Call this before the edit.

    Raises: ConfigError if the log is full: then neither this edit nor the earlier ones could be reverted.
    """
    longest = replace(edit, way="x" * 20, size=2**63)
    try:
        check_size(text(log.and_then(longest)).decode("ascii"), str(file), LARGE)
    except CorruptFile as error:
        before = f" after {len(log.edits)} earlier edits" if log.edits else ""
        undo = f", or {command('ropetool', 'restore', file)} to undo the last edit first" if log.edits else ""
        raise ConfigError(
            f"this edit could not be undone: the edit log has no room for it{before} (the log {error.message})",
            where=str(file), try_=f"-o FILE to write a copy{undo}",
        ) from None  # fmt: skip


def _value_json(value: Value | None) -> dict[str, Any] | None:
    """Return a value as its exact bytes, and also in readable form if it is short."""
    if value is None:
        return None
    plain = plain_value(value)
    readable = {"value": plain["value"]} if plain is not ABSENT and "value" in plain else {}
    return {"type": value.type.label, **readable, "raw": _text(bytes(value.raw))}


def _value(data: Mapping[str, Any] | None) -> Value | None:
    if data is None:
        return None
    return Value(ValueType[data["type"].upper()], base64.b64decode(data["raw"]))


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode("ascii")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
