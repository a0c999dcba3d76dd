"""The config.json of a GGUF model. An export of this config has the keys, the tensors and the RoPE table of the file.

Reads keys, tensor names and shapes, but no weights. If the file has a setting that no config of the class has, it is
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ropetool import families, names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import CorruptFile, LossyExport, RopetoolError
from ropetool.escaping import command
from ropetool.families.family import Family
from ropetool.families.tensors import DRAFTS, Count, Export, Row
from ropetool.files.gguf.codec import shown as quoted
from ropetool.files.hf import ABSENT
from ropetool.files.hf.jsontext import shown
from ropetool.gguf_import.keys import compare_keys, value_of
from ropetool.gguf_import.rope_keys import sections_of, with_rope_keys
from ropetool.gguf_model.shapes import ExpectedTensor, ModelShape, read_model, tensors
from ropetool.gguf_model.shapes.base import Filed, Rules
from ropetool.gguf_model.shapes.reading import COUNTED, EPSILONS
from ropetool.gguf_model.shapes.rules import RULES
from ropetool.rope.tables import LayerRope, RopeSet
from ropetool.runtimes.decoded import decoded
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp.encodings import rotating_entry
from ropetool.verification.readback.keys import plain

_ROPE_TENSORS = (archs.ROPE_FREQS, "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True)
class Described:
    """A GGUF model as a Hugging Face class describes it.

    view: the checkpoint with the new config.json.
    model: the sizes from this config.
    expected: the tensors that the config requires.
    encoding: the name of the rope keys' form.
    """

    family: Family
    view: HfCheckpoint
    model: ModelShape
    expected: tuple[ExpectedTensor, ...]
    encoding: str
    notes: tuple[str, ...]


def described(source: GgufCheckpoint, as_type: str = "") -> Described:
    """Return the model as a class of its architecture describes it.

    as_type: the model_type; empty for the first that fits.
    Raises: LossyExport if no class computes the same as llama.cpp; CorruptFile for missing tensors; CheckpointError.
    """
    objections: dict[str, RopetoolError] = {}
    for family in _families(source, as_type):
        try:
            return _described(source, family)
        except RopetoolError as error:
            objections[family.model_type] = error
    first = next(iter(objections.values()))
    by_text: dict[str, str] = {}
    for name, objection in objections.items():
        by_text.setdefault(objection.message.replace(f" {name} ", " "), f"{name}: {objection.message}")
    others = list(by_text.values())[1:]  # one objection for each text, without repeating it for each class
    if others:
        first.message = f"{first.message}; as {'; '.join(others)}"
    raise first


def _families(source: GgufCheckpoint, as_type: str) -> list[Family]:
    """Return the families whose export writes this architecture, the one with the architecture's name first."""
    arch = source.name
    every = [family for family in map(families.get, families.exported()) if family.alone]
    able = [family for family in every if family.gguf_architecture == arch]
    families_of_arch = sorted(able, key=lambda family: arch not in family.gguf_architectures)
    if as_type:
        families_of_arch = [family for family in families_of_arch if family.model_type == as_type]
    if families_of_arch:
        return families_of_arch
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
    sections = {names.ROPE_PARAMETERS: {names.MROPE_SECTION: sections_of(source)}} if table.sections else {}
    model = read_model(family, config | sections, source.name, _head_dim(entry, family), entry.rotary_dim, source.where)
    notes = compare_keys(source, model)
    expected = tuple(tensors(model, _interleaves(family, source.name)))
    _compare_tensors(source, expected)
    view, encoding = with_rope_keys(config, family, rope, source)
    return Described(family, view, model, expected, encoding, notes)


def _interleaves(family: Family, arch: str) -> bool:
    return family.layout == "half" and archs.get(arch).layout == "interleaved"


# --- sizes, switches and numbers


