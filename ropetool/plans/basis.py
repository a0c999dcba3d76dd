"""Which table and which length a method starts from, and the refusal where a file leaves two readings open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ropetool import names
from ropetool.checkpoint import provenance
from ropetool.checkpoint.config_numbers import not_a_length
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import AmbiguousRope, InvalidRope
from ropetool.escaping import command, number
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.methods import Source
from ropetool.rope.tables import MAX_LENGTH, LayerRope, RopeSet

if TYPE_CHECKING:
    from ropetool.plans.formats import Format

ORIGINAL, CURRENT, UNSCALED = "original", "current", "unscaled"


@dataclass(frozen=True)
class Request:
    """What was asked for, as far as the start depends on it; exactly one of factor and target_length is given."""

    method: str
    factor: float | None
    target_length: int | None
    reading: str | None
    original_length: int | None
    as_type: str | None = None

    def __post_init__(self) -> None:
        if self.reading not in (None, ORIGINAL, CURRENT):
            raise InvalidRope(f"{self.reading!r} is neither {ORIGINAL} nor {CURRENT}", where="--from")
        if self.original_length is not None and not 2 <= self.original_length <= MAX_LENGTH:
            raise InvalidRope(not_a_length(self.original_length), where="--original-length")

    def reach(self, length: int) -> int:
        """Return the context that the request means, counted from this length."""
        return round(length * self.factor) if self.factor is not None else self.target_length or length

    def command(self, source: str | Path, *more: str) -> str:
        """Return the command line of this request on that source."""
        how = (
            ("--factor", number(self.factor))
            if self.factor is not None
            else ("--target-length", str(self.target_length))
        )
        read_as = ("--as", self.as_type) if self.as_type is not None else ()
        return command("ropetool", "extend", Path(source), "--method", self.method, *how, *more, *read_as)


@dataclass(frozen=True)
class Step:
    """A way to a longer context: what --from names (empty for an unscaled source), its lengths, and its command line.

    start: the length that it counts from, None where the file does not store it. reach: the context that it leads to.
    """

    reading: str
    start: int | None
    reach: int | None
    command: str


def steps(
    source: str | Path, decoded: RopeSet, made: Provenance | None, trained: int | None, request: Request
) -> list[Step]:
    """Return the ways that lead to what is wished for: one for an unscaled source, up to two for one that is scaled.

    trained: the length before any scaling. A way that cannot lead there, or that this source does not have, is left out.
    """
    entry, context = decoded.entries[names.FULL_ATTENTION], decoded.max_position_embeddings
    assert entry.table is not None
    if entry.unscaled and made is None:
        found = [Step("", trained, request.reach(trained or context), request.command(source))]
    else:
        original = request.original_length or trained
        found = [] if not _has_original(made, entry) else [_from_original(source, entry, original, context, request)]
        if entry.table.rule is None:
            found.append(Step(CURRENT, context, request.reach(context), request.command(source, "--from", CURRENT)))
    return [step for step in found if step.start is None or step.reach is None or step.start < step.reach <= MAX_LENGTH]


def _has_original(made: Provenance | None, entry: LayerRope) -> bool:
    """Return whether the original table is in the file: not in one whose base or weights were changed."""
    if made is None:
        return True
    return not (entry.unscaled or made.plan.get("reading") == CURRENT or made.plan.get("bakes"))


def _from_original(source: str | Path, entry: LayerRope, original: int | None, context: int, request: Request) -> Step:
    more = ["--from", ORIGINAL]
    if original is None or request.original_length is not None:
        more += ["--original-length", str(original or (round(context / entry.factor) if entry.factor else "N"))]
    reach = None if original is None and request.target_length is None else request.reach(original or context)
    return Step(ORIGINAL, original, reach, request.command(source, *more))


@dataclass(frozen=True)
class Start:
    """The table to start from, and the length that the model was trained on before any scaling."""

    source: Source
    trained_length: int
    reading: str
    notes: tuple[str, ...] = ()


def find_start(form: Format, decoded: RopeSet, request: Request) -> Start:
    """Return the table and length to start from.

    Raises: AmbiguousRope where a scaled source leaves two readings open; InvalidRope where the reading that was
    chosen is not in the file.
    """
    entry = decoded.entries[names.FULL_ATTENTION]
    context = decoded.max_position_embeddings
    made = form.checkpoint.record
    if entry.unscaled and made is None:
        return _unscaled(form, entry, context, request)
    original = request.original_length or (made.trained_length if made else entry.original_max_position_embeddings)
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
        meant, other = request.reach(trained), request.reach(context)
        reach = "" if meant == other else f": factor {request.factor:g} gives {meant}, not {other}"
        notes = [
            f"{shipped.reason}; lengths count from {trained} tokens{reach}. "
            f"--original-length {context} counts from the shipped value instead"
        ]
    return Start(_on_base(form, entry, trained), trained, UNSCALED, tuple(notes))


def _on_base(form: Format, entry: LayerRope, length: int) -> Source:
    assert entry.rope_theta is not None
    assert entry.table is not None
    base, last = base_inv_freq(entry.rope_theta, entry.rotary_dim), entry.table.regimes[-1].inv_freq
    if not last.all():  # pairs that stand still belong to the table that was trained
        return Source(np.where(last > 0, base, 0.0), length, None, entry.rope_theta, mscale=form.mscale(entry))
    return Source(base, length, entry.rope_theta, mscale=form.mscale(entry))


@dataclass(frozen=True)
class _Scaled:
    """A source that carries scaling, and what was asked of it; `original` is its length before the scaling."""

    form: Format
    entry: LayerRope
    original: int | None
    context: int
    request: Request

    @property
    def made(self) -> Provenance | None:
        return self.form.checkpoint.record

    def refusal(self) -> AmbiguousRope:
        """Return the error that spells out both readings."""
        entry, request = self.entry, self.request
        kind = f"{self.made.plan.get('method')} by ropetool" if self.made else entry.rope_type
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
        if request.reach(self.context) < self.context:
            second = f"no extension (--from {CURRENT} starts at {self.context})"
        return AmbiguousRope(
            f"already scaled ({kind}{factor}, original {self.original or 'not stored'}, context {self.context}); "
            f"{what} could mean {first}: in place of the present scaling) or {second}",
            where=self.form.checkpoint.where, try_=self._likely(),
        )  # fmt: skip

    def _likely(self) -> str:
        """Return the command that works where the other does not.

        For a target inside the context, a table by a rule, and where keys say what to do with one base alone.
        """
        assert self.entry.table is not None
        extends = self.original is not None and self.request.reach(self.original) > self.context
        replaced = extends and _has_original(self.made, self.entry)  # `advise` names it first too
        target = self.request.target_length
        onward = (target is None or target >= self.context) and self.entry.table.rule is None
        if self.form.builds_on_tables and onward and not replaced:
            return self.request.command(self.form.checkpoint.path, "--from", CURRENT)
        request = self.request
        if not self.form.builds_on_tables:
            request = replace(request, factor=None, target_length=request.reach(self.context))
        return _from_original(self.form.checkpoint.path, self.entry, self.original, self.context, request).command

    def from_original(self) -> Start:
        made, entry = self.made, self.entry
        path = self.form.checkpoint.path
        replaced = made is not None and (entry.unscaled or made.plan.get("reading") == CURRENT)
        if made is not None and replaced and provenance.is_of_itself(path, made):
            raise AmbiguousRope(
                f"its original table is gone: {made.plan.get('method')} replaced it in place",
                where=self.form.checkpoint.where, try_=command("ropetool", "restore", path),
            )  # fmt: skip
        if made is not None and replaced:
            raise AmbiguousRope(
                f"its original table is not in this file, which ropetool made from {made.source} with {made.plan.get('method')}",
                where=self.form.checkpoint.where, try_=self.request.command(made.source),
            )  # fmt: skip
        if made is not None and made.plan.get("bakes"):
            raise AmbiguousRope(
                f"its weights contain baked factors, which cannot be removed: extend its source {made.source} instead",
                where=self.form.checkpoint.where, try_=self.request.command(made.source),
            )  # fmt: skip
        if self.original is None:
            guess = self.context // max(1, round(entry.factor or 1))
            raise InvalidRope(
                f"the file does not store the length before its {entry.rope_type} scaling: pass it with --original-length",
                where=self.form.checkpoint.where,
                try_=self.request.command(
                    self.form.checkpoint.path, "--from", ORIGINAL, "--original-length", str(guess)
                ),
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
