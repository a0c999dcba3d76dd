"""The scores of each baked layer before and after, from random activations.

They are computed by the numpy reference in rope/arithmetic.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ropetool import names
from ropetool.checkpoint.tensor_bytes import StoredTensor, read_bytes
from ropetool.errors import LossyExport
from ropetool.families.family import FoldStep
from ropetool.families.rows import K, Q
from ropetool.files.dtypes import decode
from ropetool.files.gguf.numbers import numbers
from ropetool.rope import arithmetic
from ropetool.rope.tables import Array, LayerRope
from ropetool.weights.edits import TensorEdit
from ropetool.weights.fold_targets import PARTS, FoldRows, FoldTargets, attention_name, by_step, layers
from ropetool.weights.gguf_scales import BLOCKS

Reader = Callable[[str], Array]
EPSILON = 1e-6  # of norms; equal on both sides, so its exact value does not affect the comparison


@dataclass(frozen=True)
class LayerCheck:
    """The comparison of one layer's scores.

    layer, layer_type: the layer.
    largest: the largest score before the bake.
    difference: the largest difference after the bake.
    unbaked: the largest difference with the new keys but the old weights.
    """

    layer: int
    layer_type: str
    largest: float
    difference: float
    unbaked: float


def reader(stored: Mapping[str, StoredTensor]) -> Reader:
    """Return a function that reads a tensor by name as float64, rows first. It decodes quantised blocks like llama.cpp.

    Raises: UnsupportedDtype for FP8 and packed numbers; CorruptFile if a file became shorter.
    """

    def read(name: str) -> Array:
        tensor = stored[name]
        raw = read_bytes(tensor)
        if tensor.dtype not in BLOCKS:
            return decode(raw, tensor.dtype).astype(np.float64).reshape(tensor.shape)
        rows = np.frombuffer(raw, np.uint8).reshape(prod(tensor.shape[:-1]), -1)
        return numbers(rows, BLOCKS[tensor.dtype], f"{tensor.path}: {name}").reshape(tensor.shape)

    return read


def check_scores(
    edits: Sequence[TensorEdit],
    before: FoldTargets,
    read_before: Reader,
    after: FoldTargets,
    read_after: Reader,
    *,
    length: int = 64,
) -> list[LayerCheck]:
    """Return the comparison of every edited layer's scores, at positions up to the configured context length.

    Raises: UnsupportedDtype, LossyExport.
    """
    touched = {edit.tensor for edit in edits}
    checks = []
    for layer_type, entry in before.rope.entries.items():
        after_entry = after.rope.entries[layer_type]
        for layer in layers(before, entry):
            prefix = attention_name(before, layer)
            if not any(name.startswith(f"{prefix}.") for name in touched):
                continue
            context = before.rope.max_position_embeddings
            old = layer_scores(before, entry, layer, read_before, context, length)
            new = layer_scores(after, after_entry, layer, read_after, context, length)
            unbaked = layer_scores(after, after_entry, layer, read_before, context, length)
            kept = np.isfinite(old)
            largest = float(np.abs(old[kept]).max())
            away, without = (float(np.abs(part[kept] - old[kept]).max()) for part in (new, unbaked))
            checks.append(LayerCheck(layer, layer_type, largest, away, without))
    return checks


def layer_scores(targets: FoldTargets, entry: LayerRope, layer: int, read: Reader, context: int, length: int) -> Array:
    """Return the scores of a layer for random activations, at equally spaced positions in the context.

    Shapes: -> (heads, length, length).
    """
    if entry.table is None:
        raise LossyExport("these layers do not rotate", where=targets.where)
    regime = entry.table.at(context)
    positions = np.unique(np.linspace(0, context - 1, length).astype(np.int64)).astype(np.float64)
    if targets.family.mla:
        q, k = _latent_heads(targets, entry, layer, read, positions.size)
    else:
        x = _activations(targets, positions.size)
        q, k = (_heads(targets, entry, layer, read, x, side) for side in (Q, K))
    return arithmetic.scores(
        q, k, positions, regime.inv_freq, attention_factor=regime.attention_factor, layout=entry.layout,
        softmax_scale=entry.softmax_multiplier * q.shape[-1] ** -0.5,
    )  # fmt: skip


def _activations(targets: FoldTargets, count: int) -> Array:
    width = int(targets.config[names.HIDDEN_SIZE])
    activations: Array = np.random.default_rng(0).standard_normal((count, width))
    return activations


def _heads(targets: FoldTargets, entry: LayerRope, layer: int, read: Reader, x: Array, side: str) -> Array:
    """Return the queries or keys of all heads, with their rotary channels first.

    Shapes: x (n, hidden) -> (heads, n, width).
    """
    heads: Array | None = None
    for step, places in by_step(targets, entry, layer, targets.steps.q if side == Q else targets.steps.k, side):
        weight, bias = (_gathered(places, part, read) for part in PARTS)
        assert weight is not None
        if heads is None:
            heads = x @ weight.swapaxes(-1, -2)
        else:
            heads = _normed(heads, step) * (weight[..., 0][:, None] + step.offset)
        if bias is not None:
            heads = heads + bias[..., 0][:, None]
        rotary = places[0].rotary
    assert heads is not None
    return np.concatenate([heads[..., rotary:], heads[..., :rotary]], axis=-1)


def _gathered(places: list[FoldRows], part: str, read: Reader) -> Array | None:
    """Return the rows of each head, from one tensor for all heads or one for each.

    Shapes: -> (heads, width, row length); heads is 1 if all share a vector.
    """
    parts = []
    for place in places:
        if place.tensor.endswith(part):
            rows = np.add.outer(np.array(place.starts), np.arange(place.width))
            parts.append(read(place.tensor).reshape(place.height, -1)[rows])
    return np.concatenate(parts) if parts else None


def _normed(x: Array, step: FoldStep) -> Array:
    """Return heads divided by their size. The size is of each head, or of all heads for a norm over all of them."""
    axes: Any = (0, 2) if step.norm == "rms" and step.rows == "heads" else 2
    if step.norm == "layer":
        x = x - x.mean(axis=axes, keepdims=True)
    size: Array = np.sqrt((x**2).mean(axis=axes, keepdims=True) + EPSILON)
    return x / size


def _latent_heads(targets: FoldTargets, entry: LayerRope, layer: int, read: Reader, count: int) -> tuple[Array, Array]:
    """Return MLA's queries and keys, with the decoupled rotary channels first."""
    prefix, x = attention_name(targets, layer), _activations(targets, count)
    weight, bias = _rows(read, targets, f"{prefix}.kv_a_proj_with_mqa")
    rank = int(targets.config[names.KV_LORA_RANK])
    inner = _rms(x @ weight[:rank].T + bias[:rank]) * read(f"{prefix}.kv_a_layernorm.weight")
    ((_, places),) = by_step(targets, entry, layer, targets.steps.k_plain, K)
    plain_rows = _gathered(places, ".weight", read)
    assert plain_rows is not None
    plain = inner @ plain_rows.swapaxes(-1, -2)
    turning = np.repeat(_heads(targets, entry, layer, read, x, K), plain.shape[0], axis=0)
    if f"{prefix}.q_a_proj.weight" in targets.tensors:
        weight, bias = _rows(read, targets, f"{prefix}.q_a_proj")
        x = _rms(x @ weight.T + bias) * read(f"{prefix}.q_a_layernorm.weight")
    return _heads(targets, entry, layer, read, x, Q), np.concatenate([turning, plain], axis=-1)


def _rows(read: Reader, targets: FoldTargets, name: str) -> tuple[Array, Array]:
    weight = read(f"{name}.weight")
    bias = read(f"{name}.bias") if f"{name}.bias" in targets.tensors else np.zeros(weight.shape[0])
    return weight, bias


def _rms(x: Array) -> Array:
    scaled: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON)
    return scaled
