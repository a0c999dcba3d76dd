"""Compare the decoded settings of two checkpoints: tables, lengths, factors, and other keys of their configs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ropetool import runtimes
from ropetool.checkpoint.identity import settings_of_config, settings_of_gguf
from ropetool.comparison.results import Fact
from ropetool.comparison.sides import Opened
from ropetool.files.gguf import Value
from ropetool.files.hf.jsontext import shown
from ropetool.rope.tables import LayerRope, RopeSet, Temperature
from ropetool.runtimes import inspection


@dataclass(frozen=True)
class Compared:
    """The facts of two checkpoints.

    facts: the values side by side.
    differences: the differences in meaning, a message each.
    notes: messages about anything else.
    a: the tables of the first checkpoint that were compared. None if no runtime decodes both.
    b: the tables of the second checkpoint, likewise.
    runtimes: the runtimes that decoded the tables. Empty strings if no runtime did.
    """

    facts: tuple[Fact, ...]
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    a: RopeSet | None
    b: RopeSet | None
    runtimes: tuple[str, str]


def compare_facts(a: Opened, b: Opened) -> Compared:
    """Compare the settings of two checkpoints, decoded by the first runtime that loads both."""
    first, second = _common_runtime(a, b)
    ours, theirs = _rope(a, first), _rope(b, second)
    facts = [
        _fact("family", a.inspection.family.model_type if a.inspection.family else None,
              b.inspection.family.model_type if b.inspection.family else None),
        _fact("model type", a.inspection.model_type, b.inspection.model_type),
        _fact("trained length", a.inspection.trained_length, b.inspection.trained_length),
    ]  # fmt: skip
    if ours is None or theirs is None:
        key_facts = list(_key_facts(a, b))
        why = "no supported runtime can read both models, so their config keys are compared as text"
        return Compared(
            (*facts, *key_facts),
            tuple(_as_difference(f) for f in key_facts if f.differs),
            (why,),
            ours,
            theirs,
            ("", ""),
        )
    context = ours.max_position_embeddings, theirs.max_position_embeddings
    facts.append(_fact("context", *context, differs=context[0] != context[1]))
    for name, one, other in _matched(ours, theirs):
        facts += _entry_facts(name, one, other)
    differences = set_differences(ours, theirs)
    others, notes = _other_runtimes(a, b, first) if a.checkpoint.format == b.checkpoint.format else ([], [])
    keys, key_notes = _other_keys(a, b)
    return Compared(
        tuple(facts), (*differences, *others, *keys), (*notes, *key_notes), ours, theirs, (first, second),
    )  # fmt: skip


def _fact(name: str, a: Any, b: Any, *, layer_type: str = "", differs: bool = False) -> Fact:
    return Fact(layer_type, name, a, b, differs)


def _as_difference(fact: Fact) -> str:
    return f"{fact.name} {shown(fact.b)} instead of {shown(fact.a)}"


def _common_runtime(a: Opened, b: Opened) -> tuple[str, str]:
    """Return the first runtime that loads both.

    For two formats, return the first runtime of each format that loads its file.
    """
    loading = [[r.name for r in side.inspection.readings if r.rope is not None] for side in (a, b)]
    if a.checkpoint.format != b.checkpoint.format:
        return next(iter(loading[0]), ""), next(iter(loading[1]), "")
    both = next((name for name in loading[0] if name in loading[1]), "")
    return both, both


def _rope(side: Opened, runtime: str) -> RopeSet | None:
    reading = side.reading(runtime)
    return reading.rope if reading else None


def _key_facts(a: Opened, b: Opened) -> Iterator[Fact]:
    ours, theirs = a.inspection.stated, b.inspection.stated
    for key in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(key), theirs.get(key)
        yield _fact(key, one, other, differs=a.checkpoint.format == b.checkpoint.format and one != other)


# --- tables


def _matched(ours: RopeSet, theirs: RopeSet) -> list[tuple[str, LayerRope, LayerRope]]:
    """Return the layer types of both that have layers in common, with A's name of the type."""
    if set(ours.entries) == set(theirs.entries):
        return [(name, entry, theirs.entries[name]) for name, entry in ours.entries.items()]
    return [
        (name if name == other else f"{name} / {other}", entry, other_entry)
        for name, entry in ours.entries.items()
        for other, other_entry in theirs.entries.items()
        if set(entry.layers) & set(other_entry.layers)
    ]


def set_differences(ours: RopeSet, theirs: RopeSet) -> list[str]:
    """Return the differences in the decoded tables, a short message each. Ignores the layout and unused windows.

    A window at least as long as the context has no effect. The layout belongs to the rows of the weights.
    """
    context = min(ours.max_position_embeddings, theirs.max_position_embeddings)
    counts = [sorted(layer for entry in each.entries.values() for layer in entry.layers) for each in (ours, theirs)]
    if counts[0] != counts[1]:
        return [f"{len(counts[1])} layers instead of {len(counts[0])}"]
    entries = {name: (one, other) for name, one, other in _matched(ours, theirs)}
    first = replace(ours, entries={name: one.within(context) for name, (one, _) in entries.items()})
    second = replace(theirs, entries={
        name: replace(other.within(context), layout=one.layout, layers=_layers(one, other))
        for name, (one, other) in entries.items()
    })  # fmt: skip
    return [str(one) for one in first.differences(second)]


