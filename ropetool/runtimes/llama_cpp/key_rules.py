"""What llama.cpp cannot load, or reads as something else in silence, in the keys of a model: a sentence for each rule broken.

The rules are those of src/llama-model-loader.cpp, llama-model.cpp and llama-vocab.cpp, the sources within llama-cpp-python
0.3.36; which key has which type is key_types.py's. Rotation is decoded, and refused where the decoder refuses.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import RopetoolError, did_you_mean
from ropetool.files.gguf import Value, ValueType
from ropetool.files.gguf.codec import shown
from ropetool.files.gguf.shards import SPLIT_COUNT
from ropetool.runtimes.base import Refuses
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import decoding, key_types, vocabulary_rules

MAX_EXPERTS = 1024
EXPERT_USED = "expert_used_count"
EXPERT_GROUPS = "expert_group_count"
EPSILONS = ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon")
_FLOATS = (ValueType.F32, ValueType.F64)
_DRAFTING = ".nextn."  # in the names of tensors
_BLOCK = re.compile(r"blk\.([0-9]{1,9})\.")


def objections(before: GgufCheckpoint, after: GgufCheckpoint) -> list[str]:
    """Return what an edit of the keys would break, a sentence each; what was broken before it is not its fault."""
    both = before.values.keys() | after.values.keys()
    changed = {key for key in both if before.values.get(key) != after.values.get(key)}
    known = problems(before, changed)
    return [sentence for rule, sentence in problems(after, changed).items() if rule not in known]


def problems(view: GgufCheckpoint, changed: Collection[str] | None = None) -> dict[str, str]:
    """Return the rules that a model breaks, each with a sentence; of long arrays only those among `changed` are read.

    A file that loads may break one: sizes are those of plain tensors, and some architectures fuse two into one (phi3) or
    have a gate among them (qwen35). So it is for `objections` to say what an edit breaks.
    """
    numbers = _Numbers(view)
    found = dict(_architecture(numbers))
    if "architecture" in found:
        return found
    for part in (_types(numbers, changed), _sizes(numbers), vocabulary_rules.broken(view, changed)):
        found |= dict(part)
    if not any(rule.startswith(f"type {numbers.name}.") for rule in found):
        try:
            decoding.decode(view)
        except Refuses as refusal:
            found["rotation"] = str(refusal)
        except RopetoolError as error:
            found["rotation"] = f"{error.where.rpartition(': ')[2]} {error.message}".strip()
    return found


class _Numbers:
    """The plain numbers among a model's keys, which are named without the architecture in front."""

    def __init__(self, view: GgufCheckpoint) -> None:
        self.view = view
        stated = view.values.get(archs.ARCHITECTURE)
        self.name = str(stated.decode()) if stated is not None and stated.type is ValueType.STR else ""

    def key(self, suffix: str) -> str:
        return f"{self.name}.{suffix}"

    def get(self, suffix: str) -> int:
        """Return a count, of an array the first; 0 where there is none."""
        value = self.view.values.get(self.key(suffix))
        if value is None or value.type in (ValueType.STR, *_FLOATS):
            return 0
        decoded: Any = value.decode()
        if value.element is None:
            return int(decoded)
        return int(decoded[0]) if value.element not in (ValueType.STR, *_FLOATS) and len(decoded) else 0

    def length(self, name: str, at: int) -> int | None:
        """Return a length of a tensor, None where there is no such tensor."""
        info = self.view.tensors.get(name)
        return info.shape[at] if info is not None and len(info.shape) > at else None


def _types(model: _Numbers, changed: Collection[str] | None) -> Iterator[tuple[str, str]]:
    """Yield keys of another type or length than the loader takes, and numbers and texts that it cannot use."""
    lengths = {"n_layer_all": model.get(archs.BLOCK_COUNT), "4": 4}
    lengths["n_layer"] = lengths["n_layer_all"] - model.get(archs.NEXTN_LAYERS)
    for key, value in model.view.values.items():
        types = key_types.loaded(key, model.name)
        if types and value.label not in types:
            yield (
                f"type {key}",
                f"{key} would be {value.label}; llama.cpp reads it as {' or '.join(types)} and converts nothing",
            )
            continue
        asked = key_types.facts()["lengths"].get(key_types.template(key, model.name))
        if asked is not None and value.element is not None and value.count != lengths[asked]:
            what = "a number for each layer" if asked != "4" else "4 numbers"
            yield (
                f"length {key}",
                f"{key} would have {value.count} elements; llama.cpp wants {what}, {lengths[asked]} here",
            )
        if changed is None or key in changed:
            yield from _unusable(key, value)


