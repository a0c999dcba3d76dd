"""exllamav3: raw configs. rope_scaling precedes rope_parameters, and yarn's factor is a ratio of lengths.

Source: exllamav3/util/rope.py, model/config.py and architecture/ of the release in VERSIONS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families import engines
from ropetool.families.engines import Exllamav3
from ropetool.files.hf.jsontext import shown
from ropetool.rope.formulas import with_share
from ropetool.rope.tables import Array, LayerRope, RopeSet, RopeTable, Temperature, is_number
from ropetool.runtimes import engine_formulas as engine
from ropetool.runtimes.base import NotKnown, Refuses, no_data
from ropetool.runtimes.hf_formulas import mscale_of, wrong_channels

NAME = "exllamav3"
FORMATS = ("hf",)
VERSIONS = "1.6.5"
SUMMARY = "exllamav3: reads both config styles; nested keys in two architectures; no dynamic; one longrope list"

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_LENGTH = 8192
SCALING, PARAMETERS = names.ROPE_SCALING, names.ROPE_PARAMETERS


def decode(view: HfCheckpoint) -> RopeSet:
    """Return the tables that exllamav3 computes from a config.

    Raises: Refuses if the program stops with an error.
    """
    facts = _facts(view)
    part = view.section
    shape = engine.shape(view)
    if stopping := next((key for key in facts.zero if part.get(key)), ""):
        raise Refuses(f"NotImplementedError: {facts.file} does not support {stopping} {part[stopping]}")
    context = int(part.get(names.MAX_POSITION_EMBEDDINGS, view.family.default_max_position_embeddings))
    entries = {}
    for layer_type, entry in shape.entries.items():
        if entry.table is None:
            entries[layer_type] = entry
            continue
        keys, near = _layer_keys(part, layer_type, view.family.rope_group(layer_type), facts)
        entry = engine.windowed(entry, context, slides=facts.window, wider=facts.wider_window)
        entries[layer_type] = _layer(view, replace(entry, layout=facts.layout), keys, near, context, facts)
    return RopeSet(entries, context, entries[names.FULL_ATTENTION].original_max_position_embeddings)


def _facts(view: HfCheckpoint) -> Exllamav3:
    """Return the facts about the family's architecture.

    Raises: Refuses if it does not load; NotKnown if exllamav3 lacks it, or ropetool does not decode it.
    """
    family = view.family
    facts = family.exllamav3 if family.own_name else None
    facts = facts or engines.model_file(Exllamav3, NAME, family.name, family.model_type)
    if facts is None:
        inside = f" around a {family.model_type}" if family.config_type else ""
        raise NotKnown(f"exllamav3 {VERSIONS} has no architecture for {family.name}{inside}")
    if facts.refused:
        raise Refuses(facts.refused)
    if facts.odd:
        raise no_data(NAME, family.name, facts.odd)
    return facts


def _layer_keys(
    part: Mapping[str, Any], layer_type: str, group: str, facts: Exllamav3
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the rope keys of a layer type, and the object from which exllamav3 reads them.

    Raises: Refuses if a required object is missing.
    """
    slides = layer_type != names.FULL_ATTENTION
    base = facts.base if facts.local_base is None or not slides else facts.local_base
    if not facts.nested:
        keys = _keys(part, facts.base)
        theta = keys[names.ROPE_THETA] if facts.local_base is None else base
        return ({names.ROPE_TYPE: "default", names.ROPE_THETA: theta} if slides else keys), part
    near = (part.get(PARAMETERS) or {}).get(group)
    if facts.nested == "inside":
        return _inside(near or {}, base), near or {}
    if not isinstance(near, Mapping):
        raise Refuses(f"KeyError: {facts.file} needs {PARAMETERS}.{group}")
    outer = {**part, PARAMETERS: near}
    keys = _keys(outer, base)
    return ({names.ROPE_TYPE: "default", names.ROPE_THETA: keys[names.ROPE_THETA]} if slides else keys), outer


def _inside(near: Mapping[str, Any], base: float) -> dict[str, Any]:
    """Return the type and base of a group of rope keys. Its scaling has no effect on the table.

    Raises: Refuses if the type is scaled.
    """
    rope_type = near.get(names.ROPE_TYPE) or "default"
    if rope_type not in ("default", "proportional"):
        raise Refuses(f"AttributeError: keys by layer type in {PARAMETERS} cannot have the rope_type {rope_type}")
    return {names.ROPE_TYPE: rope_type, names.ROPE_THETA: float(near.get(names.ROPE_THETA, base))}


def _keys(part: Mapping[str, Any], default_base: float) -> dict[str, Any]:
    """Return the scaling keys with the base, and the type in rope_type.

    Raises: Refuses if the keys are not an object.
    """
    scaling: Mapping[str, Any] = next((part[key] for key in (SCALING, PARAMETERS) if part.get(key) is not None), {})
    if not isinstance(scaling, Mapping):
        raise Refuses(f"TypeError: {SCALING} {shown(scaling)} is not an object")
    inner = part.get(PARAMETERS) or {}
    bases = (part.get(names.ROPE_THETA), inner.get(names.ROPE_THETA))
    theta: Any = next((base for base in bases if is_number(base)), default_base)
    keys = dict(scaling)
    rope_type = keys.get(names.ROPE_TYPE, keys.pop(names.LEGACY_TYPE, None))
    return {**keys, names.ROPE_TYPE: rope_type or "default", names.ROPE_THETA: float(theta)}


