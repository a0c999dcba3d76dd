"""What attending to earlier tokens takes: the bytes of a KV cache, and the multiplications of a pair of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import InvalidRope
from ropetool.families.family import Family
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import Refuses
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import folding
from ropetool.runtimes.llama_cpp.architectures import HEAD_COUNT, HEAD_COUNT_KV
from ropetool.runtimes.llama_cpp.exported_layers import layers_of
from ropetool.runtimes.llama_cpp.layers import Model, head_dim, layer_count, value_dim, window_of

DTYPE_BYTES = {"float32": 4, "float64": 8}  # a cache is kept in the weights' type, otherwise two bytes
DEFAULT_LATENT = 512  # channels of MLA's latent where the config is silent
SHARED_LAYERS = "num_kv_shared_layers"  # as many last layers attend by the keys of others
# How many channels share a scale, and the bytes of such a block: ggml-common.h of llama-cpp-python 0.3.36.
CACHE_TYPES = {"f16": (1, 2), "q8_0": (32, 34)}


@dataclass(frozen=True)
class KvCache:
    """One kind of layer: what it keeps of each token, and what a query and a key cost.

    layers: how many attend. heads: key heads that are kept, of all layers together; keys, values: channels of each; rows: of
    all that a layer keeps of a token's keys, or of its values, side by side. value_bytes: of one number. window: how many tokens
    are kept, None for all; chunked: it is a chunk of the text, and queries see what came before them in theirs. queries: query
    heads of all layers together; pair: the channels that one of them multiplies for a key and its value, None where that is
    not known.
    """

    layers: int
    heads: int
    keys: int
    values: int
    value_bytes: int
    window: int | None = None
    chunked: bool = False
    rows: tuple[int, ...] = ()
    queries: int = 0
    pair: int | None = None

    @property
    def per_token(self) -> int:
        """Bytes of a token in all layers of this kind."""
        return self.heads * (self.keys + self.values) * self.value_bytes

    def tokens_at(self, length: int) -> int:
        """Return how many of so many tokens are kept."""
        return length if self.window is None else min(length, self.window)

    def bytes_at(self, length: int) -> int:
        return self.per_token * self.tokens_at(length)

    def bytes_in(self, cache_type: str, length: int) -> int | None:
        """Return the bytes in a type of `CACHE_TYPES`, None where its blocks do not divide a layer's rows."""
        block, nbytes = CACHE_TYPES[cache_type]
        if any(row % block for row in self.rows):
            return None
        return int(Fraction(nbytes, block) * self.heads * (self.keys + self.values)) * self.tokens_at(length)

    def pairs_at(self, length: int) -> int:
        """Return how many pairs of a query and a key, itself or before it, a pass over so many tokens has in a layer."""
        if self.window is None or length <= self.window:
            return length * (length + 1) // 2
        if self.chunked:
            whole, rest = divmod(length, self.window)
            return whole * (self.window * (self.window + 1) // 2) + rest * (rest + 1) // 2
        return self.window * (self.window + 1) // 2 + (length - self.window) * self.window

    def flops_at(self, length: int) -> int | None:
        """Return what scores and sums of values take in a pass over so many tokens: a product and a sum for each channel."""
        return None if self.pair is None else 2 * self.queries * self.pair * self.pairs_at(length)


def of_gguf(view: GgufCheckpoint, decoded: RopeSet) -> dict[str, KvCache]:
    """Return llama.cpp's default cache: two bytes a value; heads may be stated for each layer.

    Entries hold every layer that attends, rotated or not; the others keep a state of one size.
    Raises: InvalidRope if the heads are stated in a type that llama.cpp does not load.
    """
    found = {}
    try:
        model = Model.of(view)
        keeping = _layers_with_keys(model)
        for layer_type, entry in decoded.entries.items():
            sliding = layer_type.startswith(names.SLIDING_ATTENTION)
            keys, values = head_dim(model, sliding), value_dim(model, sliding)
            heads = [_key_heads(model, layer) for layer in entry.layers if layer < keeping]
            found[layer_type] = KvCache(
                len(entry.layers), sum(heads), keys, values, 2, window_of(model) if sliding else None,
                entry.chunked, tuple(sorted({n * width for n in heads for width in (keys, values) if width})),
                sum(model.per_layer(HEAD_COUNT, layer) or 0 for layer in entry.layers), _gguf_pair(model, sliding),
            )  # fmt: skip
    except Refuses as refusal:
        raise InvalidRope(str(refusal), where=view.where) from None
    return found


def _gguf_pair(model: Model, sliding: bool) -> int | None:
    """Return the channels of a key and of what its value gives; None where an indexer or a compressor chooses the keys."""
    rules = model.arch.sliding
    if model.arch.name in folding.INDEXERS or (rules is not None and rules.uncompressed):
        return None
    keys, kept = head_dim(model, sliding), value_dim(model, sliding)
    # With MLA the values are sums of latents, which stand in the keys.
    return keys + (kept or int(model.get(archs.VALUE_LENGTH, keys)))


def _layers_with_keys(model: Model) -> int:
    """Return how many layers keep keys of their own: the last ones of some models attend by those of others."""
    count, name = layer_count(model), model.arch.name
    if name in folding.LAYERS_WITH_KEYS:
        return min(count, folding.LAYERS_WITH_KEYS[name])
    shared = model.scalar(folding.SHARED_KEY_LAYERS) if name in folding.SHARE_LAST_KEYS else 0
    return count - min(count, int(shared or 0))


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
    entry = decoded.entries[names.FULL_ATTENTION]
    if family.mla:
        heads, keys, values = 1, part.get(names.KV_LORA_RANK) or DEFAULT_LATENT, entry.rotary_dim
    else:
        heads, keys, values = _heads(part, family), entry.head_dim, entry.head_dim
    layers = layers_of(config, family, decoded, names.CONFIG_JSON)
    stateful = family.rotates in ("full", "none") and family.has_kinds  # the other layers keep a state of one size
    full = set(entry.layers) if stateful else set(range(layers.count)) - layers.sliding
    keeping = layers.count - (part.get(SHARED_LAYERS) or 0)
    kinds = {
        names.FULL_ATTENTION: (full, None),
        names.SLIDING_ATTENTION: (layers.sliding, layers.window),
    }
    return {
        kind: KvCache(
            len(those), heads * sum(layer < keeping for layer in those), keys, values,
            DTYPE_BYTES.get(dtype_of(config, part), 2), window, family.chunked, (heads * keys, heads * values),
            len(those) * (part.get(names.NUM_ATTENTION_HEADS) or 0), _pair(part, family, entry.head_dim),
        )
        for kind, (those, window) in kinds.items() if those
    }  # fmt: skip


def dtype_of(config: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """Return the type that a config states for the weights, empty where it states none."""
    stated = part.get("torch_dtype") or part.get("dtype") or config.get("torch_dtype") or config.get("dtype")
    return str(stated or "")


def _pair(part: Mapping[str, Any], family: Family, head: int) -> int | None:
    """Return the channels of a key and a value of one query head; None where no table describes the attention."""
    if family.export is None or (family.bake is not None and family.bake.indexer_k):
        return None
    if not family.mla:
        return 2 * head
    sizes = [part.get(count.key, count.default) for count in map(family.export.counts.get, ("plain", "value")) if count]
    return head + sum(sizes) if len(sizes) == 2 and all(isinstance(size, int) for size in sizes) else None


def _heads(part: Mapping[str, Any], family: Family) -> int:
    """Return how many key heads transformers keeps."""
    if family.one_key_for_all(part):
        return 1
    return part.get(names.NUM_KEY_VALUE_HEADS) or part.get(names.NUM_ATTENTION_HEADS) or 0
