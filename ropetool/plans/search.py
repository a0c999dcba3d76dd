"""Make a plan: derive the target, and find the first encoding that every required runtime decodes to it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ropetool import names, runtimes
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.opening import Checkpoint, open_source, opened_as
from ropetool.errors import InvalidRope, LossyExport, RopetoolError, UnknownRuntime
from ropetool.escaping import command, word
from ropetool.files.hf import ABSENT
from ropetool.files.shard_names import model_name
from ropetool.plans import notes
from ropetool.plans.basis import (
    CURRENT,
    NATIVE_SHORT,
    ORIGINAL,
    UNSCALED,
    PlanArguments,
    Request,
    Unpack,
    find_start,
    takes_fields,
    whole_command,
)
from ropetool.plans.formats import Baking, Format, format_of
from ropetool.plans.plan import Plan, Tried, reasons
from ropetool.plans.scope import Extent, extent
from ropetool.plans.targets import tables_of
from ropetool.rope import methods
from ropetool.rope.methods import Derived, Goal, Method, Source
from ropetool.rope.methods.base import with_native_short
from ropetool.rope.reach import reach_of_new_base
from ropetool.rope.tables import LayerRope, RopeSet, RopeTable
from ropetool.runtimes.decoded import EncodedTarget, first_that_serves

ROPE_OBJECTS = (names.ROPE_SCALING, names.ROPE_PARAMETERS)
ROTARY, SCORE = SCOPES = ("rotary", "score")


@takes_fields(Request, PlanArguments)
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
    if request.config_style is not None and checkpoint.format == "gguf":
        raise InvalidRope("GGUF files have no config style", where="--config-style")
    form, readers = format_of(checkpoint, request.config_style), tuple(named) or (checkpoint.runtime,)
    request = replace(request, method=method.name)
    request.check()
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
        params=search.stored_params(),
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
            *notes.of_two_tables(form, edits, kept.read, search.left_out),
            *notes.of_baking(form, kept.baking), *notes.of_other_readers(form, edits, kept.read, readers, serves),
        ),
        suffix=_suffix(method, search.goal, request, search.typed),
        bakes=kept.baking.words,
        tensors=kept.baking.tensors,
        weight_files=kept.baking.weight_files,
        target=kept.read,
        identity=form.checkpoint.identity,
    )  # fmt: skip


def _check_change(search: _Search) -> None:
    """Raise TooFar for a target that needs --force-factor, InvalidRope if the source has the target already."""
    request, decoded, target = search.request, search.decoded, search.target
    search.extent.check(request.force_factor)
    length = target.max_position_embeddings
    same_length = length == decoded.max_position_embeddings and not search.form.absent_context(length)
    if search.goal.factor == 1 and same_length and not target.differences(decoded):
        option = "--factor" if request.factor is not None else "--target-length"
        value = f"{request.factor:g}" if request.factor is not None else str(request.target_length)
        longer = "2" if request.factor is not None else str(2 * length)
        raise InvalidRope(
            f"{request.method} with {option} {value} changes nothing: the source has this table and a context of {length} tokens",
            where=option, try_=f"{option} {longer}",
        )  # fmt: skip


class _Search:
    """The search of an encoding for a request.

    decoded: what the first runtime computes from the source.
    readers: the names of the runtimes that must read the output.
    start, goal, derived, target: the start of the extension, its length, and the table that the method derives.
    values, typed: the parameters of the method as passed, and checked.
    left_out: the attention factor that the method has for long texts, divided by the one that both tables share.

    Raises, on creation: AmbiguousRope, InvalidRope.
    """

    left_out = 1.0

    def __init__(self, form: Format, decoded: RopeSet, readers: Sequence[str], request: Request) -> None:
        self.form, self.decoded, self.readers, self.request = form, decoded, readers, request
        self.entry = decoded.entries[names.FULL_ATTENTION]
        self._work_out(methods.get(request.method))

    def _work_out(self, method: Method) -> None:
        """Find the start and derive the target."""
        form, decoded, request, entry = self.form, self.decoded, self.request, self.entry
        self.start = start = find_start(form, decoded, request)
        attention_factor = request.attention_factor
        if request.native_short and attention_factor == "auto":  # most runtimes apply one factor at every length
            attention_factor = start.source.attention_factor
        self.goal = goal = Goal.make(start.source.length, request.factor, request.target_length, attention_factor)
        self.values = {**self._own_values(method), **(request.params or {})}
        self.typed = method.params(self.values)
        derived = method.derive(start.source, goal, self.typed)
        if request.native_short:
            derived = with_native_short(derived, start.source)
            own = method.derive(start.source, replace(goal, attention_factor="auto"), self.typed)
            if request.temperature_scope is None:  # llama-server's option scales only the rotary part
                self.left_out = own.table.regimes[-1].attention_factor / derived.table.regimes[-1].attention_factor
        self.derived = _scoped(derived, start.source, entry, request.temperature_scope)
        self.target = _target(decoded, form.changed_layer_types(decoded), self.derived, start.trained_length)
        self.reading, self.trained_length = start.reading, start.trained_length
        shipped = None if entry.unscaled or form.checkpoint.record is not None else decoded.max_position_embeddings
        measured = extent(method.name, self.target.max_position_embeddings, start.trained_length, shipped)
        # Two tables with their own factors are not measured.
        same_factor = request.native_short and self.left_out == 1
        self.extent = replace(measured, method="" if same_factor else _with_native_short(method, request))
        self.notes = (*start.notes, *notes.of_shorter_context(decoded, self.target), *self.derived.notes)

    def _own_values(self, method: Method) -> dict[str, Any]:
        """Return the parameters that the source contains for this method. They stay, because the model was trained with them.

        An extension by ropetool is replaced completely, so its parameters do not stay.
        """
        if (
            self.start.reading == CURRENT
            or method.name != self.entry.rope_type
            or self.form.checkpoint.record is not None
        ):
            return {}
        values = {field.name: self.entry.params.get(field.name) for field in fields(method.params_type)}
        # Runtimes treat 0 and null like a missing number.
        return {name: value for name, value in values.items() if isinstance(value, bool) or value}

    def candidates(self, form: Format | None = None) -> list[EncodedTarget]:
        """Return the encodings of the target, for the source or for the source in a different config style."""
        length = self.start.trained_length
        return (form or self.form).candidates(self.entry, self.derived, self.target, length, self.goal.factor)

    def params(self) -> dict[str, Any]:
        """Return the passed parameters as plain data."""
        checked = {name: getattr(self.typed, name) for name in self.values}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in checked.items()}

    def stored_params(self) -> dict[str, Any]:
        """Return the parameters of the plan: the passed ones, and the options that change the table of any method."""
        request = self.request
        factor = {} if request.attention_factor == "auto" else {names.ATTENTION_FACTOR: request.attention_factor}
        return {**self.params(), **factor, **({NATIVE_SHORT: True} if request.native_short else {})}

    def changed(self) -> dict[str, Any]:
        """Return the passed parameters that differ from the method's defaults."""
        defaults = {field.name: field.default for field in fields(self.typed)}
        return {name: value for name, value in self.params().items() if value != defaults[name]}

    def refusal(self, candidates: Sequence[EncodedTarget], tried: Sequence[Tried]) -> LossyExport:
        """Return the error with the reason why no encoding works, and a command that works."""
        from ropetool.plans.refusals import Outset, lossy, lossy_gguf  # most requests have an encoding that works

        form, readers = self.form, self.readers
        outset = Outset(self.goal, self.reading, self._new_base(), self._ignored(candidates))
        if form.checkpoint.format == "gguf":
            return lossy_gguf(form, self.request, outset, self.changed(), tried, self.would_serve)
        conflict = _conflict(form, candidates, self.target, readers)
        if conflict:
            tried = [Tried(each.name, _attempt(form, each, self.target, conflict)[1]) for each in candidates]
        rest = _agreeing(form, candidates, self.target, readers) if conflict else ()
        request = replace(_writable(self.request), params=self.changed(), for_runtimes=tuple(readers))
        return lossy(form, request, outset, self.entry.rope_type, tried, conflict, rest, self.would_serve)

    def _ignored(self, candidates: Sequence[EncodedTarget]) -> str:
        """Return a sentence if the first encoding has no effect in a runtime, else an empty string."""
        first: list[FileEdit] = next((list(candidate.edits) for candidate in candidates if candidate.edits), [])
        for runtime in self.readers if first else ():
            before, after = (_full_table(self.form.read(runtime, edits).rope) for edits in ([], first))
            if before is not None and after is not None and before.agrees(after):
                written = [edit for edit in first if edit.new is not ABSENT] or first
                parts = [part for edit in written for part in edit.path]
                key = next((part for part in parts if part in ROPE_OBJECTS), written[0].path[-1])
                table = _full_table(self.target)
                if table is not None and table.rule is not None:  # the runtime may still read the keys
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
        base, reached = reach_of_new_base(source.inv_freq, source.rope_theta, source.length, self.goal.target_length)
        return (base, reached) if reached > self.decoded.max_position_embeddings else None

    def would_serve(self, other: Request) -> bool:
        """Return whether an encoding works for another request. Without runtimes, it is for the same runtimes."""
        readers = other.for_runtimes or self.readers
        try:
            form = format_of(self.form.checkpoint, other.config_style) if other.config_style else self.form
            search = _search_for(other)(form, self.decoded, readers, other)
            return _serves(form, search.candidates(), search.target, readers)
        except RopetoolError:
            return False