def _layers(one: LayerRope, other: LayerRope) -> tuple[int, ...]:
    """Return the first layers if the two overlap, else the second ones. The names of layer types may differ."""
    return one.layers if set(one.layers) & set(other.layers) else other.layers


def _entry_facts(layer_type: str, one: LayerRope, other: LayerRope) -> Iterator[Fact]:
    for name in ("layers", "layout", "head_dim", "rotary_dim", "rope_type", "rope_theta", "factor",
                 "original_max_position_embeddings"):  # fmt: skip
        a, b = getattr(one, name), getattr(other, name)
        yield _fact(name, _data(a), _data(b), layer_type=layer_type)
    # Layers of the same type may have different numbers, and the layout belongs to the weights.
    differing = {
        difference.field for difference in one.differences(replace(other, layers=one.layers, layout=one.layout))
    }
    tables = [entry.table.regimes[-1].inv_freq.tolist() if entry.table else [] for entry in (one, other)]
    yield _fact("inv_freq", *tables, layer_type=layer_type, differs=not differing.isdisjoint(("inv_freq", "table")))
    for name in ("attention_factor", "softmax_multiplier", "temperature", "sliding_window"):
        a, b = (_data(getattr(entry, name)) for entry in (one, other))
        yield _fact(name, a, b, layer_type=layer_type, differs=name in differing)


def _data(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else vars(value) if isinstance(value, Temperature) else value


# --- other runtimes, other keys


def _other_runtimes(a: Opened, b: Opened, first: str) -> tuple[list[str], list[str]]:
    """Return what other runtimes of the format decode differently in the two files: as differences, or as notes.

    It is a note if the two files have different config styles, because an older runtime does not know the newer style.
    """
    alike: dict[str, list[str]] = {}
    reference = set_differences(*_both(a, b, first))
    for ours in a.inspection.readings:
        theirs = b.reading(ours.name)
        if ours.name == first or theirs is None or not (ours.known and theirs.known):
            continue
        if ours.rope is not None and theirs.rope is not None:
            only_here = [text for text in set_differences(ours.rope, theirs.rope) if text not in reference]
            text = "; ".join(only_here)
        elif ours.rope is theirs.rope:
            text = ""
        else:
            side, why = ("A", ours.refuses) if ours.rope is None else ("B", theirs.refuses)
            text = f"cannot load {side}: {why}"
        if text:
            alike.setdefault(text, []).append(ours.name)
    lines = [f"{', '.join(runtimes.collapse_releases(runtime_names))}: {text}" for text, runtime_names in alike.items()]
    if a.config_style == b.config_style:
        return lines, []
    styles = f"{a.config_style} and {b.config_style}"
    return [], [
        f"the config styles differ ({styles}), so these runtimes compute something different: {line}" for line in lines
    ]


def _both(a: Opened, b: Opened, runtime: str) -> tuple[RopeSet, RopeSet]:
    ours, theirs = _rope(a, runtime), _rope(b, runtime)
    assert ours is not None
    assert theirs is not None
    return ours, theirs


def _other_keys(a: Opened, b: Opened) -> tuple[list[str], list[str]]:
    """Return other keys that both set to different values, as differences, and keys that only one sets, as notes."""
    if a.checkpoint.format != b.checkpoint.format:
        return [], []
    ours, theirs = _settings(a), _settings(b)
    differing = [
        f"{key} {shown(theirs[key])} instead of {shown(ours[key])}"
        for key in ours
        if key in theirs and ours[key] != theirs[key]
    ]
    notes = [
        f"only {side} sets {', '.join(sorted(only))}; otherwise programs use their defaults"
        for side, only in (("A", ours.keys() - theirs.keys()), ("B", theirs.keys() - ours.keys()))
        if only
    ]
    return differing, notes


def _settings(side: Opened) -> dict[str, Any]:
    if side.is_gguf:
        values = settings_of_gguf(side.values, side.inspection.model_type)
        return {key: _plain(value) for key, value in values.items()}
    return settings_of_config(side.config)


def _plain(value: Value) -> Any:
    """Return a value that can be compared and shown. A long list is replaced by its digest."""
    if len(value.raw) > inspection.MAX_SHOWN_BYTES:
        return f"{value.label} {hashlib.blake2b(value.raw, digest_size=8).hexdigest()}"
    plain: Any = value.decode()
    return plain.tolist() if hasattr(plain, "tolist") else plain
