"""Try the encodings of a target: whether runtimes read it from an edited source."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from ropetool.checkpoint.edits import FileEdit
from ropetool.errors import RopetoolError
from ropetool.plans.formats import Baking, Format
from ropetool.rope.tables import RopeSet
from ropetool.runtimes.decoded import EncodedTarget


@dataclass(frozen=True, eq=False)
class Kept:
    """An encoding that works.

    edits: its edits.
    read: what every runtime reads from the edited source.
    baking: the factors that the weights add.
    """

    edits: Sequence[FileEdit]
    read: RopeSet
    baking: Baking = field(default_factory=Baking)


def attempt(form: Format, candidate: EncodedTarget, target: RopeSet, readers: Sequence[str]) -> tuple[Kept | None, str]:
    """Return the encoding with what the runtimes read, or None and the reason why it does not work."""
    if not candidate.in_weights:
        reason = _objection(form, candidate.edits, target, readers)
        return (None, reason) if reason else (Kept(candidate.edits, target), "")
    from ropetool.weights.residual import residual_of, without_residual  # most plans change no weights

    first = form.read(readers[0], candidate.edits).rope
    try:
        read = target if first is None else without_residual(target, first)
        reason = _objection(form, candidate.edits, read, readers)
        if reason or first is None:
            return None, reason
        return Kept(candidate.edits, read, form.bake(residual_of(target, first))), ""
    except RopetoolError as error:
        return None, f"the weights cannot store the rest: {error.message}"


def conflict_of(
    form: Format, candidates: Sequence[EncodedTarget], target: RopeSet, readers: Sequence[str]
) -> tuple[str, ...]:
    """Return the runtime that no file works for, or the two that need different files, or nothing."""
    if len(readers) == 1:
        return ()
    for runtime in readers:
        if not one_serves(form, candidates, target, [runtime]):
            return (runtime,)
    pairs = itertools.combinations(readers, 2)
    return next((pair for pair in pairs if not one_serves(form, candidates, target, pair)), ())


def agreeing(
    form: Format, candidates: Sequence[EncodedTarget], target: RopeSet, readers: Sequence[str]
) -> tuple[str, ...]:
    """Return runtimes that can share a file. An earlier runtime has priority over a later one."""
    kept: tuple[str, ...] = ()
    for runtime in readers:
        if one_serves(form, candidates, target, [*kept, runtime]):
            kept = (*kept, runtime)
    return kept


def one_serves(form: Format, candidates: Sequence[EncodedTarget], target: RopeSet, readers: Sequence[str]) -> bool:
    """Return whether any encoding works for all these runtimes."""
    return any(attempt(form, candidate, target, readers)[0] for candidate in candidates)


def _objection(form: Format, edits: Sequence[FileEdit], target: RopeSet, readers: Sequence[str]) -> str:
    """Return why a runtime does not read the target from this encoding, or an empty string if all runtimes read it."""
    reasons = ((runtime, form.read(runtime, edits).objection(target)) for runtime in readers)
    return next((f"{runtime}: {reason}" for runtime, reason in reasons if reason), "")
