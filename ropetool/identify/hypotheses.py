"""The tables that a runtime may compute from a checkpoint: as it is meant, and as it is misread.

Plain data from numbers; knows no model and no server. What runtimes are known to read comes from their decoders.
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
USUAL_BASES = (10000.0, 500000.0, 1e6)  # the first is what engines take where they find none


@dataclass(frozen=True)
class Hypothesis:
    """A table, and what computing it means.

    says: of the keys, what was not read, or read otherwise. alike: other misreadings that give the same table, and runtimes
    that are known to compute it.
    """

    name: str
    says: str
    rope: RopeSet
    alike: tuple[str, ...] = ()


def hypotheses(checkpoint: HfCheckpoint, more: Sequence[Hypothesis] = ()) -> list[Hypothesis]:
    """Return all tables that differ, the one that is meant first. more: those that are known of what is served.

    Raises: InvalidRope where transformers does not compute a table from the config.
    """
    meant = inspection.inspect_checkpoint(checkpoint)
    first = next((one for one in meant.readings if one.rope is not None), None)
    if first is None or first.rope is None:
        raise InvalidRope("transformers computes no table from this config", where=checkpoint.where)
    found = [Hypothesis(AS_MEANT, "every key has its intended effect", first.rope)]
    known = [_in_its_order(one, first.rope) for one in more if set(one.rope.entries) == set(first.rope.entries)]
    others = [*_misread(checkpoint, first.rope), *known, *_of_runtimes(meant)]
    for other in others:
        if not _is_computable(first.rope, other.rope):
            continue
        same = next((at for at, one in enumerate(found) if not _apart(one.rope, other.rope)), None)
        if same is None:
            found.append(other)
        else:
            found[same] = replace(found[same], alike=(*found[same].alike, other.name))
    return found


def _in_its_order(one: Hypothesis, meant: RopeSet) -> Hypothesis:
    """Return what is known of a file as it is of the checkpoint: the order of channels is in the weights of either."""
    entries = {kind: replace(entry, layout=meant.entries[kind].layout) for kind, entry in one.rope.entries.items()}
    return replace(one, rope=replace(one.rope, entries=entries))


def _is_computable(meant: RopeSet, other: RopeSet) -> bool:
    """Return whether they differ in what the reference can be given: tables, the pairs of all layers, softmax scales."""
    pairs = {entry.layout == meant.entries[kind].layout for kind, entry in other.entries.items() if entry.table}
    return len(pairs) < 2 and all(
        entry.layers == meant.entries[kind].layers
        and (entry.table is None) == (meant.entries[kind].table is None)
        and entry.rotary_dim == meant.entries[kind].rotary_dim
        for kind, entry in other.entries.items()
    )


def _apart(ours: RopeSet, theirs: RopeSet) -> bool:
    return any(one.field not in ("max_position_embeddings", "sliding_window") for one in ours.differences(theirs))


def _of_runtimes(found: inspection.Inspection) -> Iterator[Hypothesis]:
    """Yield what each runtime is known to compute."""
    for reading in found.readings:
        if reading.rope is not None and found.rope is not None and set(reading.rope.entries) == set(found.rope.entries):
            yield Hypothesis(
                f"as {reading.name} reads it", f"the table that {reading.name} computes from the keys", reading.rope
            )


def _misread(checkpoint: HfCheckpoint, meant: RopeSet) -> Iterator[Hypothesis]:
    """Yield the mistakes that engines have made, of all kinds of layers that are scaled."""
    scaled = [kind for kind, entry in meant.entries.items() if entry.table is not None and not entry.unscaled]
    for name, says, change in _MISTAKES:
        changed = {kind: _changed(change, meant.entries[kind], _Told(checkpoint, meant)) for kind in scaled}
        if any(changed.values()):  # of several kinds those that the mistake has a table of
            entries = {kind: changed.get(kind) or entry for kind, entry in meant.entries.items()}
            yield Hypothesis(name, says, replace(meant, entries=entries))
    yield from _of_bases(meant, _Told(checkpoint, meant))
    yield from _of_kinds(meant)
    yield from _of_layouts(meant)


def _changed(change: _Change, entry: LayerRope, told: _Told) -> LayerRope | None:
    try:
        return change(entry, told)
    except Refuses:
        return None


def _of_bases(meant: RopeSet, told: _Told) -> Iterator[Hypothesis]:
    """Yield the tables of the bases that are in use, everything else as meant."""
    for base in USUAL_BASES:
        others = [
            kind
            for kind, entry in meant.entries.items()
            if entry.table is not None and entry.rope_theta not in (None, base)
        ]
        rebased = {kind: _changed(_with_base(base), meant.entries[kind], told) for kind in others}
        if any(rebased.values()):
            entries = {kind: rebased.get(kind) or entry for kind, entry in meant.entries.items()}
            says = f"{names.ROPE_THETA} is ignored; the base is {base:g}"
            yield Hypothesis(f"base {base:g}", says, replace(meant, entries=entries))


def _of_layouts(meant: RopeSet) -> Iterator[Hypothesis]:
    """Yield what comes of pairing channels as other weights are laid out."""
    swapped = {
        kind: replace(entry, layout="half" if entry.layout == "interleaved" else "interleaved")
        for kind, entry in meant.entries.items()
    }
    if len({entry.layout for entry in meant.entries.values()}) == 1:
        yield Hypothesis(
            "layout swapped", "the channels are paired as in the other layout", replace(meant, entries=swapped)
        )


def _of_kinds(meant: RopeSet) -> Iterator[Hypothesis]:
    """Yield what comes of mixing up two kinds of layers that turn by tables of their own."""
    turned = [kind for kind, entry in meant.entries.items() if entry.table is not None]
    for one, other in itertools.permutations(turned, 2):
        ours, theirs = meant.entries[one], meant.entries[other]
        assert ours.table is not None
        if ours.rotary_dim != theirs.rotary_dim or (theirs.table is not None and ours.table.agrees(theirs.table)):
            continue
        everywhere = {**meant.entries, other: replace(theirs, table=ours.table)}
        yield Hypothesis(f"{other} as {one}", f"{other} uses the table of {one}", replace(meant, entries=everywhere))
        if one < other:
            swapped = {**everywhere, one: replace(ours, table=theirs.table)}
            yield Hypothesis(
                "kinds swapped", f"the tables of {one} and {other} are swapped", replace(meant, entries=swapped)
            )


@dataclass(frozen=True)
class _Told:
    """What the formulas need beside an entry."""

    checkpoint: HfCheckpoint
    meant: RopeSet

    def again(self, entry: LayerRope, **changes: Any) -> LayerRope | None:
        """Return the entry of these values, as transformers computes it. Raises: Refuses where there is none."""
        if entry.rope_theta is None:
            return None
        family = self.checkpoint.family
        part = section(self.checkpoint.config, family, self.checkpoint.where)
        context = part.get(context_key(part, family), self.meant.max_position_embeddings)
        params = dict(entry.params)
        resolved = formulas.Resolved(
            entry.rope_type, entry.rope_theta, entry.rotary_dim, params, entry.factor,
            entry.original_max_position_embeddings or context, context, bool(params.get(names.TRUNCATE, True)), entry.head_dim,
        )  # fmt: skip
        resolved = replace(resolved, **changes)
        kind = next(kind for kind, one in self.meant.entries.items() if one is entry)
        keys = {**resolved.params, names.FACTOR: resolved.factor}
        return formulas.entry(resolved, part, family, kind, transformers.softmax(resolved.rope_type, keys, family))


_Change = Callable[[LayerRope, _Told], LayerRope | None]


def _factor(of: Callable[[float], float]) -> _Change:
    def change(entry: LayerRope, told: _Told) -> LayerRope | None:
        if entry.table is None or entry.attention_factor == 1 or entry.table.rule is not None:
            return None
        return entry.with_factor(of(entry.attention_factor))

    return change


def _with_base(base: float) -> _Change:
    return lambda entry, told: told.again(entry, rope_theta=base)


def _evenly(entry: LayerRope, told: _Told) -> LayerRope | None:
    return None if entry.factor is None or entry.rope_type == "linear" else told.again(entry, rope_type="linear")


def _dropped(entry: LayerRope, told: _Told) -> LayerRope | None:
    return told.again(entry, rope_type="default")


def _without(*keys: str) -> _Change:
    def change(entry: LayerRope, told: _Told) -> LayerRope | None:
        if not any(key in entry.params for key in keys):
            return None
        return told.again(entry, params={key: value for key, value in entry.params.items() if key not in keys})

    return change


def _unscored(entry: LayerRope, told: _Told) -> LayerRope | None:
    return None if entry.softmax_multiplier == 1 else replace(entry, softmax_multiplier=1.0)


def _truncated(entry: LayerRope, told: _Told) -> LayerRope | None:
    if entry.rope_type != "yarn":
        return None
    return told.again(entry, truncate=not entry.params.get(names.TRUNCATE, True))


def _length(of: Callable[[int, _Told], int]) -> _Change:
    def change(entry: LayerRope, told: _Told) -> LayerRope | None:
        length = entry.original_max_position_embeddings
        return (
            None
            if length is None or entry.rope_type not in ("yarn", "llama3")
            else told.again(entry, length=of(length, told))
        )

    return change


def _stated(length: int, told: _Told) -> int:
    return told.meant.max_position_embeddings


def _times(share: float) -> _Change:
    def change(entry: LayerRope, told: _Told) -> LayerRope | None:
        return None if entry.factor is None else told.again(entry, factor=max(1.0, entry.factor * share))

    return change


def _regime(at: int) -> _Change:
    def change(entry: LayerRope, told: _Told) -> LayerRope | None:
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
    ("original length lost", "the context length replaces the original length", _length(_stated)),
    ("original length doubled", "the original length is doubled", _length(lambda one, told: 2 * one)),
    ("factor halved", "the factor is halved", _times(0.5)),
    ("factor doubled", "the factor is doubled", _times(2.0)),
    ("short list always", f"{names.SHORT_FACTOR} applies at every length", _regime(0)),
    ("long list always", f"{names.LONG_FACTOR} applies at every length", _regime(-1)),
)  # fmt: skip
