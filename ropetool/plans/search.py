"""From a source and a request to a Plan: derive the target, try encodings, keep the first that every runtime decodes to it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ropetool import names, runtimes
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_source, opened_as
from ropetool.errors import InvalidRope, LossyExport, RopetoolError, UnknownRuntime
from ropetool.escaping import command, read_length, word
from ropetool.files.gguf import model_name
from ropetool.files.hf import ABSENT
from ropetool.plans import notes
from ropetool.plans.basis import CURRENT, ORIGINAL, UNSCALED, Request, find_start
from ropetool.plans.formats import Baking, Format, format_of
from ropetool.plans.plan import Plan, Tried
from ropetool.plans.refusals import Alternative, Outset, lossy, lossy_gguf, reasons
from ropetool.plans.scope import Extent, extent
from ropetool.plans.targets import tables_of
from ropetool.rope import methods
from ropetool.rope.methods import Derived, Goal, Method, Source
from ropetool.rope.reach import reach_of_new_base
from ropetool.rope.tables import LayerRope, RopeSet, RopeTable
from ropetool.runtimes.decoded import first_that_serves
from ropetool.runtimes.encoding import Candidate
from ropetool.weights.residual import residual_of, without_residual

ROPE_OBJECTS = (names.ROPE_SCALING, names.ROPE_PARAMETERS)
ROTARY, SCORE = SCOPES = ("rotary", "score")


def make_plan(
    source: str | Path | Checkpoint,
    method: str,
    *,
    factor: float | None = None,
    target_length: int | str | None = None,
    reading: str | None = None,
    params: Mapping[str, Any] | None = None,
    attention_factor: str | float = "auto",
    temperature_scope: str | None = None,
    original_length: int | None = None,
    for_runtimes: str | Sequence[str] = (),
    config_style: str | None = None,
    as_type: str | None = None,
    force_factor: bool = True,
) -> Plan:
    """Return the plan that extends a checkpoint. Does not write.

    source: a path, a hub id, or an open checkpoint, whose files are not read again.
    target_length: tokens, as a number or as a text like "32k".
    reading: `original` or `current`; required if the source already has a scaling.
    temperature_scope: `rotary` or `score`, the part of the score that the method's factor multiplies. Default: the
      whole score under MLA, else the rotary part.
    as_type: the built-in model_type of the output, for a source whose type is only in remote code.
    force_factor: False refuses a method without training beyond 32 times the trained length, as the command does.
    Raises: UnknownFamily, AmbiguousRope, InvalidRope, LossyExport, CheckpointError; TooFar.
    """
    chosen = methods.get(method)
    target_length = None if target_length is None else read_length(target_length, "target_length")
    Goal.make(1, factor, target_length, attention_factor)  # what is wrong at any length is said before readings are
    checkpoint, retyped, notes_as = opened_as(open_source(source), as_type)
    named = dict.fromkeys(name for each in listed(for_runtimes) for name in runtime_names(each, checkpoint))
    if config_style is not None and isinstance(checkpoint, GgufCheckpoint):
        raise InvalidRope("GGUF files have no config style", where="--config-style")
    form, wanted = format_of(checkpoint, config_style), tuple(named) or (checkpoint.runtime,)
    request = Request(chosen.name, factor, target_length, reading, original_length, as_type)
    decoded = _decoded_source(form, wanted, request, dict(params or {}), attention_factor)
    search = _search_for(request)(
        form, decoded, wanted, request, dict(params or {}), attention_factor, temperature_scope
    )
    goal, target = search.goal, search.target
    _check_change(search, decoded, force_factor)
    candidates = search.candidates()
    kept, attempts = first_that_serves(candidates, lambda candidate: _attempt(form, candidate, target, wanted))
    tried = [Tried(candidate.name, objection) for candidate, objection in attempts]
    if kept is None:
        raise search.refusal(candidates, tried)
    context = target.max_position_embeddings
    edits = [*kept.edits, *form.length_edits(context)]

    def serves(several: Sequence[str]) -> bool:
        wider = format_of(checkpoint, names.BOTH) if form.style == names.V5 else form
        return _serves(wider, search.candidates(wider), target, several)

    said = (
        *notes_as, *form.notes(), *search.extent.notes, *search.notes, *notes.of_windows(target),
        *notes.of_baking(form, kept.baking), *notes.of_other_readers(form, edits, kept.read, wanted, serves),
    )  # fmt: skip
    return Plan(
        form.checkpoint.format, form.checkpoint.name, chosen.name, goal.factor, search.stated(attention_factor),
        search.reading, search.trained_length, context, wanted, form.style,
        tables_of(kept.read), kept.read.entries[names.FULL_ATTENTION].softmax_multiplier, (*retyped, *edits), tuple(tried),
        said, _suffix(chosen, goal, target_length, search.typed),
        kept.baking.words, kept.baking.tensors, kept.baking.weight_files, target=kept.read, identity=form.checkpoint.identity,
    )  # fmt: skip


def _check_change(search: _Search, decoded: RopeSet, force_factor: bool) -> None:
    """Return if the target is not too far, and not what the source has already. Raises: TooFar, InvalidRope."""
    search.extent.check(force_factor)
    request, target = search.request, search.target
    length = target.max_position_embeddings
    same_length = length == decoded.max_position_embeddings and not search.form.absent_context(length)
    if search.goal.factor == 1 and same_length and not target.differences(decoded):
        asked = "--factor" if request.factor is not None else "--target-length"
        value = f"{request.factor:g}" if request.factor is not None else str(request.target_length)
        longer = "2" if request.factor is not None else str(2 * length)
        raise InvalidRope(
            f"{request.method} with {asked} {value} changes nothing: the source has this table and a context of {length} tokens",
            where=asked, try_=f"{asked} {longer}",
        )  # fmt: skip


class _Search:
    """What was asked of a source, worked out: where it starts, what it derives, and the candidates to write that.

    Raises, when made: AmbiguousRope, InvalidRope.
    """

    def __init__(
        self,
        form: Format,
        decoded: RopeSet,
        wanted: Sequence[str],
        request: Request,
        values: dict[str, Any],
        attention_factor: str | float,
        temperature_scope: str | None = None,
    ) -> None:
        self.form, self.decoded, self.wanted, self.request = form, decoded, wanted, request
        self.attention_factor, self.entry = attention_factor, decoded.entries[names.FULL_ATTENTION]
        self._work_out(methods.get(request.method), values, temperature_scope)

    def _work_out(self, method: Method, values: dict[str, Any], temperature_scope: str | None) -> None:
        """Find where the request starts and what it leads to."""
        form, decoded, request, entry = self.form, self.decoded, self.request, self.entry
        self.start = start = find_start(form, decoded, request)
        length, factor = start.source.length, self.attention_factor
        self.goal = goal = Goal.make(length, request.factor, request.target_length, factor)
        values = {**self._own_values(method), **values}
        self.values, self.typed = values, method.params(values)
        self.derived = _scoped(method.derive(start.source, goal, self.typed), start.source, entry, temperature_scope)
        self.target = _target(decoded, form.changed_layer_types(decoded), self.derived, start.trained_length)
        self.reading, self.trained_length = start.reading, start.trained_length
        shipped = None if entry.unscaled or form.checkpoint.record is not None else decoded.max_position_embeddings
        self.extent = extent(method.name, self.target.max_position_embeddings, start.trained_length, shipped)
        self.notes = (*start.notes, *notes.of_shorter_context(decoded, self.target), *self.derived.notes)

    def _own_values(self, method: Method) -> dict[str, Any]:
        """Return the parameters that the source states for this method, which are to hold on: it was trained with them.

        Not those of an extension by ropetool, which is replaced whole.
        """
        if (
            self.start.reading == CURRENT
            or method.name != self.entry.rope_type
            or self.form.checkpoint.record is not None
        ):
            return {}
        stated = {field.name: self.entry.params.get(field.name) for field in fields(method.params_type)}
        # Runtimes take 0 and null for a number that is not given.
        return {name: value for name, value in stated.items() if isinstance(value, bool) or value}

    def candidates(self, form: Format | None = None) -> list[Candidate]:
        """Return the candidates to write the target into the source, or into another view of it."""
        length = self.start.trained_length
        return (form or self.form).candidates(self.entry, self.derived, self.target, length, self.goal.factor)

    def stated(self, attention_factor: str | float) -> dict[str, Any]:
        """Return the parameters that were given, as plain data of the method's own types."""
        given = {name: getattr(self.typed, name) for name in self.values}
        stated = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
        return stated if attention_factor == "auto" else {**stated, names.ATTENTION_FACTOR: attention_factor}

    def changed(self) -> dict[str, Any]:
        """Return the parameters that were given and differ from the method's own."""
        own = {field.name: field.default for field in fields(self.typed)}
        return {name: value for name, value in self.stated("auto").items() if value != own[name]}

    def refusal(self, candidates: Sequence[Candidate], tried: list[Tried]) -> LossyExport:
        """Return the error that says why no candidate serves, and a command that does."""
        form, wanted = self.form, self.wanted
        outset = Outset(self.goal, self.reading, self._new_base(), self._ignored(candidates))
        if form.checkpoint.format == "gguf":
            return lossy_gguf(form, self.request, outset, self.changed(), tried, self.would_serve)
        conflict = _conflict(form, candidates, self.target, wanted)
        if conflict:
            tried = [Tried(each.name, _attempt(form, each, self.target, conflict)[1]) for each in candidates]
        rest = _agreeing(form, candidates, self.target, wanted) if conflict else ()
        asked = Alternative(self.request, self.changed(), self.attention_factor, tuple(wanted))
        return lossy(form, asked, outset, self.entry.rope_type, tried, conflict, rest, self.would_serve)

    def _ignored(self, candidates: Sequence[Candidate]) -> str:
        """Return why the first encoding has no effect in a runtime, which computes the table of the source; empty if it has one."""
        first: list[FileEdit] = next((list(candidate.edits) for candidate in candidates if candidate.edits), [])
        for runtime in self.wanted if first else ():
            before, after = (_full_table(self.form.read(runtime, edits).rope) for edits in ([], first))
            if before is not None and after is not None and before.agrees(after):
                written = [edit for edit in first if edit.new is not ABSENT] or first
                parts = [part for edit in written for part in edit.path]
                key = next((part for part in parts if part in ROPE_OBJECTS), written[0].path[-1])
                table = _full_table(self.target)
                if table is not None and table.rule is not None:  # the runtime may read the keys all the same
                    return (
                        f"{runtime} uses one table for all lengths, so {self.request.method} scaling does not change it"
                    )
                return f"{runtime} ignores {key}"
        return ""

    def _new_base(self) -> tuple[int, int] | None:
        """Return the base of `ntk` for the goal and the tokens that it reaches, None if it does not extend the context."""
        source = self.start.source
        if source.rope_theta is None or self.reading == CURRENT or source.inv_freq.size < 2:
            return None
        found = reach_of_new_base(source.inv_freq, source.rope_theta, source.length, self.goal.target_length)
        return found if found[1] > self.decoded.max_position_embeddings else None

    def would_serve(self, other: Alternative) -> bool:
        """Return whether another request could be written, for its runtimes or the same ones."""
        wanted = other.runtimes or self.wanted
        try:
            form = format_of(self.form.checkpoint, other.style) if other.style else self.form
            search = _search_for(other.request)(
                form, self.decoded, wanted, other.request, dict(other.params), other.attention_factor
            )
            return _serves(form, search.candidates(), search.target, wanted)
        except RopetoolError:
            return False