def _sizes(source: GgufCheckpoint, family: Family, table: Export, rope: RopeSet) -> dict[str, Any]:
    """Return the config without rope keys, from the keys and tensors of the file."""
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
    if family.partial_rotary_key and not family.mla:  # the sizes of MLA's heads determine the rotating share
        config[family.partial_rotary_key] = entry.rotary_dim / entry.head_dim
    config |= {one.key: sizes.get(name, 0) for name, one in table.counts.items() if name in sizes or name == DRAFTS}
    config |= {
        one.words_key: _words(one, sizes[name], sizes)
        for name, one in table.counts.items()
        if one.words_key and name in sizes
    }
    config |= {switch: on for switch in table.switches if (on := _switch(source, table, switch)) is not None}
    if table.eps_key:
        eps = value_of(source, EPSILONS[table.norms])
        config |= {} if eps is ABSENT else {table.eps_key: eps}  # compare_keys refuses a file without it
    for key, one in table.keys.items():
        value = value_of(source, key)
        if one.number and value is not ABSENT and (value or not one.optional):  # an optional 0 means: not set
            config[one.number] = value
    config[table.activation_key] = table.activations[0]
    config |= {key: values[0] for key, values in table.fixed.items() if values[0] is not None}
    config["tie_word_embeddings"] = table.head != "required" and "output.weight" not in source.tensors
    config |= _layer_keys(family, rope, sizes.get("layers", 0))
    for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        number = source.values.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            config[f"{role}_token_id"] = plain(number)
    from_file = RULES[table.rules].from_file
    if from_file is not Rules.from_file:  # most families have no such rule, and decoding all keys takes time
        front = f"{source.name}."
        filed = {key.removeprefix(front): plain(value) for key, value in source.values.items() if key.startswith(front)}
        filed_sizes = sizes | {"head_dim": _head_dim(entry, family)}
        config |= from_file(Filed(source.name, filed_sizes, filed, source.tensors))
    return {key: value for key, value in config.items() if value is not None or key == family.window_key}


def _head_dim(entry: LayerRope, family: Family) -> int:
    """Return the channels of a head. For MLA, these are the rotating channels."""
    return entry.rotary_dim if family.mla else entry.head_dim


def _words(one: Count, number: int, sizes: Mapping[str, int]) -> list[str]:
    """Return a list with the first word for this many leading layers, and the second word for the others."""
    first, other = one.words
    return [first if layer < number else other for layer in range(sizes["layers"])]


def _known_sizes(source: GgufCheckpoint, table: Export) -> dict[str, int]:
    """Return the sizes from the keys, then from the shapes of tensors."""
    sizes: dict[str, int] = {}
    for key, size in {**COUNTED, **table.sizes}.items():
        value = value_of(source, key)
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
    """Return the name of a row's tensor in the first layer that has it, or None."""
    if row.gguf in source.tensors:
        return row.gguf
    count = value_of(source, archs.BLOCK_COUNT)
    layers = range(count) if type(count) is int and count <= archs.MAX_LAYERS else ()
    return next((name for layer in layers if (name := f"blk.{layer}.{row.gguf}") in source.tensors), None)


def _switch(source: GgufCheckpoint, table: Export, switch: str) -> bool | None:
    """Return whether a key or a tensor switches something on, or None if neither exists."""
    for key, one in table.keys.items():
        value = value_of(source, key)
        if one.switch == switch and value is not ABSENT:
            return bool(value)
    rows = (*table.layer, *table.outer)
    for state, condition in ((True, switch), (False, f"not {switch}")):
        row = next((row for row in rows if row.when == condition), None)
        if row is not None:
            return state if _present(source, row) is not None else not state
    return None


def _layer_keys(family: Family, rope: RopeSet, count: int) -> dict[str, Any]:
    """Return the window, and the list of sliding or rotating layers if the class has such a list."""
    keys: dict[str, Any] = {}
    window = next((e.sliding_window for e in rope.entries.values() if e.sliding_window is not None), None)
    if family.sliding_window != "never":
        keys[family.window_key] = window
    if family.sliding_window not in ("never", "always", "alternate"):
        keys[family.sliding_window] = window is not None
    layers = {layer for entry in rope.entries.values() for layer in entry.layers}
    if (
        window is not None
        and not family.chunked
        and (family.has_kinds or family.nested)
        and "layer_types" in family.kinds_keys
    ):
        slides = {
            layer for entry in rope.entries.values() if entry.sliding_window is not None for layer in entry.layers
        }
        keys["layer_types"] = [
            names.SLIDING_ATTENTION if layer in slides else names.FULL_ATTENTION for layer in sorted(layers)
        ]
    if family.rotates == "full":
        keys[family.kinds_keys[0]] = [
            names.FULL_ATTENTION if layer in layers else family.pattern_other for layer in range(count)
        ]
    if family.rotates == "no_rope_layers":
        rotating = {layer for entry in rope.entries.values() if entry.table is not None for layer in entry.layers}
        keys["no_rope_layers"] = [int(layer in rotating) for layer in sorted(layers)]
    return keys


# --- the tensors of the file, compared with an export of this config


def _compare_tensors(source: GgufCheckpoint, expected: Iterable[ExpectedTensor]) -> None:
    """Raise CorruptFile for a missing or differently shaped tensor, and LossyExport for one that the class lacks."""
    by_name = {one.name: one for one in expected}
    for name, one in by_name.items():
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
        if name not in by_name and name not in _ROPE_TENSORS:
            raise LossyExport(f"has the tensor {quoted(name)}, which its class does not have", where=source.where)
