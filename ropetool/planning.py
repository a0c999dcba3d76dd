"""From a source and a wish to a Plan: derive the target, try encodings, keep the first that every runtime decodes to it.

A Plan is frozen data: it can be printed, stored as JSON, and applied later; every edit carries the old value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropetool import methods, names, runtimes
from ropetool.encodings import FileEdit, config_edits, difference, encodings, objection
from ropetool.errors import CheckpointError, ConfigError, InvalidRope, LossyExport
from ropetool.families import Family
from ropetool.formats.hf import Checkpoint, headers, open_checkpoint, read_object, style
from ropetool.formats.hf.jsontext import shown
from ropetool.methods import Derived, Goal, Method
from ropetool.readings import CURRENT, Wish, check_whole_heads, decode_source, find_start, known_family
from ropetool.spec import LayerRope, Regime, RopeSet, RopeTable, is_number

SCHEMA = 1


@dataclass(frozen=True)
class Candidate:
    """An encoding that was tried; `rejected` says why it does not serve, empty for the one that was kept."""

    name: str
    rejected: str


@dataclass(frozen=True)
class Plan:
    """What will be written, and why: everything that `apply` needs and a reader wants to check.

    tables: what every runtime asked for will compute, by layer type, with the regimes of each; a table that follows
    the length has none. softmax_multiplier: what the whole score is multiplied by (MLA).
    """

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

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data, the form of a plan file."""
        return {
            "schema": SCHEMA, "format": "hf", "family": self.family, "method": self.method, "factor": self.factor,
            "params": dict(self.params), "reading": self.reading, "trained_length": self.trained_length,
            "max_position_embeddings": self.max_position_embeddings, "runtimes": list(self.runtimes),
            "config_style": self.config_style, "tables": self.tables,
            "softmax_multiplier": self.softmax_multiplier, "edits": [edit.to_json() for edit in self.edits],
            "candidates": [{"name": c.name, "rejected": c.rejected} for c in self.candidates],
            "notes": list(self.notes), "suffix": self.suffix,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str) -> Plan:
        """Return the plan that a plan file holds.

        Raises: ConfigError if it is not one.
        """
        try:
            if (data["schema"], data["format"]) != (SCHEMA, "hf"):
                raise ValueError(
                    f"schema {shown(data['schema'])} for {shown(data['format'])}; this version reads 1 for hf"
                )
            plan = cls(
                family=_typed(data, "family", str), method=_typed(data, "method", str), factor=float(data["factor"]),
                params=dict(data["params"]), reading=_typed(data, "reading", str),
                trained_length=_typed(data, "trained_length", int),
                max_position_embeddings=_typed(data, "max_position_embeddings", int),
                runtimes=tuple(map(str, data["runtimes"])), config_style=_typed(data, "config_style", str),
                tables=dict(data["tables"]), softmax_multiplier=float(data["softmax_multiplier"]),
                edits=tuple(FileEdit.from_json(e) for e in data["edits"]),
                candidates=tuple(Candidate(c["name"], c["rejected"]) for c in data["candidates"]),
                notes=tuple(map(str, data["notes"])), suffix=_typed(data, "suffix", str),
            )  # fmt: skip
            plan.rope_tables()
            if Path(plan.suffix).name != plan.suffix:
                raise ValueError(f"suffix {shown(plan.suffix)} is no part of a file name")
        except (KeyError, TypeError, ValueError, OverflowError, InvalidRope) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ConfigError(
                f"it is no plan of ropetool ({reason})",
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
        """Return the default output: beside the source as it was named, called after method and reach."""
        source = Path(os.path.abspath(source))
        return source.with_name(f"{source.name}-{self.suffix}")


def make_plan(
    source: str | Path,
    method: str,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    reading: str | None = None,
    params: Mapping[str, Any] | None = None,
    attention_factor: str | float = "auto",
    original_length: int | None = None,
    for_runtimes: Sequence[str] = (),
    config_style: str | None = None,
) -> Plan:
    """Return the plan that extends a checkpoint; nothing is written.

    reading: original or current, required where the source already carries scaling.
    Raises: UnknownFamily, AmbiguousRope, InvalidRope, LossyExport, CheckpointError.
    """
    chosen = methods.get(method)
    wanted = tuple(runtimes.get(name, "hf").name for name in for_runtimes) or ("transformers",)
    Goal.make(1, factor, target_length, attention_factor)  # what is wrong at any length is said before readings are
    checkpoint = _with_weights_that_can_be_read(Path(source))
    where = str(checkpoint.path / names.CONFIG_JSON)
    family = known_family(checkpoint, where)
    found_style = style.read(checkpoint.config, family, where).style
    written_style = config_style or found_style
    check_whole_heads(checkpoint, family, where)
    decoded = decode_source(checkpoint, family, wanted[0], where)
    entry = decoded.entries[names.FULL_ATTENTION]
    wish = Wish(chosen.name, factor, target_length, reading, original_length)
    start = find_start(checkpoint, family, decoded, wish, where)
    goal = Goal.make(start.source.length, factor, target_length, attention_factor)
    values = dict(params or {})
    if chosen.name == "longrope" and not values and names.LONG_FACTOR in entry.params and start.reading != CURRENT:
        values = {key: entry.params[key] for key in (names.LONG_FACTOR, names.SHORT_FACTOR)}
    typed = chosen.params(values)
    derived = chosen.derive(start.source, goal, typed)
    target = _target(decoded, entry, derived, start.trained_length)
    tried: list[Candidate] = []
    for name, keys in encodings(entry, derived, start.trained_length, family):
        edits = config_edits(checkpoint, family, keys, target, start.trained_length, written_style, where)
        tried.append(Candidate(name, objection(checkpoint, family, edits, target, wanted, where)))
        if not tried[-1].rejected:
            break
    else:
        raise _lossy(chosen, written_style, wanted, tried, where)
    edits += _tokenizer_edits(checkpoint, derived.max_position_embeddings)
    notes = (
        *_source_notes(checkpoint), *start.notes, *_length_notes(decoded, target), *derived.notes, *_window_notes(target),
        *_other_readers(checkpoint, family, edits, target, wanted, written_style, where),
    )  # fmt: skip
    return Plan(
        family.model_type, chosen.name, goal.factor, _stated(typed, values, attention_factor),
        start.reading, start.trained_length, derived.max_position_embeddings, wanted, written_style,
        tables_of(target), derived.softmax_multiplier, tuple(edits), tuple(tried), notes,
        _suffix(chosen, goal, target_length, typed),
    )  # fmt: skip


def _with_weights_that_can_be_read(path: Path) -> Checkpoint:
    checkpoint = open_checkpoint(path)
    if checkpoint.pickle_only:
        raise CheckpointError(
            f"the weights are pickles ({checkpoint.pickles[0].name}), which ropetool never loads",
            where=str(path), try_="convert them to safetensors first",
        )  # fmt: skip
    headers(checkpoint)
    return checkpoint


def _stated(typed: Any, values: Mapping[str, Any], attention_factor: str | float) -> dict[str, Any]:
    """Return the parameters that were given, as plain data of the method's own types."""
    given = {name: getattr(typed, name) for name in values}
    stated = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    return stated if attention_factor == "auto" else {**stated, names.ATTENTION_FACTOR: attention_factor}


def _lossy(
    method: Method, config_style: str, wanted: Sequence[str], tried: Sequence[Candidate], where: str
) -> LossyExport:
    reasons = "; ".join(f"{c.name}: {c.rejected}" for c in tried) or "no rope keys can say it"
    if config_style == names.V5 and "transformers-v4" in wanted:
        would_work = "--config-style both"
    elif method.name == "dynamic":
        would_work = "-p freeze N, a fixed table"
    else:
        would_work = "fewer runtimes with --for, or another method"
    return LossyExport(
        f"{method.name} cannot be written in {config_style} style for {', '.join(wanted)}: {reasons}",
        where=where, try_=would_work,
    )  # fmt: skip


def _target(decoded: RopeSet, entry: LayerRope, derived: Derived, trained_length: int) -> RopeSet:
    wanted = replace(entry, table=derived.table, softmax_multiplier=derived.softmax_multiplier)
    with_entry = decoded.with_entry(names.FULL_ATTENTION, wanted)
    return replace(
        with_entry,
        max_position_embeddings=derived.max_position_embeddings,
        original_max_position_embeddings=trained_length,
    )


def tables_of(target: RopeSet) -> dict[str, Any]:
    """Return the target tables as plain data, by layer type; one that follows the length has no regimes to state."""
    return {
        layer_type: [
            {"up_to": r.up_to, "attention_factor": r.attention_factor, "inv_freq": r.inv_freq.tolist()}
            for r in entry.table.regimes
        ]
        for layer_type, entry in target.entries.items()
        if entry.table is not None and entry.table.rule is None
    }


def _tokenizer_edits(checkpoint: Checkpoint, length: int) -> list[FileEdit]:
    """Return the edit that lets the tokenizer produce the new length; a larger or absent limit stays."""
    limit = checkpoint.tokenizer_config.get(names.MODEL_MAX_LENGTH) if checkpoint.tokenizer_config else None
    if limit is None or not is_number(limit) or limit >= length:
        return []
    return [FileEdit(names.TOKENIZER_CONFIG_JSON, (names.MODEL_MAX_LENGTH,), limit, length)]


def _source_notes(checkpoint: Checkpoint) -> tuple[str, ...]:
    notes = []
    if checkpoint.config_only:
        notes.append("only config.json is here: the output has no weights either")
    elif checkpoint.pickles:
        left = ", ".join(path.name for path in checkpoint.pickles)
        notes.append(f"pickles are left behind: {left}")
    if "auto_map" in checkpoint.config:
        notes.append(
            "auto_map names remote code, which ropetool never runs: what is said here holds for the built-in model class"
        )
    return tuple(notes)


def _length_notes(decoded: RopeSet, target: RopeSet) -> tuple[str, ...]:
    present, new = decoded.max_position_embeddings, target.max_position_embeddings
    return (f"the new context of {new} tokens is below the present one of {present}",) if new < present else ()


def _window_notes(target: RopeSet) -> tuple[str, ...]:
    notes = []
    for entry in target.entries.values():
        window = entry.sliding_window
        if window is not None and len(target.entries) == 1 and window < target.max_position_embeddings:
            notes.append(
                f"a sliding window of {window} tokens is on: a layer looks no further back, whatever the context of "
                f"{target.max_position_embeddings}"
            )
    return tuple(notes)


def _other_readers(
    checkpoint: Checkpoint,
    family: Family,
    edits: Sequence[FileEdit],
    target: RopeSet,
    wanted: Sequence[str],
    config_style: str,
    where: str,
) -> tuple[str, ...]:
    """Say which runtimes that were not asked for would compute something else from the output."""
    notes = []
    for runtime in (r for r in runtimes.for_format("hf") if r.name not in wanted):
        reason = difference(checkpoint, family, edits, target, runtime.name, where)
        if reason:
            both = "--config-style both " if config_style == names.V5 else ""
            everyone = " ".join(f"--for {name}" for name in (*wanted, runtime.name))
            notes.append(
                f"{runtime.name} ({runtime.versions}) would not agree: {reason}; {both}{everyone} asks for a file that "
                "serves it too"
            )
    return tuple(notes)


def _suffix(method: Method, goal: Goal, target_length: int | None, params: Any) -> str:
    if method.name == "abf":
        return f"abf-{params.rope_theta:g}".replace("e+0", "e").replace("e+", "e")
    if target_length is not None:
        return f"{method.name}-{target_length}"
    return f"{method.name}-{goal.factor:g}x"


def _typed(data: Mapping[str, Any], key: str, kind: type) -> Any:
    value = data[key]
    if type(value) is not kind:
        raise TypeError(f"{key} is {shown(value)}")
    return value
