"""From a source and a request to a Plan: derive the target, try encodings, keep the first that every runtime decodes to it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool import names, runtimes
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_source, opened_as
from ropetool.errors import InvalidRope, LossyExport, RopetoolError, UnknownRuntime
from ropetool.escaping import command, word
from ropetool.files.gguf import model_name
from ropetool.files.hf import ABSENT
from ropetool.plans import notes
from ropetool.plans.basis import CURRENT, ORIGINAL, UNSCALED, PlanArguments, Request, find_start
from ropetool.plans.formats import Baking, Format, format_of
from ropetool.plans.plan import Plan, Tried
from ropetool.plans.refusals import Outset, lossy, lossy_gguf, reasons, whole_command
from ropetool.plans.scope import Extent, extent
from ropetool.plans.targets import tables_of
from ropetool.rope import methods
from ropetool.rope.methods import Derived, Goal, Method, Source
from ropetool.rope.reach import reach_of_new_base
from ropetool.rope.tables import LayerRope, RopeSet, RopeTable
from ropetool.runtimes.decoded import EncodedTarget, first_that_serves
from ropetool.weights.residual import residual_of, without_residual

if TYPE_CHECKING:
    from typing_extensions import Unpack

ROPE_OBJECTS = (names.ROPE_SCALING, names.ROPE_PARAMETERS)
ROTARY, SCORE = SCOPES = ("rotary", "score")


def make_plan(source: str | Path | Checkpoint, method: str, **options: Unpack[PlanArguments]) -> Plan:
    """Return the plan that extends a checkpoint. Does not write.

    source: a path, a hub id, or an open checkpoint, whose files are not read again.
    method: the name of a method.
    options: the other fields of `Request`, by name.

    Raises: UnknownFamily, AmbiguousRope, InvalidRope, LossyExport, CheckpointError; TooFar with force_factor=False.
    """
    return plan_for(source, Request(method, **dict[str, Any](options)))


def plan_for(source: str | Path | Checkpoint, request: Request) -> Plan:
    """Return the plan of a request. Raises: as `make_plan`."""
    method = methods.get(request.method)
    # A factor or length that is wrong for every source is reported before the source's own problems.
    Goal.make(1, request.factor, request.target_length, request.attention_factor)
    checkpoint, retyped, type_notes = opened_as(open_source(source), request.as_type)
    named = dict.fromkeys(name for each in request.for_runtimes for name in runtime_names(each, checkpoint))
    if request.config_style is not None and isinstance(checkpoint, GgufCheckpoint):
        raise InvalidRope("GGUF files have no config style", where="--config-style")
    form, readers = format_of(checkpoint, request.config_style), tuple(named) or (checkpoint.runtime,)
    request = replace(request, method=method.name)
    decoded = _decoded_source(form, readers, request)
    search = _search_for(request)(form, decoded, readers, request)
    _check_change(search)
    candidates, target = search.candidates(), search.target
    kept, attempts = first_that_serves(candidates, lambda candidate: _attempt(form, candidate, target, readers))
    tried = tuple(Tried(candidate.name, objection) for candidate, objection in attempts)
    if kept is None:
        raise search.refusal(candidates, tried)
    edits = [*kept.edits, *form.length_edits(target.max_position_embeddings)]

    def serves(several: Sequence[str]) -> bool:
        wider = format_of(checkpoint, names.BOTH) if form.style == names.V5 else form
        return _serves(wider, search.candidates(wider), target, several)

    return Plan(
        format=form.checkpoint.format,
        family=form.checkpoint.name,
        method=method.name,
        factor=search.goal.factor,
        params=search.stated(request.attention_factor),
        reading=search.reading,
        trained_length=search.trained_length,
        max_position_embeddings=target.max_position_embeddings,
        runtimes=readers,
        config_style=form.style,
        tables=tables_of(kept.read),
        softmax_multiplier=kept.read.entries[names.FULL_ATTENTION].softmax_multiplier,
        edits=(*retyped, *edits),
        candidates=tried,
        notes=(
            *type_notes, *form.notes(), *search.extent.notes, *search.notes, *notes.of_windows(target),
            *notes.of_baking(form, kept.baking), *notes.of_other_readers(form, edits, kept.read, readers, serves),
        ),
        suffix=_suffix(method, search.goal, request.target_length, search.typed),
        bakes=kept.baking.words,
        tensors=kept.baking.tensors,
        weight_files=kept.baking.weight_files,
        target=kept.read,
        identity=form.checkpoint.identity,
    )  # fmt: skip


def _check_change(search: _Search) -> None:
    """Raise TooFar for a target that has to be forced, InvalidRope for one that the source has already."""
    request, decoded, target = search.request, search.decoded, search.target
    search.extent.check(request.force_factor)
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

    def __init__(self, form: Format, decoded: RopeSet, readers: Sequence[str], request: Request) -> None:
        self.form, self.decoded, self.readers, self.request = form, decoded, readers, request
        self.entry = decoded.entries[names.FULL_ATTENTION]
        self._work_out(methods.get(request.method))

    def _work_out(self, method: Method) -> None:
        """Find where the request starts and what it leads to."""
        form, decoded, request, entry = self.form, self.decoded, self.request, self.entry
        self.start = start = find_start(form, decoded, request)
        self.goal = goal = Goal.make(
            start.source.length, request.factor, request.target_length, request.attention_factor
        )
        self.values = {**self._own_values(method), **(request.params or {})}
        self.typed = method.params(self.values)
        derived = method.derive(start.source, goal, self.typed)
        self.derived = _scoped(derived, start.source, entry, request.temperature_scope)
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

    def candidates(self, form: Format | None = None) -> list[EncodedTarget]:
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

    def refusal(self, candidates: Sequence[EncodedTarget], tried: Sequence[Tried]) -> LossyExport:
        """Return the error that says why no candidate serves, and a command that does."""
        form, readers = self.form, self.readers
        outset = Outset(self.goal, self.reading, self._new_base(), self._ignored(candidates))
        if form.checkpoint.format == "gguf":
            return lossy_gguf(form, self.request, outset, self.changed(), tried, self.would_serve)
        conflict = _conflict(form, candidates, self.target, readers)
        if conflict:
            tried = [Tried(each.name, _attempt(form, each, self.target, conflict)[1]) for each in candidates]
        rest = _agreeing(form, candidates, self.target, readers) if conflict else ()
        asked = replace(_writable(self.request), params=self.changed(), for_runtimes=tuple(readers))
        return lossy(form, asked, outset, self.entry.rope_type, tried, conflict, rest, self.would_serve)

    def _ignored(self, candidates: Sequence[EncodedTarget]) -> str:
        """Return why the first encoding has no effect in a runtime, which computes the table of the source; empty if it has one."""
        first: list[FileEdit] = next((list(candidate.edits) for candidate in candidates if candidate.edits), [])
        for runtime in self.readers if first else ():
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

    def would_serve(self, other: Request) -> bool:
        """Return whether another request could be written, for its runtimes or the same ones."""
        readers = other.for_runtimes or self.readers
        try:
            form = format_of(self.form.checkpoint, other.config_style) if other.config_style else self.form
            search = _search_for(other)(form, self.decoded, readers, other)
            return _serves(form, search.candidates(), search.target, readers)
        except RopetoolError:
            return False


class _LengthSearch(_Search):
    """The search of another stated context alone: what every kind of layer computes is to stay as it is.

    Raises, when made: InvalidRope for an option that would change more.
    """

    def _work_out(self, method: Method) -> None:
        form, decoded, request, entry = self.form, self.decoded, self.request, self.entry
        self.values = dict(request.params or {})
        self.typed = method.params(self.values)
        given = {
            "--attention-factor": request.attention_factor != "auto",
            "--temperature-scope": request.temperature_scope is not None,
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

    def candidates(self, form: Format | None = None) -> list[EncodedTarget]:
        return (form or self.form).length_candidates(self.target)

    def refusal(self, candidates: Sequence[EncodedTarget], tried: Sequence[Tried]) -> LossyExport:
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


def _decoded_source(form: Format, readers: Sequence[str], request: Request) -> RopeSet:
    """Return what the first runtime computes from the source.

    Raises: as _decode; with a command that works, where that runtime does not read the source and transformers does.
    """
    try:
        return _decode(form, readers[0], request)
    except InvalidRope as error:
        reader = form.checkpoint.runtime
        if error.try_ or reader in readers or form.checkpoint.format == "gguf":
            raise
        asked = replace(_writable(request), for_runtimes=(reader, *readers))
        for reading in (None, ORIGINAL) if request.reading is None else (request.reading,):
            again = replace(asked, reading=reading)
            for other in (
                again,
                replace(again, config_style=names.BOTH),
                replace(again, for_runtimes=(reader,)),
            ):
                if _would_serve_from(form, reader, other):
                    shown = replace(other, for_runtimes=()) if other.for_runtimes == (reader,) else other
                    raise InvalidRope(
                        error.message, where=error.where, try_=whole_command(form.checkpoint.path, shown)
                    ) from None
        raise


def _writable(request: Request) -> Request:
    """Return a request without the options that a proposed command does not repeat: scope and config style."""
    return replace(request, temperature_scope=None, config_style=None)


def _would_serve_from(form: Format, reader: str, request: Request) -> bool:
    """Return whether a request could be written from what another runtime reads of the source."""
    try:
        decoded = _decode(form, reader, request)
        search = _search_for(request)(form, decoded, request.for_runtimes, request)
    except RopetoolError:
        return False
    return search.would_serve(request)


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


def _attempt(
    form: Format, candidate: EncodedTarget, target: RopeSet, readers: Sequence[str]
) -> tuple[_Kept | None, str]:
    """Return what this encoding comes to, or None and why it does not serve."""
    if not candidate.in_weights:
        reason = _objection(form, candidate.edits, target, readers)
        return (None, reason) if reason else (_Kept(candidate.edits, target), "")
    first = form.read(readers[0], candidate.edits).rope
    try:
        read = target if first is None else without_residual(target, first)
        reason = _objection(form, candidate.edits, read, readers)
        if reason or first is None:
            return None, reason
        return _Kept(candidate.edits, read, form.bake(residual_of(target, first))), ""
    except RopetoolError as error:
        return None, f"the weights cannot store the rest: {error.message}"


def _conflict(
    form: Format, candidates: Sequence[EncodedTarget], target: RopeSet, readers: Sequence[str]
) -> tuple[str, ...]:
    """Return the one of several runtimes that no file serves, or the two that no one file does; nothing if all agree."""
    if len(readers) == 1:
        return ()
    for runtime in readers:
        if not _serves(form, candidates, target, [runtime]):
            return (runtime,)
    pairs = itertools.combinations(readers, 2)
    return next((pair for pair in pairs if not _serves(form, candidates, target, pair)), ())


def _agreeing(
    form: Format, candidates: Sequence[EncodedTarget], target: RopeSet, readers: Sequence[str]
) -> tuple[str, ...]:
    """Return as many of the runtimes, the first ones before the later, as one file serves."""
    kept: tuple[str, ...] = ()
    for runtime in readers:
        if _serves(form, candidates, target, [*kept, runtime]):
            kept = (*kept, runtime)
    return kept


def _serves(form: Format, candidates: Sequence[EncodedTarget], target: RopeSet, readers: Sequence[str]) -> bool:
    return any(_attempt(form, candidate, target, readers)[0] for candidate in candidates)


def _objection(form: Format, edits: Sequence[FileEdit], target: RopeSet, readers: Sequence[str]) -> str:
    """Return why this encoding does not serve, or an empty string: read it back as every runtime would."""
    reasons = ((runtime, form.read(runtime, edits).objection(target)) for runtime in readers)
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
