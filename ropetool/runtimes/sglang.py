"""SGLang: transformers 5 loads the config, and SGLang computes its own tables. Some model files ignore all scaling.

Source: srt/layers/rotary_embedding, srt/models, srt/configs/model_config.py and srt/utils/hf_transformers of the
releases in RELEASES.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families.engines import Sglang
from ropetool.rope.formulas import ntk_stretch
from ropetool.rope.tables import Array, LayerRope, RopeSet, RopeTable, is_number
from ropetool.runtimes import engine_formulas as engine
from ropetool.runtimes import hf_formulas, transformers
from ropetool.runtimes.base import NotKnown, Refuses, Releases, added_within, no_data, numbers, once_each
from ropetool.runtimes.config_overrides import ConfigOverrides
from ropetool.runtimes.hf_formulas import mscale_of

NAME = "sglang"
FORMATS = ("hf",)
RELEASES = (Releases("0.5.15", "0.5.15"), Releases("0.5.16", "0.5.23"))
SUMMARY = (
    "SGLang: reads the config through transformers 5; ignores attention_factor; mixtral and gemma2 lose any scaling"
)

# --context-length is at most the context of the file. Overrides: sglang/srt/utils/hf_transformers/config.py,
# get_config: 0.5.15 and 0.5.16 replace, 0.5.23 merges.
SERVING = ConfigOverrides(
    "python -m sglang.launch_server --model-path {} --context-length {}", "--json-model-override-args",
    merges=(False, True), nested_merges=(),
).serving  # fmt: skip

WITH_MSCALE = (0, 5, 16)  # from here on, plain yarn reads mscale and mscale_all_dim
# The first of these keys in a config is its context length.
LENGTH_KEYS = (
    "max_sequence_length", "seq_length", "max_seq_len", names.MODEL_MAX_LENGTH, names.MAX_POSITION_EMBEDDINGS,
)  # fmt: skip


def decode(view: HfCheckpoint, releases: Releases) -> RopeSet:
    """Return the tables that these releases of SGLang compute from a config.

    Raises: Refuses if the program stops with an error.
    """
    family = view.family
    own = family.own_name or engine.loaded_as_family(view)
    facts = family.sglang if own else None
    if facts is None:
        facts = _scanned(view, releases) if own else _inside(view, releases)
    given = engine.loaded_keys(view)
    engine.check_sections("SGLang", given)
    context = _context(view)
    if facts.on_transformers:
        return replace(transformers.decode(view), max_position_embeddings=context)
    shape = engine.shape(view)
    entries = {
        layer_type: _layer(view, facts, shape.entries[layer_type], keys, releases) for layer_type, keys in given.items()
    }
    return RopeSet(entries, context, entries[names.FULL_ATTENTION].original_max_position_embeddings)


def _scanned(view: HfCheckpoint, releases: Releases) -> Sglang:
    """Return how SGLang runs the architecture of a config, as recorded from its own class.

    Raises: NotKnown without such a record, or if some of these releases lack the model.
    """
    architecture = engine.architecture(view)
    record = engine.scanned(NAME).get(architecture, {})
    if "facts" not in record or architecture != view.family.architecture:
        raise no_data("SGLang", view.family.name)
    _check_all_have(architecture, record, releases)
    return Sglang(**record["facts"])


def _inside(view: HfCheckpoint, releases: Releases) -> Sglang:
    """Return how SGLang runs the text model inside a wrapper: by the class in the wrapper's file.

    Raises: NotKnown if ropetool has no data on the wrapper, or if some of these releases lack it.
    """
    outer = engine.architecture(view)
    record = engine.scanned(NAME, "wrappers").get(outer)
    if record is None or names.ARCHITECTURES not in view.config:
        raise no_data("SGLang", view.family.name)
    _check_all_have(outer, record, releases)
    if "facts" in record:
        return Sglang(**record["facts"])
    inner = view.family.architecture if record["text"] == "*" else record["text"]
    known = engine.family_of(inner)
    if known is not None and known.sglang is not None:
        return known.sglang
    facts = engine.scanned(NAME).get(inner, {}).get("facts")
    if facts is None:
        raise no_data("SGLang", f"{inner} inside {view.family.name}")
    return Sglang(**facts)


def _check_all_have(architecture: str, record: Mapping[str, Any], releases: Releases) -> None:
    """Raise NotKnown if some of these releases lack a model, because transformers' own code may run it there."""
    since = record.get("since", "0")
    if numbers(since) > releases.start:
        raise added_within(architecture, "SGLang", since, releases)


@once_each
def _context(view: HfCheckpoint) -> int:
    """Return SGLang's context length in tokens. It ignores keys nested by layer type. Source: get_context_length."""
    part = view.section
    lengths = {names.MAX_POSITION_EMBEDDINGS: view.family.default_max_position_embeddings, **part}
    length = next(int(lengths[key]) for key in LENGTH_KEYS if key in lengths and is_number(lengths[key]))
    keys = engine.loaded_keys(view)[names.FULL_ATTENTION]
    if view.family.nested or names.ORIGINAL_MAX_POSITION_EMBEDDINGS in keys:
        return length
    return int(engine.number(keys, names.FACTOR, 1.0) * length)


