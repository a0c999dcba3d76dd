"""Find the table and the length that a method starts from. Refuse a file with two possible starts."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, get_type_hints

import numpy as np

from ropetool import names, runtimes
from ropetool.checkpoint import provenance
from ropetool.checkpoint.config_values import not_a_length
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import AmbiguousRope, InvalidRope
from ropetool.escaping import command, number, read_length
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.methods import Source
from ropetool.rope.tables import MAX_LENGTH, LayerRope, RopeSet

if TYPE_CHECKING:
    from ropetool.plans.formats import Format
if sys.version_info >= (3, 11):
    from typing import Unpack as Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
else:

    class Unpack:
        """Stand for typing.Unpack in Python 3.10, so that `typing.get_type_hints` reads the options of a function."""

        def __class_getitem__(cls, arguments: Any) -> Any:
            return arguments


ORIGINAL, CURRENT, UNSCALED = "original", "current", "unscaled"
NATIVE_SHORT = "native_short"  # in the parameters of a plan


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def takes_fields(
    data_class: Any, arguments: Any
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Show options in the signature of a function that passes them to a dataclass. It refuses other names as Python does.

    data_class: has the defaults.
    arguments: a TypedDict with the names and types of the options.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        named, defaults = inspect.signature(function), {field.name: field.default for field in fields(data_class)}
        own = [each for each in named.parameters.values() if each.kind is not each.VAR_KEYWORD]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint)
            for name, hint in get_type_hints(arguments).items()
        ]  # fmt: skip
        signature = named.replace(parameters=[*own, *options])

        @wraps(function)
        def call(*args: Parameters.args, **values: Parameters.kwargs) -> Result:
            try:
                signature.bind(*args, **values)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(*args, **values)

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {
            **{each.name: each.annotation for each in signature.parameters.values()}, "return": named.return_annotation,
        }  # fmt: skip
        return call

    return decorate


class PlanArguments(TypedDict, total=False):
    """The arguments of `plan` besides source and method; `Request` explains them."""

    factor: float | None
    target_length: int | str | None
    reading: str | None
    params: Mapping[str, Any] | None
    attention_factor: str | float
    temperature_scope: str | None
    original_length: int | None
    for_runtimes: str | Sequence[str]
    config_style: str | None
    as_type: str | None
    native_short: bool
    force_factor: bool


@dataclass(frozen=True)
class Request:
    """A requested extension. Set either the factor or the target length.

    method: the name of the method.
    factor: a multiple of the length that the extension starts from.
    target_length: the new context length in tokens. A text like "32k" becomes a number.
    reading: `original` or `current`; required if the source already has a scaling.
    original_length: the context length before any scaling, in tokens. None uses the length in the file.
    as_type: the built-in model_type of the output, for a source whose type is only in remote code.
    params: the parameters of the method by name.
    attention_factor: `auto`, `none`, `yarn`, `logn`, or a number.
    temperature_scope: `rotary` or `score`, the part of the score that the method's factor multiplies. None means the
      whole score under MLA, else the rotary part.
    for_runtimes: the runtimes that must read the output. A single name becomes a tuple. Empty means transformers, or
      llama.cpp for a GGUF file.
    config_style: `v4`, `v5` or `both`, the place of the rope keys in config.json. None keeps the style of the source.
    native_short: keep the table that the extension starts from for texts up to its length, and use the new table only
      beyond it.
    force_factor: False refuses a method without training beyond 32 times the trained length, as the command does.
    """

    method: str
    factor: float | None = None
    target_length: int | None = None
    reading: str | None = None
    original_length: int | None = None
    as_type: str | None = None
    params: Mapping[str, Any] | None = None
    attention_factor: str | float = "auto"
    temperature_scope: str | None = None
    for_runtimes: Sequence[str] = ()
    config_style: str | None = None
    native_short: bool = False
    force_factor: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.target_length, str):
            object.__setattr__(self, "target_length", read_length(self.target_length, "target_length"))
        object.__setattr__(self, "for_runtimes", listed(self.for_runtimes))

    def check(self) -> None:
        """Raise InvalidRope unless the reading is `original`, `current` or None, and the original length is in range."""
        if self.reading not in (None, ORIGINAL, CURRENT):
            raise InvalidRope(f"{self.reading!r} is neither {ORIGINAL} nor {CURRENT}", where="--from")
        if self.original_length is not None:
            check_original_length(self.original_length)

    def reach(self, length: int) -> int:
        """Return the requested context in tokens, if the start is this length."""
        return round(length * self.factor) if self.factor is not None else self.target_length or length

    def command(self, source: str | Path, *more: str) -> str:
        """Return the command line of this request on a source."""
        how = (
            ("--factor", number(self.factor))
            if self.factor is not None
            else ("--target-length", str(self.target_length))
        )
        read_as = ("--as", self.as_type) if self.as_type is not None else ()
        short = ("--native-short",) if self.native_short else ()
        return command("ropetool", "extend", Path(source), "--method", self.method, *how, *more, *short, *read_as)


def whole_command(source: Path, request: Request) -> str:
    """Return the command line of a request with all its options."""
    reading = [] if request.reading is None else ["--from", request.reading]
    params = [
        word
        for name, value in (request.params or {}).items()
        for word in ("-p", name, json.dumps(value) if isinstance(value, list) else worded(value))
    ]
    factor = [] if request.attention_factor == "auto" else ["--attention-factor", worded(request.attention_factor)]
    length = [] if request.original_length is None else ["--original-length", str(request.original_length)]
    readers = [word for name in runtimes.collapse_releases(request.for_runtimes) for word in ("--for", name)]
    style = [] if request.config_style is None else ["--config-style", request.config_style]
    return request.command(source, *reading, *params, *factor, *length, *readers, *style)


def worded(value: Any) -> str:
    """Return a parameter as text for a message. A list is replaced by its length."""
    if isinstance(value, list):
        return f"of {len(value)} divisors"
    return str(value).lower() if isinstance(value, bool) else number(value) if isinstance(value, float) else str(value)


def listed(for_runtimes: str | Sequence[str]) -> Sequence[str]:
    """Return the names of runtimes as a sequence, also for a single name."""
    return (for_runtimes,) if isinstance(for_runtimes, str) else for_runtimes


def check_original_length(length: int) -> None:
    """Raise InvalidRope for an original length out of range."""
    if not 2 <= length <= MAX_LENGTH:
        raise InvalidRope(not_a_length(length), where="--original-length")


@dataclass(frozen=True)
class Step:
    """A way to a longer context.

    reading: the value of --from. Empty for an unscaled source.
    start: the length that it starts from, in tokens. None if the file does not store it.
    reach: the context that it leads to, in tokens. None if unknown.
    command: its command line.
    """

    reading: str
    start: int | None
    reach: int | None
    command: str


def steps(
    source: str | Path, decoded: RopeSet, record: Provenance | None, trained: int | None, request: Request
) -> list[Step]:
    """Return the ways to the requested context: one for an unscaled source, up to two for a scaled one.

    Ways that cannot reach the context or that this source does not support are left out.

    record: the record of the source, or None.
    trained: the length before any scaling, in tokens, or None.
    """
    entry, context = decoded.entries[names.FULL_ATTENTION], decoded.max_position_embeddings
    assert entry.table is not None
    if entry.unscaled and record is None:
        ways = [Step("", trained, request.reach(trained or context), request.command(source))]
    else:
        original = request.original_length or trained
        ways = [] if not _has_original(record, entry) else [_from_original(source, entry, original, context, request)]
        if entry.table.rule is None:
            ways.append(Step(CURRENT, context, request.reach(context), request.command(source, "--from", CURRENT)))
    return [step for step in ways if step.start is None or step.reach is None or step.start < step.reach <= MAX_LENGTH]


def _has_original(record: Provenance | None, entry: LayerRope) -> bool:
    """Return whether the original table can be computed from the file. It cannot if the base or the weights were changed."""
    if record is None:
        return True
    return not (entry.unscaled or record.plan.get("reading") == CURRENT or record.plan.get("bakes"))


def _from_original(source: str | Path, entry: LayerRope, original: int | None, context: int, request: Request) -> Step:
    more = ["--from", ORIGINAL]
    if original is None or request.original_length is not None:
        more += ["--original-length", str(original or (round(context / entry.factor) if entry.factor else "N"))]
    reach = None if original is None and request.target_length is None else request.reach(original or context)
    return Step(ORIGINAL, original, reach, request.command(source, *more))


@dataclass(frozen=True)
class Start:
    """The start of a method.

    source: the table and its length.
    trained_length: the length that the model was trained on before any scaling, in tokens.
    reading: `original`, `current` or `unscaled`.
    notes: messages for the user.
    """

    source: Source
    trained_length: int
    reading: str
    notes: tuple[str, ...] = ()


def find_start(form: Format, decoded: RopeSet, request: Request) -> Start:
    """Return the table and length to start from.

    Raises: AmbiguousRope if a scaled source allows two interpretations, and the user did not choose. InvalidRope if the
    chosen interpretation is not possible.
    """
    entry = decoded.entries[names.FULL_ATTENTION]
    context = decoded.max_position_embeddings
    record = form.checkpoint.record
    if entry.unscaled and record is None:
        return _unscaled(form, entry, context, request)
    original = request.original_length or (record.trained_length if record else entry.original_max_position_embeddings)
    scaled = _Scaled(form, entry, original, context, request)
    if request.reading is None:
        raise scaled.refusal()
    return scaled.from_original() if request.reading == ORIGINAL else scaled.from_current()


def _unscaled(form: Format, entry: LayerRope, context: int, request: Request) -> Start:
    trained, notes = context, list[str]()
    shipped = next((t for t in form.trained_length if t.max_position_embeddings == context), None)
    if request.original_length is not None:
        trained = request.original_length
    elif shipped is not None:
        trained = shipped.trained
        reach_of_trained, reach_of_shipped = request.reach(trained), request.reach(context)
        reach = (
            ""
            if reach_of_trained == reach_of_shipped
            else f": factor {request.factor:g} gives {reach_of_trained}, not {reach_of_shipped}"
        )
        notes = [
            f"{shipped.reason}; lengths count from {trained} tokens{reach}. "
            f"--original-length {context} counts from the shipped value instead"
        ]
    return Start(_on_base(form, entry, trained), trained, UNSCALED, tuple(notes))


def _on_base(form: Format, entry: LayerRope, length: int) -> Source:
    assert entry.rope_theta is not None
    assert entry.table is not None
    base, last = base_inv_freq(entry.rope_theta, entry.rotary_dim), entry.table.regimes[-1].inv_freq
    if not last.all():  # pairs with frequency 0 are part of the trained table
        return Source(np.where(last > 0, base, 0.0), length, None, entry.rope_theta, mscale=form.mscale(entry))
    return Source(base, length, entry.rope_theta, mscale=form.mscale(entry))


@dataclass(frozen=True)
class _Scaled:
    """A scaled source, and the request.

    form: the checkpoint, and how tables are written into it.
    entry: the full-attention layers.
    original: the length before the scaling, in tokens, or None.
    context: the configured context length, in tokens.
    """

    form: Format
    entry: LayerRope
    original: int | None
    context: int
    request: Request

    @property
    def record(self) -> Provenance | None:
        return self.form.checkpoint.record

    def refusal(self) -> AmbiguousRope:
        """Return the error that explains both interpretations."""
        entry, request = self.entry, self.request
        scaling = f"{self.record.plan.get('method')} by ropetool" if self.record else entry.rope_type
        factor = f", factor {entry.factor:g}" if entry.factor else ""
        what = (
            f"factor {request.factor:g}" if request.factor is not None else f"--target-length {request.target_length}"
        )
        if self.original is not None:
            first = f"{self.original} -> {request.reach(self.original)} (--from {ORIGINAL}"
        else:
            first = (
                f"{request.factor:g} times its original length"
                if request.factor is not None
                else f"its original length -> {request.target_length}"
            )
            first += f" (--from {ORIGINAL} --original-length N"
        second = f"{self.context} -> {request.reach(self.context)} (--from {CURRENT}: on top of it)"
        assert entry.table is not None
        if entry.table.rule is not None:
            second = f"no extension (--from {CURRENT}: its table depends on the text length)"
        elif request.reach(self.context) < self.context:
            second = f"no extension (--from {CURRENT} starts at {self.context})"
        return AmbiguousRope(
            f"already scaled ({scaling}{factor}, original {self.original or 'not stored'}, context {self.context}); "
            f"{what} could mean {first}: in place of the present scaling) or {second}",
            where=self.form.checkpoint.where, try_=self._likely(),
        )  # fmt: skip

    def _likely(self) -> str:
        """Return the command for the only interpretation that works, or else for the likelier one.

        The current table does not work for a target within the context, if it depends on the length, or if the file's
        keys can store only tables of a single base.
        """
        assert self.entry.table is not None
        if self.record is not None and _has_original(self.record, self.entry):  # never a table on top of ropetool's own
            from ropetool.plans.scope import REFUSED  # only for this error

            longer = replace(self.request, factor=None, target_length=self.request.reach(self.context))
            within = self.original is not None and (longer.target_length or 0) <= REFUSED * self.original
            request = longer if within else self.request
            return _from_original(self.form.checkpoint.path, self.entry, self.original, self.context, request).command
        extends = self.original is not None and self.request.reach(self.original) > self.context
        replaced = extends and self.record is None  # `advise` also puts it first
        onward = self.request.reach(self.context) > self.context and self.entry.table.rule is None
        if self.form.builds_on_tables and onward and not replaced:
            return self.request.command(self.form.checkpoint.path, "--from", CURRENT)
        request = self.request
        if not self.form.builds_on_tables:
            request = replace(request, factor=None, target_length=request.reach(self.context))
        return _from_original(self.form.checkpoint.path, self.entry, self.original, self.context, request).command

    def from_original(self) -> Start:
        record, entry = self.record, self.entry
        path = self.form.checkpoint.path
        source = record.source if record is not None else ""  # empty if only the keys of a GGUF file are known
        made_from, of_name = (f" from {source}", f" {source}") if source else ("", "")
        again = self.request.command(source) if source else "extend the source that this file was made from"
        replaced = record is not None and (entry.unscaled or record.plan.get("reading") == CURRENT)
        if record is not None and replaced and provenance.is_of_itself(path, record):
            raise AmbiguousRope(
                f"its original table is gone: {record.plan.get('method')} replaced it in place",
                where=self.form.checkpoint.where, try_=command("ropetool", "restore", path),
            )  # fmt: skip
        if record is not None and replaced:
            raise AmbiguousRope(
                f"its original table is not in this file, which ropetool made{made_from} with {record.plan.get('method')}",
                where=self.form.checkpoint.where, try_=again,
            )  # fmt: skip
        if record is not None and record.plan.get("bakes"):
            raise AmbiguousRope(
                f"its weights contain baked factors, which cannot be removed: extend its source{of_name} instead",
                where=self.form.checkpoint.where, try_=again,
            )  # fmt: skip
        if self.original is None:
            raise InvalidRope(
                f"the file does not store the length before its {entry.rope_type} scaling: pass it with --original-length",
                where=self.form.checkpoint.where,
                try_=_from_original(path, entry, None, self.context, self.request).command,
            )
        return Start(_on_base(self.form, entry, self.original), self.original, ORIGINAL)

    def from_current(self) -> Start:
        entry = self.entry
        assert entry.table is not None
        if entry.table.rule is not None:
            raise InvalidRope(
                "the current table depends on the text length, so --from current cannot build on it", where=self.form.checkpoint.where,
                try_=self.request.command(self.form.checkpoint.path, "--from", ORIGINAL),
            )  # fmt: skip
        last, limit = entry.table.regimes[-1], entry.table.regimes[0].up_to
        theta = entry.rope_theta if entry.rope_type == "default" else None
        source = Source(
            last.inv_freq, self.context, theta, entry.rope_theta, last.attention_factor, entry.softmax_multiplier,
            self.form.mscale(entry),
        )  # fmt: skip
        note = f"texts up to {limit} tokens now use the extended long table too; check them with `ropetool verify`"
        return Start(source, self.original or self.context, CURRENT, () if limit is None else (note,))
