"""The candidates of a comparison: the table of each method at each factor, and the tables of saved plans."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.choosing.options import CandidateOptions
from ropetool.errors import ConfigError, RopetoolError
from ropetool.escaping import command, number
from ropetool.plans.applying import checked_texts
from ropetool.plans.basis import CURRENT, NATIVE_SHORT, ORIGINAL
from ropetool.plans.plan import BAKE, Plan
from ropetool.plans.search import make_plan
from ropetool.plans.targets import tables_of, target_json
from ropetool.rope import methods
from ropetool.rope.tables import RopeSet

APPLY = "use ropetool apply, then ropetool verify OUTPUT"
WEIGHTS_TOO = f"compare cannot change the weights of a loaded model; {APPLY}"
RULE = f"compare cannot reproduce how its table depends on the text length; {APPLY}"
REQUIRED = ("--rope-theta", "-p long_factor")  # abf and longrope need these parameters
IN_WEIGHTS = (
    "the factor that its file stores in the weights is measured as a factor on cos and sin, with the same result"
)


@dataclass(frozen=True)
class Candidate:
    """A plan, and the tables that the loaded model must compute for it.

    name: the name in the result.
    plan: the plan.
    rope: the complete tables. The plan's file may store a part of their factors in the weights.
    note: a message about this part. Empty if there is nothing to explain.
    """

    name: str
    plan: Plan
    rope: RopeSet
    note: str = ""

    @property
    def target_length(self) -> int:
        """Return the context length of the plan, in tokens."""
        return self.plan.max_position_embeddings

    @property
    def digest(self) -> str:
        """Return the digest of its tables. Candidates that compute the same have the same digest."""
        return digest(self.rope)


@dataclass(frozen=True)
class Refused:
    """A candidate that cannot be measured.

    name: the name in the result.
    reason: the reason in one line.
    """

    name: str
    reason: str


def requested(options: CandidateOptions) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the names of the methods, and the goals of each method: a factor or a target length.

    Raises: ConfigError if there is no candidate, or a factor is invalid. UnknownMethod.
    """
    chosen = list(dict.fromkeys(methods.get(name).name for name in options.methods))
    goals: list[dict[str, Any]] = [{"factor": _above_one(factor)} for factor in dict.fromkeys(options.factors)]
    goals += [{"target_length": length} for length in dict.fromkeys(options.target_lengths)]
    if not options.plans and not (chosen and goals):
        missing, step = ("method", "--methods yarn") if goals else ("factor, length or plan", "--factors 2,4,8")
        raise ConfigError(f"no candidates to compare: no {missing} was given", where="--methods", try_=step)
    return chosen, goals


def candidates_of(source: HfCheckpoint, options: CandidateOptions) -> tuple[list[Candidate], list[Refused]]:
    """Return the candidates: each method at each factor and length, then the saved plans. And the refused methods.

    A saved plan that does not fit raises an error, because it was made for a certain source.
    Raises: ConfigError if there is no candidate, or a factor is invalid. UnknownMethod. PlanMismatch for a plan of a
    different source. The first refusal, if every method is refused.
    """
    chosen, goals = requested(options)
    candidates: list[Candidate] = []
    refused: list[Refused] = []
    errors: list[RopetoolError] = []
    for goal in goals:
        for method in chosen:
            name = _name(method, **goal)
            try:
                candidates.append(_of_method(name, source, method, goal, options))
            except RopetoolError as error:
                errors.append(_with_parameters(error, source, method, goal))
                refused.append(Refused(name, error.message))
    files = list(dict.fromkeys(map(Path, options.plans)))
    taken = {candidate.name for candidate in candidates} | {candidate.name for candidate in refused}
    candidates += [of_plan(source, file, name) for file, name in zip(files, _file_names(files, taken), strict=True)]
    if not candidates:
        raise errors[0]
    return candidates, refused


def of_plan(source: HfCheckpoint, file: Path, name: str) -> Candidate:
    """Return the candidate of a plan file.

    Raises: PlanMismatch. ConfigError if a loaded model cannot compute the plan.
    """
    plan = Plan.read(file)
    if plan.format != source.format:
        raise ConfigError(f"the plan is for a {plan.format} file, but the source is a directory", where=str(file))
    checked_texts(plan, source)
    rope, note = plan.target, ""
    assert rope is not None  # the check above refuses plans of an earlier version, which have no target
    if plan.bakes or plan.tensors:
        rope, note = _complete_target(plan, source, file, WEIGHTS_TOO), IN_WEIGHTS
    elif any(entry.table is not None and entry.table.rule is not None for entry in rope.entries.values()):
        rope = _complete_target(
            plan, source, file, RULE
        )  # a plan has only the rule's name and its values at one length
    return Candidate(name, plan, rope, note)


