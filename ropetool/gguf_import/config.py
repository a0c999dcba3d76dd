"""The config.json of a GGUF model: the one from which an export would write the keys, the tensors and the table of the file.

Reads keys, tensor names and shapes; no weights. What the file says and no config of the class does is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropetool import families, names, runtimes
from ropetool.checkpoint import style
from ropetool.checkpoint.edits import config_file_edits
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.style import RopeKeys
from ropetool.errors import CorruptFile, LossyExport, RopetoolError, sentence_of
from ropetool.escaping import command
from ropetool.families.family import Family
from ropetool.families.tensors import DRAFTS, Count, Export, Row
from ropetool.files.gguf.codec import shown as quoted
from ropetool.files.hf import ABSENT
from ropetool.files.hf.jsontext import shown
from ropetool.gguf_import.keys import compare_keys
from ropetool.gguf_model.shapes import Model, Wanted, read_model, tensors
from ropetool.gguf_model.shapes.base import Filed
from ropetool.gguf_model.shapes.reading import COUNTED, EPSILONS
from ropetool.gguf_model.shapes.rules import RULES
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.methods import Derived
from ropetool.rope.tables import LayerRope, RopeSet, in_words
from ropetool.runtimes import NotHeld, Refuses
from ropetool.runtimes.config_encodings import config_edits, encodings
from ropetool.runtimes.decoded import decoded
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp.encodings import rotating_entry
from ropetool.runtimes.llama_cpp.exported import rotation
from ropetool.verification.readback.keys import plain

_ROPE_TENSORS = (archs.ROPE_FREQS, "rope_factors_long.weight", "rope_factors_short.weight")
_LLAMA3_LENGTHS = (8192, 4096, 2048, 16384, 32768)  # of published models, as original_max_position_embeddings


@dataclass(frozen=True)
class Described:
    """A GGUF model as a Hugging Face class has it. view: its config.json. encoding: how that states the rotation."""

    family: Family
    view: HfCheckpoint
    model: Model
    wanted: tuple[Wanted, ...]
    encoding: str
    notes: tuple[str, ...]


def described(source: GgufCheckpoint, as_type: str = "") -> Described:
    """Return the model as the class of its architecture has it. as_type: that model_type instead.

    Raises: LossyExport where no class computes what the file says; CorruptFile for missing tensors; CheckpointError.
    """
    objections: dict[str, RopetoolError] = {}
    for family in _families(source, as_type):
        try:
            return _described(source, family)
        except RopetoolError as error:
            objections[family.model_type] = error
    first = next(iter(objections.values()))
    told: dict[str, str] = {}
    for name, objection in objections.items():
        told.setdefault(objection.message.replace(f" {name} ", " "), f"{name}: {objection.message}")
    others = list(told.values())[1:]  # each sentence once, whichever class it names
    if others:
        first.message = f"{first.message}; as {'; '.join(others)}"
    raise first


def _families(source: GgufCheckpoint, as_type: str) -> list[Family]:
    """Return the families whose export writes this architecture, the one that bears its name first."""
    arch = source.name
    every = [family for family in map(families.get, families.exported()) if family.alone]
    able = [family for family in every if family.gguf_architecture == arch]
    found = sorted(able, key=lambda family: arch not in family.gguf_architectures)
    if as_type:
        found = [family for family in found if family.model_type == as_type]
    if found:
        return found
    known = sorted({family.gguf_architecture for family in every})
    what = f"as {as_type}" if as_type else f"of the architecture {quoted(arch)}"
    instead = sorted(family.model_type for family in able)
    raise LossyExport(
        f"import does not support a file {what}; supported architectures: {', '.join(known)}",
        where=source.where,
        try_=f"--as {' or --as '.join(instead)}" if instead else command("ropetool", "inspect", source.path),
    )  # fmt: skip


def _described(source: GgufCheckpoint, family: Family) -> Described:
    table = family.export
    assert table is not None
    if table.outer[0].gguf not in source.tensors:
        raise CorruptFile(
            f"has no tensor {table.outer[0].gguf}; a vocabulary without tensors is not a model", where=source.where
        )
    rope = decoded(source.runtime, source).understood(source.where, source.stated_in)
    if names.FULL_ATTENTION not in rope.entries:
        raise LossyExport("no layer attends to the whole text; import does not support such models", where=source.where)
    config = _sizes(source, family, table, rope)
    entry = rotating_entry(rope)
    turned = {names.ROPE_PARAMETERS: {names.MROPE_SECTION: _sections(source)}} if table.sections else {}
    model = read_model(family, config | turned, source.name, _head_dim(entry, family), entry.rotary_dim, source.where)
    notes = compare_keys(source, model)
    wanted = tuple(tensors(model, _moves(family, source.name)))
    _compare_tensors(source, wanted)
    view, encoding = _with_rope(config, family, rope, source)
    return Described(family, view, model, wanted, encoding, notes)


def _moves(family: Family, arch: str) -> bool:
    return family.layout == "half" and archs.get(arch).layout == "interleaved"


# --- sizes, switches and numbers


def _sizes(source: GgufCheckpoint, family: Family, table: Export, rope: RopeSet) -> dict[str, Any]:
    """Return the config but for its rope keys: what the file says by the keys of the class."""
    sizes = _known_sizes(source, table)
    entry = rotating_entry(rope)
    config: dict[str, Any] = {
        "architectures": [family.architecture], names.MODEL_TYPE: family.model_type,
        names.HIDDEN_SIZE: sizes.get("hidden"), names.NUM_HIDDEN_LAYERS: sizes.get("layers"),
        names.NUM_ATTENTION_HEADS: sizes.get("heads"), "vocab_size": sizes.get("vocabulary"),
        family.context_key: rope.max_position_embeddings,
    }  # fmt: skip
    if "intermediate" not in table.counts:
        config["intermediate_size"] = sizes.get("intermediate")
    if table.grouped and "kv_heads" not in table.counts:
        config[names.NUM_KEY_VALUE_HEADS] = sizes.get("kv_heads", sizes.get("heads"))
    if not family.mla and (not table.square or family.default_head_dim is not None):
        config[family.head_dim_key] = entry.head_dim
    if family.partial_rotary_key and not family.mla:  # which share of whole heads MLA rotates follows from their sizes
        config[family.partial_rotary_key] = entry.rotary_dim / entry.head_dim
    config |= {one.key: sizes.get(name, 0) for name, one in table.counts.items() if name in sizes or name == DRAFTS}
    config |= {
        one.words_key: _words(one, sizes[name], sizes)
        for name, one in table.counts.items()
        if one.words_key and name in sizes
    }
    config |= {switch: on for switch in table.switches if (on := _switch(source, table, switch)) is not None}
    if table.eps_key:
        eps = _value(source, EPSILONS[table.norms])
        config |= {} if eps is ABSENT else {table.eps_key: eps}  # compare_keys refuses a file without it
    for key, one in table.keys.items():
        value = _value(source, key)
        if one.number and value is not ABSENT and (value or not one.optional):  # an optional 0 means: not set
            config[one.number] = value
    config[table.activation_key] = table.activations[0]
    config |= {key: values[0] for key, values in table.fixed.items() if values[0] is not None}
    config["tie_word_embeddings"] = table.head != "required" and "output.weight" not in source.tensors
    config |= _layer_keys(family, rope, sizes.get("layers", 0))
    for kind in ("bos", "eos", "padding"):
        number = source.values.get(f"tokenizer.ggml.{kind}_token_id")
        if number is not None:
            config[f"{'pad' if kind == 'padding' else kind}_token_id"] = plain(number)
    front = f"{source.name}."
    filed = {key.removeprefix(front): plain(value) for key, value in source.values.items() if key.startswith(front)}
    filed_sizes = sizes | {"head_dim": _head_dim(entry, family)}
    config |= RULES[table.rules].stated(Filed(source.name, filed_sizes, filed, source.tensors))
    return {key: value for key, value in config.items() if value is not None or key == family.window_key}


def _head_dim(entry: LayerRope, family: Family) -> int:
    """Return the channels of a head; MLA's heads are those that rotate."""
    return entry.rotary_dim if family.mla else entry.head_dim


