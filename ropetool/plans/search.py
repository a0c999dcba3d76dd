"""From a source and a wish to a Plan: derive the target, try encodings, keep the first that every runtime decodes to it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ropetool import names, runtimes
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.opening import is_gguf
from ropetool.errors import InvalidRope, LossyExport, RopetoolError
from ropetool.files import hub
from ropetool.plans.basis import CURRENT, Wish, find_start
from ropetool.plans.hosts import Baking, Host, adapter_notes, open_host
from ropetool.plans.plan import Candidate, Plan
from ropetool.plans.refusals import Alternative, lossy, lossy_gguf
from ropetool.plans.targets import tables_of
from ropetool.rope import methods
from ropetool.rope.methods import Derived, Goal, Method, Source
from ropetool.rope.tables import LayerRope, RopeSet, RopeTable, in_words
from ropetool.runtimes import inspection
from ropetool.runtimes.config_encodings import Way
from ropetool.runtimes.inspection import RuntimeReading
from ropetool.runtimes.llama_cpp.exported import RUNTIME
from ropetool.weights import rest_of, without_rest

__all__ = ["Candidate", "Plan", "make_plan"]

ROTARY, SCORE = SCOPES = ("rotary", "score")


def make_plan(
    source: str | Path,
    method: str,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    reading: str | None = None,
    params: Mapping[str, Any] | None = None,
    attention_factor: str | float = "auto",
    temperature_scope: str | None = None,
    original_length: int | None = None,
    for_runtimes: Sequence[str] = (),
    config_style: str | None = None,
) -> Plan:
    """Return the plan that extends a checkpoint; nothing is written.

    reading: original or current, required where the source already carries scaling. temperature_scope: rotary or score,
    what part of the score the method's factor multiplies; by default the whole under MLA, else the rotary part.
    Raises: UnknownFamily, AmbiguousRope, InvalidRope, LossyExport, CheckpointError.
    """
    chosen = methods.get(method)
    Goal.make(1, factor, target_length, attention_factor)  # what is wrong at any length is said before readings are
    path = hub.local(source)
    file_format = "gguf" if is_gguf(path) else "hf"
    wanted = tuple(dict.fromkeys(name for asked in for_runtimes for name in _names(asked, file_format)))
    if file_format == "gguf" and config_style is not None:
        raise InvalidRope("GGUF files have no config style", where="--config-style")
    host = open_host(path, config_style)
    wanted = wanted or (host.runtime,)
    decoded = _decode(host, wanted[0])
    wish = Wish(chosen.name, factor, target_length, reading, original_length)
    search = _Search(host, decoded, wanted, wish, dict(params or {}), attention_factor, temperature_scope)
    start, goal, typed, derived, target = search.start, search.goal, search.typed, search.derived, search.target
    ways = search.ways()
    tried: list[Candidate] = []
    for way in ways:
        kept, objection = _attempt(host, way, target, wanted)
        tried.append(Candidate(way.name, objection))
        if kept is not None:
            break
    else:
        raise _refusal(search, ways, tried)
    edits = [*way.edits, *host.length_edits(derived.max_position_embeddings)]

    def serves(several: Sequence[str]) -> bool:
        wider = open_host(Path(source), names.BOTH) if host.style == names.V5 else host
        return _serves(wider, search.ways(wider), target, several)

    notes = (
        *host.notes(), *start.notes, *_length_notes(decoded, target), *derived.notes, *_window_notes(target),
        *_bake_notes(host, kept.baking), *_other_readers(host, edits, kept.read, wanted, serves),
    )  # fmt: skip
    return Plan(
        host.format, host.name, chosen.name, goal.factor, search.stated(attention_factor),
        start.reading, start.trained_length, derived.max_position_embeddings, wanted, host.style,
        tables_of(kept.read), kept.read.entries[names.FULL_ATTENTION].softmax_multiplier, tuple(edits), tuple(tried),
        notes, _suffix(chosen, goal, target_length, typed),
        kept.baking.words, kept.baking.tensors, kept.baking.weight_files, target=kept.read, identity=host.identity(),
    )  # fmt: skip


class _Search:
    """What was asked of a source, worked out: where it starts, what it derives, and the ways to write that.

    Raises, when made: AmbiguousRope, InvalidRope.
    """

    def __init__(
        self,
        host: Host,
        decoded: RopeSet,
        wanted: Sequence[str],
        wish: Wish,
        values: dict[str, Any],
        attention_factor: str | float,
        temperature_scope: str | None = None,
    ) -> None:
        self.host, self.decoded, self.wanted, self.wish = host, decoded, wanted, wish
        self.attention_factor = attention_factor
        method = methods.get(wish.method)
        self.entry = entry = decoded.entries[names.FULL_ATTENTION]
        self.start = start = find_start(host, decoded, wish)
        self.goal = goal = Goal.make(start.source.length, wish.factor, wish.target_length, attention_factor)
        values = {**self._own_values(method), **values}
        self.values, self.typed = values, method.params(values)
        self.derived = _scoped(method.derive(start.source, goal, self.typed), start.source, entry, temperature_scope)
        self.target = _target(decoded, host.changed_kinds(decoded), self.derived, start.trained_length)

    def _own_values(self, method: Method) -> dict[str, Any]:
        """Return the parameters that the source states for this method, which are to hold on: it was trained with them.

        Not those of an extension by ropetool, which is replaced whole.
        """
        if self.start.reading == CURRENT or method.name != self.entry.rope_type or self.host.made is not None:
            return {}
        stated = {field.name: self.entry.params.get(field.name) for field in fields(method.params_type)}
        # Runtimes take 0 and null for a number that is not given.
        return {name: value for name, value in stated.items() if isinstance(value, bool) or value}

    def ways(self, host: Host | None = None) -> list[Way]:
        """Return the ways to write the target into the source, or into another view of it."""
        length = self.start.trained_length
        return (host or self.host).encodings(self.entry, self.derived, self.target, length, self.goal.factor)

    def stated(self, attention_factor: str | float) -> dict[str, Any]:
        """Return the parameters that were given, as plain data of the method's own types."""
        given = {name: getattr(self.typed, name) for name in self.values}
        stated = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
        return stated if attention_factor == "auto" else {**stated, names.ATTENTION_FACTOR: attention_factor}

    def changed(self) -> dict[str, Any]:
        """Return the parameters that were given and differ from the method's own."""
        own = {field.name: field.default for field in fields(self.typed)}
        return {name: value for name, value in self.stated("auto").items() if value != own[name]}

    def would_serve(self, other: Alternative) -> bool:
        """Return whether another wish could be written, for its runtimes or the same ones."""
        wanted = other.runtimes or self.wanted
        try:
            host = open_host(self.host.path, other.style) if other.style else self.host
            search = _Search(host, self.decoded, wanted, other.wish, dict(other.params), other.attention_factor)
            return _serves(host, search.ways(), search.target, wanted)
        except RopetoolError:
            return False