def _layer(
    view: HfCheckpoint,
    entry: LayerRope,
    keys: dict[str, Any],
    near: Mapping[str, Any],
    context: int,
    facts: Exllamav3,
) -> LayerRope:
    if keys[names.ROPE_TYPE] == "proportional":
        return engine.filled(entry, keys, _proportional(near, keys, entry.head_dim), context)
    entry = _narrowed(view, entry, near)
    mla = view.family.mla and facts.mscales
    table = _table(view, keys, engine.base_table(keys, entry.rotary_dim), mla)
    grows = keys.get(names.LLAMA_4_SCALING_BETA) if keys[names.ROPE_TYPE] == "yarn" else None
    length = int(keys.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS) or context)
    temperature = Temperature(float(grows), length) if grows else None
    if not mla:
        return engine.filled(entry, keys, table, context, temperature=temperature)
    softmax = engine.softmax_multiplier(keys) if keys[names.ROPE_TYPE] != "default" else 1.0
    return engine.filled(entry, keys, table, context, softmax_multiplier=softmax, temperature=temperature)


def _proportional(near: Mapping[str, Any], keys: Mapping[str, Any], head_dim: int) -> RopeTable:
    """Return the table of a whole head in which only a share of the pairs rotates. A factor has no effect."""
    share = engine.number(near, names.PARTIAL_ROTARY_FACTOR, 1.0)
    return RopeTable.fixed(with_share(engine.base_table(keys, head_dim), share))


def _narrowed(view: HfCheckpoint, entry: LayerRope, part: Mapping[str, Any]) -> LayerRope:
    """Return the entry with the share of rotating channels, which exllamav3 reads for any family.

    Raises: Refuses if the number of channels is odd or out of range.
    """
    share = part.get(names.PARTIAL_ROTARY_FACTOR, (part.get(PARAMETERS) or {}).get(names.PARTIAL_ROTARY_FACTOR))
    width = part.get(names.ROTARY_DIM)
    if width is None and (view.family.partial_rotary_key or not is_number(share)):
        return entry
    channels = int(width) if width is not None else int(entry.head_dim * share)
    if not 2 <= channels <= entry.head_dim or channels % 2:
        raise wrong_channels(channels, entry.head_dim)
    return replace(entry, rotary_dim=channels, table=None)


def _table(view: HfCheckpoint, keys: Mapping[str, Any], base: Array, mla: bool) -> RopeTable:
    rope_type = keys[names.ROPE_TYPE]
    if rope_type == "default":
        return RopeTable.fixed(base)
    if rope_type == "linear":
        return RopeTable.fixed(base / engine.number(keys, names.FACTOR, 1.0))
    if rope_type == "llama3":
        length = int(engine.number(keys, names.ORIGINAL_MAX_POSITION_EMBEDDINGS, LLAMA3_LENGTH))
        return engine.llama3_table(keys, base, length, **LLAMA3)
    if rope_type == "yarn":
        return _yarn(view, keys, base, mla)
    if rope_type in ("longrope", "su"):
        return _longrope(view, keys, base)
    raise Refuses(f"ValueError: Unknown rope_type: {rope_type}")


def _configured_context(view: HfCheckpoint) -> int:
    context = view.section.get(names.MAX_POSITION_EMBEDDINGS)
    if context is None:
        raise Refuses("AssertionError: scaling needs max_position_embeddings in the config")
    return int(context)


def _yarn(view: HfCheckpoint, keys: Mapping[str, Any], base: Array, mla: bool) -> RopeTable:
    """Return yarn's table. If the config has an original length, the ratio of the lengths replaces the factor."""
    context = _configured_context(view)
    original = keys.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS)
    length = int(original) if original is not None else context
    factor = context / length if original is not None else engine.number(keys, names.FACTOR)
    inv_freq = engine.yarn_inv_freq(keys, base, factor, length, truncate=bool(keys.get(names.TRUNCATE, True)))
    return RopeTable.fixed(inv_freq, _yarn_attention_factor(keys, factor, mla))


def _yarn_attention_factor(keys: Mapping[str, Any], factor: float, mla: bool) -> float:
    if keys.get(names.ATTENTION_FACTOR) is not None:
        return float(keys[names.ATTENTION_FACTOR])
    mscale, all_dim = keys.get(names.MSCALE), keys.get(names.MSCALE_ALL_DIM)
    if mla and mscale and all_dim:
        return mscale_of(factor, mscale) / mscale_of(factor, all_dim)
    if keys.get(names.LLAMA_4_SCALING_BETA):
        return 1.0  # a temperature of the score replaces it
    return mscale_of(factor)


def _longrope(view: HfCheckpoint, keys: Mapping[str, Any], base: Array) -> RopeTable:
    """Return the table of one list for every length: the long list if the context is above the original length."""
    context = _configured_context(view)
    outer = view.section.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS)
    length = keys.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS, outer)
    if length is None:
        raise Refuses("TypeError: longrope needs original_max_position_embeddings")
    chosen = names.LONG_FACTOR if context > length else names.SHORT_FACTOR
    return RopeTable.fixed(engine.divided(base, keys, chosen), engine.longrope_scale(context, int(length)))