class _LengthSearch(_Search):
    """The search of an encoding that changes only the configured context length, and no table.

    Raises, on creation: InvalidRope for an option that would change a table.
    """

    def _work_out(self, method: Method) -> None:
        form, decoded, request, entry = self.form, self.decoded, self.request, self.entry
        self.values = dict(request.params or {})
        self.typed = method.params(self.values)
        passed = {
            "--attention-factor": request.attention_factor != "auto",
            "--temperature-scope": request.temperature_scope is not None,
            "--native-short": request.native_short,
            "--from": request.reading == ORIGINAL, "--original-length": request.original_length is not None,
        }  # fmt: skip
        for option in (option for option, is_passed in passed.items() if is_passed):
            raise InvalidRope(
                f"{request.method} changes only the context length", where=option, try_=f"leave out {option}"
            )
        context = decoded.max_position_embeddings
        self.goal = Goal.make(context, request.factor, request.target_length)
        self.target = replace(decoded, max_position_embeddings=self.goal.target_length)
        record = form.checkpoint.record
        self.reading = UNSCALED if entry.unscaled and record is None else CURRENT
        self.trained_length = (record.trained_length if record else decoded.original_max_position_embeddings) or context
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
    """Return the method's result with its factor on the rotary part of the score, or on the whole score.

    Raises: InvalidRope for an unknown scope, or a factor that depends on the length.
    """
    if scope is None:
        return derived
    if scope not in SCOPES:
        raise InvalidRope(f"{scope!r} is neither {' nor '.join(SCOPES)}", where="--temperature-scope")
    if entry.rotary_dim == entry.head_dim and source.mscale is None:
        return derived  # all channels rotate, so both scopes are equal
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


