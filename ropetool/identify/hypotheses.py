"""The tables that a runtime may compute from a checkpoint: the intended table, and known misreadings.

The decoders of the runtimes supply the tables that each runtime computes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.style import context_key, section
from ropetool.errors import InvalidRope
from ropetool.rope.tables import LayerRope, Regime, RopeSet, RopeTable
from ropetool.runtimes import hf_formulas as formulas
from ropetool.runtimes import inspection, transformers
from ropetool.runtimes.base import Refuses

AS_MEANT = "as meant"
USUAL_BASES = (10000.0, 500000.0, 1e6)  # engines use the first one if the config has no base


@dataclass(frozen=True)
class Hypothesis:
    """A table, and the misreading that leads to it.

    name: a short name, unique among hypotheses.
    says: the key that is ignored or misread, as a message.
    rope: the table of each layer type.
    alike: names of other misreadings with the same table, and of runtimes that compute it.
    """

    name: str
    says: str
    rope: RopeSet
    alike: tuple[str, ...] = ()


def hypotheses(checkpoint: HfCheckpoint, more: Sequence[Hypothesis] = ()) -> list[Hypothesis]:
    """Return all hypotheses with different tables. The intended one is the first.

    more: further hypotheses, for example about the options of llama-server.
    Raises: InvalidRope if transformers does not compute a table from the config.
    """
    inspected = inspection.inspect_checkpoint(checkpoint)
    first = next((one for one in inspected.readings if one.rope is not None), None)
    if first is None or first.rope is None:
        raise InvalidRope("transformers computes no table from this config", where=checkpoint.where)
    distinct = [Hypothesis(AS_MEANT, "every key has its intended effect", first.rope)]
    known = [_in_its_order(one, first.rope) for one in more if set(one.rope.entries) == set(first.rope.entries)]
    others = [*_misread(checkpoint, first.rope), *known, *_of_runtimes(inspected)]
    for other in others:
        if not _is_computable(first.rope, other.rope):
            continue
        index = next((number for number, one in enumerate(distinct) if not _differ(one.rope, other.rope)), None)
        if index is None:
            distinct.append(other)
        else:
            distinct[index] = replace(distinct[index], alike=(*distinct[index].alike, other.name))
    return distinct


def _in_its_order(one: Hypothesis, intended: RopeSet) -> Hypothesis:
    """Return a hypothesis about a GGUF file with the checkpoint's channel layout, which belongs to its weights."""
    entries = {
        layer_type: replace(entry, layout=intended.entries[layer_type].layout)
        for layer_type, entry in one.rope.entries.items()
    }
    return replace(one, rope=replace(one.rope, entries=entries))


def _is_computable(intended: RopeSet, other: RopeSet) -> bool:
    """Return whether the reference can compute it: it differs only in tables, softmax scales and one layout for all."""
    pairs = {
        entry.layout == intended.entries[layer_type].layout
        for layer_type, entry in other.entries.items()
        if entry.table
    }
    return len(pairs) < 2 and all(
        entry.layers == intended.entries[layer_type].layers
        and (entry.table is None) == (intended.entries[layer_type].table is None)
        and entry.rotary_dim == intended.entries[layer_type].rotary_dim
        for layer_type, entry in other.entries.items()
    )


def _differ(ours: RopeSet, theirs: RopeSet) -> bool:
    return any(one.field not in ("max_position_embeddings", "sliding_window") for one in ours.differences(theirs))


def _of_runtimes(inspected: inspection.Inspection) -> Iterator[Hypothesis]:
    """Yield the table that each runtime is known to compute."""
    for reading in inspected.readings:
        if (
            reading.rope is not None
            and inspected.rope is not None
            and set(reading.rope.entries) == set(inspected.rope.entries)
        ):
            yield Hypothesis(
                f"as {reading.name} reads it", f"the table that {reading.name} computes from the keys", reading.rope
            )


