"""Code that the inference engines share: the model's shape as transformers builds it, and rope formulas in float64.

The module of an engine decides which keys it reads, and the effect of a missing key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from ropetool import families, names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families.family import Family
from ropetool.rope import arithmetic
from ropetool.rope.formulas import Source, blend, blend_by_dims, kept_share_by_turns
from ropetool.rope.tables import Array, LayerRope, Regime, RopeSet, RopeTable, is_number
from ropetool.runtimes import hf_formulas, transformers
from ropetool.runtimes.base import NotKnown, Refuses, checked_base, once_each

SCALING_KEYS = (names.ROPE_SCALING, names.ROPE_PARAMETERS, names.ROPE_THETA, names.ROPE_LOCAL_BASE_FREQ)
# With mrope_section there are three rows of positions, which tables of other types do not accept.
SECTIONED = ("default", "yarn")
# Names that vLLM and SGLang load with the config class of their family: transformers_utils/config.py of vLLM,
# utils/hf_transformers/common.py of SGLang.
LOADED_AS_FAMILY = ("kimi_k2",)
WHOLE_FACTOR = "TypeError: 'int' object is not iterable; write the linear factor with a decimal point"
PLACEHOLDER = {names.ROPE_TYPE: "default", names.ROPE_THETA: 10000.0}


@cache
def scanned(engine: str, part: str = "architectures") -> dict[str, dict[str, Any]]:
    """Return the facts that scripts/engine_files/engine_sources.py read from an engine's model files, by architecture.

    part: "architectures" or "wrappers".
    """
    text = resources.files(__package__).joinpath(f"{engine}_models.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)[part]
    return entries


def architecture(view: HfCheckpoint) -> str:
    """Return the class in a config, by which engines choose the model. Default: the class of the family."""
    classes = view.config.get(names.ARCHITECTURES)
    first = classes[0] if isinstance(classes, list) and classes else None
    return first if isinstance(first, str) else view.family.architecture


def loaded_as_family(view: HfCheckpoint) -> bool:
    """Return whether vLLM and SGLang treat a config's model_type as its family's second name and run the same class."""
    return view.family.name in LOADED_AS_FAMILY and architecture(view) == view.family.architecture


def family_of(architecture: str) -> Family | None:
    """Return the family of this class, if it has a file with facts about engines, or None."""
    return next((family for family in map(families.get, families.baked()) if family.architecture == architecture), None)


@once_each
def shape(view: HfCheckpoint) -> RopeSet:
    """Return the layers, widths, layouts and windows as transformers 5 builds them.

    Ignore the tables: they are unscaled.

    Raises: Refuses if the sizes stop the program.
    """
    part = view.section
    bare = {key: value for key, value in part.items() if key not in SCALING_KEYS}
    share = _share(part)
    if share is not None:
        bare.setdefault(names.PARTIAL_ROTARY_FACTOR, share)
    family = view.family
    bare[names.ROPE_PARAMETERS] = dict.fromkeys(family.layer_types, PLACEHOLDER) if family.nested else PLACEHOLDER
    config: Mapping[str, Any] = bare
    for key in reversed(family.text_path):
        config = {**view.config, key: config}
    return transformers.decode(HfCheckpoint(config, family, view.where))


def _share(part: Mapping[str, Any]) -> Any:
    """Return the partial_rotary_factor inside the object of rope keys, or None."""
    for key in (names.ROPE_SCALING, names.ROPE_PARAMETERS):
        inner = part.get(key)
        if isinstance(inner, Mapping) and inner:
            return inner.get(names.PARTIAL_ROTARY_FACTOR)
    return None


@once_each
def loaded_keys(view: HfCheckpoint) -> Mapping[str, Mapping[str, Any]]:
    """Return the rope keys of each layer type in a config that transformers 5 has loaded for an engine.

    They include the base, and the trained length of types that use it. The type is only in rope_type.
    Raises: Refuses if loading stops with an error.
    """
    part, family = view.section, view.family
    context = part.get(names.MAX_POSITION_EMBEDDINGS, family.default_max_position_embeddings)
    by_layer = transformers.objects(part, family)
    for keys in by_layer.values():
        rope_type = keys.pop(names.LEGACY_TYPE, "default")
        rope_type = keys.get(names.ROPE_TYPE, rope_type)
        keys[names.ROPE_TYPE] = names.ROPE_TYPE_ALIASES.get(rope_type, rope_type)
        hf_formulas.check_type(family, keys[names.ROPE_TYPE])  # the config class stops
        hf_formulas.need_keys(keys[names.ROPE_TYPE], keys)
        checked_base(keys[names.ROPE_THETA])
        null_head = transformers.NAME in family.null_head_dim and part.get(family.head_dim_key) is None
        if keys[names.ROPE_TYPE] == "longrope" and null_head:  # the check of the lists multiplies by head_dim
            raise hf_formulas.without_head_dim("longrope", family)
        outer = part.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS, family.default_original_max_position_embeddings)
        if keys[names.ROPE_TYPE] in ("yarn", "longrope", "llama3") or (outer is not None and not family.nested):
            keys[names.ORIGINAL_MAX_POSITION_EMBEDDINGS] = transformers.original_length(part, keys, family, context)
    return by_layer


def check_sections(program: str, keys: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise NotKnown if a layer type has mrope_section and a rope type whose table has no sections."""
    if any(names.MROPE_SECTION in own and own[names.ROPE_TYPE] not in SECTIONED for own in keys.values()):
        raise NotKnown(
            f"no data on {names.MROPE_SECTION} in {program} with a rope_type other than {' or '.join(SECTIONED)}"
        )


