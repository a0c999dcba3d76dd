"""transformers 5: rope_scaling takes precedence over rope_parameters, and an outer original length over an inner one.

Source: modeling_rope_utils.py and models/*/configuration_*.py of transformers 5.23.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families.family import Family
from ropetool.files.hf.jsontext import shown
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import hf_formulas as formulas
from ropetool.runtimes.base import NotHeld, NotKnown, Refuses, checked_base, once_each

NAME = "transformers"
FORMATS = ("hf",)
VERSIONS = "5.24.0"
SUMMARY = "Hugging Face transformers 5: reads both config styles; rope_scaling wins over rope_parameters"


@once_each
def decode(view: HfCheckpoint) -> RopeSet:
    """Return the tables that transformers 5 computes from a config.

    Raises: Refuses if the program stops with an error while it builds the model.
    """
    family = view.family
    part = view.section
    forbidden = next((key for key in family.not_null if key in part and part[key] is None), None)
    if forbidden:
        raise Refuses(f"ValidationError: {forbidden} is null; {family.model_type} requires a number")
    if unknown := family.not_described(part):
        raise NotKnown(unknown)
    if family.off_key and part.get(family.off_key):
        raise NotKnown(f"{family.off_key} is on, so no layer rotates and there is no table")
    if family.layer_base_key and part.get(family.layer_base_key):
        raise NotKnown(f"no data on {family.layer_base_key}, which sets a separate base for each layer")
    context = part.get(style.context_key(part, family), family.default_max_position_embeddings)
    if family.rotates == "none" or any(part.get(key) != value for key, value in family.rotates_if.items()):
        return formulas.unrotated(part, family, context)
    entries = {}
    for layer_type, keys in objects(part, family).items():
        rope_type = keys.get(names.ROPE_TYPE, keys.get(names.LEGACY_TYPE, "default"))
        rope_type = family.rope_type_names.get(rope_type, rope_type)
        if rope_type not in (*formulas.NEEDS, *formulas.NEEDS_NOTHING):
            raise Refuses(f"KeyError: {rope_type!r} is not a rope type of {family.model_type}")
        formulas.check_type(family, rope_type)
        formulas.need_keys(rope_type, keys)
        theta = checked_base(keys[names.ROPE_THETA])
        length = original_length(part, keys, family, context)
        factor = keys.get(names.FACTOR)
        if factor is None and rope_type in ("yarn", "longrope"):
            factor = context / length
        head_dim = formulas.head_dim(part, family, NAME, rope_type, layer_type)
        rotary_dim = formulas.rotary_dim(part, keys, family, head_dim, rope_type)
        if family.mrope:
            _check_sections(keys, rotary_dim)
        if rope_type == "dynamic" and family.stretch_key and keys.get(family.stretch_key):
            rope_type, theta = "default", formulas.stretched_base(theta, keys[family.stretch_key], head_dim)
        read = {*names.ROPE_TYPE_KEYS, family.temperature_key} - {names.ROPE_TYPE, names.LEGACY_TYPE}
        if rope_type == "proportional":
            read.add(names.PARTIAL_ROTARY_FACTOR)
        resolved = formulas.Resolved(
            rope_type, theta, rotary_dim,
            {k: v for k, v in keys.items() if k in read},
            factor, length, context, _truncate(part, keys, family), head_dim,
        )  # fmt: skip
        entries[layer_type] = formulas.entry(resolved, part, family, layer_type, softmax(rope_type, keys, family))
    full = entries[names.FULL_ATTENTION]
    return RopeSet(entries, context, full.original_max_position_embeddings)


def _check_sections(keys: Mapping[str, Any], rotary_dim: int) -> None:
    """Raise NotHeld if the sections do not cover the rotating pairs.

    Most classes then stop, and some rotate pairs by a wrong axis.
    """
    sections = keys.get(names.MROPE_SECTION)
    if sections is not None and 2 * sum(sections) != rotary_dim:
        raise NotHeld(
            f"{names.MROPE_SECTION} {shown(sections)} covers {sum(sections)} rotary pairs, but {rotary_dim // 2} pairs rotate"
        )


def objects(part: Mapping[str, Any], family: Family) -> dict[str, dict[str, Any]]:
    """Return the rope keys of each layer type with the defaults of the class. A base of null stays null.

    Raises: Refuses if the class stops; NotKnown.
    """
    scaling = part.get(names.ROPE_SCALING) or {}
    if part.get(names.ROPE_SCALING) in family.no_scaling_stops:
        raise Refuses(
            f"TypeError: {family.model_type} does not accept a rope_scaling of {shown(part[names.ROPE_SCALING])}"
        )
    # Remote code reads the older keys, unless it nests its keys by layer type: the older keys cannot be nested.
    parameters = None if family.remote and not family.nested else part.get(names.ROPE_PARAMETERS)
    if scaling and family.scaling_keys and set(scaling) != set(family.scaling_keys):
        raise Refuses(f"ValueError: rope_scaling must have only the keys {' and '.join(family.scaling_keys)}")
    reaches = family.rope_scaling_reaches
    if scaling and reaches == ("stops",):
        raise Refuses(f"KeyError: rope_scaling replaces the keys by layer type of {family.model_type}")
    if reaches == ():
        scaling = {}
    defaults = family.default_rope_theta
    if scaling or parameters is not None:
        defaults = {**defaults, **family.base_of_stated_keys}
    if not family.nested:
        keys = dict(
            scaling or (family.default_rope_keys.get(names.FULL_ATTENTION) if parameters is None else parameters) or {}
        )
        if (
            not family.default_rope_keys
            and family.default_rope_type != "default"
            and not scaling
            and parameters is None
        ):
            raise NotKnown(
                f"no data on {family.model_type} without rope keys; its default is {family.default_rope_type}"
            )
        keys.setdefault(names.ROPE_THETA, part.get(family.rope_theta_key, defaults[names.FULL_ATTENTION]))
        return {names.FULL_ATTENTION: keys}
    filled = family.default_rope_keys if parameters is None and not scaling else parameters or {}
    group = family.rope_group if filled is parameters else str
    nested = {t: dict(filled.get(group(t)) or {}) for t in family.layer_types}
    for layer_type in (reaches or (names.FULL_ATTENTION,)) if scaling else ():
        if parameters is None:
            nested[layer_type] = {names.ROPE_TYPE: "default"} if family.shadows_type else {}
        nested[layer_type].update(scaling)
        if "yarn" in (scaling.get(names.ROPE_TYPE), scaling.get(names.LEGACY_TYPE)):
            nested[layer_type] = {**family.scaling_defaults, **nested[layer_type]}
    for layer_type, keys in nested.items():
        # In most families an outer base goes to the full layers only.
        outer = family.rope_theta_key if layer_type == names.FULL_ATTENTION else family.local_theta_key
        read = layer_type == names.FULL_ATTENTION or family.has_local_base
        keys.setdefault(names.ROPE_THETA, part.get(outer, defaults[layer_type]) if read else defaults[layer_type])
    return nested


def original_length(part: Mapping[str, Any], keys: Mapping[str, Any], family: Family, context: int) -> int:
    """Return the length before any scaling, in tokens. context: the configured context length, which is the default."""
    outer = part.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS, family.default_original_max_position_embeddings)
    if outer is not None and not family.nested:
        return int(outer)
    inner = keys.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS)
    return int(inner) if inner is not None else context


def _truncate(part: Mapping[str, Any], keys: Mapping[str, Any], family: Family) -> bool:
    """Return `truncate`. In nested configs the class looks for it outside the layer types, where no file has it."""
    if not family.nested:
        return bool(keys.get(names.TRUNCATE, True))
    return bool((part.get(names.ROPE_PARAMETERS) or {}).get(names.TRUNCATE, True))


def softmax(rope_type: str, keys: Mapping[str, Any], family: Family) -> float:
    """Return the multiplier of MLA's softmax scale, and 1 for other families. Raises: Refuses if a key is missing."""
    all_dim = keys.get(names.MSCALE_ALL_DIM)
    if not family.mla or rope_type == "default" or not all_dim:
        return 1.0
    if keys.get(names.FACTOR) is None:
        raise Refuses("KeyError: mscale_all_dim needs factor")
    return formulas.mscale_of(keys[names.FACTOR], all_dim) ** 2
