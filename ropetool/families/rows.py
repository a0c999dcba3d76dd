"""Row selectors by name: the rows of each head in a projection or norm, for each way that families store them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ropetool.errors import ConfigError, UnknownName
from ropetool.files.hf.jsontext import shown

Q, K = "q", "k"


@dataclass(frozen=True)
class Sizes:
    """The sizes that selectors use.

    heads, kv_heads: the number of query heads and of key heads.
    head_dim: channels of a head.
    config: the config, for sizes that only one family has.
    """

    heads: int
    kv_heads: int
    head_dim: int
    config: Mapping[str, Any]

    def of(self, side: str) -> int:
        """Return the number of heads of a side, Q or K."""
        return self.heads if side == Q else self.kv_heads

    def need(self, key: str) -> int:
        """Return a size that the config must set.

        Raises: ConfigError.
        """
        value = self.config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                f"{key} is {shown(value)}; it must be a whole number above 0, which assigns rows to heads",
                where="config.json",
            )
        return value


@dataclass(frozen=True)
class HeadRows:
    """The rows of a tensor by head.

    height: the number of rows of the tensor.
    starts: the first row of each head.
    width: the rows of a head.
    rotary: the number of the first rotary row within a head.
    """

    height: int
    starts: tuple[int, ...]
    width: int
    rotary: int = 0


def _every(step: int, count: int, first: int = 0) -> tuple[int, ...]:
    return tuple(first + step * i for i in range(count))


def heads(sizes: Sizes, side: str) -> HeadRows:
    """Return the rows of consecutive heads, in plain projections and full-width norms."""
    count = sizes.of(side)
    return HeadRows(count * sizes.head_dim, _every(sizes.head_dim, count), sizes.head_dim)


def shared(sizes: Sizes, side: str) -> HeadRows:
    """Return the rows of a vector that all heads of a side share."""
    return HeadRows(sizes.head_dim, (0,), sizes.head_dim)


def fused_sides(sizes: Sizes, side: str) -> HeadRows:
    """Return the rows of [all queries, all keys, all values], as in phi3."""
    d, first = sizes.head_dim, 0 if side == Q else sizes.heads * sizes.head_dim
    return HeadRows((sizes.heads + 2 * sizes.kv_heads) * d, _every(d, sizes.of(side), first), d)


def fused_heads(sizes: Sizes, side: str) -> HeadRows:
    """Return the rows of [query, key, value] for each head in turn, as in gpt_neox."""
    d = sizes.head_dim
    return HeadRows(3 * sizes.heads * d, _every(3 * d, sizes.heads, 0 if side == Q else d), d)


def gated_heads(sizes: Sizes, side: str) -> HeadRows:
    """Return the rows of queries that are each followed by a gate of the same size."""
    return HeadRows(2 * sizes.of(side) * sizes.head_dim, _every(2 * sizes.head_dim, sizes.of(side)), sizes.head_dim)


def falcon(sizes: Sizes, side: str) -> HeadRows:
    """Return the rows of falcon's three forms: [queries, key, value] groups, one key for all heads, separate heads."""
    if sizes.config.get("new_decoder_architecture"):
        groups, d = sizes.need("num_kv_heads"), sizes.head_dim
        queries = sizes.heads // groups
        keys = _every((queries + 2) * d, groups, queries * d)
        inner = tuple(g * (queries + 2) * d + i * d for g in range(groups) for i in range(queries))
        return HeadRows((queries + 2) * groups * d, inner if side == Q else keys, d)
    if sizes.config.get("multi_query", True):
        return fused_sides(Sizes(sizes.heads, 1, sizes.head_dim, sizes.config), side)
    return fused_heads(sizes, side)


def mla_query(sizes: Sizes, side: str) -> HeadRows:
    """Return the rows of MLA's queries: in each head the plain channels, then the rotary ones."""
    plain = sizes.need("qk_nope_head_dim")
    width = plain + sizes.need("qk_rope_head_dim")
    return HeadRows(sizes.heads * width, _every(width, sizes.heads), width, plain)


def mla_rope_key(sizes: Sizes, side: str) -> HeadRows:
    """Return the rows of MLA's only rotary key, which follow the rows of the latent."""
    latent, width = sizes.need("kv_lora_rank"), sizes.need("qk_rope_head_dim")
    return HeadRows(latent + width, (latent,), width)


def mla_plain_key(sizes: Sizes, side: str) -> HeadRows:
    """Return the rows of MLA's plain keys, which precede the values in each head."""
    plain, step = sizes.need("qk_nope_head_dim"), sizes.need("qk_nope_head_dim") + sizes.need("v_head_dim")
    return HeadRows(sizes.heads * step, _every(step, sizes.heads), plain)


def query_latent(sizes: Sizes, side: str) -> HeadRows:
    """Return all entries of the latent from which MLA computes its queries."""
    return HeadRows(sizes.need("q_lora_rank"), (0,), sizes.need("q_lora_rank"))


def indexer(sizes: Sizes, side: str) -> HeadRows:
    """Return the rows of the only key of a sparse-attention indexer, with the rotary rows first."""
    return HeadRows(sizes.need("index_head_dim"), (0,), sizes.need("index_head_dim"))


def indexer_behind(sizes: Sizes, side: str) -> HeadRows:
    """Return the rows of the only key of a sparse-attention indexer, with the rotary rows last."""
    width = sizes.need("index_head_dim")
    return HeadRows(width, (0,), width, width - sizes.need("qk_rope_head_dim"))


SELECTORS: Mapping[str, Callable[[Sizes, str], HeadRows]] = {
    selector.__name__: selector
    for selector in (
        heads, shared, gated_heads, fused_sides, fused_heads, falcon, mla_query, mla_rope_key, mla_plain_key, query_latent,
        indexer, indexer_behind,
    )
}  # fmt: skip


def select(name: str, sizes: Sizes, side: str) -> HeadRows:
    """Return the rows of each head of a side in a tensor.

    Raises: UnknownName, ConfigError.
    """
    if name not in SELECTORS:
        raise UnknownName(f"no row selector is called {name!r}; known: {', '.join(SELECTORS)}")
    return SELECTORS[name](sizes, side)
