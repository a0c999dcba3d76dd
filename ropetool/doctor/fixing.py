"""Repairs that are exact: what the file says, said so that more readers understand it, and not one number changed.

The output lies beside the source, which is never written; a GGUF file is changed itself on request. Before that, the format's
own runtime reads the same table from it as before; where it stopped before, the keys hold the same numbers in another type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.doctor.cases import Case
from ropetool.doctor.configs import numbers_as_text
from ropetool.doctor.examining import FOUND_ERRORS, NOT_READ, Diagnosis, Examined, examine
from ropetool.doctor.findings import ERROR, Finding
from ropetool.doctor.gguf_loading import completing
from ropetool.doctor.gguf_types import retyping
from ropetool.doctor.opening import Place, opened
from ropetool.doctor.remedies import ON_HUB
from ropetool.errors import LossyExport, RopetoolError, sentence_of
from ropetool.escaping import command
from ropetool.plans.applying import Applied, apply
from ropetool.plans.basis import CURRENT, UNSCALED
from ropetool.plans.in_place import apply_in_place
from ropetool.plans.plan import Plan
from ropetool.plans.targets import tables_of
from ropetool.runtimes.decoded import decoded

LENGTH, SUFFIX = "length", "fixed"  # the method that keeps every table, and what the output is called by
EDITS: dict[str, Callable[[Case], tuple[FileEdit, ...]]] = {
    "number-as-text": numbers_as_text,
    "key-type": retyping,
    "not-loaded": completing,
    "config-style": lambda case: case.edits_to_both if case.in_both_styles is not None else (),
}  # one after the other: what stands behind the first is seen once that is mended


@dataclass(frozen=True)
class Repair:
    """A repair that was tried. output: what was written, None where nothing was. refusal: why not.

    errors_left: how many errors the rules find in the output.
    """

    name: str
    rule: str
    output: Path | None
    edits: tuple[FileEdit, ...] = ()
    refusal: str = ""
    errors_left: int = 0


@dataclass(frozen=True)
class Destination:
    """Where repairs go: to `output`, into the files themselves, or beside each.

    copy_if_needed: in place, write a whole file anew where nothing less will do.
    """

    output: Path | None = None
    in_place: bool = False
    copy_if_needed: bool = False


def repaired(found: Diagnosis, place: Destination) -> tuple[Repair, ...]:
    """Write what is exact of each examined checkpoint, and examine that."""
    return tuple(each for one in found.examined if (each := repair(one, found, place)) is not None)


def exit_code(found: Diagnosis, repairs: Sequence[Repair]) -> int:
    """Return that of a diagnosis after repairs: of a checkpoint that was mended, the output counts."""
    mended = {each.name for each in repairs if each.output is not None}
    left = replace(found, examined=tuple(one for one in found.examined if one.name not in mended))
    if any(each.errors_left for each in repairs):
        return FOUND_ERRORS
    return left.exit_code or (NOT_READ if any(each.output is None for each in repairs) else 0)


def repair(examined: Examined, among: Diagnosis, place: Destination) -> Repair | None:
    """Write what is exact of one of a diagnosis; None where no finding is mended so."""
    rules = [rule for rule in EDITS if rule in {finding.rule for finding in examined.findings if _is_mended(finding)}]
    if not rules:
        return None
    path, rule = Path(examined.name), rules[0]
    if not path.exists():
        return Repair(examined.name, rule, None, refusal=ON_HUB)
    try:
        plan = repair_plan(opened(Place(examined.name, True)), rule)
        if plan is None:
            return None
        written = _written(plan, path, place)
    except (RopetoolError, OSError) as error:
        return Repair(examined.name, rule, None, (), sentence_of(error))
    again = examine(
        [str(written.output)], source=examined.source or None, only=[rule.name for rule in among.rules],
        for_runtimes=among.for_runtimes,
    )  # fmt: skip
    return Repair(examined.name, rule, written.output, plan.edits, errors_left=again.count(ERROR))


def _is_mended(finding: Finding) -> bool:
    """Return whether a repair may be exact. For a file that llama.cpp does not load, the finding decides."""
    return finding.rule != "not-loaded" or finding.fix == ON_HUB or finding.is_command


def _written(plan: Plan, path: Path, place: Destination) -> Applied:
    line = command("ropetool", "doctor", path, "--fix", *(["--in-place"] if place.in_place else []))
    if place.in_place:
        return apply_in_place(plan, path, copy_if_needed=place.copy_if_needed, command=line)
    return apply(plan, path, plan.output_beside(path) if place.output is None else place.output, command=line)


def repair_plan(case: Case, rule: str) -> Plan | None:
    """Return the plan of a repair, None where there is nothing that is exact.

    Raises: LossyExport where the format's own runtime would read another table; what that runtime stops with.
    """
    edits = EDITS[rule](case)
    if not edits:
        return None
    edited = case.checkpoint.edited(edits)
    stated = (
        style.read(edited.config, edited.family, edited.where).style if isinstance(edited, HfCheckpoint) else "GGUF"
    )
    target = decoded(edited.runtime, edited).understood(edited.where, edited.stated_in)
    changed = () if case.rope is None else case.rope.differences(target)
    if changed:
        raise LossyExport(f"{edited.runtime} would compute something else: {changed[0]}", where=edited.where)
    full = target.entries.get(names.FULL_ATTENTION) or next(iter(target.entries.values()))
    trained = (case.found.trained_length if case.found else None) or full.original_max_position_embeddings
    return Plan(
        case.format, case.checkpoint.name, LENGTH, 1.0, {}, UNSCALED if full.unscaled else CURRENT,
        trained or target.max_position_embeddings, target.max_position_embeddings, (edited.runtime,), stated,
        tables_of(target), full.softmax_multiplier, tuple(edits), (), (f"{rule}: the RoPE tables do not change",), SUFFIX,
        target=target, identity=case.checkpoint.identity,
    )  # fmt: skip
