"""The inspection as text for a terminal."""

from __future__ import annotations

import json

import numpy as np

from ropetool import rope, runtimes
from ropetool.disagreements import differences
from ropetool.escaping import escaped
from ropetool.inspection import Inspection, RuntimeReading
from ropetool.report.layout import columns
from ropetool.spec import MAX_LENGTH, Array, LayerRope, RopeSet, RopeTable

AGREES = "as above"
SHOWN_APART = frozenset({"factor", "attention_factor", "dimension_count"})


def inspection_text(found: Inspection, target_length: int | None) -> str:
    """Return what `ropetool inspect` prints."""
    family = found.family.model_type if found.family else "unknown"
    head = f"{escaped(found.source)}: {_plain(found.model_type) or 'no model_type'}, family: {family}\n"
    if found.rope is None:
        return f"{head}\nas written\n{_stated_text(found)}" + (_runtimes_text(found) if found.readings else "")
    target = target_length or found.rope.max_position_embeddings
    parts = [head, *(_entry_text(t, e, found, found.rope, target) for t, e in found.rope.entries.items())]
    parts.append("\nKV cache, one sequence\n" + columns([
        ("per token", _size(sum(k.per_token for k in found.kv_bytes.values()))),
        (f"at {target} tokens", _size(found.cache_bytes(target))),
    ]))  # fmt: skip
    parts.append(_runtimes_text(found))
    return "".join(parts)


def _stated_text(found: Inspection) -> str:
    rows = [(_plain(key), _plain(json.dumps(value, ensure_ascii=False))) for key, value in found.stated.items()]
    return columns(rows or [("nothing about positions", "")])


def _plain(text: str) -> str:
    """Return text from a file as it can be shown: no control characters, and not too long."""
    return escaped(text if len(text) <= 70 else f"{text[:67]}...")


def _entry_text(layer_type: str, entry: LayerRope, found: Inspection, decoded: RopeSet, target: int) -> str:
    trained = found.trained_length
    rows = [
        (
            "layers",
            f"{_ranges(entry.layers)}; head_dim {entry.head_dim}, rotary_dim {entry.rotary_dim}, {entry.layout} layout",
        ),
        ("rope type", _type_text(entry)),
        ("trained length", f"{trained} tokens" if trained else "not stored in the file"),
        ("context stated", f"{decoded.max_position_embeddings} tokens"),
        ("attention factor", _factor_text(entry)),
    ]
    if entry.softmax_multiplier != 1:
        rows.append(("softmax scale", f"the whole score times {entry.softmax_multiplier:.6g}"))
    if entry.sliding_window is not None:
        rows.append(("sliding window", f"{entry.sliding_window} tokens"))
    text = f"\n{escaped(layer_type)}\n" + columns(rows)
    if entry.table is not None:
        # Within a window no two positions are further apart than that, in training and afterwards.
        window = entry.sliding_window or MAX_LENGTH
        length = min(trained or decoded.max_position_embeddings, window)
        text += _regimes_text(entry, entry.table, length, min(target, window))
    return text


def _regimes_text(entry: LayerRope, table: RopeTable, length: int, target: int) -> str:
    text, limit = "", None
    for regime in table.regimes:
        scope = f" up to {regime.up_to} tokens" if regime.up_to else f" beyond {limit} tokens" if limit else ""
        # Each regime at the part of the target that it serves.
        reach = min(target, regime.up_to) if regime.up_to else max(target, limit or 0)
        inv_freq = regime.inv_freq if table.rule is None else table.at(reach).inv_freq
        text += f"\n  bands{scope}, turns counted in {length} tokens\n"
        text += _bands_text(entry, regime.inv_freq, inv_freq, length, reach)
        limit = regime.up_to
    return text


def _type_text(entry: LayerRope) -> str:
    theta = f", theta {entry.rope_theta:g}" if entry.rope_theta else ""
    factor = f", factor {entry.factor:g}" if entry.factor else ""
    # GGUF keys have the architecture and their section in front: llama.rope.scaling.attn_factor.
    named = {key.rpartition(".")[2]: value for key, value in entry.params.items()}
    shown = {k: v for k, v in named.items() if not isinstance(v, list) and k not in SHOWN_APART and v is not None}
    rest = "".join(f", {k} {escaped(v)}" for k, v in shown.items())
    if entry.table is not None and entry.table.rule is not None:
        rest += "; the table follows the length"
    return f"{entry.rope_type}{theta}{factor}{rest}"


def _factor_text(entry: LayerRope) -> str:
    factor = entry.attention_factor
    return "1" if factor == 1 else f"{factor:.6g} on cos and sin, so scores get {factor**2:.6g}"


def _bands_text(entry: LayerRope, inv_freq: Array, extended: Array, length: int, target: int) -> str:
    """Return three lines: pairs that turned often, some, and less than once; and what the target asks of each.

    `extended` is the table that a sequence of the target's length is rotated by.
    """
    in_trained, at_target = rope.turns(inv_freq, length), rope.turns(extended, target)
    # The arc that a slow pair has seen is that of the unscaled table in the trained length.
    seen = (
        rope.turns(rope.base_inv_freq(entry.rope_theta, entry.rotary_dim), length) if entry.rope_theta else in_trained
    )
    over = int(np.sum((seen < 1) & (at_target > seen * (1 + 1e-9))))
    near, middle, far = rope.bands(inv_freq, length)
    inside = "stays inside what it has seen"
    rows = [
        ("turns", "pairs", f"at {target} tokens"),
        (f"over {rope.NEAR_TURNS:g}", str(near), "every angle seen many times: any length is safe"),
        ("1 to 32", str(middle), "every angle seen"),
        (
            "under 1",
            str(far),
            inside if not over else f"{over} pairs pass the arc seen in training",
        ),
    ]
    return columns(rows, indent=4)


def _runtimes_text(found: Inspection) -> str:
    """Return the runtimes by what they make of the file: those that agree first, then what others do, and what it does."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for reading in found.readings:
        alike.setdefault(_made_of(reading, found.rope), []).append(reading.name)
    rows: list[tuple[str, str]] = []
    for (label, *reasons), names in sorted(alike.items(), key=lambda item: item[0][0] != AGREES):
        rows.append((label, ", ".join(runtimes.spoken(names))))
        rows += [("", f"- {reason}") for reason in reasons]
    return "\nruntimes\n" + columns(rows)


def _made_of(reading: RuntimeReading, decoded: RopeSet | None) -> tuple[str, ...]:
    """Return a label, and the reasons for it."""
    if reading.rope is None or decoded is None:
        return ("refuses" if reading.known else "not known", reading.refuses)
    found = differences(decoded, reading.rope)
    return ("DIFFERS", *found) if found else (AGREES,)


def _ranges(layers: tuple[int, ...]) -> str:
    """Return 0-3, or 5, 11, 17 for layers that do not follow each other."""
    if layers and layers == tuple(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}-{layers[-1]}"
    shown = ", ".join(str(i) for i in layers[:6])
    return f"{shown}, ... ({len(layers)} layers)" if len(layers) > 6 else shown or "none"


def _size(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"
