"""The keys that llama.cpp's loader needs and reads for each architecture, and the tensor shapes that follow.

The data is loading.json, which scripts/gguf_keys/gguf_loading.py reads from llama.cpp's sources. key_rules.py knows the
effect of a broken rule.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ropetool.checkpoint.gguf import ARCHITECTURE, GgufCheckpoint
from ropetool.files.gguf import Value, ValueType
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import key_types

TOKEN_TYPES = "tokenizer.ggml.token_type_count"
EVERY = "*"  # the entry with the keys that the loader reads for every architecture
ANY_LENGTH = "[]"
_ENTRY = re.compile(r"(?P<suffix>[^\[ ]+)(?P<length>\[\w*\])?(?: if (?P<condition>.+))?")
_LAYER = re.compile(r"(?<=blk\.)([0-9]{1,9})(?=\.)")
_FLOATS = (ValueType.F32, ValueType.F64)
_LITE = (26, 27)  # layers of a DeepSeek without query compression; 48 too, with the vocabulary of Kanana 2
_LITE_WITH = (48, 128256)


class UnknownNumber(Exception):
    """The keys of a file do not set a number that a shape needs."""


@dataclass(frozen=True)
class Read:
    """A key that the loader reads.

    suffix: the key without its architecture.
    length: `[4]` or `[n_layer]` if the key may be an array or a scalar, `[]` for an array of any length, else empty.
    condition: when the key is required; empty for always.
    """

    suffix: str
    length: str
    condition: str


@cache
def facts() -> Mapping[str, Any]:
    """Return the data: keys needed and taken by architecture, fields of the loader, and shapes."""
    data: Mapping[str, Any] = json.loads(Path(__file__).with_name("loading.json").read_text(encoding="utf-8"))
    return data


@cache
def needed(architecture: str) -> tuple[Read, ...]:
    """Return the keys without which the loader stops."""
    return _listed("needs", architecture)


@cache
def reads(architecture: str) -> Mapping[str, tuple[Read, ...]]:
    """Return how the loader reads each key, by the key as a file of this architecture spells it."""
    by_key: dict[str, tuple[Read, ...]] = {}
    for each in (*needed(architecture), *_listed("takes", architecture)):
        key = full(each.suffix, architecture)
        by_key[key] = (*by_key.get(key, ()), each)
    return by_key


def own(architecture: str) -> frozenset[str]:
    """Return keys that the loader reads for this architecture and not for all, without the architecture in front."""
    data = facts()
    entries = (*data["needs"].get(architecture, ()), *data["takes"].get(architecture, ()))
    return frozenset(_entry(each).suffix for each in entries)


def full(suffix: str, architecture: str) -> str:
    """Return a key as a file spells it; a few have no architecture in front."""
    return suffix if suffix in key_types.facts()["loaded"] else f"{architecture}.{suffix}"


def _listed(part: str, architecture: str) -> tuple[Read, ...]:
    data = facts()[part]
    return tuple(_entry(each) for name in (EVERY, architecture) for each in data.get(name, ()))


@cache
def _entry(text: str) -> Read:
    match = _ENTRY.fullmatch(text)
    assert match is not None, text
    return Read(match["suffix"], match["length"] or "", match["condition"] or "")


def has(architecture: str, tensor: str) -> bool:
    """Return whether the loader knows a tensor of this architecture; `*` stands for the layer."""
    return tensor in _shapes(architecture)


def leads_dense(architecture: str) -> bool:
    """Return whether exactly the layers from leading_dense_block_count on have experts."""
    return architecture in facts()["dense_lead"].split()


def has_equal_heads(architecture: str) -> bool:
    """Return whether the graph stops unless a head of keys has as many channels as one of values."""
    return architecture in facts()["equal_heads"].split()


# --- numbers of a model


class Numbers:
    """The plain numbers among a model's keys, which are named without the architecture in front."""

    def __init__(self, view: GgufCheckpoint) -> None:
        self.view = view
        self._listed: dict[str, list[int]] = {}
        architecture = view.values.get(ARCHITECTURE)
        self.name = (
            str(architecture.decode()) if architecture is not None and architecture.type is ValueType.STR else ""
        )

    def key(self, suffix: str) -> str:
        return full(suffix, self.name)

    def value(self, suffix: str) -> Value | None:
        return self.view.values.get(self.key(suffix))

    def get(self, suffix: str, layer: int = 0) -> int:
        """Return a count, or a layer's entry in an array; 0 if the key is missing or the array has too many entries."""
        value = self.value(suffix)
        if value is None or value.type in (ValueType.STR, *_FLOATS):
            return 0
        if value.element is None:
            return int(value.number)
        if suffix not in self._listed:
            whole = value.element not in (ValueType.STR, *_FLOATS) and value.count <= archs.MAX_LAYERS
            self._listed[suffix] = np.asarray(value.decode()).tolist() if whole else []
        listed = self._listed[suffix]
        return int(listed[layer]) if layer < len(listed) else 0

    @property
    def has_weights(self) -> bool:
        """Whether the file is a model and no header, with frequency vectors or without, or vocabulary."""
        return any(name not in archs.VECTORS for name in self.view.tensors)

    @property
    def layers(self) -> int:
        """The number of layers, without the layers that draft tokens."""
        return self.get(archs.BLOCK_COUNT) - self.get(archs.NEXTN_LAYERS)

    def length(self, name: str) -> int | None:
        """Return the required length of an array, or None for any length."""
        if name == ANY_LENGTH or not name:
            return None
        name = name.strip("[]")
        return (
            {"n_layer_all": self.get(archs.BLOCK_COUNT), "n_layer": self.layers}.get(name)
            if not name.isdigit()
            else int(name)
        )

    def holds(self, condition: str) -> bool:
        """Return whether a condition of the data holds: a key is above 0, or an array has entries."""
        if condition == "not lite":
            return self.layers not in _LITE and (self.layers, self.tokens) != _LITE_WITH
        value = self.value(condition) if condition else None
        return not condition or (
            value is not None and (value.count if value.element is not None else self.get(condition)) > 0
        )

    @property
    def tokens(self) -> int:
        tokens = self.view.values.get("tokenizer.ggml.tokens")
        return tokens.count if tokens is not None and tokens.element is not None else self.get("vocab_size")