def _misread(checkpoint: HfCheckpoint, intended: RopeSet) -> Iterator[Hypothesis]:
    """Yield the known mistakes of engines, applied to all layer types that are scaled."""
    scaled = [
        layer_type for layer_type, entry in intended.entries.items() if entry.table is not None and not entry.unscaled
    ]
    for name, says, change in _MISTAKES:
        changed = {
            layer_type: _changed(change, intended.entries[layer_type], _Source(checkpoint, intended))
            for layer_type in scaled
        }
        if any(changed.values()):  # layer types to which the mistake does not apply keep their table
            entries = {layer_type: changed.get(layer_type) or entry for layer_type, entry in intended.entries.items()}
            yield Hypothesis(name, says, replace(intended, entries=entries))
    yield from _of_bases(intended, _Source(checkpoint, intended))
    yield from _of_layer_types(intended)
    yield from _of_layouts(intended)


def _changed(change: _Change, entry: LayerRope, source: _Source) -> LayerRope | None:
    try:
        return change(entry, source)
    except Refuses:
        return None


def _of_bases(intended: RopeSet, source: _Source) -> Iterator[Hypothesis]:
    """Yield the tables with one of the usual bases instead of the intended base."""
    for base in USUAL_BASES:
        others = [
            layer_type
            for layer_type, entry in intended.entries.items()
            if entry.table is not None and entry.rope_theta not in (None, base)
        ]
        rebased = {
            layer_type: _changed(_with_base(base), intended.entries[layer_type], source) for layer_type in others
        }
        if any(rebased.values()):
            entries = {layer_type: rebased.get(layer_type) or entry for layer_type, entry in intended.entries.items()}
            says = f"{names.ROPE_THETA} is ignored; the base is {base:g}"
            yield Hypothesis(f"base {base:g}", says, replace(intended, entries=entries))


def _of_layouts(intended: RopeSet) -> Iterator[Hypothesis]:
    """Yield the tables with the other channel layout."""
    swapped = {
        layer_type: replace(entry, layout="half" if entry.layout == "interleaved" else "interleaved")
        for layer_type, entry in intended.entries.items()
    }
    if len({entry.layout for entry in intended.entries.values()}) == 1:
        yield Hypothesis(
            "layout swapped", "the channels are paired as in the other layout", replace(intended, entries=swapped)
        )


def _of_layer_types(intended: RopeSet) -> Iterator[Hypothesis]:
    """Yield the tables after two layer types with different tables are mixed up."""
    rotating = [layer_type for layer_type, entry in intended.entries.items() if entry.table is not None]
    for one, other in itertools.permutations(rotating, 2):
        ours, theirs = intended.entries[one], intended.entries[other]
        assert ours.table is not None
        if ours.rotary_dim != theirs.rotary_dim or (theirs.table is not None and ours.table.agrees(theirs.table)):
            continue
        everywhere = {**intended.entries, other: replace(theirs, table=ours.table)}
        yield Hypothesis(f"{other} as {one}", f"{other} uses the table of {one}", replace(intended, entries=everywhere))
        if one < other:
            swapped = {**everywhere, one: replace(ours, table=theirs.table)}
            yield Hypothesis(
                "kinds swapped", f"the tables of {one} and {other} are swapped", replace(intended, entries=swapped)
            )


@dataclass(frozen=True)
class _Source:
    """The checkpoint of an entry and its intended tables, for formulas that need more than the entry."""

    checkpoint: HfCheckpoint
    intended: RopeSet

    def again(self, entry: LayerRope, **changes: Any) -> LayerRope | None:
        """Return the entry with changed values, as transformers computes it, or None if the entry has no base.

        Raises: Refuses if transformers does not compute a table from the values.
        """
        if entry.rope_theta is None:
            return None
        family = self.checkpoint.family
        part = section(self.checkpoint.config, family, self.checkpoint.where)
        context = part.get(context_key(part, family), self.intended.max_position_embeddings)
        params = dict(entry.params)
        resolved = formulas.Resolved(
            entry.rope_type, entry.rope_theta, entry.rotary_dim, params, entry.factor,
            entry.original_max_position_embeddings or context, context, bool(params.get(names.TRUNCATE, True)), entry.head_dim,
        )  # fmt: skip
        resolved = replace(resolved, **changes)
        layer_type = next(layer_type for layer_type, one in self.intended.entries.items() if one is entry)
        keys = {**resolved.params, names.FACTOR: resolved.factor}
        return formulas.entry(
            resolved, part, family, layer_type, transformers.softmax(resolved.rope_type, keys, family)
        )


