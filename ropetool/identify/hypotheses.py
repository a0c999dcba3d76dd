"""The tables that a runtime may compute from a checkpoint: as it is meant, and as it is misread.

Plain data from numbers; knows no model and no server. What runtimes are known to read comes from their decoders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.style import context_key, section
from ropetool.errors import InvalidRope
from ropetool.rope import arithmetic
from ropetool.rope.tables import LayerRope, Regime, RopeSet, RopeTable
from ropetool.runtimes import hf_formulas as formulas
from ropetool.runtimes import inspection
from ropetool.runtimes.base import Refuses

AS_MEANT = "as meant"
USUAL_BASE = 10000.0  # what engines take where they find none


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


def hypotheses(checkpoint: HfCheckpoint) -> list[Hypothesis]:
    """Return all tables that differ, the one that is meant first.

    Raises: InvalidRope where transformers does not compute a table from the config.
    """
    meant = inspection.inspect_checkpoint(checkpoint)
    first = next((one for one in meant.readings if one.rope is not None), None)
    if first is None or first.rope is None:
        raise InvalidRope("no table is known for it", where=checkpoint.where)
    found = [Hypothesis(AS_MEANT, "every key is read as it is meant", first.rope)]
    others = [*_misread(checkpoint, first.rope), *_of_runtimes(meant)]
    for other in others:
        same = next((at for at, one in enumerate(found) if not _apart(one.rope, other.rope)), None)
        if same is None:
            found.append(other)
        else:
            found[same] = replace(found[same], alike=(*found[same].alike, other.name))
    return found


def _apart(ours: RopeSet, theirs: RopeSet) -> bool:
    return any(one.field not in ("max_position_embeddings", "sliding_window") for one in ours.differences(theirs))


def _of_runtimes(found: inspection.Inspection) -> Iterator[Hypothesis]:
    """Yield what each runtime is known to compute."""
    for reading in found.readings:
        if reading.rope is not None and found.rope is not None and set(reading.rope.entries) == set(found.rope.entries):
            yield Hypothesis(
                f"as {reading.name} reads it", f"the keys as {reading.name} is known to read them", reading.rope
            )


def _misread(checkpoint: HfCheckpoint, meant: RopeSet) -> Iterator[Hypothesis]:
    """Yield the mistakes that engines have made, of all kinds of layers that are scaled."""
    scaled = [kind for kind, entry in meant.entries.items() if entry.table is not None and not entry.unscaled]
    for name, says, change in _MISTAKES:
        try:
            changed = {kind: change(meant.entries[kind], _Told(checkpoint, meant)) for kind in scaled}
        except Refuses:
            continue  # a table that this mistake does not have
        if changed and all(entry is not None for entry in changed.values()):
            entries = {kind: changed.get(kind) or entry for kind, entry in meant.entries.items()}
            yield Hypothesis(name, says, replace(meant, entries=entries))
    yield from _of_bases(meant)
    yield from _of_kinds(meant, scaled)


def _of_bases(meant: RopeSet) -> Iterator[Hypothesis]:
    """Yield the table of the base that engines take where they find none, everything else as meant."""
    turned = {kind: entry for kind, entry in meant.entries.items() if entry.table is not None and entry.rope_theta}
    changed = {kind: _rebased(entry) for kind, entry in turned.items() if entry.rope_theta != USUAL_BASE}
    if changed:
        yield Hypothesis(
            f"base {USUAL_BASE:g}", f"{names.ROPE_THETA} is not read, and {USUAL_BASE:g} taken",
            replace(meant, entries={**meant.entries, **changed}),
        )  # fmt: skip


def _rebased(entry: LayerRope) -> LayerRope:
    """Return an entry whose pairs are divided as before, of another base."""
    assert entry.table is not None
    assert entry.rope_theta is not None
    base, other = (arithmetic.base_inv_freq(theta, entry.rotary_dim) for theta in (entry.rope_theta, USUAL_BASE))
    regimes = tuple(replace(one, inv_freq=other * (one.inv_freq / base)) for one in entry.table.regimes)
    return replace(entry, table=RopeTable(regimes), rope_theta=USUAL_BASE)


def _of_kinds(meant: RopeSet, scaled: list[str]) -> Iterator[Hypothesis]:
    """Yield what comes of mixing up the kinds of layers."""
    plain = [kind for kind, entry in meant.entries.items() if entry.table is not None and kind not in scaled]
    sizes = {entry.rotary_dim for entry in meant.entries.values() if entry.table is not None}
    if len(scaled) == 1 and plain and len(sizes) == 1:
        table, other = meant.entries[scaled[0]].table, meant.entries[plain[0]].table
        everywhere = {kind: replace(meant.entries[kind], table=table) for kind in plain}
        yield Hypothesis(
            "scaled everywhere", "the kinds of layers are not read: all turn by the scaled table",
            replace(meant, entries={**meant.entries, **everywhere}),
        )  # fmt: skip
        swapped = {**everywhere, scaled[0]: replace(meant.entries[scaled[0]], table=other)}
        yield Hypothesis(
            "kinds swapped", f"the tables of {scaled[0]} and {plain[0]} are mixed up",
            replace(meant, entries={**meant.entries, **swapped}),
        )  # fmt: skip
        yield Hypothesis(
            "nothing local", f"{scaled[0]} turns by the table of {plain[0]}",
            replace(meant, entries={**meant.entries, scaled[0]: replace(meant.entries[scaled[0]], table=other)}),
        )  # fmt: skip


@dataclass(frozen=True)
class _Told:
    """What the formulas need beside an entry."""

    checkpoint: HfCheckpoint
    meant: RopeSet

    def again(self, entry: LayerRope, **changes: object) -> LayerRope | None:
        """Return the entry of these values. Raises: Refuses where there is none."""
        if entry.rope_theta is None:
            return None
        part = section(self.checkpoint.config, self.checkpoint.family, self.checkpoint.where)
        context = part.get(context_key(part, self.checkpoint.family), self.meant.max_position_embeddings)
        params = dict(entry.params)
        resolved = formulas.Resolved(
            entry.rope_type, entry.rope_theta, entry.rotary_dim, params, entry.factor,
            entry.original_max_position_embeddings or context, context, bool(params.get(names.TRUNCATE, True)), entry.head_dim,
        )  # fmt: skip
        return replace(entry, table=formulas.table(replace(resolved, **changes)))  # type: ignore[arg-type]


_Change = Callable[[LayerRope, _Told], LayerRope | None]


def _factor(of: Callable[[float], float]) -> _Change:
    def change(entry: LayerRope, told: _Told) -> LayerRope | None:
        if entry.table is None or entry.attention_factor == 1 or not entry.table.is_fixed:
            return None
        return entry.with_factor(of(entry.attention_factor))

    return change


def _dropped(entry: LayerRope, told: _Told) -> LayerRope | None:
    if entry.rope_theta is None:
        return None
    return replace(entry, table=RopeTable.fixed(arithmetic.base_inv_freq(entry.rope_theta, entry.rotary_dim)))


def _without(*keys: str) -> _Change:
    def change(entry: LayerRope, told: _Told) -> LayerRope | None:
        if not any(key in entry.params for key in keys):
            return None
        return told.again(entry, params={key: value for key, value in entry.params.items() if key not in keys})

    return change


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
    ("scaling dropped", "the scaling is not read at all", _dropped),
    ("attention factor dropped", "the attention factor is not applied", _factor(lambda one: 1.0)),
    ("attention factor squared", "the attention factor is applied twice", _factor(lambda one: one * one)),
    ("attention factor doubled", "the attention factor is twice what it is", _factor(lambda one: 2 * one)),
    ("attention factor by default", f"{names.ATTENTION_FACTOR} is not read, and the type's own taken", _without(names.ATTENTION_FACTOR)),
    ("mscale not read", f"{names.MSCALE} and {names.MSCALE_ALL_DIM} are not read", _without(names.MSCALE, names.MSCALE_ALL_DIM)),
    ("betas not read", f"{_BETAS} are not read, and 32 and 1 taken", _without(names.BETA_FAST, names.BETA_SLOW)),
    ("truncate the other way", f"{names.TRUNCATE} is taken the other way", _truncated),
    ("original length lost", "the stated context is taken for the original length", _length(_stated)),
    ("original length doubled", "twice the original length is taken", _length(lambda one, told: 2 * one)),
    ("factor halved", "half the factor is taken", _times(0.5)),
    ("factor doubled", "twice the factor is taken", _times(2.0)),
    ("short list always", f"{names.SHORT_FACTOR} is taken at every length", _regime(0)),
    ("long list always", f"{names.LONG_FACTOR} is taken at every length", _regime(-1)),
)  # fmt: skip
