"""What is held beside each other: the tables that methods lead to at some factors, and those of saved plans.

Makes plans and writes nothing; knows nothing of how a candidate is measured.
"""

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
from ropetool.plans.basis import CURRENT, ORIGINAL
from ropetool.plans.plan import BAKE, Plan
from ropetool.plans.search import make_plan
from ropetool.plans.targets import tables_of, target_json
from ropetool.rope import methods
from ropetool.rope.tables import RopeSet

APPLY = "use ropetool apply, then ropetool verify OUTPUT"
WEIGHTS_TOO = f"compare cannot change the weights of a loaded model; {APPLY}"
RULE = f"compare cannot reproduce how its table depends on the text length; {APPLY}"
REQUIRED = ("--rope-theta", "-p long_factor")  # without which abf and longrope say nothing
IN_WEIGHTS = (
    "the factor that its file stores in the weights is measured as a factor on cos and sin, with the same result"
)


@dataclass(frozen=True)
class Candidate:
    """A plan under its name, and what a loaded model has to compute for it, which a file may leave to the weights in part."""

    name: str
    plan: Plan
    rope: RopeSet
    note: str = ""

    @property
    def target_length(self) -> int:
        """The context that it leads to, in tokens."""
        return self.plan.max_position_embeddings

    @property
    def digest(self) -> str:
        """What tells its table from others: equal for candidates that compute the same."""
        return digest(self.rope)


@dataclass(frozen=True)
class Refused:
    """A candidate that cannot be measured, and why, in a line."""

    name: str
    reason: str


def candidates_of(source: HfCheckpoint, asked: CandidateOptions) -> tuple[list[Candidate], list[Refused]]:
    """Return each method at each factor and length, then the saved plans; and those of the methods that are refused.

    A saved plan that does not fit is an error, for it was made for one source.
    Raises: ConfigError where nothing is asked for, or a factor is none; UnknownMethod; PlanMismatch for a plan of another
    source; the first refusal where no candidate is left.
    """
    chosen = list(dict.fromkeys(methods.get(name).name for name in asked.methods))
    goals: list[dict[str, Any]] = [{"factor": _above_one(factor)} for factor in dict.fromkeys(asked.factors)]
    goals += [{"target_length": length} for length in dict.fromkeys(asked.target_lengths)]
    if not asked.plans and not (chosen and goals):
        missing, step = ("method", "--methods yarn") if goals else ("factor, length or plan", "--factors 2,4,8")
        raise ConfigError(f"no candidates to compare: no {missing} was given", where="--methods", try_=step)
    found: list[Candidate] = []
    refused: list[Refused] = []
    errors: list[RopetoolError] = []
    for goal in goals:
        for method in chosen:
            name = _name(method, **goal)
            try:
                found.append(_of_method(name, source, method, goal, asked))
            except RopetoolError as error:
                errors.append(_with_parameters(error, source, method, goal))
                refused.append(Refused(name, error.message))
    files = list(dict.fromkeys(map(Path, asked.plans)))
    taken = {each.name for each in found} | {each.name for each in refused}
    found += [of_plan(source, file, name) for file, name in zip(files, _file_names(files, taken), strict=True)]
    if not found:
        raise errors[0]
    return found, refused


def of_plan(source: HfCheckpoint, file: Path, name: str) -> Candidate:
    """Return the candidate of a plan file. Raises: PlanMismatch, ConfigError where a loaded model cannot be given it."""
    plan = Plan.read(file)
    if plan.format != source.format:
        raise ConfigError(f"the plan is for a {plan.format} file, but the source is a directory", where=str(file))
    checked_texts(plan, source)
    rope, note = plan.target, ""
    assert rope is not None  # a plan of an earlier version, without one, is refused above
    if plan.bakes or plan.tensors:
        rope, note = _with_the_rest(plan, source, file, WEIGHTS_TOO), IN_WEIGHTS
    elif any(entry.table is not None and entry.table.rule is not None for entry in rope.entries.values()):
        rope = _with_the_rest(plan, source, file, RULE)  # of which a plan has the name and the value at one length
    return Candidate(name, plan, rope, note)


def digest(rope: RopeSet) -> str:
    """Return what tells a rotation from others, whatever its length is stated to be."""
    layers = target_json(rope)["layers"]
    return hashlib.sha256(json.dumps([layers, tables_of(rope)], sort_keys=True).encode()).hexdigest()[:32]


def _of_method(
    name: str, source: HfCheckpoint, method: str, goal: dict[str, Any], asked: CandidateOptions
) -> Candidate:
    same = {**goal, "reading": asked.reading, "original_length": asked.original_length}
    plan = make_plan(source, method, **same, for_runtimes=asked.for_runtimes)
    if not plan.bakes:
        assert plan.target is not None
        return Candidate(name, plan, plan.target)
    unbaked = make_plan(source, method, **same)
    if unbaked.target is None or unbaked.bakes:
        raise ConfigError(WEIGHTS_TOO, where=name)
    return Candidate(name, plan, unbaked.target, IN_WEIGHTS)


def _with_the_rest(plan: Plan, source: HfCheckpoint, file: Path, refusal: str) -> RopeSet:
    """Return the table of a plan with what it leaves to the weights or names only, made again for the runtime that reads all of it.

    Raises: ConfigError with the refusal where the plan says more than that.
    """
    params = dict(plan.params)
    attention_factor = params.pop(names.ATTENTION_FACTOR, "auto")
    try:
        if plan.method == BAKE:
            raise ConfigError(refusal)
        again, baked = (
            make_plan(
                source, plan.method, target_length=plan.max_position_embeddings, params=params,
                reading=plan.reading if plan.reading in (ORIGINAL, CURRENT) else None, attention_factor=attention_factor,
                for_runtimes=for_runtimes,
            )
            for for_runtimes in ((), plan.runtimes)
        )  # fmt: skip
        if baked.tensors != plan.tensors:  # gains that a search found, say
            raise ConfigError(refusal)
    except RopetoolError:
        raise ConfigError(refusal, where=str(file)) from None
    if again.bakes or again.target is None or plan.target is None or not _same_frequencies(again.target, plan.target):
        raise ConfigError(refusal, where=str(file))
    return again.target


def _same_frequencies(one: RopeSet, other: RopeSet) -> bool:
    """Return whether two rotations differ in factors alone."""
    pairs = [(entry.table, other.entries[kind].table) for kind, entry in one.entries.items() if kind in other.entries]
    return one.entries.keys() == other.entries.keys() and all(
        ours is None or (theirs is not None and ours.with_factor(1.0).agrees(theirs.with_factor(1.0)))
        for ours, theirs in pairs
    )


def _file_names(files: Sequence[Path], taken: Collection[str]) -> list[str]:
    """Return what each plan is called: its file's name, or its path where another candidate is called so."""
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
    """Return the error of a method; where it cannot do without a parameter, with the plan that states one."""
    if error.where in REQUIRED:
        how = (part for key, value in goal.items() for part in (f"--{key.replace('_', '-')}", number(value)))
        line = command("ropetool", "extend", source.path, "--method", method, *how)
        error.try_ = (
            f"{line} {error.where} VALUE --dry-run --plan-out FILE, then pass --plan FILE instead of the method"
        )
        error.where = f"--method {method}"
    return error