def _words(one: Count, number: int, sizes: Mapping[str, int]) -> list[str]:
    """Return the list in which so many leading layers have the first word."""
    first, other = one.words
    return [first if layer < number else other for layer in range(sizes["layers"])]


def _value(source: GgufCheckpoint, key: str) -> Any:
    return plain(source.values.get(f"{source.name}.{key}"))


def _known_sizes(source: GgufCheckpoint, table: Export) -> dict[str, int]:
    """Return the sizes that keys state, and then those that shapes of tensors tell."""
    sizes: dict[str, int] = {}
    for key, size in {**COUNTED, **table.sizes}.items():
        value = _value(source, key)
        if value is ABSENT:
            continue
        if key in table.arrays and isinstance(value, list):
            value = max(value, default=0)
        if type(value) is not int:
            raise LossyExport(
                f"{source.name}.{key} is {shown(value)}; a config of this class can set only one number for all layers",
                where=source.where,
            )
        sizes.setdefault(size, value)
    for row in (*table.outer, *table.layer):
        name = _present(source, row)
        if name is not None:
            shape = tuple(source.tensors[name].shape[::-1])
            for word, number in zip(_written_words(row), shape, strict=False):
                sizes.setdefault(word, number)
    sizes["vocabulary"] = source.tensors[table.outer[0].gguf].shape[-1]  # rows, which a tokenizer may not fill
    return sizes


