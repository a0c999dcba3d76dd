"""The next step after an extension: the memory of the new context, and the command that measures the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import RopetoolError
from ropetool.escaping import command
from ropetool.plans.plan import BAKE, Plan
from ropetool.runtimes import kv_cache
from ropetool.runtimes.kv_cache import KvCache


@dataclass(frozen=True)
class Following:
    """The next step after an extension.

    kv_cache_bytes: the cache of one sequence at the new context; None if it is unknown.
    verify: a command line.
    """

    kv_cache_bytes: int | None
    verify: str


def following(plan: Plan, output: Path, caches: Mapping[str, KvCache]) -> Following | None:
    """Return the next step after a plan, or None for a bake. caches: the KV cache by layer type."""
    if plan.method == BAKE:
        return None
    context = plan.max_position_embeddings
    line = command("ropetool", "verify", output)
    return Following(sum(cache.bytes_at(context) for cache in caches.values()) if caches else None, line)


def following_gguf(plan: Plan, source: GgufCheckpoint, output: Path) -> Following | None:
    """Return the next step after a plan for a GGUF file, with the source's KV cache at the new context."""
    try:
        caches = {} if plan.target is None else kv_cache.of_gguf(source, plan.target)
    except RopetoolError:  # llama.cpp does not load the keys
        caches = {}
    return following(plan, output, caches)
