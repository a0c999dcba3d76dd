"""The types of llama.cpp's cache of keys and values."""

from __future__ import annotations

import os
import re

from ropetool.errors import ConfigError

BLOCK_TYPES = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
CACHE_TYPES = ("f32", "f16", "bf16", *BLOCK_TYPES)  # those of `--cache-type-k` in common/arg.cpp
UNROTATED = "LLAMA_ATTN_ROT_DISABLE"  # src/llama-kv-cache.cpp; this variable disables the rotation of block caches


def check_cache_type(cache_type: str | None) -> None:
    """Raise ConfigError if this is not a type of llama.cpp's cache."""
    if cache_type is not None and cache_type not in CACHE_TYPES:
        raise ConfigError(f"{cache_type!r} is not one of {', '.join(CACHE_TYPES)}", where="--cache-type")


def unrotated() -> bool:
    """Return whether the environment disables llama.cpp's rotation of block caches."""
    number = re.match(r"\s*[+-]?\d+", os.environ.get(UNROTATED, ""))  # as C's atoi reads it
    return number is not None and int(number[0]) != 0


def cache_ways(cache_type: str | None) -> list[str]:
    """Return the settings of the cache for the key of a run: a requested type, and UNROTATED if blocks are not rotated."""
    return [] if cache_type is None else [f"{cache_type} cache", *([UNROTATED] if unrotated() else [])]
