"""The plan: the edits of an output and their reasons, as frozen data.

It can be printed, stored as JSON, and applied later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropetool.checkpoint import provenance
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.identity import Identity
from ropetool.checkpoint.opening import first_file
from ropetool.errors import ConfigError, CorruptFile
from ropetool.escaping import Shown
from ropetool.files import hub
from ropetool.files.hf import read_object
from ropetool.files.hf.jsontext import is_text
from ropetool.files.json_types import (
    INTEGER,
    NUMBER,
    OBJECT,
    TEXT,
    JsonType,
    check_members,
    list_of,
    one_of,
    optional,
    taken,
    whole,
)  # fmt: skip
from ropetool.files.shard_names import model_name
from ropetool.plans.basis import ORIGINAL
from ropetool.plans.targets import rope_tables, target_json, target_of
from ropetool.rope.tables import MAX_LENGTH, RopeSet, RopeTable
from ropetool.runtimes.config_encodings import IN_WEIGHTS
from ropetool.weights.edits import TensorEdit

SCHEMA = 2
SCHEMAS = (1, SCHEMA)  # the first contains only tables and lengths
FORMATS = ("hf", "gguf")
MAX_REASON = 300  # characters; a reason may quote a long value of the file
# To apply an edit of a row takes 16 bytes. The largest known model has 2 million rows: 126 layers of 16,384 queries and
# 1,024 keys. Lists have an entry for each tensor, note or runtime.
MAX_ROWS, MAX_LIST = 2**22, 2**13
BAKE = "bake"  # the method of a plan that keeps the context length


@dataclass(frozen=True)
class Tried:
    """An encoding that the search tried.

    name: its name.
    rejected: why it does not work. Empty for the encoding of the plan.
    """

    name: str
    rejected: str


def reasons(tried: Sequence[Tried]) -> str:
    """Return why each encoding was rejected. Encodings with the same reason are grouped, and bakes are one group."""
    alike: dict[str, dict[str, None]] = {}
    for candidate in tried:
        name = f"with {IN_WEIGHTS}" if candidate.name.endswith(IN_WEIGHTS) else candidate.name
        alike.setdefault(candidate.rejected, {})[name] = None
    return "; ".join(f"{', '.join(those)}: {reason}" for reason, those in alike.items())


@dataclass(frozen=True)
class Plan(Shown):
    """The edits of an output, and the reasons. It contains everything that `apply` needs, and data for readers.

    format: "hf" or "gguf".
    family: the model type or architecture.
    method, factor, params: the method and its parameters.
    reading: the start: `original`, `current` or `unscaled`.
    trained_length: the length before any scaling, in tokens.
    max_position_embeddings: the new context length in tokens.
    runtimes: the runtimes that must decode the target.
    config_style: the style of the rope keys.
    tables: the regimes of the target's tables, by layer type. Empty for a table that follows the length.
    softmax_multiplier: the factor on the whole score, for MLA.
    edits: the edits of keys.
    candidates: the encodings that were tried.
    notes: messages for the user.
    suffix: the end of the default output name.
    bakes: the changes in weights, in words.
    tensors: the changes in weights, as edits. Empty if the source has no weights.
    weight_files: the identity of each file that `tensors` touches, by name.
    bake_dtype: the type of scaled tensors. Empty to keep their types.
    target: the tables that each runtime will decode. None in a plan of an earlier version.
    identity: the identity of the source without its positions. None in a plan of an earlier version.
    """

    format: str
    family: str
    method: str
    factor: float
    params: Mapping[str, Any]
    reading: str
    trained_length: int
    max_position_embeddings: int
    runtimes: tuple[str, ...]
    config_style: str
    tables: Mapping[str, Any]
    softmax_multiplier: float
    edits: tuple[FileEdit, ...]
    candidates: tuple[Tried, ...]
    notes: tuple[str, ...]
    suffix: str
    bakes: tuple[str, ...] = ()
    tensors: tuple[TensorEdit, ...] = ()
    weight_files: Mapping[str, str] = field(default_factory=dict)
    bake_dtype: str = ""
    target: RopeSet | None = field(default=None, compare=False)  # `RopeSet.differences` compares its arrays
    identity: Identity | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data, the content of a plan file."""
        return {
            "schema": SCHEMAS[0] if self.target is None else SCHEMA, "format": self.format, "family": self.family,
            "method": self.method, "factor": self.factor,
            "params": dict(self.params), "reading": self.reading, "trained_length": self.trained_length,
            "max_position_embeddings": self.max_position_embeddings, "runtimes": list(self.runtimes),
            "config_style": self.config_style, "tables": self.tables,
            "softmax_multiplier": self.softmax_multiplier, "edits": [edit.to_json() for edit in self.edits],
            "candidates": [{"name": c.name, "rejected": c.rejected} for c in self.candidates],
            "notes": list(self.notes), "suffix": self.suffix, **self._baked_json(), **self._target_json(),
        }  # fmt: skip

    def _target_json(self) -> dict[str, Any]:
        target = {} if self.target is None else {"target": target_json(self.target)}
        if self.identity is None:
            return target
        return {**target, "identity": {"settings": dict(self.identity.settings), "weights": self.identity.weights}}

    def _baked_json(self) -> dict[str, Any]:
        if not self.bakes:
            return {}
        return {
            "bakes": list(self.bakes), "tensors": [edit.to_json() for edit in self.tensors],
            "weight_files": dict(self.weight_files), "bake_dtype": self.bake_dtype,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str) -> Plan:
        """Return the plan in the data of a plan file.

        Raises: ConfigError if it is not a valid plan.
        """
        try:
            check_members(data, _FIRST)
            check_members(data, _PLAN | (_TARGET if data["schema"] == SCHEMA else {}), _BAKED)
            plan = cls(
                format=data["format"], family=data["family"], method=data["method"], factor=float(data["factor"]),
                params=data["params"], reading=data["reading"], trained_length=data["trained_length"],
                max_position_embeddings=data["max_position_embeddings"], runtimes=tuple(data["runtimes"]),
                config_style=data["config_style"], tables=data["tables"],
                softmax_multiplier=float(data["softmax_multiplier"]), edits=tuple(map(FileEdit.from_json, data["edits"])),
                candidates=tuple(map(_candidate, data["candidates"])), notes=tuple(data["notes"]), suffix=data["suffix"],
                bakes=tuple(data.get("bakes") or ()), tensors=_tensor_edits(data.get("tensors") or ()),
                weight_files=data.get("weight_files") or {}, bake_dtype=data.get("bake_dtype") or "",
                target=target_of(data["target"], data["tables"]) if data["schema"] == SCHEMA else None,
                identity=_identity(data["identity"]) if data["schema"] == SCHEMA else None,
            )  # fmt: skip
            plan.rope_tables()
        except (ConfigError, CorruptFile) as error:
            reason = error.sentence
            raise ConfigError(
                f"not a valid ropetool plan ({reason if len(reason) <= MAX_REASON else f'{reason[:MAX_REASON]}...'})",
                where=where, try_="make one with ropetool extend ... --dry-run --plan-out FILE",
            ) from None  # fmt: skip
        return plan

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """Return the plan in a file.

        Raises: CheckpointError if the file cannot be read or is not a JSON object, ConfigError if it is not a plan.
        """
        return cls.from_json(read_object(Path(path))[1], str(path))

    def rope_tables(self) -> dict[str, RopeTable]:
        """Return `tables` as tables that can be compared."""
        return rope_tables(self.tables)

    def output_beside(self, source: Path) -> Path:
        """Return the default output: the source's name with method and length, next to it.

        For a model in the Hub's cache, it is in the current folder. If the plan replaces an extension by ropetool, that
        extension's part of the name is removed.
        """
        place = Path(os.path.abspath(hub.beside(source)))
        name, end = (model_name(place), place.suffix) if self.format == "gguf" else (place.name, "")
        record = provenance.read(first_file(source)) if self.reading == ORIGINAL else None
        return place.with_name(f"{name if record is None else provenance.unsuffixed(name, record)}-{self.suffix}{end}")