class _LengthSearch(_Search):
    """The search of another stated context alone: what every kind of layer computes is to stay as it is.

    Raises, when made: InvalidRope for an option that would change more.
    """

    def _work_out(self, method: Method, values: dict[str, Any], temperature_scope: str | None) -> None:
        form, decoded, request, entry = self.form, self.decoded, self.request, self.entry
        self.values, self.typed = values, method.params(values)
        given = {
            "--attention-factor": self.attention_factor != "auto", "--temperature-scope": temperature_scope is not None,
            "--from": request.reading == ORIGINAL, "--original-length": request.original_length is not None,
        }  # fmt: skip
        for option in (option for option, stated in given.items() if stated):
            raise InvalidRope(
                f"{request.method} changes only the context length", where=option, try_=f"leave out {option}"
            )
        context = decoded.max_position_embeddings
        self.goal = Goal.make(context, request.factor, request.target_length)
        self.target = replace(decoded, max_position_embeddings=self.goal.target_length)
        made = form.checkpoint.record
        self.reading = UNSCALED if entry.unscaled and made is None else CURRENT
        self.trained_length = (made.trained_length if made else decoded.original_max_position_embeddings) or context
        self.extent = Extent(method.name, 0.0)
        self.notes = notes.of_kept_tables(decoded, self.target)
        if form.absent_context(self.goal.target_length):
            self.notes = (
                f"runtimes did not load the file without a context length; it is {self.goal.target_length} now",
            )

    def candidates(self, form: Format | None = None) -> list[Candidate]:
        return (form or self.form).length_candidates(self.target)

    def refusal(self, candidates: Sequence[Candidate], tried: list[Tried]) -> LossyExport:
        return LossyExport(
            f"no file can set {self.target.max_position_embeddings} tokens and keep its tables: {reasons(tried)}",
            where=self.form.checkpoint.where,
        )