_Change = Callable[[LayerRope, _Source], LayerRope | None]


def _factor(of: Callable[[float], float]) -> _Change:
    def change(entry: LayerRope, source: _Source) -> LayerRope | None:
        if entry.table is None or entry.attention_factor == 1 or entry.table.rule is not None:
            return None
        return entry.with_factor(of(entry.attention_factor))

    return change


def _with_base(base: float) -> _Change:
    return lambda entry, source: source.again(entry, rope_theta=base)


def _evenly(entry: LayerRope, source: _Source) -> LayerRope | None:
    return None if entry.factor is None or entry.rope_type == "linear" else source.again(entry, rope_type="linear")


def _dropped(entry: LayerRope, source: _Source) -> LayerRope | None:
    return source.again(entry, rope_type="default")


def _without(*keys: str) -> _Change:
    def change(entry: LayerRope, source: _Source) -> LayerRope | None:
        if not any(key in entry.params for key in keys):
            return None
        return source.again(entry, params={key: value for key, value in entry.params.items() if key not in keys})

    return change


def _unscored(entry: LayerRope, source: _Source) -> LayerRope | None:
    return None if entry.softmax_multiplier == 1 else replace(entry, softmax_multiplier=1.0)


def _truncated(entry: LayerRope, source: _Source) -> LayerRope | None:
    if entry.rope_type != "yarn":
        return None
    return source.again(entry, truncate=not entry.params.get(names.TRUNCATE, True))


def _length(of: Callable[[int, _Source], int]) -> _Change:
    def change(entry: LayerRope, source: _Source) -> LayerRope | None:
        length = entry.original_max_position_embeddings
        return (
            None
            if length is None or entry.rope_type not in ("yarn", "llama3")
            else source.again(entry, length=of(length, source))
        )

    return change


def _context_length(length: int, source: _Source) -> int:
    return source.intended.max_position_embeddings


def _times(share: float) -> _Change:
    def change(entry: LayerRope, source: _Source) -> LayerRope | None:
        return None if entry.factor is None else source.again(entry, factor=max(1.0, entry.factor * share))

    return change


def _regime(at: int) -> _Change:
    def change(entry: LayerRope, source: _Source) -> LayerRope | None:
        if entry.table is None or len(entry.table.regimes) < 2:
            return None
        one: Regime = entry.table.regimes[at]
        return replace(entry, table=RopeTable.fixed(one.inv_freq, one.attention_factor))

    return change


_BETAS = f"{names.BETA_FAST} and {names.BETA_SLOW}"
_MISTAKES: tuple[tuple[str, str, _Change], ...] = (
    ("scaling dropped", "the whole scaling is ignored", _dropped),
    ("linear in its place", "the factor divides every frequency, as in linear scaling", _evenly),
    ("attention factor dropped", "the attention factor is ignored", _factor(lambda one: 1.0)),
    ("attention factor squared", "the attention factor is applied twice", _factor(lambda one: one * one)),
    ("attention factor doubled", "the attention factor is twice the right value", _factor(lambda one: 2 * one)),
    ("attention factor by default", f"{names.ATTENTION_FACTOR} is ignored; the type's default applies", _without(names.ATTENTION_FACTOR)),
    ("mscale not read", f"{names.MSCALE} and {names.MSCALE_ALL_DIM} are ignored", _without(names.MSCALE, names.MSCALE_ALL_DIM)),
    ("softmax scale not read", f"{names.MSCALE_ALL_DIM} does not change the softmax scale", _unscored),
    ("betas not read", f"{_BETAS} are ignored; 32 and 1 apply", _without(names.BETA_FAST, names.BETA_SLOW)),
    ("truncate the other way", f"{names.TRUNCATE} has the opposite value", _truncated),
    ("original length lost", "the context length replaces the original length", _length(_context_length)),
    ("original length doubled", "the original length is doubled", _length(lambda one, source: 2 * one)),
    ("factor halved", "the factor is halved", _times(0.5)),
    ("factor doubled", "the factor is doubled", _times(2.0)),
    ("short list always", f"{names.SHORT_FACTOR} applies at every length", _regime(0)),
    ("long list always", f"{names.LONG_FACTOR} applies at every length", _regime(-1)),
)  # fmt: skip