def number(keys: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """Return a number of the rope keys.

    Raises: Refuses if the key is null, or missing without a default.
    """
    if key not in keys and default is not None:
        return default
    value = keys.get(key)
    if value is None:
        raise Refuses(f"KeyError: {key} is missing" if key not in keys else f"TypeError: {key} is null")
    return float(value)


def base_table(keys: Mapping[str, Any], rotary_dim: int) -> Array:
    """Return the table before any scaling.

    Raises: NotKnown if no layer rotates, because the model files of engines were only read for their rotation.
    """
    if not rotary_dim:
        raise NotKnown("none of its layers rotates, and there is no data on how the program runs such layers")
    return arithmetic.base_inv_freq(float(keys[names.ROPE_THETA]), rotary_dim)


def yarn_inv_freq(keys: Mapping[str, Any], base: Array, factor: float, length: int, *, truncate: bool = True) -> Array:
    """Return YaRN's table. Unlike transformers, these programs do not replace a beta of 0 or null by its default.

    Raises: Refuses if such a beta stops them.
    """
    fast, slow = number(keys, names.BETA_FAST, 32.0), number(keys, names.BETA_SLOW, 1.0)
    if fast == 0 or slow == 0:
        raise Refuses("ZeroDivisionError: beta_fast or beta_slow is 0")
    source = Source(base, length, float(keys[names.ROPE_THETA]))
    return blend_by_dims(source, fast, slow, truncate, factor)


def llama3_table(keys: Mapping[str, Any], base: Array, length: int, **defaults: float) -> RopeTable:
    """Return the llama3 table. defaults: values of keys that the program does not require."""
    factor, low, high = (
        number(keys, key, defaults.get(key)) for key in (names.FACTOR, names.LOW_FREQ_FACTOR, names.HIGH_FREQ_FACTOR)
    )
    return RopeTable.fixed(blend(base, kept_share_by_turns(Source(base, length), high, low), factor))


def softmax_multiplier(keys: Mapping[str, Any]) -> float:
    """Return the square of DeepSeek's mscale, which multiplies the whole score; 1 without mscale_all_dim."""
    all_dim = keys.get(names.MSCALE_ALL_DIM, 0)
    return hf_formulas.mscale_of(number(keys, names.FACTOR), all_dim) ** 2 if all_dim else 1.0


def longrope_scale(context: int, length: int) -> float:
    """Return sqrt(1 + ln s / ln L) for the ratio s of the two lengths, and 1 up to s = 1.

    The file's factor has no effect.
    """
    ratio = context / length
    return math.sqrt(1 + math.log(ratio) / math.log(length)) if ratio > 1 else 1.0


def divided(base: Array, keys: Mapping[str, Any], key: str) -> Array:
    """Return the base table divided by a list of the rope keys.

    Raises: Refuses if the list does not have one entry for each pair.
    """
    table: Array = base / np.asarray(hf_formulas.divisors(keys, key, base.size), dtype=np.float64)
    return table


def longrope_table(keys: Mapping[str, Any], base: Array, context: int, length: int) -> RopeTable:
    """Return longrope's table: the short list up to `length` tokens, then the long list; one regime if they are equal.

    The attention factor of a list is its mscale key, or follows from the two lengths.
    """
    scale = longrope_scale(context, length)
    short, long = (
        scale if keys.get(key) is None else float(keys[key]) for key in (names.SHORT_MSCALE, names.LONG_MSCALE)
    )
    first = Regime(divided(base, keys, names.SHORT_FACTOR), short)
    last = Regime(divided(base, keys, names.LONG_FACTOR), long)
    return RopeTable((last,) if first.agrees(last, 0.0) else (replace(first, up_to=length), last))


def without_window(entry: LayerRope, context: int) -> LayerRope:
    """Return the entry for a program that does not slide. A window as wide as the context has no effect, and stays."""
    hides = entry.sliding_window is not None and entry.sliding_window < context
    return replace(entry, sliding_window=None) if hides else entry


def windowed(entry: LayerRope, context: int, *, slides: bool = True, wider: bool) -> LayerRope:
    """Return the entry with the window of a program.

    slides: whether sliding layers slide.
    wider: whether they see one token more than the config sets.
    """
    entry = entry if slides else without_window(entry, context)
    if wider and entry.sliding_window is not None:
        return replace(entry, sliding_window=entry.sliding_window + 1)
    return entry


def filled(entry: LayerRope, keys: Mapping[str, Any], table: RopeTable, context: int, **changes: Any) -> LayerRope:
    """Return a layer type of the shape with the engine's keys and table. context: the configured context length."""
    rope_type = keys.get(names.ROPE_TYPE, "default")
    length = None  # linear scaling has no length
    if rope_type in ("default", "dynamic"):
        length = context
    elif rope_type != "linear":
        length = int(keys.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS) or context)
    factor: Any = keys.get(names.FACTOR) if rope_type != "default" else None
    params = {k: v for k, v in keys.items() if k in names.ROPE_TYPE_KEYS - {names.ROPE_TYPE, names.LEGACY_TYPE}}
    return replace(
        entry, rope_type=rope_type, table=table, rope_theta=float(keys[names.ROPE_THETA]), params=params,
        factor=float(factor) if is_number(factor) else None, original_max_position_embeddings=length, **changes,
    )  # fmt: skip
