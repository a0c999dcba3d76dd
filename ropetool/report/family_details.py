"""All facts about a model family, as parts for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ropetool import families
from ropetool.families import records
from ropetool.families.family import Family
from ropetool.families.wrappers import ALIASES, WRAPPERS, Wrapper
from ropetool.sections import Part, listing

WINDOWS = {"never": "none", "always": "as configured", "alternate": "on some layers, as configured"}
ROTATES = {
    "no_rope_layers": "layers with 1 in no_rope_layers",
    "sliding": "sliding-window layers",
    "sliding-if-any": "sliding-window layers, or all layers if no layer has a window",
    "full": "full-attention layers; the others keep a state",
    "none": "none; `--method length` only raises the configured context length",
}
Rows = Iterator[tuple[str, str]]


def family_parts(family: Family) -> Iterator[Part]:
    """Yield the facts about a family, a row each; rows that do not apply are missing."""
    trained = ((f"shipped {t.max_position_embeddings}", f"{t.trained}: {t.reason}") for t in family.trained_length)
    facts = (*_place(family), *_defaults(family), *_rotation(family), *_rope_keys(family), *_weights(family))
    yield listing(family.model_type, [*facts, *trained, *_other_types(family), ("source", family.source)])


def _place(family: Family) -> Rows:
    layout = family.layout + (f", half where {family.interleave_key} is false" if family.interleave_key else "")
    yield "architecture", family.architecture
    if family.remote:
        yield "code", "only remote code, which ropetool never runs"
    if family.example:
        yield "example", family.example
    yield "rope keys in", ".".join(family.text_path) or "the top of config.json"
    yield "one table for", ", ".join(family.rope_entries)
    if family.rope_groups:
        yield (
            "under other names",
            ", ".join(f"{layer_type} under {group}" for layer_type, group in family.rope_groups.items()),
        )
    yield "layout", layout
    yield "head_dim", _head_dim(family)
    if family.head_dim_keys:
        yield "by layer type", ", ".join(f"{layer_type} by {key}" for layer_type, key in family.head_dim_keys.items())
    if family.null_head_dim:
        yield (
            "without head_dim",
            f"{' and '.join(family.null_head_dim)} cannot load yarn, dynamic or longrope; extend writes head_dim",
        )


def _head_dim(family: Family) -> str:
    silent = "hidden_size / num_attention_heads" if family.default_head_dim is None else str(family.default_head_dim)
    return f"{family.head_dim_key}, {silent} if absent" if family.head_dim_key else silent


def _defaults(family: Family) -> Rows:
    yield (
        "theta by default",
        ", ".join(f"{value:g} ({layer_type})" for layer_type, value in family.default_rope_theta.items()),
    )
    yield "in transformers 4", f"{family.v4_default_rope_theta:g}" if family.in_v4 else "not known"
    yield "context by default", f"{family.default_max_position_embeddings} tokens"
    yield "sliding window", WINDOWS.get(family.sliding_window, f"if {family.sliding_window}")


def _rotation(family: Family) -> Rows:
    if family.pattern:
        yield "without layer types", f"every layer whose number is a multiple of {family.pattern} is full"
    if family.rotates != "all":
        yield "layers that rotate", ROTATES[family.rotates]
    if family.rotates_if:
        yield "rotates only if", ", ".join(f"{key} is {value}" for key, value in family.rotates_if.items())
    if family.off_key:
        yield "does not rotate if", f"{family.off_key} is true"
    if family.partial_rotary_key:
        share = f"{family.default_partial_rotary_factor:g} if absent"
        yield "part that rotates", f"{family.partial_rotary_key}, {share}"
    if family.norm_after:
        yield "norms", "follow the rotation, so a factor on cos and sin has no effect"
    if family.mla:
        v4 = "" if family.v4_softmax_scale else "; transformers 4.57 ignores it"
        yield "softmax scale", "follows mscale_all_dim (MLA)" + v4
        yield "table", "rotates only the decoupled keys"
    if family.temperature_key:
        yield "score", f"grows with the position by {family.temperature_key}"


def _rope_keys(family: Family) -> Rows:
    if family.rope_types:
        yield "rope types", ", ".join(family.rope_types)
    if family.default_rope_type != "default":
        yield "without rope keys", f"{family.default_rope_type}, with the numbers of the class"
    for key, one in family.needed.items():
        values = " or ".join("absent" if value is None else json.dumps(value) for value in one.values)
        yield "decoded only if", f"{key} is {values}: {one.why}"
    for key, effect in family.beyond.items():
        yield "beyond the context", f"its code {effect} if {key} is on"


def _weights(family: Family) -> Rows:
    if family.gguf_architecture:
        yield "GGUF architecture", family.gguf_architecture
    if family.bake is not None:
        yield "key projections", ", ".join(step.tensor.replace("{head}", "*") for step in family.bake.k)
        if family.bake.refused:
            yield "bake", f"refused: {family.bake.refused}"


def _other_types(family: Family) -> Rows:
    aliases = [name for name, known in ALIASES.items() if known == family.model_type]
    if aliases:
        yield "other names", ", ".join(aliases)
    for name, wrapper in wrappers_around(family.model_type).items():
        yield f"inside {name}", _wrapper(wrapper)


def wrappers_around(model_type: str) -> dict[str, Wrapper]:
    """Return the wrappers, by model_type, whose text model has this type by default."""
    known = {name: families.wrapper_of(name) for name in sorted({*WRAPPERS, *records.names()})}
    return {name: wrapper for name, wrapper in known.items() if wrapper is not None and wrapper.default == model_type}


def _wrapper(wrapper: Wrapper) -> str:
    parts = [
        f"in {wrapper.text}",
        *(["with any model_type"] if wrapper.fixed else []),
        *([f"requires {', '.join(wrapper.needs)}"] if wrapper.needs else []),
        *(["the same in transformers 4.57"] if wrapper.in_v4 else []),
    ]
    return f"{', '.join(parts)}; {wrapper.source}"