def _written_words(row: Row) -> tuple[str, ...]:
    words = (row.written or row.shape).split()
    return (row.many, *words) if row.many else tuple(words)


def _present(source: GgufCheckpoint, row: Row) -> str | None:
    """Return the name of a row's tensor in the first layer that has it, None where none has."""
    if row.gguf in source.tensors:
        return row.gguf
    count = _value(source, archs.BLOCK_COUNT)
    layers = range(count) if type(count) is int and count <= archs.MAX_LAYERS else ()
    return next((name for layer in layers if (name := f"blk.{layer}.{row.gguf}") in source.tensors), None)


def _switch(source: GgufCheckpoint, table: Export, switch: str) -> bool | None:
    """Return whether a key or a tensor says that a switch is on, None where neither tells."""
    for key, one in table.keys.items():
        value = _value(source, key)
        if one.switch == switch and value is not ABSENT:
            return bool(value)
    found = [(row, _present(source, row) is not None) for row in (*table.layer, *table.outer)]
    told = [there for row, there in found if row.when == switch]
    told += [not there for row, there in found if row.when == f"not {switch}"]
    return told[0] if told else None


def _layer_keys(family: Family, rope: RopeSet, count: int) -> dict[str, Any]:
    """Return the window, and the list of which layers slide or rotate where the class takes one."""
    found: dict[str, Any] = {}
    window = next((e.sliding_window for e in rope.entries.values() if e.sliding_window is not None), None)
    if family.sliding_window != "never":
        found[family.window_key] = window
    if family.sliding_window not in ("never", "always", "alternate"):
        found[family.sliding_window] = window is not None
    kinds = {layer: kind for kind, entry in rope.entries.items() for layer in entry.layers}
    if (
        window is not None
        and not family.chunked
        and (family.has_kinds or family.nested)
        and "layer_types" in family.kinds_keys
    ):
        slides = {
            layer for entry in rope.entries.values() if entry.sliding_window is not None for layer in entry.layers
        }
        found["layer_types"] = [
            names.SLIDING_ATTENTION if layer in slides else names.FULL_ATTENTION for layer in sorted(kinds)
        ]
    if family.rotates == "full":
        found[family.kinds_keys[0]] = [
            names.FULL_ATTENTION if layer in kinds else family.pattern_other for layer in range(count)
        ]
    if family.rotates == "no_rope_layers":
        turns = {layer for entry in rope.entries.values() if entry.table is not None for layer in entry.layers}
        found["no_rope_layers"] = [int(layer in turns) for layer in sorted(kinds)]
    return found


# --- what the file says, against what an export of this config would say


