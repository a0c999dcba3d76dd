"""exllamav3: raw configs, rope_scaling before rope_parameters, the base before both; yarn's factor is a ratio of lengths.

Source: exllamav3/util/rope.py, model/config.py and architecture/ of the release named.
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
    """Return what exllamav3 computes from this config.

    Raises: Refuses where it stops with an error.
    """
    facts = _facts(view)
    part = view.section
    shape = engine.shape(view)
    if stopping := next((key for key in facts.zero if part.get(key)), ""):
        raise Refuses(f"NotImplementedError: {facts.file} does not support {stopping} {part[stopping]}")
    context = int(part.get(names.MAX_POSITION_EMBEDDINGS, view.family.default_max_position_embeddings))
    entries = {}
    for kind, entry in shape.entries.items():
        if entry.table is None:
            entries[kind] = entry
            continue
        keys, stated = _kind_keys(part, kind, view.family.rope_group(kind), facts)
        entry = engine.windowed(entry, context, slides=facts.window, wider=facts.wider_window)
        entries[kind] = _layer(view, replace(entry, layout=facts.layout), keys, stated, context, facts)
    return RopeSet(entries, context, entries[names.FULL_ATTENTION].original_max_position_embeddings)


def _facts(view: HfCheckpoint) -> Exllamav3:
    """Return what is known of the family's architecture.

    Raises: Refuses where it does not load; NotKnown where there is none, or one that is not decoded.
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


def _kind_keys(
    part: Mapping[str, Any], kind: str, group: str, facts: Exllamav3
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the rope keys of a kind of layer, and the object that they were looked for in.

    Raises: Refuses where there is none.
    """
    slides = kind != names.FULL_ATTENTION
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
    stated = {**part, PARAMETERS: near}
    keys = _keys(stated, base)
    return ({names.ROPE_TYPE: "default", names.ROPE_THETA: keys[names.ROPE_THETA]} if slides else keys), stated


def _inside(near: Mapping[str, Any], base: float) -> dict[str, Any]:
    """Return what counts of a group of rope keys where its scaling does not reach the table."""
    rope_type = near.get(names.ROPE_TYPE) or "default"
    if rope_type not in ("default", "proportional"):
        raise Refuses(f"AttributeError: keys by layer type in {PARAMETERS} cannot have the rope_type {rope_type}")
    return {names.ROPE_TYPE: rope_type, names.ROPE_THETA: float(near.get(names.ROPE_THETA, base))}


def _keys(part: Mapping[str, Any], default_base: float) -> dict[str, Any]:
    """Return the scaling keys with the type under rope_type and the base.

    Raises: Refuses where the keys are not an object.
    """
    found: Mapping[str, Any] = next((part[key] for key in (SCALING, PARAMETERS) if part.get(key) is not None), {})
    if not isinstance(found, Mapping):
        raise Refuses(f"TypeError: {SCALING} {shown(found)} is not an object")
    inner = part.get(PARAMETERS) or {}
    bases = (part.get(names.ROPE_THETA), inner.get(names.ROPE_THETA))
    theta: Any = next((base for base in bases if is_number(base)), default_base)
    keys = dict(found)
    rope_type = keys.get(names.ROPE_TYPE, keys.pop(names.LEGACY_TYPE, None))
    return {**keys, names.ROPE_TYPE: rope_type or "default", names.ROPE_THETA: float(theta)}


def _layer(
    view: HfCheckpoint,
    entry: LayerRope,
    keys: dict[str, Any],
    stated: Mapping[str, Any],
    context: int,
    facts: Exllamav3,
) -> LayerRope:
    if keys[names.ROPE_TYPE] == "proportional":
        return engine.filled(entry, keys, _proportional(stated, keys, entry.head_dim), context)
    entry = _narrowed(view, entry, stated)
    mla = view.family.mla and facts.mscales
    table = _table(view, keys, engine.base_table(keys, entry.rotary_dim), mla)
    grows = keys.get(names.LLAMA_4_SCALING_BETA) if keys[names.ROPE_TYPE] == "yarn" else None
    length = int(keys.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS) or context)
    temperature = Temperature(float(grows), length) if grows else None
    if not mla:
        return engine.filled(entry, keys, table, context, temperature=temperature)
    softmax = engine.softmax_multiplier(keys) if keys[names.ROPE_TYPE] != "default" else 1.0
    return engine.filled(entry, keys, table, context, softmax_multiplier=softmax, temperature=temperature)


def _proportional(stated: Mapping[str, Any], keys: Mapping[str, Any], head_dim: int) -> RopeTable:
    """Return the table of whole heads whose slower pairs stand still; a factor does not reach it."""
    share = engine.number(stated, names.PARTIAL_ROTARY_FACTOR, 1.0)
    return RopeTable.fixed(with_share(engine.base_table(keys, head_dim), share))


def _narrowed(view: HfCheckpoint, entry: LayerRope, part: Mapping[str, Any]) -> LayerRope:
    """Return the entry with the share of channels that rotates: exllamav3 narrows the head of any family."""
    share = part.get(names.PARTIAL_ROTARY_FACTOR, (part.get(PARAMETERS) or {}).get(names.PARTIAL_ROTARY_FACTOR))
    stated = part.get(names.ROTARY_DIM)
    if stated is None and (view.family.partial_rotary_key or not is_number(share)):
        return entry
    channels = int(stated) if stated is not None else int(entry.head_dim * share)
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


def _stated_context(view: HfCheckpoint) -> int:
    context = view.section.get(names.MAX_POSITION_EMBEDDINGS)
    if context is None:
        raise Refuses("AssertionError: scaling needs max_position_embeddings in the config")
    return int(context)


def _yarn(view: HfCheckpoint, keys: Mapping[str, Any], base: Array, mla: bool) -> RopeTable:
    """Return yarn's table; where the trained length is stated, the ratio of the lengths replaces the factor."""
    context = _stated_context(view)
    stated = keys.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS)
    length = int(stated) if stated is not None else context
    factor = context / length if stated is not None else engine.number(keys, names.FACTOR)
    inv_freq = engine.yarn_inv_freq(keys, base, factor, length, truncate=bool(keys.get(names.TRUNCATE, True)))
    return RopeTable.fixed(inv_freq, _yarn_attention_factor(keys, factor, mla))


def _yarn_attention_factor(keys: Mapping[str, Any], factor: float, mla: bool) -> float:
    if keys.get(names.ATTENTION_FACTOR) is not None:
        return float(keys[names.ATTENTION_FACTOR])
    mscale, all_dim = keys.get(names.MSCALE), keys.get(names.MSCALE_ALL_DIM)
    if mla and mscale and all_dim:
        return mscale_of(factor, mscale) / mscale_of(factor, all_dim)
    if keys.get(names.LLAMA_4_SCALING_BETA):
        return 1.0  # a temperature of the score stands in for it
    return mscale_of(factor)


def _longrope(view: HfCheckpoint, keys: Mapping[str, Any], base: Array) -> RopeTable:
    """Return the one list that serves every length: the long one where the context is above the trained length."""
    context = _stated_context(view)
    outer = view.section.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS)
    length = keys.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS, outer)
    if length is None:
        raise Refuses("TypeError: longrope needs original_max_position_embeddings")
    chosen = names.LONG_FACTOR if context > length else names.SHORT_FACTOR
    return RopeTable.fixed(engine.divided(base, keys, chosen), engine.longrope_scale(context, int(length)))