def _layer(
    view: HfCheckpoint, facts: Sglang, entry: LayerRope, keys: Mapping[str, Any], releases: Releases
) -> LayerRope:
    context = int(view.section.get(names.MAX_POSITION_EMBEDDINGS, view.family.default_max_position_embeddings))
    entry = engine.windowed(entry, context, slides=facts.window, wider=facts.wider_window)
    if not facts.scaling:
        keys = {names.ROPE_TYPE: "default", names.ROPE_THETA: keys[names.ROPE_THETA]}
    if facts.whole_base:
        keys = {**keys, names.ROPE_THETA: int(keys[names.ROPE_THETA])}
    if facts.base is not None:
        keys = {**keys, names.ROPE_THETA: facts.base}
    base = engine.base_table(keys, entry.rotary_dim)
    if facts.formula == "deepseek":
        return _mla(view, entry, keys, base, context)
    if facts.formula == "gemma3":
        return engine.filled(entry, keys, _transformers_table(entry, keys, context), context)
    if facts.layout == "half":
        entry = replace(entry, layout="half")
    built = replace(entry, layout="half") if facts.turns_rows else entry
    return engine.filled(entry, keys, _table(built, keys, base, context, releases), context)


def _transformers_table(entry: LayerRope, keys: Mapping[str, Any], context: int) -> RopeTable:
    """Return the table by transformers' functions from the keys of one layer type, as the gemma3 file calls them."""
    rope_type = keys[names.ROPE_TYPE]
    length = int(keys.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS) or context)
    factor = keys.get(names.FACTOR)
    if factor is None and rope_type in ("yarn", "longrope"):
        factor = context / length
    return hf_formulas.table(
        hf_formulas.Resolved(
            rope_type, float(keys[names.ROPE_THETA]), entry.rotary_dim, keys, factor, length, context,
            keys.get(names.TRUNCATE) is not False,
        )
    )  # fmt: skip


def _table(entry: LayerRope, keys: Mapping[str, Any], base: Array, context: int, releases: Releases) -> RopeTable:
    rope_type = keys[names.ROPE_TYPE]
    length = int(keys.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS) or context)
    if rope_type == "default":
        return RopeTable.fixed(base)
    if rope_type == "longrope":
        return _longrope(entry, keys, base, context, length)
    if rope_type == "llama3":
        return engine.llama3_table(keys, base, length, factor=1.0, low_freq_factor=1.0, high_freq_factor=4.0)
    if rope_type not in ("linear", "dynamic", "yarn"):
        raise NotKnown(f"no data on the rope type {rope_type} in SGLang")
    factor = engine.number(keys, names.FACTOR, 1.0)
    if rope_type == "linear":
        if not isinstance(keys[names.FACTOR], float):
            raise Refuses(engine.WHOLE_FACTOR)
        return RopeTable.fixed(base / factor)
    if rope_type == "dynamic":
        return _dynamic(keys, base, factor)
    inv_freq = _yarn(keys, base, factor, length, context, truncate=keys.get(names.TRUNCATE, True))
    return RopeTable.fixed(inv_freq, _yarn_attention_factor(keys, factor, releases))


def _yarn(keys: Mapping[str, Any], base: Array, factor: float, length: int, context: int, *, truncate: bool) -> Array:
    if keys.get("extrapolation_factor", 1) != 1:
        raise NotKnown("no data on extrapolation_factor")
    if context > math.ceil(length * factor):
        raise NotKnown(
            f"releases differ for positions beyond {length * factor:g}, the factor times the original length"
        )
    return engine.yarn_inv_freq(keys, base, factor, length, truncate=truncate)


def _yarn_attention_factor(keys: Mapping[str, Any], factor: float, releases: Releases) -> float:
    """Return the factor on cos and sin. attn_factor multiplies it, and attention_factor has no effect."""
    magnitude = mscale_of(factor)
    mscale, all_dim = keys.get(names.MSCALE), keys.get(names.MSCALE_ALL_DIM)
    if mscale is not None and all_dim is not None and releases.start >= WITH_MSCALE:
        magnitude = mscale_of(factor, mscale) / mscale_of(factor, all_dim)
    return magnitude * engine.number(keys, names.ATTN_FACTOR, 1.0)


def _dynamic(keys: Mapping[str, Any], base: Array, factor: float) -> RopeTable:
    """Return one table for all lengths: the rule, evaluated at factor times the configured context length."""
    if "alpha" in keys:
        raise NotKnown("no data on dynamic with alpha")
    return RopeTable.fixed(base * ntk_stretch(2 * base.size, factor * factor - (factor - 1)))


def _longrope(entry: LayerRope, keys: Mapping[str, Any], base: Array, context: int, length: int) -> RopeTable:
    if entry.layout != "half":
        raise Refuses("ValueError: longrope only supports neox_style")
    # A call uses the long list if a position is above the length, so a call with length + 1 tokens uses the short list.
    return engine.longrope_table(keys, base, context, length)


def _mla(view: HfCheckpoint, entry: LayerRope, keys: Mapping[str, Any], base: Array, context: int) -> LayerRope:
    """Return the entry of DeepSeek's model file, which reads any scaling as its own yarn."""
    interleaved = view.section.get("rope_interleave", True)
    entry = replace(entry, layout="interleaved" if interleaved else "half")
    if keys[names.ROPE_TYPE] == "default":
        return engine.filled(entry, keys, RopeTable.fixed(base), context)
    factor = engine.number(keys, names.FACTOR, 1.0)
    length = int(keys.get(names.ORIGINAL_MAX_POSITION_EMBEDDINGS) or context)
    all_dim = engine.number(keys, names.MSCALE_ALL_DIM, 0.0)
    magnitude = mscale_of(factor, engine.number(keys, names.MSCALE, 1.0)) / mscale_of(factor, all_dim)
    table = RopeTable.fixed(
        _yarn(keys, base, factor, length, context, truncate=True),
        magnitude * engine.number(keys, names.ATTN_FACTOR, 1.0),
    )
    whole = keys.get("apply_yarn_scaling", True) and keys.get("apply_scale", True)
    softmax = mscale_of(factor, all_dim) ** 2 if whole else 1.0
    return engine.filled(entry, keys, table, context, softmax_multiplier=softmax)
