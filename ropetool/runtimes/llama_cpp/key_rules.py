"""Whether llama.cpp would load a file: a sentence for each rule that the keys of a model break.

`refusals` checks a file: llama.cpp loads it if the result is empty. `objections` checks an edit, and also names values
that llama.cpp misreads without a warning. The rules come from src/llama-model-loader.cpp, llama-model.cpp and
llama-vocab.cpp within llama-cpp-python 0.3.36. key_types.py knows the type of each key, loading_rules.py the keys of
each architecture. The decoder checks the rotation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import numpy as np

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import NotACheckpoint, RopetoolError, did_you_mean
from ropetool.files.gguf import Value, ValueType
from ropetool.files.gguf.codec import shown
from ropetool.files.gguf.shards import SPLIT_COUNT
from ropetool.runtimes.base import NotKnown, Refuses
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import decoding, key_types, layers, loading_rules, vocabulary_rules
from ropetool.runtimes.llama_cpp.layers import ModelKeys
from ropetool.runtimes.llama_cpp.loading_rules import ANY_LENGTH, Numbers, Read

MAX_EXPERTS = 1024
EXPERT_USED = "expert_used_count"
EXPERT_GROUPS = "expert_group_count"
EXPERT_GROUPS_USED = "expert_group_used_count"
KV_LORA_RANK = "attention.kv_lora_rank"
EPSILONS = ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon")
GATING = "expert_gating_func"
GRAPH_NEEDS_GATING = frozenset({"dots1", "hy_v4", "minimax-m2", "smallthinker"})  # the loader does not need it
EITHER_EPSILON = "cohere2moe"  # the only architecture that accepts either
SINGLE_EXPERT = frozenset({"hunyuan-dense", "hunyuan_vl"})  # one expert has the same effect as none
_FLOATS = (ValueType.F32, ValueType.F64)
_DRAFTING = ".nextn."  # in the names of tensors
_DRAFTS = "blk.*.nextn.eh_proj.weight"
_BLOCK = re.compile(r"blk\.([0-9]{1,9})\.")
_ROTATION = "rotation"
# What layers that keep a state have instead of attention.
_STATES = {
    "minimax-01": "attn_norm_2.weight",
    **dict.fromkeys(archs.RECURRENT_BY_INTERVAL.keys() - {"minimax-01"}, "ssm_conv1d.weight"),
}


def objections(before: GgufCheckpoint, after: GgufCheckpoint) -> list[str]:
    """Return a sentence for each rule that an edit of the keys breaks.

    Rules that the file broke before do not count.
    """
    both = before.values.keys() | after.values.keys()
    changed = {key for key in both if before.values.get(key) != after.values.get(key)}
    known = _broken(before, changed)
    return [sentence for rule, sentence in _broken(after, changed).items() if rule not in known]


def _broken(view: GgufCheckpoint, changed: Collection[str]) -> dict[str, str]:
    broken = refusals(view, changed)
    if "architecture" not in broken:
        broken |= {rule: sentence for rule, sentence in _lost(Numbers(view), changed) if rule not in broken}
    return broken


def refusals(view: GgufCheckpoint, changed: Collection[str] | None = None) -> dict[str, str]:
    """Return the rules for which llama.cpp would not load or run a model, each with a sentence; empty if it would.

    llama.cpp loads only the vocabulary of a file without weights. Such a file must have valid keys, but of the missing
    keys only the rope keys count. Missing tensors are not checked.

    changed: the long arrays to read; None for all.
    """
    broken = of_keys(view, changed)
    if "architecture" in broken or any(rule.startswith("type ") for rule in broken):
        return broken
    try:
        decoding.decode(view)
    except NotKnown:
        pass
    except Refuses as refusal:
        if not any(str(refusal).endswith(rule.rpartition(" ")[2]) for rule in broken):
            broken[_ROTATION] = str(refusal)
    except RopetoolError:
        pass
    return broken


def of_keys(view: GgufCheckpoint, changed: Collection[str] | None = None) -> dict[str, str]:
    """Return the refusals that do not follow from decoding the rotation."""
    model = Numbers(view)
    broken = dict(_architecture(model))
    if "architecture" in broken:
        return broken
    try:
        _ = view.name
    except NotACheckpoint:  # a projector or an adapter: llama.cpp loads it with a model, by other rules
        return {}
    for part in (_missing(model), _wrong(model), _unusable(model, changed), _counts(model)):
        broken |= dict(part)
    if not any(rule.startswith(("required", "type", "length")) for rule in broken):
        broken |= dict(_shapes(model))
    if model.has_weights or vocabulary_rules.MODEL in view.values:
        broken |= dict(vocabulary_rules.broken(view, changed))
    return broken


# --- the container


def _architecture(model: Numbers) -> Iterator[tuple[str, str]]:
    known = key_types.facts()["architectures"]
    if not model.name:
        yield "architecture", f"{archs.ARCHITECTURE} is missing: llama.cpp does not load a model without it"
    elif model.name not in known and model.name not in archs.names():  # a family's file may describe a later one
        near = did_you_mean(model.name, known)
        yield "architecture", f"{archs.ARCHITECTURE} is {shown(model.name)}{near}, which llama.cpp does not know"
    count = model.view.values.get(SPLIT_COUNT)
    announced = count.decode() if count is not None and count.type is ValueType.U16 else 0
    if len(model.view.files) == 1 and isinstance(announced, int) and announced > 1:
        yield "split", f"{SPLIT_COUNT} announces {announced} files, but this model is a single file"


# --- keys that are missing, of a wrong type or of a wrong length


def _missing(model: Numbers) -> Iterator[tuple[str, str]]:
    """Yield the keys that the loader of this architecture needs and does not find."""
    for read in loading_rules.needed(model.name):
        key = model.key(read.suffix)
        value = model.view.values.get(key)
        judged = model.has_weights or read.suffix.startswith("rope.")
        if value is None and judged and model.holds(read.condition):
            yield f"required {read.suffix}", f"{key} is missing, and llama.cpp loads no {model.name} model without it"
        elif value is not None and value.element is None and _as_array_alone(model, key):
            yield f"required {read.suffix}", f"{key} is {value.label}; llama.cpp requires an array"
    if model.name in GRAPH_NEEDS_GATING and model.has_weights and model.value(GATING) is None:
        yield f"required {GATING}", f"{model.key(GATING)} is missing: llama.cpp aborts the whole process"
    if model.name == EITHER_EPSILON and model.has_weights and not any(map(model.value, EPSILONS)):
        keys = " and ".join(map(model.key, EPSILONS))
        yield (
            f"required {EPSILONS[0]}",
            f"{keys} are missing, and llama.cpp loads no {model.name} model without one of them",
        )


def _as_array_alone(model: Numbers, key: str) -> bool:
    return all(read.length == ANY_LENGTH for read in loading_rules.reads(model.name)[key])


def _wrong(model: Numbers) -> Iterator[tuple[str, str]]:
    """Yield keys that the loader reads, but whose type or length it rejects."""
    for key, value in model.view.values.items():
        types = key_types.loaded(key, model.name)
        if not types or not _is_read(model, key, value):
            continue
        if value.label not in types:
            yield f"type {key}", _of_type(key, value, types)
        elif value.element is not None:
            for read in loading_rules.reads(model.name).get(key, ()):
                yield from _of_length(key, value, model.length(read.length), read)


def _of_type(key: str, value: Value, types: Collection[str]) -> str:
    return f"{key} is {value.label}; llama.cpp reads it only as {' or '.join(types)}"


def _of_length(key: str, value: Value, length: int | None, read: Read) -> Iterator[tuple[str, str]]:
    if length is not None and value.count != length:
        what = f"{length} numbers" if read.length.strip("[]").isdigit() else f"a number for each layer, {length} here"
        yield f"length {key}", f"{key} has {value.count} elements; llama.cpp requires {what}"


def _is_read(model: Numbers, key: str, value: Value) -> bool:
    """Return whether the loader reads a key of a model, and stops if its type is wrong."""
    if key.startswith(vocabulary_rules.TOKENIZER):
        return key in vocabulary_rules.ALWAYS_READ or not vocabulary_rules.is_without(model.view)
    reads = loading_rules.reads(model.name).get(key)
    if reads is None:
        return not key.startswith(f"{model.name}.") and "%s" not in key_types.template(key, model.name)
    return value.element is not None or any(read.length != ANY_LENGTH for read in reads)


def _unusable(model: Numbers, changed: Collection[str] | None) -> Iterator[tuple[str, str]]:
    """Yield numbers that make every result invalid."""
    for key, value in model.view.values.items():
        long = value.element is not None and changed is not None and key not in changed
        if (
            long
            or not (value.type in _FLOATS or value.element in _FLOATS)
            or key not in loading_rules.reads(model.name)
        ):
            continue
        numbers = np.asarray(value.decode())
        if not np.isfinite(numbers).all():
            yield f"finite {key}", f"{key} is not a finite number, so every result is invalid"
        elif key.endswith(EPSILONS) and np.min(numbers, initial=0) < 0:
            yield f"epsilon {key}", f"{key} is below 0: llama.cpp aborts the whole process"


# --- counts and shapes


def _counts(model: Numbers) -> Iterator[tuple[str, str]]:
    """Yield counts at which the loader aborts, or that differ from the tensors."""
    view = model.view
    context = model.value(archs.CONTEXT_LENGTH)
    if context is not None and context.type not in (ValueType.STR, *_FLOATS) and model.get(archs.CONTEXT_LENGTH) == 0:
        yield "context", f"{model.key(archs.CONTEXT_LENGTH)} is 0: llama.cpp cannot create a context of 0 tokens"
    yield from _experts(model)
    yield from _layers(model)
    yield from _latent(model)
    keys, values = (loading_rules.channels_of(model, suffix) for suffix in (archs.KEY_LENGTH, archs.VALUE_LENGTH))
    if model.has_weights and loading_rules.has_equal_heads(model.name) and keys != values:
        sizes = (
            f"{model.key(archs.KEY_LENGTH)} gives {keys} channels and {model.key(archs.VALUE_LENGTH)} gives {values}"
        )
        yield "heads", f"{sizes}: llama.cpp aborts the whole process unless they are equal"
    yield from _drafting(model)
    blocks = [int(match[1]) for match in map(_BLOCK.match, view.tensors) if match is not None]
    count = model.get(archs.BLOCK_COUNT)
    if blocks and (max(blocks) + 1 > count or (max(blocks) + 1 < count and not model.get(archs.NEXTN_LAYERS))):
        key = model.key(archs.BLOCK_COUNT)
        yield "blocks", f"{key} is {count}, but there are tensors of {max(blocks) + 1} layers"


def _drafting(model: Numbers) -> Iterator[tuple[str, str]]:
    """Yield a number of drafting layers that contradicts the tensors. Some loaders do not need these tensors."""
    count, has_tensors = model.get(archs.NEXTN_LAYERS), any(_DRAFTING in name for name in model.view.tensors)
    missing = count and model.has_weights and not has_tensors and not loading_rules.has(model.name, _DRAFTS)
    if missing or (has_tensors and not count):
        key = model.key(archs.NEXTN_LAYERS)
        yield "drafting", f"{key} is {count}, which contradicts the tensors of drafting layers"


def _experts(model: Numbers) -> Iterator[tuple[str, str]]:
    count, groups = (model.get(suffix) for suffix in (archs.EXPERT_COUNT, EXPERT_GROUPS))
    if model.name in SINGLE_EXPERT and count <= 1:
        return
    value = model.value(EXPERT_USED)
    listed = range(min(value.count, archs.MAX_LAYERS) if value is not None and value.element is not None else 1)
    used = max((model.get(EXPERT_USED, layer) for layer in listed), default=0)
    groups_used = model.get(EXPERT_GROUPS_USED)
    if count > MAX_EXPERTS:
        yield "experts", f"{model.key(archs.EXPERT_COUNT)} is {count}: llama.cpp aborts above {MAX_EXPERTS}"
    elif used > count or (count and not used):
        key = model.key(EXPERT_USED)
        yield "experts", f"{key} is {used} of {count} experts: llama.cpp aborts unless it is 1 to that number"
    elif groups and (groups >= count or (groups > 1 and (count % groups or not 0 < groups_used < groups))):
        keys = (
            f"{model.key(EXPERT_GROUPS)} is {groups} of {count} experts, {model.key(EXPERT_GROUPS_USED)} {groups_used}"
        )
        yield "experts", f"{keys}: llama.cpp aborts"


def _latent(model: Numbers) -> Iterator[tuple[str, str]]:
    """Yield a key size that differs from the size in latent attention: the latent part plus the rotating part."""
    both = (archs.KEY_LENGTH_MLA, archs.VALUE_LENGTH_MLA)
    if model.name not in archs.READS_MLA_LENGTHS or not model.has_weights or not all(map(model.get, both)):
        return
    kept = model.get(KV_LORA_RANK) + model.get(archs.DIMENSION_COUNT)
    channels = loading_rules.channels_of(model)
    if model.value(archs.DIMENSION_COUNT) is not None and channels != kept:
        key = model.key(archs.KEY_LENGTH)
        parts = f"{model.key(KV_LORA_RANK)} and {model.key(archs.DIMENSION_COUNT)} give {kept}"
        yield (
            "latent",
            f"{key} or its default gives {channels} channels for a key, but {parts}: llama.cpp aborts the whole process",
        )


def _layers(model: Numbers) -> Iterator[tuple[str, str]]:
    """Yield a key that disagrees with a layer's tensors on experts or on a state."""
    names, name = model.view.tensors, model.name
    state = _STATES.get(name, "") if archs.ATTENTION_INTERVAL in loading_rules.own(name) else ""
    recurrent = _recurrent(model) if state and model.has_weights else None
    for layer in range(min(model.layers, archs.MAX_LAYERS)):
        block = f"blk.{layer}."
        if f"{block}attn_norm.weight" not in names:
            continue
        if loading_rules.leads_dense(name) and model.get(archs.EXPERT_COUNT):
            dense = layer < model.get(archs.LEADING_DENSE)
            if dense == (f"{block}ffn_gate_inp.weight" in names):
                key, word = model.key(archs.LEADING_DENSE), "no experts" if dense else "experts"
                yield (
                    "dense",
                    f"{key} is {model.get(archs.LEADING_DENSE)}, so layer {layer} has {word}, but its tensors contradict this",
                )
                return
        if recurrent is not None and (layer in recurrent) != (f"{block}{state}" in names):
            key = model.key(archs.ATTENTION_INTERVAL)
            yield "states", f"the type of layer {layer} by {key} and similar keys contradicts its tensors"
            return


