"""The sizes of a model, read from config.json with its family's table, and the GGUF keys that contain them.

It raises an error for settings that transformers supports and llama.cpp does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropetool import names
from ropetool.errors import ConfigError, LossyExport
from ropetool.families.family import Family, at
from ropetool.families.tensors import ConfigValue, Count, Export, PerLayer, derived, sized
from ropetool.files.gguf import Value, ValueType
from ropetool.files.hf.jsontext import shown
from ropetool.gguf_model.shapes.base import ModelShape
from ropetool.gguf_model.shapes.rules import RULES
from ropetool.names import QUANTIZATION_CONFIG
from ropetool.packed import check_readable
from ropetool.rope.tables import is_number
from ropetool.runtimes import hf_formulas
from ropetool.runtimes.llama_cpp import architectures as keys
from ropetool.runtimes.llama_cpp.architectures import MAX_LAYERS

MAX_VOCABULARY = 2**20  # Gemma's is the largest known, 262,208; export writes one row per token
# GGUF keys with a size that every model has.
COUNTED = {
    keys.BLOCK_COUNT: "layers", keys.EMBEDDING_LENGTH: "hidden", "feed_forward_length": "intermediate",
    keys.HEAD_COUNT: "heads", keys.HEAD_COUNT_KV: "kv_heads", keys.KEY_LENGTH: "head_dim",
    "attention.value_length": "head_dim", keys.DIMENSION_COUNT: "rotary_dim", "vocab_size": "vocabulary",
}  # fmt: skip
_CONSTANT = {bool: ValueType.BOOL, int: ValueType.U32, float: ValueType.F32, str: ValueType.STR}
EPSILONS = {"rms": "attention.layer_norm_rms_epsilon", "layer": "attention.layer_norm_epsilon"}


def read_model(
    family: Family, config: Mapping[str, Any], arch: str, head_dim: int, rotary_dim: int, where: str
) -> ModelShape:
    """Return the model of a config, with the class's defaults for missing keys. `arch` is llama.cpp's name.

    The family must have an export table.
    Raises: ConfigError for a size that is missing or not a valid number; LossyExport for a setting that llama.cpp does
    not compute; UnsupportedDtype for quantised weights.
    """
    table = family.export
    assert table is not None
    config = RULES[table.rules].config(config)
    _check_computable(config, table, where)
    heads = count(config, Count(names.NUM_ATTENTION_HEADS), where)
    common = {
        "layers": count(config, Count(names.NUM_HIDDEN_LAYERS, most=MAX_LAYERS), where),
        "hidden": count(config, Count(names.HIDDEN_SIZE), where), "heads": heads,
        "vocabulary": count(config, Count("vocab_size", most=MAX_VOCABULARY), where), "head_dim": head_dim, "rotary_dim": rotary_dim,
    }  # fmt: skip
    common["intermediate"] = _count(config, table.counts.get("intermediate", Count("intermediate_size")), common, where)
    common["kv_heads"] = _kv_heads(config, family, table, common, where)
    counts = {name: _count(config, one, common, where) for name, one in table.counts.items()} | common
    counts |= {
        "queries": counts["heads"] * head_dim, "keys": counts["kv_heads"] * head_dim, "one": 1,
        "twice": 2 * counts["intermediate"],
    }  # fmt: skip
    switches = {
        key: config.get(key, config.get(table.switch_names.get(key, key), default)) is True
        for key, default in table.switches.items()
    }
    switches |= dict.fromkeys(table.held, False)
    tied = config.get("tie_word_embeddings", table.tied) is True
    switches |= {"tied": tied, "untied": not tied}
    counts = derived(table.derived, counts)
    kinds = tuple(hf_formulas.layer_types(config, family, counts["layers"])) if family.has_kinds else ()
    model = ModelShape(family, table, RULES[table.rules], config, arch, counts, switches, where, kinds)
    _check_architecture(model)
    for one in table.keys.values():
        if one.nonzero and not (one.optional and config.get(one.number) is None):
            model.need_nonzero(one.number, one.default)
    model.rules.check(model)
    return model


def model_keys(model: ModelShape) -> dict[str, Value]:
    """Return the sizes and constants of the model as GGUF keys, with the architecture's name in front.

    The only rotary keys are the number of rotating channels and the sections.
    """
    values = {
        key: Value.of(ValueType.U32, model.counts[size]) for key, size in ({**COUNTED, **model.table.sizes}).items()
    }
    values[EPSILONS[model.table.norms]] = Value.of(ValueType.F32, _epsilon(model))
    values |= {key: Value.of(_CONSTANT[type(value)], value) for key, value in model.table.constants.items()}
    values |= {key: _value(model, one) for key, one in model.table.keys.items() if not _left_out(model, one)}
    values |= {key: _per_layer(model, one) for key, one in model.table.arrays.items() if model.holds(one.where)}
    if model.table.sections:
        values[keys.DIMENSION_SECTIONS] = Value.array(ValueType.I32, _sections(model))
    values |= model.rules.keys(model)
    return {f"{model.arch}.{key}": value for key, value in values.items()}


def _value(model: ModelShape, one: ConfigValue) -> Value:
    if one.switch:
        return Value.of(ValueType.BOOL, model.switches[one.switch])
    if one.entries:
        return Value.of(ValueType.U32, _entries(model, one))
    return Value.of(ValueType.F32, model.number(one.number, one.default))


def _entries(model: ModelShape, one: ConfigValue) -> int:
    value = at(model.config, one.entries)
    if value is None:
        return int(one.default)
    if not isinstance(value, list):
        raise ConfigError(f"{shown(value)} must be a list", where=f"{model.where}: {one.entries}")
    return len(value)


def _per_layer(model: ModelShape, one: PerLayer) -> Value:
    on = [model.holds(one.when, layer) for layer in range(model.layers)]
    if not one.size:
        return Value.array(ValueType.BOOL, on)
    other = model.counts[one.other] if one.other else 0
    return Value.array(ValueType.I32, [model.counts[one.size] if each else other for each in on])


def _sections(model: ModelShape) -> tuple[int, ...]:
    """Return the four sections that llama.cpp reads, with zeros for sections that the config lacks."""
    rope = model.config.get(names.ROPE_SCALING) or model.config.get(names.ROPE_PARAMETERS) or {}
    sections = rope.get(names.MROPE_SECTION) or model.table.sections
    return tuple((*sections, 0, 0, 0, 0)[:4])


def _left_out(model: ModelShape, one: ConfigValue) -> bool:
    return one.optional and not model.config.get(one.number)


# --- reading


def _count(config: Mapping[str, Any], one: Count, common: Mapping[str, int], where: str) -> int:
    """Return a size of the config.

    If the config has a list of words for it, the size is the number of leading first words.
    """
    words = config.get(one.words_key) if one.words_key else None
    if words is not None:
        return _leading(words, one, common["layers"], where)
    default = sized(one.formula, common) if one.formula else one.default
    return count({} if one.key == one.words_key else config, replace(one, default=default), where)


def _leading(words: Any, one: Count, layers: int, where: str) -> int:
    """Return how many leading layers have the first of two words.

    Raises: ConfigError for an invalid list; LossyExport if later layers have that word too.
    """
    place = f"{where}: {one.words_key}"
    if not isinstance(words, list) or len(words) < layers or any(word not in one.words for word in words):
        raise ConfigError(
            f"must be a list of {layers} words, {' or '.join(map(shown, one.words))} for each layer", where=place
        )
    leading = words[:layers].count(one.words[0])
    if one.words[0] in words[leading:layers]:
        raise LossyExport(
            f"has {one.words[0]} layers after others; llama.cpp supports {one.words[0]} only in the first layers",
            where=place,
        )
    return leading


def count(config: Mapping[str, Any], one: Count, where: str) -> int:
    """Return a size of the config.

    Raises: ConfigError for a size that is missing or not a whole number in range; LossyExport for sizes that differ
    between layers.
    """
    key = next((key for key in (one.key, *one.others) if config.get(key) is not None), one.key)
    value = config.get(key)
    if one.alike and isinstance(value, list) and value:
        if any(other != value[0] for other in value):
            raise LossyExport(
                f"{key} differs between layers; llama.cpp accepts only one number for all layers", where=where
            )
        value = value[0]
    if value is None:
        value = one.default if one.null is None or key not in config else one.null
    if value is None:
        raise ConfigError("is missing; export requires it", where=f"{where}: {key}")
    if not isinstance(value, int) or isinstance(value, bool) or not one.least <= value <= one.most:
        raise ConfigError(
            f"{shown(value)} must be a whole number from {one.least} to {one.most}", where=f"{where}: {key}"
        )
    return value


def _kv_heads(config: Mapping[str, Any], family: Family, table: Export, common: Mapping[str, int], where: str) -> int:
    heads = common["heads"]
    if not table.grouped:
        return heads
    if family.one_key_for_all(config):
        return 1
    # MLA has one key for all heads.
    assumed = None if family.mla else family.default_sizes.get(names.NUM_KEY_VALUE_HEADS)
    usual = Count(names.NUM_KEY_VALUE_HEADS, assumed or heads, null=heads)
    return _count(config, table.counts.get("kv_heads", usual), common, where)


def _epsilon(model: ModelShape) -> float:
    value = model.config.get(model.table.eps_key, model.table.eps)
    if not is_number(value) or value <= 0:
        raise ConfigError(f"{shown(value)} must be a number above 0", where=f"{model.where}: {model.table.eps_key}")
    return float(value)


# --- settings that llama.cpp does not compute


def _check_computable(config: Mapping[str, Any], table: Export, where: str) -> None:
    quantization = config.get(QUANTIZATION_CONFIG)
    if quantization is not None:
        check_readable(quantization, where)
    known = table.activations
    activation = config.get(table.activation_key, known[0])
    if activation not in known:
        raise LossyExport(
            f"{table.activation_key} is {shown(activation)}; llama.cpp computes {known[0]} for this family", where=where
        )
    for key, values in table.fixed.items():
        value = config.get(key, table.switches.get(key, values[0]))
        if value not in values:
            raise LossyExport(
                f"{key} is {shown(value)}; llama.cpp computes as if it were {shown(values[0])}", where=where
            )


def _check_architecture(model: ModelShape) -> None:
    """Raise LossyExport for settings that llama.cpp does not support, and ConfigError for contradictory sizes."""
    c, table = model.counts, model.table
    if table.square and c["queries"] != c["hidden"]:
        raise model.lossy(
            f"head_dim is {c['head_dim']}; llama.cpp uses hidden_size / num_attention_heads, "
            f"{c['hidden']} / {c['heads']}, for {model.arch}"
        )
    for one, other in table.equal.items():
        if c[one] != c[other]:
            raise model.lossy(
                f"{one} is {c[one]} and {other} {c[other]}; llama.cpp requires equal numbers for {model.arch}"
            )
    if c["heads"] % c["kv_heads"]:
        raise ConfigError(
            f"num_attention_heads {c['heads']} is not a multiple of num_key_value_heads {c['kv_heads']}",
            where=model.where,
        )
    if not table.output_bias and model.config.get("attention_bias") is True:
        raise model.lossy(f"attention_bias is true; llama.cpp has no output bias in the attention of {model.arch}")
    if not model.tied:
        model.untied("tie_word_embeddings is false")
