"""How large a KV cache of a checkpoint is: bytes for each token, and the windows that bound it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import InvalidRope
from ropetool.families.family import Family
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import Refuses
from ropetool.runtimes.llama_cpp.architectures import HEAD_COUNT, HEAD_COUNT_KV
from ropetool.runtimes.llama_cpp.exported_layers import layers_of
from ropetool.runtimes.llama_cpp.layers import Model, head_dim, value_dim, window_of

DTYPE_BYTES = {"float32": 4, "float64": 8}  # a cache is kept in the weights' type, otherwise two bytes


@dataclass(frozen=True)
class KvCache:
    """The cache of one kind of layer: bytes per token, and the window that bounds it."""

    per_token: int
    window: int | None

    def bytes_at(self, length: int) -> int:
        return self.per_token * (length if self.window is None else min(length, self.window))


def of_gguf(view: GgufCheckpoint, decoded: RopeSet) -> dict[str, KvCache]:
    """Return llama.cpp's default cache: two bytes a value; heads may be stated for each layer.

    Entries hold every layer that attends, rotated or not; the others keep a state of one size.
    Raises: InvalidRope if the heads are stated in a type that llama.cpp does not load.
    """
    found = {}
    try:
        model = Model.of(view)
        for layer_type, entry in decoded.entries.items():
            sliding = layer_type.startswith(names.SLIDING_ATTENTION)
            channels = head_dim(model, sliding) + value_dim(model, sliding)
            heads = sum(_key_heads(model, layer) for layer in entry.layers)
            found[layer_type] = KvCache(heads * channels * 2, window_of(model) if sliding else None)
    except Refuses as refusal:
        raise InvalidRope(str(refusal), where=view.where) from None
    return found


def _key_heads(model: Model, layer: int) -> int:
    heads = model.per_layer(HEAD_COUNT_KV, layer)
    return heads if heads is not None else model.per_layer(HEAD_COUNT, layer) or 0


def of_config(config: Mapping[str, Any], family: Family, decoded: RopeSet) -> dict[str, KvCache]:
    """Return the cache of the layers that look all the way back and of those that slide, in the weights' type.

    Nothing where heads differ by kind of layer, or less than whole keys is kept: its size is not known.
    """
    if family.head_dim_keys or not family.cache_known:
        return {}
    part = style.section(config, family, names.CONFIG_JSON)
    dtype = part.get("torch_dtype") or part.get("dtype") or config.get("torch_dtype") or config.get("dtype")
    entry = decoded.entries[names.FULL_ATTENTION]
    if family.mla:
        channels = (part.get(names.KV_LORA_RANK) or 512) + entry.rotary_dim
    else:
        channels = 2 * _heads(part, family) * entry.head_dim
    per_layer = channels * DTYPE_BYTES.get(str(dtype), 2)
    layers = layers_of(config, family, decoded, names.CONFIG_JSON)
    stateful = family.rotates in ("full", "none") and family.has_kinds  # the other layers keep a state of one size
    kinds = {
        names.FULL_ATTENTION: (len(entry.layers) if stateful else layers.count - len(layers.sliding), None),
        names.SLIDING_ATTENTION: (len(layers.sliding), layers.window),
    }
    return {kind: KvCache(count * per_layer, window) for kind, (count, window) in kinds.items() if count}


def _heads(part: Mapping[str, Any], family: Family) -> int:
    """Return how many key heads transformers keeps."""
    if family.one_key_for_all(part):
        return 1
    return part.get(names.NUM_KEY_VALUE_HEADS) or part.get(names.NUM_ATTENTION_HEADS) or 0