def _unusable(key: str, value: Value) -> Iterator[tuple[str, str]]:
    if value.type in _FLOATS or value.element in _FLOATS:
        finite = np.isfinite(np.asarray(value.decode()))
        if not finite.all():
            yield (
                f"finite {key}",
                f"{key} would hold a number that is not finite, and so would what is computed with it",
            )
        elif key.endswith(EPSILONS) and np.min(np.asarray(value.decode()), initial=0) < 0:
            yield f"epsilon {key}", f"{key} would be below 0: llama.cpp aborts the whole process"
    if value.type is ValueType.STR and "\0" in str(value.decode()):
        yield f"text {key}", f"{key} would hold a character 0, where llama.cpp cuts every text off"


def _architecture(model: _Numbers) -> Iterator[tuple[str, str]]:
    known = key_types.facts()["architectures"]
    if not model.name:
        yield "architecture", f"{archs.ARCHITECTURE} would name none, and llama.cpp loads no model without it"
    elif model.name not in known:
        near = did_you_mean(model.name, known)
        yield "architecture", f"{archs.ARCHITECTURE} would be {shown(model.name)}{near}, which llama.cpp does not know"
    count = model.view.values.get(SPLIT_COUNT)
    announced = count.decode() if count is not None and count.type is ValueType.U16 else 0
    if len(model.view.files) == 1 and isinstance(announced, int) and announced > 1:
        yield "split", f"{SPLIT_COUNT} would announce {announced} files, and this model is one"


def _sizes(model: _Numbers) -> Iterator[tuple[str, str]]:
    """Yield sizes that the loader misses, or that are not those of the tensors."""
    values = model.view.values
    epsilon = EPSILONS[0] if model.name in archs.LAYER_NORMS else EPSILONS[1]
    for suffix in (archs.CONTEXT_LENGTH, archs.EMBEDDING_LENGTH, archs.BLOCK_COUNT, epsilon):
        if model.key(suffix) not in values:
            yield (
                f"required {suffix}",
                f"{model.key(suffix)} would be missing, and llama.cpp loads no {model.name} without it",
            )
    if model.key(archs.CONTEXT_LENGTH) in values and model.get(archs.CONTEXT_LENGTH) == 0:
        yield "context", f"{model.key(archs.CONTEXT_LENGTH)} would be 0: llama.cpp makes no context of 0 tokens"
    yield from _experts(model)
    for suffix, tensor, at, factor in _measured(model):
        there, count = model.length(tensor, at), model.get(suffix)
        if suffix == archs.HEAD_COUNT_KV and model.key(suffix) not in values:
            count = model.get(archs.HEAD_COUNT)
        if there is not None and there != count * factor:
            of = f" heads of {factor}" if factor != 1 else ""
            what = f"{model.key(suffix)} would be {count}{of}, and {tensor} is {there} wide"
            yield f"size {suffix}", f"{what}: llama.cpp would not load it"
    if bool(model.get(archs.NEXTN_LAYERS)) != any(_DRAFTING in name for name in model.view.tensors):
        key = model.key(archs.NEXTN_LAYERS)
        yield (
            "drafting",
            f"{key} would be {model.get(archs.NEXTN_LAYERS)}, which is not what the tensors of drafting layers say",
        )
    blocks = [int(found[1]) for found in map(_BLOCK.match, model.view.tensors) if found is not None]
    if blocks and max(blocks) + 1 != model.get(archs.BLOCK_COUNT):
        key = model.key(archs.BLOCK_COUNT)
        yield (
            "blocks",
            f"{key} would be {model.get(archs.BLOCK_COUNT)}, and there are tensors of {max(blocks) + 1} layers",
        )


def _measured(model: _Numbers) -> tuple[tuple[str, str, int, int], ...]:
    """Return what is as wide as a tensor: the key, the tensor, which of its lengths, and how many channels one counts for."""
    heads = model.get(archs.HEAD_COUNT)
    channels = model.get(archs.KEY_LENGTH) or (model.get(archs.EMBEDDING_LENGTH) // heads if heads else 0)
    return (
        (archs.EMBEDDING_LENGTH, "token_embd.weight", 0, 1),
        (archs.FEED_FORWARD_LENGTH, "blk.0.ffn_up.weight", 1, 1),
        (archs.HEAD_COUNT, "blk.0.attn_q.weight", 1, channels),
        (archs.HEAD_COUNT_KV, "blk.0.attn_k.weight", 1, channels),
    )


def _experts(model: _Numbers) -> Iterator[tuple[str, str]]:
    """Yield counts of experts at which the loader aborts."""
    count, used, groups = (model.get(suffix) for suffix in (archs.EXPERT_COUNT, EXPERT_USED, EXPERT_GROUPS))
    if count > MAX_EXPERTS:
        yield "experts", f"{model.key(archs.EXPERT_COUNT)} would be {count}: llama.cpp aborts above {MAX_EXPERTS}"
    elif used > count or (count and not used):
        key = model.key(EXPERT_USED)
        yield "experts", f"{key} would be {used} of {count} experts: llama.cpp aborts unless it is 1 to that number"
    elif groups and (groups >= count or (groups > 1 and count % groups)):
        yield "experts", f"{model.key(EXPERT_GROUPS)} would be {groups} of {count} experts: llama.cpp aborts"
