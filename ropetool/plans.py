"""A Plan: what will be written, and why, as frozen data that can be printed, stored as JSON, and applied later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropetool import inspection, provenance
from ropetool.baking import TensorEdit
from ropetool.encodings import FileEdit
from ropetool.errors import ConfigError
from ropetool.formats import hub
from ropetool.formats.gguf import model_name
from ropetool.formats.hf import read_object
from ropetool.formats.hf.jsontext import shown
from ropetool.readings import ORIGINAL
from ropetool.spec import Regime, RopeTable

SCHEMA = 1
FORMATS = ("hf", "gguf")
MAX_REASON = 300  # characters of a reason that quotes a value of the file
BAKE = "bake"  # the method of a plan that leaves the context as it is


@dataclass(frozen=True)
class Candidate:
    """An encoding that was tried; `rejected` says why it does not serve, empty for the one that was kept."""

    name: str
    rejected: str


@dataclass(frozen=True)
class Plan:
    """What will be written, and why: everything that `apply` needs and a reader wants to check.

    tables: what every runtime asked for will compute, by layer type, with the regimes of each; a table that follows
    the length has none. softmax_multiplier: what the whole score is multiplied by (MLA). bakes: what goes into weights,
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
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...]
    suffix: str
    bakes: tuple[str, ...] = ()
    tensors: tuple[TensorEdit, ...] = ()
    weight_files: Mapping[str, str] = field(default_factory=dict)
    bake_dtype: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data, the form of a plan file."""
        return {
            "schema": SCHEMA, "format": self.format, "family": self.family, "method": self.method, "factor": self.factor,
            "params": dict(self.params), "reading": self.reading, "trained_length": self.trained_length,
            "max_position_embeddings": self.max_position_embeddings, "runtimes": list(self.runtimes),
            "config_style": self.config_style, "tables": self.tables,
            "softmax_multiplier": self.softmax_multiplier, "edits": [edit.to_json() for edit in self.edits],
            "candidates": [{"name": c.name, "rejected": c.rejected} for c in self.candidates],
            "notes": list(self.notes), "suffix": self.suffix, **self._baked_json(),
        }  # fmt: skip

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
            if data["schema"] != SCHEMA or data["format"] not in FORMATS:
                raise ValueError(
                    f"schema {shown(data['schema'])} for {shown(data['format'])}; this version reads {SCHEMA} for "
                    f"{' and '.join(FORMATS)}"
                )
            plan = cls(
                format=_typed(data, "format", str),
                family=_typed(data, "family", str), method=_typed(data, "method", str), factor=float(data["factor"]),
                params=dict(data["params"]), reading=_typed(data, "reading", str),
                trained_length=_typed(data, "trained_length", int),
                max_position_embeddings=_typed(data, "max_position_embeddings", int),
                runtimes=_texts(data["runtimes"], "runtimes"), config_style=_typed(data, "config_style", str),
                tables=dict(data["tables"]), softmax_multiplier=float(data["softmax_multiplier"]),
                edits=tuple(FileEdit.from_json(e) for e in data["edits"]),
                candidates=tuple(Candidate(c["name"], c["rejected"]) for c in data["candidates"]),
                notes=_texts(data["notes"], "notes"), suffix=_typed(data, "suffix", str),
                bakes=_texts(data.get("bakes", []), "bakes"),
                tensors=tuple(map(TensorEdit.from_json, data.get("tensors", ()))),
                weight_files={str(k): str(v) for k, v in dict(data.get("weight_files", {})).items()},
                bake_dtype=str(data.get("bake_dtype", "")),
            )  # fmt: skip
            plan.rope_tables()
            if Path(plan.suffix).name != plan.suffix:
                raise ValueError(f"suffix {shown(plan.suffix)} is no part of a file name")
        except (KeyError, TypeError, ValueError, OverflowError, ConfigError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ConfigError(
                f"it is no plan of ropetool ({reason if len(reason) <= MAX_REASON else f'{reason[:MAX_REASON]}...'})",
                where=where, try_="make one with ropetool extend ... --dry-run --plan-out FILE",
            ) from None  # fmt: skip
        return plan

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """Return the plan in this file.

        Raises: CheckpointError if the file cannot be read or is no JSON object, ConfigError if it is no plan.
        """
        return cls.from_json(read_object(Path(path))[1], str(path))

    def rope_tables(self) -> dict[str, RopeTable]:
        """Return `tables` as data that can be compared."""
        return {
            layer_type: RopeTable(tuple(Regime(r["inv_freq"], r["attention_factor"], r["up_to"]) for r in regimes))
            for layer_type, regimes in self.tables.items()
        }

    def output_beside(self, source: Path) -> Path:
        """Return the default output, called after method and reach: beside the source as it was named, never in a hub cache.

        Where the plan replaces an extension by ropetool, that one's part of the name goes too.
        """
        place = Path(os.path.abspath(hub.beside(source)))
        name, end = (model_name(place), place.suffix) if self.format == "gguf" else (place.name, "")
        made = provenance.read(inspection.first_file(source)) if self.reading == ORIGINAL else None
        return place.with_name(f"{name if made is None else provenance.unsuffixed(name, made)}-{self.suffix}{end}")


def _typed(data: Mapping[str, Any], key: str, kind: type) -> Any:
    value = data[key]
    if type(value) is not kind:
        raise TypeError(f"{key} is {shown(value)}")
    return value


def _texts(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{key} is {shown(value)}")
    return tuple(value)
