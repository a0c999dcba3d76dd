"""The decoder that the MLX programs share. It uses the recorded facts of a program's model files.

scripts/engine_files/mlx_files.py records these facts. Each program has a separate function from a rope type to a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families import engines
from ropetool.families.family import at
from ropetool.files.hf.jsontext import shown
from ropetool.rope.tables import Array, LayerRope, RopeSet, RopeTable, is_number
from ropetool.runtimes import engine_formulas as engine
from ropetool.runtimes.base import NotKnown, Refuses, no_data

Keys = Mapping[str, Any]
Table = Callable[[Keys, Array, Keys, int], RopeTable]  # from rope keys, the base table, the config and its context
NONE: dict[str, Any] = {}


@dataclass(frozen=True)
class MlxReading:
    """The places of a config in which a model file looks for the rotation of one layer type.

    bases: config paths of the base, with dots between nested names; the first that exists counts.
    base: the default base; None if the file does not load without one.
    places: objects of scaling keys by config path, in the order of their use. Each has an outcome by rope type:
      `scales`, `ignored`, `stops`, or `odd` if ropetool does not decode it. Two words are the outcomes for a type only
      in rope_type, and for a type also in `type`. `absent` is the outcome without the object: `named` if the key must
      exist but may be null.
    """

    bases: tuple[str, ...] = ()
    base: float | None = None
    places: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class MlxFile:
    """How a model file reads a config, as scripts/engine_files/mlx_files.py recorded from the real file.

    file: the name of the file.
    readings: the places of the rotation, by layer type.
    shares: config paths of the rotating share of a head.
    share: the default share; 0 if the file does not load without one.
    head_dim: `needed` if the file does not load without it, `odd` if its default differs from transformers.
    window: whether its sliding layers slide.
    listed: whether it uses the config's list of layer types.
    layout: the pairing of channels.
    scaled_score: whether mscale_all_dim multiplies the score.
    odd: the reason that ropetool does not decode it; empty if it does.
    """

    file: str
    readings: dict[str, MlxReading] = field(default_factory=dict)
    shares: tuple[str, ...] = ()
    share: float = 1.0
    head_dim: Literal["", "needed", "odd"] = ""
    window: bool = False
    listed: bool = True
    layout: Literal["half", "interleaved"] = "half"
    scaled_score: bool = False
    odd: str = ""


def decode(view: HfCheckpoint, program: str, table: Table) -> RopeSet:
    """Return the tables that a program computes from this config, by the facts of its model file.

    table: returns the program's table for a rope type.
    Raises: Refuses if the program stops with an error; NotKnown if it has no model file for the type, or ropetool does
    not decode the file.
    """
    family = view.family
    facts = engines.model_file(MlxFile, program, family.name, family.model_type)
    if facts is None:
        raise NotKnown(_lacking(program, family.name, family.model_type))
    if facts.odd:
        raise no_data(program, family.name, facts.odd)
    part = view.section
    if facts.head_dim and part.get(family.head_dim_key) is None:
        if facts.head_dim == "needed":
            raise Refuses(f"TypeError: {facts.file} needs {family.head_dim_key} in the config")
        raise NotKnown(f"no data on the head_dim that {program} uses for a config without it")
    shape = engine.shape(view)
    if not facts.listed:
        _check_pattern(view, shape)
    context = int(part.get(family.context_key, family.default_max_position_embeddings))
    entries = {}
    for layer_type, entry in shape.entries.items():
        if entry.table is None:
            entries[layer_type] = entry
            continue
        reading = facts.readings.get(layer_type, facts.readings[names.FULL_ATTENTION])
        keys = _keys(part, reading, facts)
        shaped = entry if facts.window else engine.without_window(entry, context)
        shaped = _narrowed(shaped, part, facts)
        base = engine.base_table(keys, shaped.rotary_dim)
        # The class of longrope has only the layout half.
        layout = "half" if keys[names.ROPE_TYPE] == "longrope" else facts.layout
        entries[layer_type] = engine.filled(
            shaped,
            keys,
            table(keys, base, part, context),
            context,
            layout=layout,
            softmax_multiplier=_softmax(keys, facts),
        )
    full = entries[names.FULL_ATTENTION]
    return RopeSet(entries, context, full.original_max_position_embeddings)


def has_model(program: str, model_type: str) -> bool:
    """Return whether a program has a model file that runs this type, also under a different name."""
    known = engines.files("mlx-models")[program]
    return known["renamed"].get(model_type, model_type) in known["files"]


def _lacking(program: str, model_type: str, text_type: str) -> str:
    if not has_model(program, model_type):
        return f"{program} has no model file for {model_type}"
    inside = f" around a {text_type}" if text_type != model_type else ""
    return f"no data on {program}'s model file for {model_type}{inside}"


def _keys(part: Keys, reading: MlxReading, facts: MlxFile) -> dict[str, Any]:
    """Return the rope keys that have an effect, with the base, and the type in rope_type.

    Raises: Refuses if the model file stops.
    """
    scaling = _scaling(part, reading, facts)
    theta = next((value for place in reading.bases if (value := at(part, place)) is not None), reading.base)
    if theta is None:
        raise Refuses(f"TypeError: {facts.file} needs {' or '.join(reading.bases)} in the config")
    keys = {key: value for key, value in scaling.items() if key != names.LEGACY_TYPE}
    keys[names.ROPE_TYPE] = scaling.get(names.LEGACY_TYPE) or scaling.get(names.ROPE_TYPE) or "default"
    return {**keys, names.ROPE_THETA: float(theta)}


def _scaling(part: Keys, reading: MlxReading, facts: MlxFile) -> Keys:
    for place, outcomes in reading.places.items():
        keys = at(part, place)
        if keys is not None and not isinstance(keys, Mapping):
            raise NotKnown(f"no data on how {facts.file} reads {shown(keys)} in {place}")
        if not keys:
            if outcomes.get("absent") == "stops" or (outcomes.get("absent") == "named" and place not in part):
                raise Refuses(f"AttributeError: {facts.file} needs {place} in the config")
            if outcomes.get("absent") == "odd":
                raise NotKnown(f"no data on how {facts.file} works without {place}")
            continue
        rope_type = keys.get(names.LEGACY_TYPE) or keys.get(names.ROPE_TYPE) or "default"
        both = outcomes.get(rope_type, outcomes.get("other", "ignored" if rope_type == "default" else "odd")).split()
        outcome = both[-1] if names.LEGACY_TYPE in keys else both[0]
        if outcome == "stops":
            raise Refuses(f"ValueError: {facts.file} does not accept {rope_type} in {place}")
        if outcome == "odd":
            raise NotKnown(f"no data on how {facts.file} reads {rope_type} in {place}")
        if outcome == "scales":
            return dict(keys)
    return NONE


def _narrowed(entry: LayerRope, part: Keys, facts: MlxFile) -> LayerRope:
    """Return the entry with the rotating channels of the file. Raises: Refuses if their number is not valid."""
    share = next((value for place in facts.shares if is_number(value := at(part, place))), facts.share)
    if not share:
        raise Refuses(f"TypeError: {facts.file} needs {' or '.join(facts.shares)} in the config")
    channels = int(entry.head_dim * share)
    if entry.rotary_dim == channels:
        return entry
    if not 2 <= channels <= entry.head_dim or channels % 2:
        raise Refuses(f"ValueError: [rope] dims must be even but got {channels}")
    return replace(entry, rotary_dim=channels, table=None)


def _softmax(keys: Keys, facts: MlxFile) -> float:
    return engine.softmax_multiplier(keys) if facts.scaled_score and keys[names.ROPE_TYPE] != "default" else 1.0


def _check_pattern(view: HfCheckpoint, shape: RopeSet) -> None:
    """Raise NotKnown if the config's layer types differ from the pattern of a file that reads no list of layers."""
    part = view.section
    keys = view.family.kinds_keys
    key = next((key for key in keys if part.get(key) is not None), None)
    if key is None:
        return
    config: Mapping[str, Any] = {name: value for name, value in part.items() if name not in keys}
    for outer in reversed(view.family.text_path):
        config = {**view.config, outer: config}
    counted = engine.shape(HfCheckpoint(config, view.family, view.where))
    if {layer_type: entry.layers for layer_type, entry in counted.entries.items()} != {
        layer_type: entry.layers for layer_type, entry in shape.entries.items()
    }:
        raise NotKnown(f"no data on {key} with a pattern other than the one of the model file")