def _compare_tensors(source: GgufCheckpoint, wanted: Iterable[Wanted]) -> None:
    """Raise CorruptFile for a tensor that is missing or of another shape, LossyExport for one that has no place."""
    asked = {one.name: one for one in wanted}
    for name, one in asked.items():
        info = source.tensors.get(name)
        if info is None:
            raise CorruptFile(f"has no tensor {name}, which its class requires", where=source.where)
        if tuple(info.shape[::-1]) != one.written:
            raise CorruptFile(
                f"{name} has {'x'.join(map(str, info.shape[::-1]))} numbers; its keys require "
                f"{'x'.join(map(str, one.written))}",
                where=source.where,
            )
    for name in source.tensors:
        if name not in asked and name not in _ROPE_TENSORS:
            raise LossyExport(f"has the tensor {quoted(name)}, which its class does not have", where=source.where)


# --- the rope keys


def _with_rope(
    config: Mapping[str, Any], family: Family, rope: RopeSet, source: GgufCheckpoint
) -> tuple[HfCheckpoint, str]:
    """Return the config with rope keys that transformers decodes to the file's table, and how they are called.

    Raises: LossyExport with what it makes of each way to say it.
    """
    tried: list[str] = []
    for config_style in (names.V4, names.V5) if family.in_v4 and not family.nested else (names.V5,):
        for name, view in _candidates(config, family, rope, source, config_style):
            objection = _objection(view, rope)
            if not objection:
                return view, name
            tried.append(f"{name}: {objection}")
    ways = "; ".join(dict.fromkeys(tried)) or "no rope keys apply"
    raise LossyExport(f"no {family.model_type} config produces the RoPE table of the file ({ways})", where=source.where)


def _candidates(
    config: Mapping[str, Any], family: Family, rope: RopeSet, source: GgufCheckpoint, config_style: str
) -> Iterator[tuple[str, HfCheckpoint]]:
    entry = rotating_entry(rope)
    assert entry.rope_theta is not None
    assert entry.table is not None
    theta, grows = _short(entry.rope_theta), _of_temperature(entry, family)
    begun = {**config, names.ROPE_PARAMETERS: {names.ROPE_TYPE: "default", names.ROPE_THETA: theta, **grows}}
    plainly = {kind: RopeKeys("default", theta, grows) for kind in family.extends}
    table = family.export
    assert table is not None
    if table.sections:  # how image tokens turn, of which tables of text say nothing
        begun[names.ROPE_PARAMETERS][names.MROPE_SECTION] = _sections(source)
    if share := _share(entry, family):  # which edits of rope keys leave as it is
        inner = {names.ROPE_TYPE: "proportional", **share, names.ROPE_THETA: theta}
        config = {**config, names.ROPE_PARAMETERS: {family.rope_group(names.FULL_ATTENTION): inner}}
    view = _stating(_view(begun if grows or table.sections else config, source), plainly, rope, config_style)
    trained = entry.original_max_position_embeddings or rope.max_position_embeddings
    derived = Derived(
        entry.table, rope.max_position_embeddings, tuple(_natives(entry, family, rope, source.name)),
        entry.softmax_multiplier,
    )  # fmt: skip
    start = replace(entry, rope_type=family.default_rope_type, params={})
    for encoding in encodings(start, derived, trained, family):
        if not encoding.baked:
            target = replace(rope, entries={names.FULL_ATTENTION: entry})
            try:
                yield encoding.name, view.edited(config_edits(view, encoding.keys, target, config_style))
            except RopetoolError:
                continue


def _sections(source: GgufCheckpoint) -> list[int]:
    """Return the sections of the rotary pairs, without the zeros behind them."""
    found = _value(source, archs.DIMENSION_SECTIONS)
    stated = list(found) if isinstance(found, list) else []
    while stated and stated[-1] == 0:
        stated.pop()
    return stated


def _view(config: Mapping[str, Any], source: GgufCheckpoint) -> HfCheckpoint:
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return HfCheckpoint(dict(config), None, f"{source.where}: {names.CONFIG_JSON}", None, text)