def digest(rope: RopeSet) -> str:
    """Return a digest of the tables, independent of the context length. 32 hexadecimal digits."""
    layers = target_json(rope)["layers"]
    return hashlib.sha256(json.dumps([layers, tables_of(rope)], sort_keys=True).encode()).hexdigest()[:32]


def _of_method(
    name: str, source: HfCheckpoint, method: str, goal: dict[str, Any], options: CandidateOptions
) -> Candidate:
    same = {**goal, "reading": options.reading, "original_length": options.original_length}
    plan = make_plan(source, method, **same, for_runtimes=options.for_runtimes)
    if not plan.bakes:
        assert plan.target is not None
        return Candidate(name, plan, plan.target)
    unbaked = make_plan(source, method, **same)
    if unbaked.target is None or unbaked.bakes:
        raise ConfigError(WEIGHTS_TOO, where=name)
    return Candidate(name, plan, unbaked.target, IN_WEIGHTS)


def _complete_target(plan: Plan, source: HfCheckpoint, file: Path, refusal: str) -> RopeSet:
    """Return the complete tables of a plan, by planning it again for a runtime that reads all keys.

    A plan's target lacks the factors in the weights, and has only the name of a rule that depends on the length.
    Raises: ConfigError with this refusal if the new plan differs in anything else.
    """
    params = dict(plan.params)
    attention_factor, native_short = params.pop(names.ATTENTION_FACTOR, "auto"), params.pop(NATIVE_SHORT, False)
    try:
        if plan.method == BAKE:
            raise ConfigError(refusal)
        replanned, replanned_for_file = (
            make_plan(
                source, plan.method, target_length=plan.max_position_embeddings, params=params,
                reading=plan.reading if plan.reading in (ORIGINAL, CURRENT) else None, attention_factor=attention_factor,
                native_short=native_short, for_runtimes=for_runtimes,
            )
            for for_runtimes in ((), plan.runtimes)
        )  # fmt: skip
        if replanned_for_file.tensors != plan.tensors:  # for example, gains from a search
            raise ConfigError(refusal)
    except RopetoolError:
        raise ConfigError(refusal, where=str(file)) from None
    if (
        replanned.bakes
        or replanned.target is None
        or plan.target is None
        or not _same_frequencies(replanned.target, plan.target)
    ):
        raise ConfigError(refusal, where=str(file))
    return replanned.target


def _same_frequencies(one: RopeSet, other: RopeSet) -> bool:
    """Return whether two sets of tables differ only in factors."""
    pairs = [
        (entry.table, other.entries[layer_type].table)
        for layer_type, entry in one.entries.items()
        if layer_type in other.entries
    ]
    return one.entries.keys() == other.entries.keys() and all(
        ours is None or (theirs is not None and ours.with_factor(1.0).agrees(theirs.with_factor(1.0)))
        for ours, theirs in pairs
    )


def _file_names(files: Sequence[Path], taken: Collection[str]) -> list[str]:
    """Return a name for each plan: the name of its file, or its path if another candidate has this name."""
    counts = Counter(file.name for file in files)
    short = [file.name if counts[file.name] == 1 else str(file) for file in files]
    return [str(file.absolute()) if name in taken else name for file, name in zip(files, short, strict=True)]


def _name(method: str, factor: float | None = None, target_length: int | None = None) -> str:
    return f"{method} {target_length}" if factor is None else f"{method} x{factor:g}"


def _above_one(factor: float) -> float:
    if not (math.isfinite(factor) and factor > 1):
        raise ConfigError(
            f"the factor must be above 1, not {factor:g}; factor 1 is the source itself", where="--factor"
        )
    return factor


def _with_parameters(error: RopetoolError, source: HfCheckpoint, method: str, goal: dict[str, Any]) -> RopetoolError:
    """Return the error of a method. If a required parameter is missing, add the command that writes a plan with it."""
    if error.where in REQUIRED:
        words = (part for key, value in goal.items() for part in (f"--{key.replace('_', '-')}", number(value)))
        line = command("ropetool", "extend", source.path, "--method", method, *words)
        error.try_ = (
            f"{line} {error.where} VALUE --dry-run --plan-out FILE, then pass --plan FILE instead of the method"
        )
        error.where = f"--method {method}"
    return error
