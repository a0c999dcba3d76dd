"""The KV cache that llama.cpp allocates for a GGUF model."""

from __future__ import annotations

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import InvalidRope
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import Refuses
from ropetool.runtimes.kv_cache import KvCache
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import folding
from ropetool.runtimes.llama_cpp.architectures import HEAD_COUNT, HEAD_COUNT_KV
from ropetool.runtimes.llama_cpp.layers import ModelKeys, head_dim, layer_count, value_dim, window_of


def of_gguf(view: GgufCheckpoint, decoded: RopeSet) -> dict[str, KvCache]:
    """Return llama.cpp's default cache by layer type, with two bytes a value.

    All attending layers count, also layers that do not rotate. The other layers keep a state of constant size.
    Raises: InvalidRope if the key of the heads has a type that llama.cpp does not load.
    """
    caches = {}
    try:
        model = ModelKeys.of(view)
        keeping = _layers_with_keys(model)
        for layer_type, entry in decoded.entries.items():
            sliding = layer_type.startswith(names.SLIDING_ATTENTION)
            keys, values = head_dim(model, sliding), value_dim(model, sliding)
            heads = [_key_heads(model, layer) for layer in entry.layers if layer < keeping]
            caches[layer_type] = KvCache(
                len(entry.layers), sum(heads), keys, values, 2, window_of(model) if sliding else None,
                entry.chunked, tuple(sorted({n * width for n in heads for width in (keys, values) if width})),
                sum(model.per_layer(HEAD_COUNT, layer) or 0 for layer in entry.layers), _gguf_pair(model, sliding),
            )  # fmt: skip
    except Refuses as refusal:
        raise InvalidRope(str(refusal), where=view.where) from None
    return caches


def _gguf_pair(model: ModelKeys, sliding: bool) -> int | None:
    """Return the channels of a key and its value; None if an indexer or a compressor chooses the keys."""
    rules = model.arch.sliding
    if model.arch.name in folding.INDEXERS or (rules is not None and rules.uncompressed):
        return None
    keys, kept = head_dim(model, sliding), value_dim(model, sliding)
    # Under MLA the values are sums of latents, which are in the keys.
    return keys + (kept or int(model.get(archs.VALUE_LENGTH, keys)))


def _layers_with_keys(model: ModelKeys) -> int:
    """Return the number of layers with cached keys.

    In some models the last layers attend with the keys of other layers.
    """
    count, name = layer_count(model), model.arch.name
    if name in folding.LAYERS_WITH_KEYS:
        return min(count, folding.LAYERS_WITH_KEYS[name])
    shared = model.scalar(folding.SHARED_KEY_LAYERS) if name in folding.SHARE_LAST_KEYS else 0
    return count - min(count, int(shared or 0))


def _key_heads(model: ModelKeys, layer: int) -> int:
    heads = model.per_layer(HEAD_COUNT_KV, layer)
    return heads if heads is not None else model.per_layer(HEAD_COUNT, layer) or 0
