"""What to know and to do after an extension: the memory that its context takes, and the command that measures it."""

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


def following(plan: Plan, output: Path, kinds: Mapping[str, KvCache]) -> Following | None:
    """Return the next step after a plan, or None for a bake. kinds: the cache by layer type."""
    if plan.method == BAKE:
        return None
    context = plan.max_position_embeddings
    line = command("ropetool", "verify", output)
    return Following(sum(kind.bytes_at(context) for kind in kinds.values()) if kinds else None, line)


def following_gguf(plan: Plan, source: GgufCheckpoint, output: Path) -> Following | None:
    """Return the next step after a plan for a GGUF file, with the source's cache at the new context."""
    try:
        kinds = {} if plan.target is None else kv_cache.of_gguf(source, plan.target)
    except RopetoolError:  # keys that llama.cpp does not load
        kinds = {}
    return following(plan, output, kinds)