def _refusal(search: _Search, ways: Sequence[Way], tried: list[Candidate]) -> LossyExport:
    host, wanted = search.host, search.wanted
    if host.format == "gguf":
        return lossy_gguf(
            host, search.wish, search.goal, search.start.reading, search.changed(), tried, search.would_serve
        )
    quarrel = _quarrel(host, ways, search.target, wanted)
    if quarrel:
        tried = [Candidate(way.name, _attempt(host, way, search.target, quarrel)[1]) for way in ways]
    rest = _agreeing(host, ways, search.target, wanted) if quarrel else ()
    asked = Alternative(search.wish, search.changed(), search.attention_factor, tuple(wanted))
    return lossy(host, asked, search.goal, search.start.reading, tried, quarrel, rest, search.would_serve)


def _scoped(derived: Derived, source: Source, entry: LayerRope, scope: str | None) -> Derived:
    """Return what the method wants, its factor on the rotary part of the score or on all of it.

    Raises: InvalidRope for another scope, or a factor that depends on the length.
    """
    if scope is None:
        return derived
    if scope not in SCOPES:
        raise InvalidRope(f"{scope!r} is neither {' nor '.join(SCOPES)}", where="--temperature-scope")
    if entry.rotary_dim == entry.head_dim and source.mscale is None:
        return derived  # all channels rotate: both scopes are the same
    factors = {regime.attention_factor for regime in derived.table.regimes}
    if derived.table.rule is not None or len(factors) > 1:
        raise InvalidRope("the method's factor depends on the length", where="--temperature-scope")
    rotary = (factors.pop() / source.attention_factor) ** 2
    whole = derived.softmax_multiplier / source.softmax_multiplier
    on_rotary, on_whole = (1.0, rotary * whole) if scope == SCORE else (rotary * whole, 1.0)
    factor = source.attention_factor * math.sqrt(on_rotary)
    regimes = tuple(replace(regime, attention_factor=factor) for regime in derived.table.regimes)
    return replace(
        derived, table=RopeTable(regimes), softmax_multiplier=source.softmax_multiplier * on_whole,
        notes=(f"the factor multiplies {'the whole score' if scope == SCORE else 'the rotary part of the score'}",),
    )  # fmt: skip