def _full_table(rope: RopeSet | None) -> RopeTable | None:
    return None if rope is None else rope.entries[names.FULL_ATTENTION].table


def _search_for(request: Request) -> type[_Search]:
    return _LengthSearch if methods.get(request.method).keeps_tables else _Search


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
        raise InvalidRope(
            "does not apply: the factor of this method depends on the length", where="--temperature-scope"
        )
    rotary = (factors.pop() / source.attention_factor) ** 2
    whole = derived.softmax_multiplier / source.softmax_multiplier
    on_rotary, on_whole = (1.0, rotary * whole) if scope == SCORE else (rotary * whole, 1.0)
    factor = source.attention_factor * math.sqrt(on_rotary)
    return replace(
        derived, table=derived.table.with_factor(factor), softmax_multiplier=source.softmax_multiplier * on_whole
    )


def listed(for_runtimes: str | Sequence[str]) -> Sequence[str]:
    """Return the names of runtimes as a sequence, one or several."""
    return (for_runtimes,) if isinstance(for_runtimes, str) else for_runtimes


def runtime_names(asked: str, checkpoint: Checkpoint) -> list[str]:
    """Return the runtimes that an option selects. llama.cpp reads a Hugging Face checkpoint through ropetool's export.

    Raises: UnknownRuntime. For a GGUF file, the error contains the import command that makes it readable.
    """
    known = runtimes.all_of(asked)
    if known[0].name == GgufCheckpoint.runtime:
        return [GgufCheckpoint.runtime]
    if checkpoint.format == "gguf" and "gguf" not in known[0].formats:
        folder = checkpoint.path.with_name(model_name(checkpoint.path))
        raise UnknownRuntime(
            f"{known[0].program} does not read GGUF files; it reads the Hugging Face checkpoint that `ropetool import` writes",
            where=f"--for {asked}", try_=f"{command('ropetool', 'import', checkpoint.path, '-o', folder)}, and extend {word(folder)}",
        )  # fmt: skip
    return [runtime.name for runtime in runtimes.all_of(asked, checkpoint.format)]


