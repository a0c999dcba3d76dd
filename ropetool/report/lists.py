"""Methods, families and runtimes as text for a terminal."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from ropetool.families import Family
from ropetool.methods import Method
from ropetool.report.layout import columns
from ropetool.runtimes import Runtime

WINDOWS = {"never": "none", "always": "as stated", "alternate": "on some layers, as stated"}


def overview(rows: Sequence[tuple[str, str]]) -> str:
    """Return one line for each name."""
    return columns(rows, indent=0)


def method_text(method: Method) -> str:
    """Return what a method does, where it comes from, and its parameters."""
    rows = [
        *([("also called", ", ".join(method.aliases))] if method.aliases else []),
        ("attention factor", f"{method.auto_attention_factor}, unless --attention-factor says another"),
        ("source", method.source),
    ]
    text = f"{method.name}: {method.summary}\n{columns(rows)}\n{(method.module.__doc__ or '').strip()}\n"
    fields = dataclasses.fields(method.params_type)
    if not fields:
        return text
    return f"{text}\nparameters, as -p NAME VALUE\n" + columns(
        [(f.name, f"{f.metadata['help']}{_default(f.default)}") for f in fields]
    )


def _default(value: object) -> str:
    if value in (None, ()):
        return ""
    return f" (default {value if isinstance(value, str) else json.dumps(value)})"


def family_text(family: Family) -> str:
    """Return what ropetool knows of a family, what does not apply to it left out."""
    theta = ", ".join(f"{value:g} ({kind})" for kind, value in family.default_rope_theta.items())
    rows = [
        ("architecture", family.architecture),
        ("example", family.example),
        ("rope keys in", ".".join(family.text_path) or "the top of config.json"),
        ("one table for", ", ".join(family.rope_entries)),
        ("layout", family.layout + (f", half where {family.interleave_key} is false" if family.interleave_key else "")),
        ("head_dim", _head_dim(family)),
        ("theta by default", theta),
        ("context by default", f"{family.default_max_position_embeddings} tokens"),
        ("sliding window", WINDOWS.get(family.sliding_window, f"if {family.sliding_window}")),
        *([("softmax scale", "follows mscale_all_dim (MLA)")] if family.mla else []),
        *((f"shipped {t.max_position_embeddings}", f"{t.trained}: {t.reason}") for t in family.trained_length),
        ("source", family.source),
    ]  # fmt: skip
    return f"{family.model_type}\n{columns(rows)}"


def _head_dim(family: Family) -> str:
    silent = "hidden_size / num_attention_heads" if family.default_head_dim is None else str(family.default_head_dim)
    return f"{family.head_dim_key}, {silent} if absent"


def runtime_text(runtime: Runtime) -> str:
    """Return what a runtime reads and how."""
    rows = [
        ("reads", ", ".join(runtime.formats)),
        ("checked with", runtime.versions),
        ("how", runtime.summary),
    ]
    return f"{runtime.name}\n{columns(rows)}"
