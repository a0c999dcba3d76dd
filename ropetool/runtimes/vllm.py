"""vLLM: transformers 5 loads the config. vLLM computes its own tables once, and has its own rules for the context.

Source: model_executor/layers/rotary_embedding, model_executor/models and config/model.py of the releases in RELEASES.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families.engines import Vllm
from ropetool.rope import arithmetic
from ropetool.rope.formulas import with_share
from ropetool.rope.tables import Array, LayerRope, RopeSet, RopeTable, is_number
from ropetool.runtimes import engine_formulas as engine
from ropetool.runtimes import transformers
from ropetool.runtimes.base import NotKnown, Refuses, Releases, added_within, no_data, numbers, once_each
from ropetool.runtimes.config_overrides import ConfigOverrides
from ropetool.runtimes.hf_formulas import mscale_of, rotating_channels

NAME = "vllm"
FORMATS = ("hf",)
RELEASES = (
    Releases("0.25", "0.25"), Releases("0.26", "0.28"), Releases("0.29", "0.29"), Releases("0.30", "0.30"),
    Releases("0.31", "0.31"), Releases("0.32", "0.33"),
)  # fmt: skip
SUMMARY = (
    "vLLM: reads the config through transformers 5 and uses one table for all lengths; releases before 0.30 ignore "
    "yarn's attention_factor"
)

# --max-model-len is at most the context of the file. Overrides: vllm/config/model.py, _apply_dict_overrides and
# _update_nested, alike in 0.25.1 to 0.33.0.
SERVING = ConfigOverrides(
    "vllm serve {} --max-model-len {}", "--hf-overrides", merges=(False,), nested_merges=(True,)
).serving

# From here on, yarn reads attention_factor and mscale. Older releases read attn_factor (vllm#56446).
HF_SEMANTICS = (0, 30)
MLA_SEMANTICS = (0, 31)  # from here on, attention_factor 1.0 leaves the softmax scale of DeepSeek's file unchanged
# The smallest of these is the configured context length. model_max_length takes precedence.
LENGTH_KEYS = (
    names.MAX_POSITION_EMBEDDINGS, "n_positions", "max_seq_len", "seq_length", names.MODEL_MAX_LENGTH,
    "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
NOT_RUN = {"reads": "by the transformers backend"}  # the record of an architecture that was not run on this backend
# vLLM passes only these keys of yarn to gpt_oss.
GPT_OSS_KEYS = frozenset({
    names.ROPE_THETA, names.FACTOR, names.ORIGINAL_MAX_POSITION_EMBEDDINGS, names.BETA_FAST, names.BETA_SLOW,
    names.TRUNCATE,
})  # fmt: skip


def decode(view: HfCheckpoint, releases: Releases) -> RopeSet:
    """Return the tables that these releases of vLLM compute from a config.

    The context is the largest value of --max-model-len, limited by the length of the tables of cos and sin.
    Raises: Refuses if the program stops with an error.
    """
    own = view.family.own_name or engine.loaded_as_family(view)
    facts = view.family.vllm if own else _inside(view, releases)
    if facts is None:
        facts = _scanned(view, releases)
    given = engine.loaded_keys(view)
    engine.check_sections("vLLM", given)
    if facts.on_transformers and numbers(facts.on_transformers) <= releases.start:
        rope = _on_transformers(view)
        return replace(rope, max_position_embeddings=_derived(view, given, releases))
    if releases.first in facts.stops:
        raise Refuses(facts.stops[releases.first])
    shape = engine.shape(view)
    entries, reach = {}, []
    for layer_type, keys in given.items():
        entries[layer_type], rows = _layer(view, facts, shape.entries[layer_type], keys, releases)
        reach.append(rows)
    context = min(_derived(view, given, releases), *reach)
    return RopeSet(entries, context, entries[names.FULL_ATTENTION].original_max_position_embeddings)


def _scanned(view: HfCheckpoint, releases: Releases) -> Vllm:
    """Return how vLLM runs the architecture of a config, from its registry and model files.

    Raises: NotKnown if a file reads the keys in its own way; Refuses if these releases lack the model.
    """
    architecture = engine.architecture(view)
    record = engine.scanned(NAME).get(architecture, NOT_RUN)
    if record == NOT_RUN or not view.family.own_name or architecture != view.family.architecture:
        raise no_data("vLLM", view.family.name)
    if not record:
        raise Refuses(f"ValueError: Model architectures ['{architecture}'] are not supported")
    since, until = record.get("since", "0"), record.get("until", "9999")
    backend = record.get("on_transformers", "")
    if backend and numbers(backend)[:2] <= releases.start:
        return Vllm(on_transformers=releases.first)
    if record.get("reads") == NOT_RUN["reads"]:
        raise NotKnown(f"no data on {architecture} in vLLM before {backend}")
    if "file" not in record or numbers(since)[:2] > releases.end or numbers(until)[:2] < releases.start:
        span = f"until {until}" if "until" in record else f"from {since if 'file' in record else backend} on"
        raise Refuses(f"ValueError: {architecture} is in vLLM {span}")
    if numbers(since)[:2] > releases.start:
        raise added_within(architecture, "vLLM", since, releases)
    return _read(record, view)


def _read(record: Mapping[str, str], view: HfCheckpoint) -> Vllm:
    """Return the facts in the record of a model file.

    Raises: NotKnown if the record does not contain how the file reads the rope keys.
    """
    if record.get("reads") != "as stated" or view.family.layer_base_key:
        raise NotKnown(
            f"no data on how vLLM's {record.get('file', 'backend')} reads the rope keys of {view.family.name}"
        )
    return Vllm(
        wider_window=".".join(record.get("wider_window", "").split(".")[:2]),
        made_half=record.get("layout", "").startswith("half, then"),
        turns_rows=record.get("layout", "").endswith("rows turned"),
    )


def _inside(view: HfCheckpoint, releases: Releases) -> Vllm:
    """Return how vLLM runs the text model inside a wrapper: by the class in the wrapper's file, with the inner config.

    Raises: NotKnown if ropetool has no data on the wrapper; Refuses if these releases lack it.
    """
    outer = engine.architecture(view)
    record = engine.scanned(NAME, "wrappers").get(outer)
    if record is None or names.ARCHITECTURES not in view.config:
        raise no_data("vLLM", view.family.name)
    since, until = (numbers(record.get(key, far))[:2] for key, far in (("since", "0"), ("until", "9999")))
    if since > releases.end or until < releases.start:
        raise Refuses(f"ValueError: {outer} is in vLLM {record.get('since', '0')} to {record.get('until', 'now')}")
    if since > releases.start:
        raise added_within(outer, "vLLM", record["since"], releases)
    inner = view.family.architecture if record["text"] == "*" else record["text"]
    known = engine.family_of(inner)
    if known is not None and known.vllm is not None:
        return known.vllm
    return _read(engine.scanned(NAME).get(inner, NOT_RUN), view)


def _on_transformers(view: HfCheckpoint) -> RopeSet:
    rope = transformers.decode(view)
    if any(entry.table is not None and not entry.table.is_fixed for entry in rope.entries.values()):
        raise NotKnown(
            "transformers' code chooses a table by the length of a call, but a call in vLLM contains several requests"
        )
    return rope


@once_each
def _configured_length(view: HfCheckpoint) -> float:
    """Return the configured context length, before any scaling, in tokens."""
    part = view.section
    lengths = {key: part[key] for key in LENGTH_KEYS if key in part and is_number(part[key])}
    lengths.setdefault(names.MAX_POSITION_EMBEDDINGS, view.family.default_max_position_embeddings)
    length: float = lengths.get(names.MODEL_MAX_LENGTH, min(lengths.values()))
    return length


def _derived(view: HfCheckpoint, given: Mapping[str, Mapping[str, Any]], releases: Releases) -> int:
    """Return the context length that vLLM derives from a config, in tokens.

    Source: _get_and_verify_max_len and derive_max_model_len_and_key.
    """
    length = _configured_length(view)
    if "gemma3" in view.family.model_type:
        return int(length)
    old = releases.start < HF_SEMANTICS
    factor: Any = 1.0
    for keys in given.values():
        rope_type = keys[names.ROPE_TYPE]
        if rope_type in ("longrope", "llama3") or (rope_type == "yarn" and not old):
            continue
        factor = keys.get(names.FACTOR, factor)
        if rope_type == "yarn":
            length = keys[names.ORIGINAL_MAX_POSITION_EMBEDDINGS]
    return int(length * (1.0 if factor is None else factor))


def _layer(
    view: HfCheckpoint, facts: Vllm, entry: LayerRope, keys: Mapping[str, Any], releases: Releases
) -> tuple[LayerRope, int]:
    """Return the entry of a layer type, and the number of positions in its table of cos and sin."""
    part, family = view.section, view.family
    context = int(part.get(names.MAX_POSITION_EMBEDDINGS, family.default_max_position_embeddings))
    if facts.formula == "deepseek":
        return _mla(entry, keys, context, releases)
    if facts.formula == "gpt_oss":
        keys = {**{k: v for k, v in keys.items() if k in GPT_OSS_KEYS}, names.ROPE_TYPE: "yarn"}
        for key in (names.BETA_FAST, names.BETA_SLOW, names.FACTOR, names.ORIGINAL_MAX_POSITION_EMBEDDINGS):
            engine.number(keys, key)
    wider = bool(facts.wider_window) and numbers(facts.wider_window) <= releases.start
    entry = engine.windowed(entry, context, wider=wider)
    if facts.made_half and keys[names.ROPE_TYPE] == "longrope":
        entry = replace(entry, layout="half")
    entry = _narrowed(view, entry, keys)
    base = engine.base_table(keys, entry.rotary_dim)
    built = replace(entry, layout="half") if facts.turns_rows else entry
    table, rows = _table(built, keys, base, context, releases)
    return engine.filled(entry, keys, table, context), rows


def _narrowed(view: HfCheckpoint, entry: LayerRope, keys: Mapping[str, Any]) -> LayerRope:
    """Return the entry with the share of rotating channels, which vLLM reads for any family.

    Raises: Refuses if the share is not valid.
    """
    share = keys.get(names.PARTIAL_ROTARY_FACTOR, view.section.get(names.PARTIAL_ROTARY_FACTOR))
    if view.family.partial_rotary_key or view.family.mla or share is None or keys[names.ROPE_TYPE] == "proportional":
        return entry
    if not is_number(share) or not 0 < share <= 1:
        raise Refuses(f"ValueError: partial_rotary_factor {share} must be between 0.0 and 1.0")
    return replace(entry, rotary_dim=rotating_channels(share, entry.head_dim), table=None)


def _table(
    entry: LayerRope, keys: Mapping[str, Any], base: Array, context: int, releases: Releases
) -> tuple[RopeTable, int]:
    rope_type = keys[names.ROPE_TYPE]
    if rope_type == "default":
        return RopeTable.fixed(base), context
    if rope_type == "proportional":
        return RopeTable.fixed(_proportional(entry, keys)), context
    if rope_type == "longrope":
        return _longrope(entry, keys, base, context)
    if rope_type == "llama3":
        return engine.llama3_table(keys, base, int(keys[names.ORIGINAL_MAX_POSITION_EMBEDDINGS])), context
    if rope_type == "dynamic":
        return _dynamic(keys, base), context
    if rope_type not in ("linear", "yarn"):
        raise NotKnown(f"no data on the rope type {rope_type} in vLLM")
    factor = engine.number(keys, names.FACTOR)
    if rope_type == "linear":
        if not isinstance(keys[names.FACTOR], float):
            raise Refuses(engine.WHOLE_FACTOR)
        return RopeTable.fixed(base / factor), math.ceil(context * factor)
    length = int(keys[names.ORIGINAL_MAX_POSITION_EMBEDDINGS])
    inv_freq = engine.yarn_inv_freq(keys, base, factor, length, truncate=keys.get(names.TRUNCATE) is not False)
    return RopeTable.fixed(inv_freq, _yarn_attention_factor(keys, factor, releases)), math.ceil(length * factor)


def _proportional(entry: LayerRope, keys: Mapping[str, Any]) -> Array:
    """Return the table of a whole head in which only a share of the pairs rotates. A factor has no effect."""
    base = arithmetic.base_inv_freq(float(keys[names.ROPE_THETA]), entry.head_dim)
    return with_share(base, engine.number(keys, names.PARTIAL_ROTARY_FACTOR, 1.0))


def _yarn_attention_factor(keys: Mapping[str, Any], factor: float, releases: Releases) -> float:
    if releases.start < HF_SEMANTICS:
        _no_extrapolation_factor(keys)
        scaled = keys.get("apply_yarn_scaling", True)
        return engine.number(keys, names.ATTN_FACTOR, 1.0) * (mscale_of(factor) if scaled else 1.0)
    if keys.get(names.ATTENTION_FACTOR) is not None:
        return float(keys[names.ATTENTION_FACTOR])
    mscale, all_dim = keys.get(names.MSCALE), keys.get(names.MSCALE_ALL_DIM)
    if mscale and all_dim:
        return mscale_of(factor, mscale) / mscale_of(factor, all_dim)
    return mscale_of(factor)


def _no_extrapolation_factor(keys: Mapping[str, Any]) -> None:
    if keys.get("extrapolation_factor", 1) != 1:
        raise NotKnown("extrapolation_factor")


def _dynamic(keys: Mapping[str, Any], base: Array) -> RopeTable:
    """Return the unscaled table, because vLLM evaluates the rule once, at the trained length."""
    if "alpha" in keys or "max_trained_positions" in keys:
        raise NotKnown("no data on dynamic with alpha or max_trained_positions")
    engine.number(keys, names.FACTOR)
    return RopeTable.fixed(base)


def _longrope(entry: LayerRope, keys: Mapping[str, Any], base: Array, context: int) -> tuple[RopeTable, int]:
    """Return the table of both lists.

    vLLM chooses a list once: the long one if --max-model-len is above the trained length.
    """
    if entry.layout != "half":
        raise Refuses("ValueError: longrope only supports neox_style")
    length = int(keys[names.ORIGINAL_MAX_POSITION_EMBEDDINGS])
    return engine.longrope_table(keys, base, context, length), max(context, length)


def _mla(entry: LayerRope, keys: Mapping[str, Any], context: int, releases: Releases) -> tuple[LayerRope, int]:
    """Return the entry of DeepSeek's model file, which reads any scaling as its own yarn.

    rope_interleave has no effect.
    """
    entry = replace(entry, layout="interleaved")
    base = engine.base_table(keys, entry.rotary_dim)
    if keys[names.ROPE_TYPE] == "default":
        return engine.filled(entry, keys, RopeTable.fixed(base), context), context
    old = releases.start < HF_SEMANTICS
    by_flag = releases.start < MLA_SEMANTICS
    whole = bool(keys.get("apply_yarn_scaling", True)) if by_flag else keys.get(names.ATTENTION_FACTOR) != 1.0
    factor = engine.number(keys, names.FACTOR)
    length = int(engine.number(keys, names.ORIGINAL_MAX_POSITION_EMBEDDINGS))
    all_dim = engine.number(keys, names.MSCALE_ALL_DIM, 0.0)
    magnitude = mscale_of(factor, engine.number(keys, names.MSCALE, 1.0)) / mscale_of(factor, all_dim)
    if old:
        _no_extrapolation_factor(keys)
        magnitude *= engine.number(keys, names.ATTN_FACTOR, 1.0)
    table = RopeTable.fixed(engine.yarn_inv_freq(keys, base, factor, length), magnitude)
    softmax = mscale_of(factor, all_dim) ** 2 if whole else 1.0
    filled = engine.filled(entry, keys, table, context, softmax_multiplier=softmax)
    return filled, math.ceil(length * factor)