def _stating(view: HfCheckpoint, keys: Mapping[str, RopeKeys], rope: RopeSet, config_style: str) -> HfCheckpoint:
    """Return the config with these keys, and with those of the kinds of layer that a scaling leaves alone."""
    family = view.family
    kept = {
        kind: RopeKeys("default", _short(entry.rope_theta), {})
        for kind, entry in rope.entries.items()
        if kind in family.layer_types and kind not in keys and entry.rope_theta is not None
    }
    edits = style.edits(view.config, family, {**kept, **keys}, config_style, view.where)
    return view.edited(config_file_edits(edits))


def _natives(entry: LayerRope, family: Family, rope: RopeSet, arch: str) -> Iterator[dict[str, Any]]:
    """Yield the keys by which a method would say the table, the shortest first."""
    always = _of_temperature(entry, family)
    assert entry.table is not None
    factor = {} if entry.factor is None else {names.FACTOR: _short(entry.factor)}
    trained = entry.original_max_position_embeddings
    length = {} if trained is None else {names.ORIGINAL_MAX_POSITION_EMBEDDINGS: trained}
    if entry.rope_type == "default":
        yield {names.ROPE_TYPE: "default", **always}
    if entry.rope_type == "linear":
        yield {names.ROPE_TYPE: "linear", **factor, **always}
    if entry.rope_type == "yarn":
        scale = {names.ATTENTION_FACTOR: _short(entry.table.regimes[-1].attention_factor)}
        stated = {hf: entry.params.get(f"{arch}.rope.scaling.yarn_{hf}") for hf in (names.BETA_FAST, "beta_slow")}
        betas = {key: _short(value) for key, value in stated.items() if value is not None}
        for more in ({}, scale, betas, scale | betas):
            yield {names.ROPE_TYPE: "yarn", **always, **factor, **length, **more}
    if entry.rope_type == "table" and entry.table.is_fixed:
        assert entry.rope_theta is not None
        inv_freq = entry.table.regimes[0].inv_freq
        divisors = base_inv_freq(entry.rope_theta, entry.rotary_dim) / np.maximum(inv_freq, 1e-30)
        if share := _share(entry, family):
            scaled = {} if divisors[0] == 1 else {names.FACTOR: _short(divisors[0])}
            yield {names.ROPE_TYPE: "proportional", **share, **scaled}
        largest = float(f"{divisors.max():.6g}")
        for before in (*_LLAMA3_LENGTHS, round(rope.max_position_embeddings / largest)):
            yield {
                names.ROPE_TYPE: "llama3", names.FACTOR: largest, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                names.ORIGINAL_MAX_POSITION_EMBEDDINGS: before,
            }  # fmt: skip


def _share(entry: LayerRope, family: Family) -> dict[str, Any]:
    """Return the share of pairs that turn, where the class is one that leaves the others in their places."""
    if family.default_rope_keys.get(names.FULL_ATTENTION, {}).get(names.ROPE_TYPE) != "proportional":
        return {}
    assert entry.table is not None
    inv_freq = entry.table.regimes[0].inv_freq
    return {names.PARTIAL_ROTARY_FACTOR: int(np.count_nonzero(inv_freq)) / inv_freq.size}


def _of_temperature(entry: LayerRope, family: Family) -> dict[str, Any]:
    if entry.temperature is None or not family.temperature_key:
        return {}
    found = {family.temperature_key: _short(entry.temperature.beta)}
    return found | {names.ORIGINAL_MAX_POSITION_EMBEDDINGS: entry.temperature.length}


def _short(value: float) -> float:
    """Return the fewest digits that tell a float32 from its neighbours, as the config before the file had them."""
    return float(str(np.float32(value)))


def _objection(view: HfCheckpoint, rope: RopeSet) -> str:
    """Return how an export of this config would rotate otherwise than the file, empty where it would not."""
    try:
        computed = runtimes.get(view.runtime).decode(view)
        reading = rotation(computed, view, allow_full_attention=True).target
    except (Refuses, NotHeld, RopetoolError) as error:
        return sentence_of(error)
    return in_words(reading.named_as(rope).differences(rope))
