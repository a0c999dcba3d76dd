"""What two checkpoints say and compute side by side: tables, lengths, factors, and the other keys of their configs.

Knows decoded tables and keys, no tensors.
"""

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
    """Facts side by side, what differs in meaning, and what to know besides; readings: the tables that were compared."""

    facts: tuple[Fact, ...]
    differences: tuple[str, ...]
    notes: tuple[str, ...]
    a: RopeSet | None
    b: RopeSet | None
    runtimes: tuple[str, str]


def compare_facts(a: Opened, b: Opened) -> Compared:
    """Return what both say of positions, by the first runtime of each format that loads the file."""
    first, second = _common_runtime(a, b)
    ours, theirs = _rope(a, first), _rope(b, second)
    facts = [
        _fact("family", a.found.family.model_type if a.found.family else None,
              b.found.family.model_type if b.found.family else None),
        _fact("model type", a.found.model_type, b.found.model_type),
        _fact("trained length", a.found.trained_length, b.found.trained_length),
    ]  # fmt: skip
    if ours is None or theirs is None:
        stated = list(_stated_facts(a, b))
        why = "no supported runtime can read both models, so their config keys are compared as text"
        return Compared(
            (*facts, *stated), tuple(_named(f) for f in stated if f.differs), (why,), ours, theirs, ("", "")
        )
    context = ours.max_position_embeddings, theirs.max_position_embeddings
    facts.append(_fact("context", *context, differs=context[0] != context[1]))
    for name, one, other in _matched(ours, theirs):
        facts += _entry_facts(name, one, other)
    found = set_differences(ours, theirs)
    others, notes = _other_runtimes(a, b, first) if a.checkpoint.format == b.checkpoint.format else ([], [])
    keys, key_notes = _other_keys(a, b)
    return Compared(
        tuple(facts), (*found, *others, *keys), (*notes, *key_notes), ours, theirs, (first, second),
    )  # fmt: skip


def _fact(name: str, a: Any, b: Any, *, layer_type: str = "", differs: bool = False) -> Fact:
    return Fact(layer_type, name, a, b, differs)


def _named(fact: Fact) -> str:
    return f"{fact.name} {shown(fact.b)} instead of {shown(fact.a)}"


def _common_runtime(a: Opened, b: Opened) -> tuple[str, str]:
    """Return the first runtime that loads both; of different formats, the first of each that loads its own."""
    loading = [[r.name for r in side.found.readings if r.rope is not None] for side in (a, b)]
    if a.checkpoint.format != b.checkpoint.format:
        return next(iter(loading[0]), ""), next(iter(loading[1]), "")
    both = next((name for name in loading[0] if name in loading[1]), "")
    return both, both


def _rope(side: Opened, runtime: str) -> RopeSet | None:
    reading = side.reading(runtime)
    return reading.rope if reading else None


def _stated_facts(a: Opened, b: Opened) -> Iterator[Fact]:
    ours, theirs = a.found.stated, b.found.stated
    for key in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(key), theirs.get(key)
        yield _fact(key, one, other, differs=a.checkpoint.format == b.checkpoint.format and one != other)


# --- tables


def _matched(ours: RopeSet, theirs: RopeSet) -> list[tuple[str, LayerRope, LayerRope]]:
    """Return the kinds of layers of both that have layers in common, named as A names them."""
    if set(ours.entries) == set(theirs.entries):
        return [(name, entry, theirs.entries[name]) for name, entry in ours.entries.items()]
    return [
        (name if name == other else f"{name} / {other}", entry, found)
        for name, entry in ours.entries.items()
        for other, found in theirs.entries.items()
        if set(entry.layers) & set(found.layers)
    ]


def set_differences(ours: RopeSet, theirs: RopeSet) -> list[str]:
    """Return in a few words each what the second computes differently, the order of channels aside.

    A window that no text of the context leaves is none. The order of channels belongs to the rows of the weights.
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
    """Return the first's layers where the second has some of them: the same layers may be called otherwise."""
    return one.layers if set(one.layers) & set(other.layers) else other.layers


def _entry_facts(layer_type: str, one: LayerRope, other: LayerRope) -> Iterator[Fact]:
    for name in ("layers", "layout", "head_dim", "rotary_dim", "rope_type", "rope_theta", "factor",
                 "original_max_position_embeddings"):  # fmt: skip
        a, b = getattr(one, name), getattr(other, name)
        yield _fact(name, _data(a), _data(b), layer_type=layer_type)
    # The layers of both that have this name may be numbered otherwise, and the order of channels goes with the weights.
    differing = {found.field for found in one.differences(replace(other, layers=one.layers, layout=one.layout))}
    tables = [entry.table.regimes[-1].inv_freq.tolist() if entry.table else [] for entry in (one, other)]
    yield _fact("inv_freq", *tables, layer_type=layer_type, differs=not differing.isdisjoint(("inv_freq", "table")))
    for name in ("attention_factor", "softmax_multiplier", "temperature", "sliding_window"):
        a, b = (_data(getattr(entry, name)) for entry in (one, other))
        yield _fact(name, a, b, layer_type=layer_type, differs=name in differing)


def _data(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else vars(value) if isinstance(value, Temperature) else value


# --- other runtimes, other keys


def _other_runtimes(a: Opened, b: Opened, first: str) -> tuple[list[str], list[str]]:
    """Return what other runtimes of the format read differently in the two files: as differences, or as notes.

    Between two styles of config.json it is a note: an older reader does not know the newer style.
    """
    alike: dict[str, list[str]] = {}
    reference = set_differences(*_both(a, b, first))
    for ours in a.found.readings:
        theirs = b.reading(ours.name)
        if ours.name == first or theirs is None or not (ours.known and theirs.known):
            continue
        if ours.rope is not None and theirs.rope is not None:
            found = [text for text in set_differences(ours.rope, theirs.rope) if text not in reference]
            text = "; ".join(found)
        elif ours.rope is theirs.rope:
            text = ""
        else:
            side, why = ("A", ours.refuses) if ours.rope is None else ("B", theirs.refuses)
            text = f"cannot load {side}: {why}"
        if text:
            alike.setdefault(text, []).append(ours.name)
    lines = [f"{', '.join(runtimes.collapse_releases(who))}: {text}" for text, who in alike.items()]
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
    """Return the keys beside those of positions that both state and state differently; and a note on those of one alone."""
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
        stated = settings_of_gguf(side.values, side.found.model_type)
        return {key: _plain(value) for key, value in stated.items()}
    return settings_of_config(side.config)


def _plain(value: Value) -> Any:
    """Return a value that can be compared and shown; of a long list its digest."""
    if len(value.raw) > inspection.MAX_SHOWN_BYTES:
        return f"{value.label} {hashlib.blake2b(value.raw, digest_size=8).hexdigest()}"
    plain: Any = value.decode()
    return plain.tolist() if hasattr(plain, "tolist") else plain