def runtime_names(name: str, checkpoint: Checkpoint) -> list[str]:
    """Return the runtimes that an option selects. llama.cpp reads a Hugging Face checkpoint through ropetool's export.

    Raises: UnknownRuntime. For a GGUF file, the error contains the import command that makes it readable.
    """
    known = runtimes.all_of(name)
    if known[0].name == runtimes.LLAMA_CPP:
        return [runtimes.LLAMA_CPP]
    if checkpoint.format == "gguf" and "gguf" not in known[0].formats:
        folder = checkpoint.path.with_name(model_name(checkpoint.path))
        raise UnknownRuntime(
            f"{known[0].program} does not read GGUF files; it reads the Hugging Face checkpoint that `ropetool import` writes",
            where=f"--for {name}", try_=f"{command('ropetool', 'import', checkpoint.path, '-o', folder)}, and extend {word(folder)}",
        )  # fmt: skip
    return [runtime.name for runtime in runtimes.all_of(name, checkpoint.format)]


def _decoded_source(form: Format, readers: Sequence[str], request: Request) -> RopeSet:
    """Return what the first runtime computes from the source.

    Raises: as _decode. If only transformers reads the source, the error has a command that works.
    """
    try:
        return _decode(form, readers[0], request)
    except InvalidRope as error:
        reader = form.checkpoint.runtime
        if error.try_ or reader in readers or form.checkpoint.format == "gguf":
            raise
        writable = replace(_writable(request), for_runtimes=(reader, *readers))
        for reading in (None, ORIGINAL) if request.reading is None else (request.reading,):
            again = replace(writable, reading=reading)
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
    """Return whether an encoding works for a request, if the start is what another runtime reads from the source."""
    try:
        decoded = _decode(form, reader, request)
        search = _search_for(request)(form, decoded, request.for_runtimes, request)
    except RopetoolError:
        return False
    return search.would_serve(request)


