"""The types of llama.cpp's keys and values. Runs nothing."""

from __future__ import annotations

import os
import re

from ropetool.errors import ConfigError

BLOCK_TYPES = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
CACHE_TYPES = ("f32", "f16", "bf16", *BLOCK_TYPES)  # those of `--cache-type-k` in common/arg.cpp
UNROTATED = "LLAMA_ATTN_ROT_DISABLE"  # src/llama-kv-cache.cpp; by it caches in blocks are kept as they are


def check_cache_type(cache_type: str | None) -> None:
    """Raise ConfigError for a type that no cache of llama.cpp has."""
    if cache_type is not None and cache_type not in CACHE_TYPES:
        raise ConfigError(f"{cache_type!r} is not one of {', '.join(CACHE_TYPES)}", where="--cache-type")


def unrotated() -> bool:
    """Return whether the environment keeps llama.cpp from rotating caches in blocks."""
    found = re.match(r"\s*[+-]?\d+", os.environ.get(UNROTATED, ""))  # as C's atoi reads it
    return found is not None and int(found[0]) != 0


def cache_ways(cache_type: str | None) -> list[str]:
    """Return what figures depend on where a type was asked for: the type, and whether blocks are rotated."""
    return [] if cache_type is None else [f"{cache_type} cache", *([UNROTATED] if unrotated() else [])]