def _names(asked: str, file_format: str) -> list[str]:
    """Return the runtimes that an option names; llama.cpp reads a Hugging Face checkpoint by way of our export."""
    if asked == RUNTIME:
        return [asked]
    return [runtime.name for runtime in runtimes.all_of(asked, file_format)]


def _decode(host: Host, runtime: str) -> RopeSet:
    """Return what the runtime computes from the source.

    Raises: InvalidRope if it stops with an error, or the model does not rotate.
    """
    found = inspection.understood(host.read(runtime), host.where, "config" if host.format == "hf" else "file")
    entry = found.entries.get(names.FULL_ATTENTION)
    if entry is None or entry.table is None:
        raise InvalidRope(
            "its full-attention layers do not rotate: there is no table to extend, and only the stated context limits them",
            where=host.where,
            try_=host.by_hand,
        )
    if found.max_position_embeddings < 2:
        raise InvalidRope(
            f"states a context of {found.max_position_embeddings} tokens; it must be at least 2", where=host.where
        )
    return found


@dataclass(frozen=True, eq=False)
class _Kept:
    """An encoding that serves: what every runtime reads from it, and what the weights add to that."""

    read: RopeSet
    baking: Baking = field(default_factory=Baking)


def _attempt(host: Host, way: Way, target: RopeSet, wanted: Sequence[str]) -> tuple[_Kept | None, str]:
    """Return what this encoding comes to, or None and why it does not serve."""
    if not way.baked:
        reason = _objection(host, way.edits, target, wanted)
        return (None, reason) if reason else (_Kept(target), "")
    first = host.read(wanted[0], way.edits).rope
    try:
        read = target if first is None else without_rest(target, first)
        reason = _objection(host, way.edits, read, wanted)
        if reason or first is None:
            return None, reason
        return _Kept(read, host.bake(rest_of(target, first))), ""
    except RopetoolError as error:
        return None, f"the weights cannot hold the rest: {error.message}"