# --- shapes


def shapes(model: Numbers) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Yield each tensor with a wrong shape, its shape, and a shape that the loader accepts."""
    by_tensor = _shapes(model.name)
    for name, info in model.view.tensors.items():
        layer = _LAYER.search(name)
        texts = by_tensor.get(_LAYER.sub("*", name), ())
        try:
            sizes = [_evaluated(text, model, int(layer[1]) if layer else 0) for text in texts]
        except (UnknownNumber, ZeroDivisionError):
            continue
        there = tuple(info.shape)
        if sizes and not any(_same(there, size) for size in sizes):
            yield name, there, sizes[0]


def asked_by(model: Numbers, tensor: str) -> str:
    """Return the keys that the shape of a tensor follows from, for a sentence."""
    texts = _shapes(model.name).get(_LAYER.sub("*", tensor), ())
    names = dict.fromkeys(name for text in texts for name in re.findall(r"[a-z]\w+", text))
    fields = facts()["fields"]
    suffixes = dict.fromkeys(each for name in names for each in _SUFFIXES.get(name, (fields.get(name, ""),)) if each)
    return ", ".join(f"{model.key(each)}{'' if model.value(each) else ' (missing)'}" for each in suffixes)


def _same(there: tuple[int, ...], size: tuple[int, ...]) -> bool:
    """Return whether two shapes are the same but for lengths of 1 behind."""
    longest = max(len(there), len(size))
    return there + (1,) * (longest - len(there)) == size + (1,) * (longest - len(size))


@cache
def _shapes(architecture: str) -> Mapping[str, tuple[str, ...]]:
    """Return the shapes that each tensor of an architecture may have, by its name with `*` for the layer."""
    by_tensor: dict[str, tuple[str, ...]] = {}
    for line, names in facts()["shapes"].items():
        if architecture in names.split():
            tensor, _, shape = line.partition(": ")
            by_tensor[tensor] = (*by_tensor.get(tensor, ()), shape)
    return by_tensor


@cache
def _tree(text: str) -> ast.expr:
    return ast.parse(f"({text},)", mode="eval").body


def _evaluated(text: str, model: Numbers, layer: int) -> tuple[int, ...]:
    tree = _tree(text)
    assert isinstance(tree, ast.Tuple)
    return tuple(_number(each, model, layer) for each in tree.elts)


_OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip


def _number(tree: ast.expr, model: Numbers, layer: int) -> int:
    """Return the value of an expression. Raises: UnknownNumber, ZeroDivisionError."""
    if isinstance(tree, ast.BinOp):
        return _OPERATORS[type(tree.op)](_number(tree.left, model, layer), _number(tree.right, model, layer))
    if isinstance(tree, ast.IfExp):
        return _number(tree.body if _number(tree.test, model, layer) else tree.orelse, model, layer)
    if isinstance(tree, ast.Call):
        assert isinstance(tree.func, ast.Name)
        at = layer if isinstance(tree.args[0], ast.Name) else 0
        return _LAYERED[tree.func.id](model, at)
    if isinstance(tree, ast.Name):
        return _PLAIN[tree.id](model) if tree.id in _PLAIN else model.get(facts()["fields"][tree.id])
    assert isinstance(tree, ast.Constant)
    assert isinstance(tree.value, int)
    return tree.value


def _heads(model: Numbers, layer: int) -> int:
    return model.get(archs.HEAD_COUNT, layer)


def _heads_kv(model: Numbers, layer: int) -> int:
    return (
        model.get(archs.HEAD_COUNT_KV, layer) if model.value(archs.HEAD_COUNT_KV) is not None else _heads(model, layer)
    )


def channels_of(model: Numbers, suffix: str = archs.KEY_LENGTH) -> int:
    """Return the channels of a head of keys, or of values."""
    heads = _heads(model, 0)
    if not heads or model.value(suffix) is not None:
        return model.get(suffix) if heads else 0
    return model.get(archs.EMBEDDING_LENGTH) // heads


def _head(model: Numbers, suffix: str, sliding: str) -> int:
    """Return the channels of a head. Raises: UnknownNumber if sliding layers have a different number."""
    channels = channels_of(model, suffix)
    if model.value(sliding) is not None and model.get(sliding) != channels:
        raise UnknownNumber
    return channels


def _keys(model: Numbers, layer: int) -> int:
    return _head(model, archs.KEY_LENGTH, archs.KEY_LENGTH_SWA)


def _values(model: Numbers, layer: int) -> int:
    return _head(model, archs.VALUE_LENGTH, archs.VALUE_LENGTH_SWA)


def _rotary(model: Numbers, layer: int) -> int:
    """Return the number of rotating channels. Raises: UnknownNumber if sliding layers have a different number."""
    channels = (
        model.get(archs.DIMENSION_COUNT) if model.value(archs.DIMENSION_COUNT) is not None else _keys(model, layer)
    )
    if model.value(archs.DIMENSION_COUNT_SWA) is not None and model.get(archs.DIMENSION_COUNT_SWA) != channels:
        raise UnknownNumber
    return channels


def _latent(suffix: str, plain: Callable[[Numbers, int], int]) -> Callable[[Numbers, int], int]:
    """Return how a head of latent attention is counted: by its own key if the file has both, else as any other."""
    both = (archs.KEY_LENGTH_MLA, archs.VALUE_LENGTH_MLA)
    return lambda model, layer: model.get(suffix) if all(map(model.get, both)) else plain(model, layer)


_PLAIN: Mapping[str, Callable[[Numbers], int]] = {
    "n_embd": lambda model: model.get(archs.EMBEDDING_LENGTH),
    "n_vocab": lambda model: model.tokens,
    "n_expert": lambda model: model.get(archs.EXPERT_COUNT),
    "n_token_types": lambda model: model.get(TOKEN_TYPES),
}
_LAYERED: Mapping[str, Callable[[Numbers, int], int]] = {
    "n_head": _heads, "n_head_kv": _heads_kv, "n_embd_head_k": _keys, "n_embd_head_v": _values,
    "n_embd_k_gqa": lambda model, layer: _keys(model, layer) * _heads_kv(model, layer),
    "n_embd_v_gqa": lambda model, layer: _values(model, layer) * _heads_kv(model, layer),
    "n_ff": lambda model, layer: model.get(archs.FEED_FORWARD_LENGTH, layer),
    "n_ff_exp": lambda model, layer: model.get("expert_feed_forward_length", layer), "n_rot": _rotary,
    "n_embd_head_k_mla": _latent(archs.KEY_LENGTH_MLA, _keys),
    "n_embd_head_v_mla": _latent(archs.VALUE_LENGTH_MLA, _values),
    "n_expert_used": lambda model, layer: model.get("expert_used_count", layer),
}  # fmt: skip
_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "n_embd": (archs.EMBEDDING_LENGTH,), "n_token_types": (TOKEN_TYPES,), "n_vocab": ("vocab_size",), "n_expert": (archs.EXPERT_COUNT,),
    "n_head": (archs.HEAD_COUNT,), "n_head_kv": (archs.HEAD_COUNT_KV,), "n_embd_head_k": (archs.KEY_LENGTH,),
    "n_embd_head_v": (archs.VALUE_LENGTH,), "n_embd_k_gqa": (archs.HEAD_COUNT_KV, archs.KEY_LENGTH),
    "n_embd_v_gqa": (archs.HEAD_COUNT_KV, archs.VALUE_LENGTH), "n_ff": (archs.FEED_FORWARD_LENGTH,),
    "n_ff_exp": ("expert_feed_forward_length",), "n_rot": (archs.DIMENSION_COUNT,),
    "n_embd_head_k_mla": (archs.KEY_LENGTH_MLA, archs.KEY_LENGTH),
    "n_embd_head_v_mla": (archs.VALUE_LENGTH_MLA, archs.VALUE_LENGTH), "n_expert_used": ("expert_used_count",),
}  # fmt: skip