def _identity(data: Any) -> Identity:
    place = "identity"
    return Identity(taken(data, "settings", _TEXT_MEMBERS, place), taken(data, "weights", TEXT, place))


def _candidate(data: Any) -> Tried:
    return Tried(*(taken(data, key, TEXT, "a candidate") for key in ("name", "rejected")))


def _tensor_edits(listed: Sequence[Any]) -> tuple[TensorEdit, ...]:
    """Return the edits of tensors.

    Raises: CorruptFile if they have more rows than any model; and as TensorEdit.from_json.
    """
    edits = tuple(map(TensorEdit.from_json, listed))
    heights: dict[str, int] = {}
    for edit in edits:
        heights.setdefault(edit.tensor, edit.height)
    if sum(heights.values()) > MAX_ROWS:
        raise CorruptFile(f"it edits tensors of more than {MAX_ROWS:,} rows")
    return edits


_LENGTH = whole(1, MAX_LENGTH)
_TEXTS = list_of(TEXT, MAX_LIST)
_OBJECTS = list_of(OBJECT, MAX_LIST)
_TEXT_MEMBERS = JsonType(
    "an object of texts", lambda value: isinstance(value, dict) and all(map(is_text, value.values()))
)
_FIRST = {
    "schema": JsonType(
        f"{' or '.join(map(str, SCHEMAS))}, the schemas of this version",
        lambda value: INTEGER.holds(value) and value in SCHEMAS,
    ),
    "format": one_of(FORMATS),
}
_PLAN = {
    "family": TEXT, "method": TEXT, "factor": NUMBER, "reading": TEXT, "trained_length": _LENGTH,
    "params": JsonType(
        "an object whose names and texts are text",
        lambda value: isinstance(value, dict)
        and all(is_text(v) for v in (*value, *value.values()) if isinstance(v, str)),
    ),
    "max_position_embeddings": _LENGTH, "runtimes": _TEXTS, "config_style": TEXT, "tables": OBJECT,
    "softmax_multiplier": NUMBER, "edits": _OBJECTS, "candidates": _OBJECTS, "notes": _TEXTS,
    "suffix": JsonType("part of a file name", lambda value: is_text(value) and Path(value).name == value),
}  # fmt: skip
_TARGET = {"target": OBJECT, "identity": OBJECT}
# These keys are missing or null in a plan that changes no weights.
_BAKED = {
    "bakes": optional(_TEXTS), "tensors": optional(_OBJECTS), "bake_dtype": optional(TEXT),
    "weight_files": optional(_TEXT_MEMBERS),
}  # fmt: skip