def _quarrel(host: Host, ways: Sequence[Way], target: RopeSet, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the one of several runtimes that no file serves, or the two that no one file does; nothing if all agree."""
    if len(wanted) == 1:
        return ()
    for runtime in wanted:
        if not _serves(host, ways, target, [runtime]):
            return (runtime,)
    pairs = itertools.combinations(wanted, 2)
    return next((pair for pair in pairs if not _serves(host, ways, target, pair)), ())


def _agreeing(host: Host, ways: Sequence[Way], target: RopeSet, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return as many of the runtimes, the first ones before the later, as one file serves."""
    kept: tuple[str, ...] = ()
    for runtime in wanted:
        if _serves(host, ways, target, [*kept, runtime]):
            kept = (*kept, runtime)
    return kept


def _serves(host: Host, ways: Sequence[Way], target: RopeSet, wanted: Sequence[str]) -> bool:
    return any(_attempt(host, way, target, wanted)[0] for way in ways)


def _bake_notes(host: Host, baking: Baking) -> tuple[str, ...]:
    """Say what only a checkpoint with weights can carry, and what no longer fits weights that change."""
    if not baking.words:
        return ()
    if baking.tensors:
        return adapter_notes(host.path)
    return (
        f"the weights are not here, and would take {'; '.join(baking.words)}: with them the same command writes it",
    )


def _objection(host: Host, edits: Sequence[FileEdit], target: RopeSet, wanted: Sequence[str]) -> str:
    """Return why this encoding does not serve, or an empty string: read it back as every runtime would."""
    reasons = ((runtime, _difference(host.read(runtime, edits), target)) for runtime in wanted)
    return next((f"{runtime}: {reason}" for runtime, reason in reasons if reason), "")


def _difference(found: RuntimeReading, target: RopeSet) -> str:
    if found.rope is None:
        if not found.known:
            return f"not known: {found.refuses}"
        return f"stops with {found.refuses}" if found.stops else found.refuses
    return in_words(target.differences(found.rope))


def _target(decoded: RopeSet, kinds: Sequence[str], derived: Derived, trained_length: int) -> RopeSet:
    changed = {
        kind: replace(decoded.entries[kind], table=derived.table, softmax_multiplier=derived.softmax_multiplier)
        for kind in kinds
    }
    return replace(
        decoded, entries={**decoded.entries, **changed},
        max_position_embeddings=derived.max_position_embeddings, original_max_position_embeddings=trained_length,
    )  # fmt: skip


def _length_notes(decoded: RopeSet, target: RopeSet) -> tuple[str, ...]:
    present, new = decoded.max_position_embeddings, target.max_position_embeddings
    return (f"the new context of {new} tokens is below the present one of {present}",) if new < present else ()


def _window_notes(target: RopeSet) -> tuple[str, ...]:
    notes = []
    for entry in target.entries.values():
        window = entry.sliding_window
        if window is not None and len(target.entries) == 1 and window < target.max_position_embeddings:
            notes.append(
                f"the sliding window is on: each layer looks back {window} tokens at most, whatever the context of "
                f"{target.max_position_embeddings}"
            )
    return tuple(notes)


def dissenters(host: Host, edits: Sequence[FileEdit], target: RopeSet, wanted: Sequence[str]) -> dict[str, list[str]]:
    """Return what runtimes besides `wanted` would compute otherwise from the output, and which ones."""
    alike: dict[str, list[str]] = {}
    for runtime in (r.name for r in runtimes.for_format(host.format) if r.name not in wanted):
        found = host.read(runtime, edits)
        reason = _difference(found, target) if found.known else ""
        if reason:
            alike.setdefault(reason, []).append(runtime)
    return alike


def _other_readers(
    host: Host,
    edits: Sequence[FileEdit],
    target: RopeSet,
    wanted: Sequence[str],
    serves: Callable[[Sequence[str]], bool],
) -> tuple[str, ...]:
    """Say which runtimes that were not asked for would compute something else from the output, a note for each reason."""
    notes = []
    for reason, others in dissenters(host, edits, target, wanted).items():
        both = "--config-style both " if host.style == names.V5 else ""
        asked = runtimes.folded([*wanted, *others])
        named = runtimes.folded(others)
        whom = "them" if len(named) > 1 else "it"
        step = f"{both}{' '.join(f'--for {name}' for name in asked)} asks for a file that serves {whom} too"
        does = reason if reason.startswith("stops with ") else f"compute something else: {reason}"
        notes.append(
            f"{', '.join(named)} would {does.replace('stops', 'stop', 1)}; "
            + (
                step
                if serves([*wanted, *others])
                else f"no single file serves {whom} and {', '.join(runtimes.folded(wanted))}"
            )
        )
    return tuple(notes)


def _suffix(method: Method, goal: Goal, target_length: int | None, params: Any) -> str:
    if method.name == "abf":
        return f"abf-{params.rope_theta:g}".replace("e+0", "e").replace("e+", "e")
    if target_length is not None:
        return f"{method.name}-{target_length}"
    return f"{method.name}-{goal.factor:g}x"
