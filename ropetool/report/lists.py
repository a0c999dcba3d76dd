"""Methods, families and runtimes: as parts for a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropetool.sections import Line, Part, listing

if TYPE_CHECKING:
    from ropetool.families.family import Family
    from ropetool.rope.methods import Method
    from ropetool.runtimes import Runtime

SCHEMA = 1


# The common names, by command. --json and the documentation list all names alphabetically.
COMMON = {
    "methods": ("yarn", "llama3", "ntk", "linear", "longrope", "dynamic"),
    "families": (
        "llama", "qwen3", "qwen2", "qwen3_moe", "mistral", "gemma3", "gemma3_text", "phi3", "gpt_oss", "deepseek_v3", "mixtral",
    ),
    "runtimes": ("transformers", "llama.cpp", "vllm", "sglang"),
}  # fmt: skip


def overview_parts(command: str, rows: Sequence[tuple[str, str]]) -> Iterator[Part]:
    """Yield one row for each name, the common ones first."""
    first = [row for name in COMMON[command] for row in rows if row[0] == name]
    yield listing("", [*first, *(row for row in rows if row not in first)], depth=-1)


def method_parts(method: Method) -> Iterator[Part]:
    """Yield the summary, source, description and parameters of a method."""
    yield Line(f"{method.name}: {method.summary}")
    rows = [
        *([("also called", ", ".join(method.aliases))] if method.aliases else []),
        ("attention factor", f"{method.auto_attention_factor}, unless you pass --attention-factor"),
        ("source", method.source),
    ]
    yield listing("", rows)
    for paragraph in filter(None, (method.module.__doc__ or "").strip().split("\n\n")):
        yield from ("", Line(paragraph, breaks=True))
    fields = dataclasses.fields(method.params_type)
    if fields:
        rows = [(f.name, f"{f.metadata['help']}{_default(f.default)}") for f in fields]
        yield listing("parameters, as -p NAME VALUE", rows)


def _default(value: object) -> str:
    if value in (None, ()):
        return ""
    return f" (default {value if isinstance(value, str) else json.dumps(value)})"


def runtime_parts(runtime: Runtime) -> Iterator[Part]:
    """Yield the formats, versions and decoder of a runtime."""
    rows = [
        ("reads", ", ".join(runtime.formats)),
        ("checked with", runtime.versions),
        ("how", runtime.summary),
    ]
    yield listing(runtime.name, rows)


# --- as data


def listed(name: str, entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what --json prints: a list, of one entry if a name was passed."""
    return {"schema": SCHEMA, name: list(entries)}


def method_json(method: Method) -> dict[str, Any]:
    """Return the summary, source and parameters of a method, with defaults."""
    fields = [
        {"name": f.name, "help": f.metadata["help"], "default": list(f.default) if f.default == () else f.default}
        for f in dataclasses.fields(method.params_type)
    ]
    return {
        "name": method.name, "aliases": list(method.aliases), "summary": method.summary, "source": method.source,
        "attention_factor": method.auto_attention_factor, "parameters": fields,
    }  # fmt: skip


def family_json(family: Family) -> dict[str, Any]:
    """Return the facts about a family, with the defaults of its class for missing config keys."""
    return {
        "model_type": family.model_type, "architecture": family.architecture, "example": family.example,
        "layout": family.layout, "layer_types": list(family.rope_entries), "text_path": list(family.text_path),
        "head_dim_key": family.head_dim_key, "head_dim": family.default_head_dim,
        "rope_theta": dict(family.default_rope_theta),
        "max_position_embeddings": family.default_max_position_embeddings,
        "sliding_window": family.sliding_window, "mla": family.mla, "gguf_architecture": family.gguf_architecture or None,
        "trained_length": [
            {"max_position_embeddings": known.max_position_embeddings, "trained": known.trained, "reason": known.reason}
            for known in family.trained_length
        ],
        "source": family.source,
    }  # fmt: skip


def runtime_json(runtime: Runtime, releases: Sequence[Runtime]) -> dict[str, Any]:
    """Return formats, versions and summary of a runtime. releases: groups of releases that compute different tables."""
    return {
        "name": runtime.name, "formats": list(runtime.formats), "versions": runtime.versions, "summary": runtime.summary,
        "releases": [{"name": one.name, "versions": one.versions} for one in releases],
    }  # fmt: skip
