"""Repairs that keep every table: more runtimes read the same numbers afterwards.

The output is next to the source. With `--in-place`, a GGUF file is changed itself. Before writing, ropetool decodes the
edited file as the format's own runtime does, and refuses if a table differs. If that runtime stopped before the repair,
the keys keep their numbers and only get a different type.
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
from ropetool.doctor.opening import Target, opened
from ropetool.doctor.remedies import ON_HUB
from ropetool.errors import LossyExport, RopetoolError, sentence_of
from ropetool.escaping import command
from ropetool.plans.applied import Applied
from ropetool.plans.applying import apply
from ropetool.plans.basis import CURRENT, UNSCALED
from ropetool.plans.in_place import apply_in_place
from ropetool.plans.plan import Plan
from ropetool.plans.targets import tables_of
from ropetool.runtimes.decoded import decoded

LENGTH, SUFFIX = "length", "fixed"  # the method that keeps every table, and the suffix of the output's name
EDITS: dict[str, Callable[[Case], tuple[FileEdit, ...]]] = {
    "number-as-text": numbers_as_text,
    "key-type": retyping,
    "not-loaded": completing,
    "config-style": lambda case: case.edits_to_both if case.in_both_styles is not None else (),
}  # only the first that applies: an error may hide others, and these are visible after the repair


@dataclass(frozen=True)
class Repair:
    """The result of a repair.

    name: the checkpoint's name.
    rule: the rule whose finding was repaired.
    output: the written path. None if nothing was written.
    edits: the edits of the file.
    refusal: why nothing was written. Empty if something was.
    errors_left: the number of errors that the rules find in the output.
    """

    name: str
    rule: str
    output: Path | None
    edits: tuple[FileEdit, ...] = ()
    refusal: str = ""
    errors_left: int = 0


@dataclass(frozen=True)
class Destination:
    """Where repairs are written.

    output: a path. None to write next to each source.
    in_place: change the files themselves.
    copy_if_needed: with `in_place`, rewrite the whole file if the edit does not fit.
    """

    output: Path | None = None
    in_place: bool = False
    copy_if_needed: bool = False


def repaired(diagnosis: Diagnosis, destination: Destination) -> tuple[Repair, ...]:
    """Write an exact repair for each examined checkpoint that has one, and examine the output."""
    return tuple(each for one in diagnosis.examined if (each := repair(one, diagnosis, destination)) is not None)


def exit_code(diagnosis: Diagnosis, repairs: Sequence[Repair]) -> int:
    """Return the exit code of a diagnosis after repairs. For a repaired checkpoint, the output's findings count."""
    repaired_names = {each.name for each in repairs if each.output is not None}
    left = replace(diagnosis, examined=tuple(one for one in diagnosis.examined if one.name not in repaired_names))
    if any(each.errors_left for each in repairs):
        return FOUND_ERRORS
    return left.exit_code or (NOT_READ if any(each.output is None for each in repairs) else 0)


def repair(examined: Examined, diagnosis: Diagnosis, destination: Destination) -> Repair | None:
    """Write the exact repair of a checkpoint in a diagnosis. None if no finding has one."""
    rules = [
        rule for rule in EDITS if rule in {finding.rule for finding in examined.findings if _is_repairable(finding)}
    ]
    if not rules:
        return None
    path, rule = Path(examined.name), rules[0]
    if not path.exists():
        return Repair(examined.name, rule, None, refusal=ON_HUB)
    try:
        plan = repair_plan(opened(Target(examined.name, True)), rule)
        if plan is None:
            return None
        written = _written(plan, path, destination)
    except (RopetoolError, OSError) as error:
        return Repair(examined.name, rule, None, (), sentence_of(error))
    again = examine(
        [str(written.output)], source=examined.source or None, only=[rule.name for rule in diagnosis.rules],
        for_runtimes=diagnosis.for_runtimes,
    )  # fmt: skip
    return Repair(examined.name, rule, written.output, plan.edits, errors_left=again.count(ERROR))


def _is_repairable(finding: Finding) -> bool:
    """Return whether a finding may have an exact repair.

    If llama.cpp does not load the file, the finding's fix decides.
    """
    return finding.rule != "not-loaded" or finding.fix == ON_HUB or finding.is_command


def _written(plan: Plan, path: Path, destination: Destination) -> Applied:
    line = command("ropetool", "doctor", path, "--fix", *(["--in-place"] if destination.in_place else []))
    if destination.in_place:
        return apply_in_place(plan, path, copy_if_needed=destination.copy_if_needed, command=line)
    return apply(
        plan, path, plan.output_beside(path) if destination.output is None else destination.output, command=line
    )


def repair_plan(case: Case, rule: str) -> Plan | None:
    """Return the plan of an exact repair, or None if no repair is exact.

    Raises: LossyExport if the format's own runtime would decode a different table. RopetoolError if it would stop.
    """
    edits = EDITS[rule](case)
    if not edits:
        return None
    edited = case.checkpoint.edited(edits)
    config_style = (
        style.read(edited.config, edited.family, edited.where).style if isinstance(edited, HfCheckpoint) else "GGUF"
    )
    target = decoded(edited.runtime, edited).understood(edited.where, edited.stated_in)
    changed = () if case.rope is None else case.rope.differences(target)
    if changed:
        raise LossyExport(f"{edited.runtime} would compute something else: {changed[0]}", where=edited.where)
    full = target.entries.get(names.FULL_ATTENTION) or next(iter(target.entries.values()))
    trained = (case.inspection.trained_length if case.inspection else None) or full.original_max_position_embeddings
    return Plan(
        case.format, case.checkpoint.name, LENGTH, 1.0, {}, UNSCALED if full.unscaled else CURRENT,
        trained or target.max_position_embeddings, target.max_position_embeddings, (edited.runtime,), config_style,
        tables_of(target), full.softmax_multiplier, tuple(edits), (), (f"{rule}: the RoPE tables do not change",), SUFFIX,
        target=target, identity=case.checkpoint.identity,
    )  # fmt: skip