def _decode(form: Format, runtime: str, request: Request) -> RopeSet:
    """Return what the runtime computes from the source.

    Raises: InvalidRope if the runtime stops with an error, or if the model does not rotate and the method changes
    tables.
    """
    missing = form.absent_context(request.target_length or 2)
    decoded = form.read(runtime, missing).understood(form.checkpoint.where, form.checkpoint.stated_in)
    if missing and not (methods.get(request.method).keeps_tables and request.target_length):
        raise InvalidRope(
            f"does not contain {missing[0].path[-1]}, which runtimes require", where=form.checkpoint.where,
            try_=f"{command('ropetool', 'extend', form.checkpoint.path, '--method', 'length', '--target-length', 'N')}, "
            "with the length that it was trained on",
        )  # fmt: skip
    entry = decoded.entries.get(names.FULL_ATTENTION)
    if entry is None or (entry.table is None and not methods.get(request.method).keeps_tables):
        several = any(each.table is not None for each in decoded.entries.values())
        which = "its full-attention layers do not rotate" if several else "none of its layers rotates"
        raise InvalidRope(
            f"{which}, so there is no table to extend; only the configured context length limits it",
            where=form.checkpoint.where, try_=replace(request, method="length").command(form.checkpoint.path),
        )  # fmt: skip
    if decoded.max_position_embeddings < 2:
        raise InvalidRope(
            f"its context length is {decoded.max_position_embeddings} tokens; it must be at least 2",
            where=form.checkpoint.where,
        )
    return decoded


@dataclass(frozen=True, eq=False)
class _Kept:
    """An encoding that works.

    edits: its edits.
    read: what every runtime reads from the edited source.
    baking: the factors that the weights add.
    """

    edits: Sequence[FileEdit]
    read: RopeSet
    baking: Baking = field(default_factory=Baking)


def _attempt(
    form: Format, candidate: EncodedTarget, target: RopeSet, readers: Sequence[str]
) -> tuple[_Kept | None, str]:
    """Return the encoding with what the runtimes read, or None and the reason why it does not work."""
    if not candidate.in_weights:
        reason = _objection(form, candidate.edits, target, readers)
        return (None, reason) if reason else (_Kept(candidate.edits, target), "")
    from ropetool.weights.residual import residual_of, without_residual  # most plans change no weights

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
    """Return the runtime that no file works for, or the two that need different files, or nothing."""
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
    """Return runtimes that can share a file. An earlier runtime has priority over a later one."""
    kept: tuple[str, ...] = ()
    for runtime in readers:
        if _serves(form, candidates, target, [*kept, runtime]):
            kept = (*kept, runtime)
    return kept


def _serves(form: Format, candidates: Sequence[EncodedTarget], target: RopeSet, readers: Sequence[str]) -> bool:
    return any(_attempt(form, candidate, target, readers)[0] for candidate in candidates)


def _objection(form: Format, edits: Sequence[FileEdit], target: RopeSet, readers: Sequence[str]) -> str:
    """Return why a runtime does not read the target from this encoding, or an empty string if all runtimes read it."""
    reasons = ((runtime, form.read(runtime, edits).objection(target)) for runtime in readers)
    return next((f"{runtime}: {reason}" for runtime, reason in reasons if reason), "")


def _target(decoded: RopeSet, layer_types: Sequence[str], derived: Derived, trained_length: int) -> RopeSet:
    changed = {
        name: replace(decoded.entries[name], table=derived.table, softmax_multiplier=derived.softmax_multiplier)
        for name in layer_types
    }
    return replace(
        decoded, entries={**decoded.entries, **changed},
        max_position_embeddings=derived.max_position_embeddings, original_max_position_embeddings=trained_length,
    )  # fmt: skip


def _with_native_short(method: Method, request: Request) -> str:
    """Return the name of the method, with its option."""
    return f"{method.name}-native-short" if request.native_short else method.name


def _suffix(method: Method, goal: Goal, request: Request, params: Any) -> str:
    name = _with_native_short(method, request)
    if method.name == "abf":
        return f"{name}-{params.rope_theta:g}".replace("e+0", "e").replace("e+", "e")
    if request.target_length is not None:
        return f"{name}-{request.target_length}"
    return f"{name}-{goal.factor:g}x"
