"""The log of edits in place, beside a GGUF file: of each the keys and vectors before and after, so that it can be undone.

The record of how positions came to be is `provenance`; this one says what stood in the file, whoever asked for the edit.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint.gguf_edits import plain_value
from ropetool.errors import ConfigError, CorruptFile
from ropetool.files.gguf import GgufHeader, Patch, Value, ValueType, read_vector
from ropetool.files.hf import ABSENT, read_optional_object
from ropetool.files.hf.jsontext import LARGE

SCHEMA = 1


@dataclass(frozen=True)
class LoggedEdit:
    """One edit. size: of the file after it, in bytes. keys and tensors: by name, old and new, None where there was none.

    The numbers of a vector are its bytes, as stored. record: the text of the record beside the file that the edit replaced,
    empty where there was none; None where it left the record.
    """

    command: str
    way: str
    size: int
    keys: Mapping[str, tuple[Value | None, Value | None]]
    tensors: Mapping[str, tuple[bytes | None, bytes]]
    record: str | None = None

    @classmethod
    def of(cls, headers: Sequence[GgufHeader], patch: Patch, command: str, way: str = "", size: int = 0) -> LoggedEdit:
        """Return the entry of a patch that is about to be written; what it leaves as it is has no place in it."""
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
    def from_json(cls, data: Mapping[str, Any]) -> LoggedEdit:
        """Return the entry. Raises: KeyError, TypeError, ValueError or AttributeError if it is none."""
        keys = {str(key): (_value(both["old"]), _value(both["new"])) for key, both in data["keys"].items()}
        tensors = {}
        for name, both in data["tensors"].items():
            tensors[str(name)] = (_bytes(both["old"]), base64.b64decode(both["new"], validate=True))
        record = data.get("record")  # absent where the edit left it, and in logs of earlier versions
        text = None if record is None else str(record)
        return cls(str(data["command"]), str(data["way"]), int(data["size"]), keys, tensors, text)


def place(file: Path) -> Path:
    """Return where the log of a file stands."""
    return file.with_name(f"{file.name}.{names.EDITS_JSON}")


def read(file: Path) -> tuple[LoggedEdit, ...]:
    """Return the edits in place of a file, the last one last; none where there is no log.

    Raises: CorruptFile if it is not what ropetool writes.
    """
    path = place(file)
    found = read_optional_object(path, LARGE)
    if found is None:
        return ()
    try:
        return tuple(map(LoggedEdit.from_json, found[1]["edits"]))
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise CorruptFile(
            f"it is not a log of edits of ropetool ({error!r})", where=str(path), try_="move it away, then run again"
        ) from None


def text(edits: Sequence[LoggedEdit]) -> bytes:
    """Return the content of a log; of one that would be too long to be read, without its first edits.

    Raises: ConfigError if the last edit alone is too long for a log.
    """
    from ropetool import __version__

    listed = [edit.to_json() for edit in edits]
    for first in range(max(1, len(listed))):
        data = {"schema": SCHEMA, "ropetool": __version__, "edits": listed[first:]}
        found = f"{json.dumps(data, indent=2)}\n".encode("ascii")
        if len(found) <= LARGE.chars:
            return found
    raise ConfigError(
        f"the edit takes {len(found):,} bytes in the log, which keeps at most {LARGE.chars:,}; it could not be undone",
        try_="give -o to write a copy",
    )


def _value_json(value: Value | None) -> dict[str, Any] | None:
    """Return a value exactly, as its bytes, with what it says where that is short."""
    if value is None:
        return None
    plain = plain_value(value)
    said = {"value": plain["value"]} if plain is not ABSENT and "value" in plain else {}
    return {"type": value.type.label, **said, "raw": _text(bytes(value.raw))}


def _value(data: Mapping[str, Any] | None) -> Value | None:
    if data is None:
        return None
    return Value(ValueType[str(data["type"]).upper()], base64.b64decode(data["raw"], validate=True))


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode("ascii")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)