def _recurrent(model: Numbers) -> frozenset[int] | None:
    """Return the layers that keep a state, None if a key is unreadable, which another rule reports."""
    try:
        reader = ModelKeys.of(model.view)
        return frozenset(layer for layer in range(min(model.layers, archs.MAX_LAYERS)) if layers.recurs(reader, layer))
    except Refuses:
        return None


def _shapes(model: Numbers) -> Iterator[tuple[str, str]]:
    """Yield a tensor whose shape contradicts the keys: one tensor for each set of keys."""
    named: set[str] = set()
    for tensor, there, expected in loading_rules.shapes(model):
        keys = loading_rules.asked_by(model, tensor)
        if keys not in named:
            named.add(keys)
            actual, accepted = (" x ".join(map(str, shape)) for shape in (there, expected))
            yield f"shape {tensor}", f"{tensor} is {actual}; llama.cpp loads only {accepted}, from {keys}"


# --- values that llama.cpp loads, but misreads


def _lost(model: Numbers, changed: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield values that llama.cpp drops or misreads without a warning."""
    lengths = key_types.facts()["lengths"]
    for key, value in model.view.values.items():
        types = key_types.loaded(key, model.name)
        if types and value.label not in types:
            yield f"type {key}", _of_type(key, value, types)
        elif value.element is not None and (asked := lengths.get(key_types.template(key, model.name))) is not None:
            read = Read(key, f"[{asked}]", "")
            yield from _of_length(key, value, model.length(read.length), read)
        if key in changed and value.type is ValueType.STR and "\0" in str(value.decode()):
            yield f"text {key}", f"{key} contains a null character; llama.cpp cuts the text off there"
    yield from vocabulary_rules.lost(model.view)
    if model.get(archs.NEXTN_LAYERS) and not any(_DRAFTING in name for name in model.view.tensors):
        yield "drafting", f"{model.key(archs.NEXTN_LAYERS)} is set, but there are no tensors of drafting layers"
    try:
        decoding.decode(model.view)
    except Refuses:
        pass
    except RopetoolError as error:
        yield _ROTATION, f"{error.where.rpartition(': ')[2]} {error.message}".strip()