def _decoded_source(
    form: Format, wanted: Sequence[str], request: Request, params: dict[str, Any], attention_factor: str | float
) -> RopeSet:
    """Return what the first runtime computes from the source.

    Raises: as _decode; with a command that works, where that runtime does not read the source and transformers does.
    """
    try:
        return _decode(form, wanted[0], request)
    except InvalidRope as error:
        reader = form.checkpoint.runtime
        if error.try_ or reader in wanted or form.checkpoint.format == "gguf":
            raise
        asked = Alternative(request, params, attention_factor, (reader, *wanted))
        readings = (None, ORIGINAL) if request.reading is None else (request.reading,)
        for reading in readings:
            again = replace(request, reading=reading)
            for other in (
                replace(asked, request=again),
                replace(asked, request=again, style=names.BOTH),
                replace(asked, request=again, runtimes=(reader,)),
            ):
                if _would_serve_from(form, reader, other):
                    shown = replace(other, runtimes=() if other.runtimes == (reader,) else other.runtimes)
                    raise InvalidRope(
                        error.message, where=error.where, try_=again.command(form.checkpoint.path, *shown.options)
                    ) from None
        raise


def _would_serve_from(form: Format, reader: str, asked: Alternative) -> bool:
    """Return whether a request could be written from what another runtime reads of the source."""
    try:
        decoded = _decode(form, reader, asked.request)
        search = _search_for(asked.request)(
            form, decoded, asked.runtimes, asked.request, dict(asked.params), asked.attention_factor
        )
    except RopetoolError:
        return False
    return search.would_serve(asked)


