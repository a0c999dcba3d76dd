"""A Plan: what will be written, and why, as frozen data that can be printed, stored as JSON, and applied later."""

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
from ropetool.errors import ConfigError, CorruptFile, sentence_of
from ropetool.escaping import Shown
from ropetool.files import hub
from ropetool.files.gguf import model_name
from ropetool.files.hf import read_object
from ropetool.files.hf.jsontext import ABSENT, is_text, shown
from ropetool.files.hf.typed import NUMBER, OBJECT, TEXT, JsonType, checked, list_of, taken, whole
from ropetool.plans.basis import ORIGINAL
from ropetool.plans.targets import rope_tables, target_json, target_of
from ropetool.rope.tables import MAX_LENGTH, RopeSet, RopeTable
from ropetool.weights.edits import TensorEdit

SCHEMA = 2
SCHEMAS = (1, SCHEMA)  # the first knows tables and lengths alone
FORMATS = ("hf", "gguf")
MAX_REASON = 300  # characters of a reason that quotes a value of the file
# An edit of a row costs 16 bytes when it is carried out. The most rows known are 2 million: 126 layers of 16,384 queries
# and 1,024 keys. Lists hold an entry for each tensor, note or runtime.
MAX_HEIGHT, MAX_ROWS, MAX_LIST = 2**20, 2**22, 2**13
BAKE = "bake"  # the method of a plan that leaves the context as it is


@dataclass(frozen=True)
class Tried:
    """An encoding that was tried; `rejected` says why it does not serve, empty for the one that was kept."""

    name: str
    rejected: str


@dataclass(frozen=True)
class Plan(Shown):
    """What will be written, and why: everything that `apply` needs and a reader wants to check.

    target: what every runtime asked for will compute; None in a plan of an earlier version, which has its tables and
    softmax_multiplier alone. tables: those of the target by layer type, with the regimes of each; a table that follows
    the length has none. softmax_multiplier: what the whole score is multiplied by (MLA). identity: of the source, but for
    positions. bakes: what goes into weights,
    in words; tensors: the same as edits, empty where the source has no weights at hand. weight_files: the files that
    they touch, with what tells whether each is still the same. bake_dtype: what scaled tensors are stored in, empty for
    their own type.
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
    target: RopeSet | None = field(default=None, compare=False)  # its arrays are compared by `differences`
    identity: Identity | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data, the form of a plan file."""
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
        """Return the plan that a plan file holds.

        Raises: ConfigError if it is not one.
        """
        try:
            if data["schema"] not in SCHEMAS or data["format"] not in FORMATS:
                raise ValueError(
                    f"schema {shown(data['schema'])} for {shown(data['format'])}; this version reads "
                    f"{' and '.join(map(str, SCHEMAS))} for {' and '.join(FORMATS)}"
                )
            for key, kind in _KINDS.items():
                checked(data[key], kind, key, "")
            for key in ("target", "identity") if data["schema"] == SCHEMA else ():
                checked(data[key], OBJECT, key, "")
            for key, kind in _BAKED_KINDS.items():
                taken(data, key, kind, "", None)
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
            if Path(plan.suffix).name != plan.suffix:
                raise ValueError(f"suffix {shown(plan.suffix)} is not part of a file name")
        except (KeyError, TypeError, ValueError, OverflowError, ConfigError, CorruptFile) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else sentence_of(error)
            raise ConfigError(
                f"not a valid ropetool plan ({reason if len(reason) <= MAX_REASON else f'{reason[:MAX_REASON]}...'})",
                where=where, try_="make one with ropetool extend ... --dry-run --plan-out FILE",
            ) from None  # fmt: skip
        return plan

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """Return the plan in this file.

        Raises: CheckpointError if the file cannot be read or is not a JSON object, ConfigError if it is not a plan.
        """
        return cls.from_json(read_object(Path(path))[1], str(path))

    def rope_tables(self) -> dict[str, RopeTable]:
        """Return `tables` as data that can be compared."""
        return rope_tables(self.tables)

    def output_beside(self, source: Path) -> Path:
        """Return the default output, named after method and length: next to the source, or in the current folder for a store.

        Where the plan replaces an extension by ropetool, that one's part of the name goes too.
        """
        place = Path(os.path.abspath(hub.beside(source)))
        name, end = (model_name(place), place.suffix) if self.format == "gguf" else (place.name, "")
        made = provenance.read(first_file(source)) if self.reading == ORIGINAL else None
        return place.with_name(f"{name if made is None else provenance.unsuffixed(name, made)}-{self.suffix}{end}")


def _identity(data: Any) -> Identity:
    place = "identity"
    return Identity(taken(data, "settings", _STATED, place), taken(data, "weights", TEXT, place))


def _candidate(data: Any) -> Tried:
    return Tried(*(taken(data, key, TEXT, "a candidate") for key in ("name", "rejected")))


def _tensor_edits(listed: Sequence[Any]) -> tuple[TensorEdit, ...]:
    """Return the edits of tensors, whose rows become arrays when they are carried out.

    Raises: CorruptFile for what is none, and for more rows than any model has; what TensorEdit.from_json raises.
    """
    found: list[TensorEdit] = []
    seen: set[str] = set()
    total = 0
    for data in listed:
        checked(data, OBJECT, "a tensor edit", "")
        place = f"the edit of {shown(data.get('tensor'))}"
        for key, kind in _TENSOR_KINDS.items():
            taken(data, key, kind, place, None if key in _TENSOR_OPTIONAL else ABSENT)
        found.append(TensorEdit.from_json({key: value for key, value in data.items() if value is not None}))
        total += 0 if data["tensor"] in seen else data["height"]
        seen.add(data["tensor"])
        if total > MAX_ROWS:
            raise CorruptFile(f"edits tensors of more than {MAX_ROWS:,} rows", where=place)
    return tuple(found)


_LENGTH = whole(1, MAX_LENGTH)
_ROW = whole(0, MAX_HEIGHT)
_TEXTS = list_of(TEXT, MAX_LIST)
_PARAMS = JsonType(
    "an object whose names and texts are text",
    lambda value: isinstance(value, dict) and all(is_text(v) for v in (*value, *value.values()) if isinstance(v, str)),
)
_KINDS = {
    "family": TEXT, "method": TEXT, "factor": NUMBER, "params": _PARAMS, "reading": TEXT, "trained_length": _LENGTH,
    "max_position_embeddings": _LENGTH, "runtimes": _TEXTS, "config_style": TEXT, "tables": OBJECT,
    "softmax_multiplier": NUMBER, "edits": list_of(OBJECT, MAX_LIST), "candidates": list_of(OBJECT, MAX_LIST),
    "notes": _TEXTS, "suffix": TEXT,
}  # fmt: skip
_STATED = JsonType("an object of texts", lambda value: isinstance(value, dict) and all(map(is_text, value.values())))
_BAKED_KINDS = {
    "bakes": _TEXTS, "tensors": list_of(OBJECT, MAX_LIST), "bake_dtype": TEXT,
    "weight_files": _STATED,
}  # fmt: skip
_TENSOR_KINDS = {
    "tensor": TEXT, "operation": TEXT, "height": _ROW, "starts": list_of(_ROW, MAX_HEIGHT), "length": _ROW,
    "factors": list_of(NUMBER, MAX_HEIGHT), "order": list_of(_ROW, MAX_HEIGHT), "offset": NUMBER, "reason": TEXT,
}  # fmt: skip
_TENSOR_OPTIONAL = {"factors", "order", "offset", "reason"}
