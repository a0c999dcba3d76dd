"""The cost of attention to earlier tokens: bytes of a KV cache, and multiplications for pairs of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ropetool import names
from ropetool.checkpoint import style
from ropetool.families.family import Family
from ropetool.rope.tables import RopeSet
from ropetool.runtimes.hf_formulas import layers_of

DTYPE_BYTES = {"float32": 4, "float64": 8}  # bytes of a cached number by the type of the weights; two for other types
DEFAULT_LATENT = 512  # channels of MLA's latent if the config does not set them
SHARED_LAYERS = "num_kv_shared_layers"  # the number of last layers that attend with the keys of other layers
# The channels that share a scale, and the bytes of such a block: ggml-common.h of llama-cpp-python 0.3.36.
CACHE_TYPES = {"f16": (1, 2), "q8_0": (32, 34)}


@dataclass(frozen=True)
class KvCache:
    """The layers of one type: the cached numbers of each token, and the cost of a query and a key.

    layers: the number of layers that attend.
    heads: the cached key heads of all layers together.
    keys, values: the cached channels of one head, for its key and its value.
    value_bytes: the bytes of one number.
    window: the number of cached tokens; None for all tokens.
    chunked: True if the window is a chunk of the text, and a query attends to the earlier tokens of its chunk.
    rows: the channels of a token's keys in one layer, and of its values; several if layers differ.
    queries: the query heads of all layers together.
    pair: the channels that a query head multiplies for a key and its value; None if unknown.
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
        """The bytes of a token in all layers of this type."""
        return self.heads * (self.keys + self.values) * self.value_bytes

    def tokens_at(self, length: int) -> int:
        """Return the number of cached tokens of a text. length: in tokens."""
        return length if self.window is None else min(length, self.window)

    def bytes_at(self, length: int) -> int:
        """Return the bytes of the cache. length: in tokens."""
        return self.per_token * self.tokens_at(length)

    def bytes_in(self, cache_type: str, length: int) -> int | None:
        """Return the bytes in a type of `CACHE_TYPES`, or None if its blocks do not divide a layer's rows."""
        block, nbytes = CACHE_TYPES[cache_type]
        if any(row % block for row in self.rows):
            return None
        return int(Fraction(nbytes, block) * self.heads * (self.keys + self.values)) * self.tokens_at(length)

    def pairs_at(self, length: int) -> int:
        """Return the number of pairs of a query and a key in one layer, for a pass over this many tokens.

        A query sees its own key.
        """
        if self.window is None or length <= self.window:
            return length * (length + 1) // 2
        if self.chunked:
            whole, rest = divmod(length, self.window)
            return whole * (self.window * (self.window + 1) // 2) + rest * (rest + 1) // 2
        return self.window * (self.window + 1) // 2 + (length - self.window) * self.window

    def flops_at(self, length: int) -> int | None:
        """Return the operations of scores and weighted values, for a pass over this many tokens; None if unknown.

        Each channel needs a product and a sum.
        """
        return None if self.pair is None else 2 * self.queries * self.pair * self.pairs_at(length)


def of_config(config: Mapping[str, Any], family: Family, decoded: RopeSet) -> dict[str, KvCache]:
    """Return the cache of the full and the sliding layers, in the type of the weights.

    Empty if its size is unknown: heads differ by layer type, or the model does not keep whole keys.
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
    stateful = family.rotates in ("full", "none") and family.has_kinds  # the other layers keep a state of constant size
    full = set(entry.layers) if stateful else set(range(layers.count)) - layers.sliding
    keeping = layers.count - (part.get(SHARED_LAYERS) or 0)
    layer_types = {
        names.FULL_ATTENTION: (full, None),
        names.SLIDING_ATTENTION: (layers.sliding, layers.window),
    }
    return {
        layer_type: KvCache(
            len(those), heads * sum(layer < keeping for layer in those), keys, values,
            DTYPE_BYTES.get(dtype_of(config, part), 2), window, family.chunked, (heads * keys, heads * values),
            len(those) * (part.get(names.NUM_ATTENTION_HEADS) or 0), _pair(part, family, entry.head_dim),
        )
        for layer_type, (those, window) in layer_types.items() if those
    }  # fmt: skip


def dtype_of(config: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """Return the type of the weights in a config; empty if the config does not set it."""
    dtype = part.get("torch_dtype") or part.get("dtype") or config.get("torch_dtype") or config.get("dtype")
    return str(dtype or "")


def _pair(part: Mapping[str, Any], family: Family, head: int) -> int | None:
    """Return a key's and its value's channels for one query head; None if no export table describes the attention."""
    if family.export is None or (family.bake is not None and family.bake.indexer_k):
        return None
    if not family.mla:
        return 2 * head
    sizes = [part.get(count.key, count.default) for count in map(family.export.counts.get, ("plain", "value")) if count]
    return head + sum(sizes) if len(sizes) == 2 and all(isinstance(size, int) for size in sizes) else None


def _heads(part: Mapping[str, Any], family: Family) -> int:
    """Return the number of key heads that transformers keeps."""
    if family.one_key_for_all(part):
        return 1
    return part.get(names.NUM_KEY_VALUE_HEADS) or part.get(names.NUM_ATTENTION_HEADS) or 0