def _decode(form: Format, runtime: str, request: Request) -> RopeSet:
    """Return what the runtime computes from the source.

    Raises: InvalidRope if it stops with an error, or the model does not rotate and a table is to change.
    """
    given = form.absent_context(request.target_length or 2)
    found = form.read(runtime, given).understood(form.checkpoint.where, form.checkpoint.stated_in)
    if given and not (methods.get(request.method).keeps_tables and request.target_length):
        raise InvalidRope(
            f"does not contain {given[0].path[-1]}, which runtimes require", where=form.checkpoint.where,
            try_=f"{command('ropetool', 'extend', form.checkpoint.path, '--method', 'length', '--target-length', 'N')}, "
            "with the length that it was trained on",
        )  # fmt: skip
    entry = found.entries.get(names.FULL_ATTENTION)
    if entry is None or (entry.table is None and not methods.get(request.method).keeps_tables):
        several = any(each.table is not None for each in found.entries.values())
        which = "its full-attention layers do not rotate" if several else "none of its layers rotates"
        raise InvalidRope(
            f"{which}, so there is no table to extend; only the configured context length limits it",
            where=form.checkpoint.where, try_=replace(request, method="length").command(form.checkpoint.path),
        )  # fmt: skip
    if found.max_position_embeddings < 2:
        raise InvalidRope(
            f"its context length is {found.max_position_embeddings} tokens; it must be at least 2",
            where=form.checkpoint.where,
        )
    return found


@dataclass(frozen=True, eq=False)
class _Kept:
    """A candidate that serves: its edits, what every runtime reads from it, and what the weights add to that."""

    edits: Sequence[FileEdit]
    read: RopeSet
    baking: Baking = field(default_factory=Baking)


def _attempt(form: Format, candidate: Candidate, target: RopeSet, wanted: Sequence[str]) -> tuple[_Kept | None, str]:
    """Return what this encoding comes to, or None and why it does not serve."""
    if not candidate.in_weights:
        reason = _objection(form, candidate.edits, target, wanted)
        return (None, reason) if reason else (_Kept(candidate.edits, target), "")
    first = form.read(wanted[0], candidate.edits).rope
    try:
        read = target if first is None else without_residual(target, first)
        reason = _objection(form, candidate.edits, read, wanted)
        if reason or first is None:
            return None, reason
        return _Kept(candidate.edits, read, form.bake(residual_of(target, first))), ""
    except RopetoolError as error:
        return None, f"the weights cannot store the rest: {error.message}"


def _conflict(form: Format, candidates: Sequence[Candidate], target: RopeSet, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the one of several runtimes that no file serves, or the two that no one file does; nothing if all agree."""
    if len(wanted) == 1:
        return ()
    for runtime in wanted:
        if not _serves(form, candidates, target, [runtime]):
            return (runtime,)
    pairs = itertools.combinations(wanted, 2)
    return next((pair for pair in pairs if not _serves(form, candidates, target, pair)), ())


def _agreeing(form: Format, candidates: Sequence[Candidate], target: RopeSet, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return as many of the runtimes, the first ones before the later, as one file serves."""
    kept: tuple[str, ...] = ()
    for runtime in wanted:
        if _serves(form, candidates, target, [*kept, runtime]):
            kept = (*kept, runtime)
    return kept


def _serves(form: Format, candidates: Sequence[Candidate], target: RopeSet, wanted: Sequence[str]) -> bool:
    return any(_attempt(form, candidate, target, wanted)[0] for candidate in candidates)


def _objection(form: Format, edits: Sequence[FileEdit], target: RopeSet, wanted: Sequence[str]) -> str:
    """Return why this encoding does not serve, or an empty string: read it back as every runtime would."""
    reasons = ((runtime, form.read(runtime, edits).objection(target)) for runtime in wanted)
    return next((f"{runtime}: {reason}" for runtime, reason in reasons if reason), "")


def _target(decoded: RopeSet, kinds: Sequence[str], derived: Derived, trained_length: int) -> RopeSet:
    changed = {
        kind: replace(decoded.entries[kind], table=derived.table, softmax_multiplier=derived.softmax_multiplier)
        for kind in kinds
    }
    return replace(
        decoded, entries={**decoded.entries, **changed},
        max_position_embeddings=derived.max_position_embeddings, original_max_position_embeddings=trained_length,
    )  # fmt: skip


def _suffix(method: Method, goal: Goal, target_length: int | None, params: Any) -> str:
    if method.name == "abf":
        return f"abf-{params.rope_theta:g}".replace("e+0", "e").replace("e+", "e")
    if target_length is not None:
        return f"{method.name}-{target_length}"
    return f"{method.name}-{goal.factor:g}x"
