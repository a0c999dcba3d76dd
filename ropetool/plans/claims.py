"""Find the extension that a checkpoint's keys imply, if it has no record, and plan it again from the source.

Both have the same format, or one is a GGUF file and the other the directory it was converted from. Only decoded tables
are compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.edits import METADATA, FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint, plain_value
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import ConfigError, RopetoolError
from ropetool.escaping import command, number
from ropetool.files.hf import ABSENT
from ropetool.files.hf.jsontext import shown
from ropetool.plans.basis import CURRENT, ORIGINAL, Request, find_start
from ropetool.plans.formats import Format, format_of
from ropetool.plans.plan import Plan
from ropetool.plans.search import plan_for
from ropetool.rope import methods
from ropetool.rope.methods import Goal
from ropetool.rope.tables import TABLE_TOLERANCE, LayerRope, RopeSet
from ropetool.runtimes.decoded import decoded

AS_IS = "as-is"  # accepts the target's value of a key
LONGROPE, ABF, LENGTH, DYNAMIC = "longrope", "abf", "length", "dynamic"
_NAMED = ("yarn", "linear", DYNAMIC, "llama3")  # rope types with the name of a method
LISTS = (names.LONG_FACTOR, names.SHORT_FACTOR)
# If a method gives this share of the pairs in lists, the other pairs count as errors. Lists from a search have hardly a
# number in common with any formula.
NEARLY = 0.75
# In published configs, llama3's factor does not determine the context. Llama 3.1 has factor 8 and 16 times its original
# length, Llama 3.2 has 32 and 16 times, EXAONE 3.5 has 8 and 4 times.
LLAMA3_REACH = 2


@dataclass(frozen=True, eq=False)
class Claim:
    """The extension of a source that a target's keys imply, planned again.

    words: a description, for example "yarn x4".
    expected: the source after the extension. The source itself if there is no extension.
    edits: the edits that lead from the source to `expected`.
    plan: the plan. None without an extension.
    contexts: the allowed context lengths of the target. The source's length is one of them, because published recipes
      keep it.
    taken: the parameters that were copied from the target, because no formula gives them.
    """

    words: str
    expected: Checkpoint
    edits: tuple[FileEdit, ...]
    plan: Plan | None
    contexts: tuple[int, ...]
    taken: tuple[str, ...] = ()


def claim_of(
    target: Checkpoint,
    source: Checkpoint,
    *,
    stated: Mapping[str, str] | None = None,
    trained_length: int | None = None,
) -> Claim:
    """Return the extension that the target's keys imply, planned again.

    Only the method's own parameters follow the target. Other keys of the target show as differences.
    stated: keys that may differ, as in the option --stated. Each has its value in JSON or "as-is".
    trained_length: the source's trained length in tokens, if its files do not contain it.
    Raises: ConfigError for a key of `stated` that the target lacks or that has a different value. RopetoolError if
      either checkpoint cannot be decoded, or no plan gives the target's tables.
    """
    ours, theirs = (decoded(target.runtime, each).understood(each.where, each.stated_in) for each in (target, source))
    if target.format != source.format:
        ours = _named_alike(ours, theirs)
    claim = _unchanged(ours, theirs, source) or _extended(target, ours, theirs, source, trained_length)
    edits = (*claim.edits, *_overlay(target, claim.expected, stated or {}))
    taken = tuple(key for key in claim.taken if key not in (stated or {}))
    return replace(claim, expected=source.edited(edits), edits=edits, taken=taken)


def _named_alike(ours: RopeSet, theirs: RopeSet) -> RopeSet:
    """Return the tables with the other's names of layer types and its layouts, as far as the layers agree."""
    named = ours.named_as(theirs)
    for name in named.entries.keys() & theirs.entries.keys():
        named = named.with_entry(name, replace(named.entries[name], layout=theirs.entries[name].layout))
    return named


def _unchanged(ours: RopeSet, theirs: RopeSet, source: Checkpoint) -> Claim | None:
    """Return the claim for a target with the source's tables: no extension, or only a different context length.

    Else None.
    """
    kept = replace(theirs, max_position_embeddings=ours.max_position_embeddings)
    if kept.differences(ours):
        return None
    context = ours.max_position_embeddings
    if context == theirs.max_position_embeddings:
        return Claim("no extension", source, (), None, (context,))
    if context < theirs.max_position_embeddings:  # a plan cannot shorten the context
        return Claim("no extension", source, (), None, (theirs.max_position_embeddings,))
    plan = plan_for(source, Request(LENGTH, target_length=context))
    return Claim(
        f"a changed context length of {context} tokens",
        source.edited(plan.edits),
        plan.edits,
        plan,
        (context,),
    )


def _extended(
    target: Checkpoint, ours: RopeSet, theirs: RopeSet, source: Checkpoint, trained_length: int | None
) -> Claim:
    """Return the first claim that gives the target's table, or else the claim that its rope type names."""
    crossed = target.format != source.format
    config_style = None if crossed else _style(target)
    form = format_of(source, config_style)
    entry = ours.entries[names.FULL_ATTENTION]
    tries = [
        replace(each, for_runtimes=(target.runtime,) if crossed else (), config_style=config_style)
        for each in _alternatives(entry, ours, theirs, trained_length)
    ]
    shares = [_share(form, theirs, each, entry) for each in tries]
    # Lists that are copied from the target always fit, so they are tried last.
    order = sorted(range(len(tries)), key=lambda at: (tries[at].method == LONGROPE, -shares[at]))
    fitting = [tries[at] for at in order if shares[at] >= NEARLY]
    errors: list[RopetoolError] = []
    for each in [*fitting, *tries]:
        try:
            plan = plan_for(source, each)
        except RopetoolError as error:
            errors.append(error)
            continue
        if entry.rope_type == DYNAMIC and entry.factor is not None:
            plan = _growing(source, plan, entry.factor)
        contexts: tuple[int, ...] = (plan.max_position_embeddings, theirs.max_position_embeddings)
        if each.method == "llama3" and ours.max_position_embeddings <= LLAMA3_REACH * plan.max_position_embeddings:
            contexts = (*contexts, ours.max_position_embeddings)
        taken = tuple(key for key in LISTS if key in (each.params or {}))
        return Claim(_words(plan, each), source.edited(plan.edits), plan.edits, plan, contexts, taken)
    raise (
        errors[0]
        if errors
        else ConfigError("its tables differ from the baseline, and no known method produces them", where=target.where)
    )


def _style(target: Checkpoint) -> str | None:
    """Return the config style of a target, or None for a GGUF file."""
    if isinstance(target, GgufCheckpoint):
        return None
    return style.read(target.config, target.family, target.where).style


def _alternatives(entry: LayerRope, ours: RopeSet, theirs: RopeSet, trained_length: int | None) -> Iterator[Request]:
    """Yield possible requests: the method that the rope type names, or every method if it does not name one.

    Lists, vectors and a larger base do not name a method, because a formula may have produced them.
    """
    context = ours.max_position_embeddings
    before = trained_length or theirs.original_max_position_embeddings or theirs.max_position_embeddings
    factors = [f for f in dict.fromkeys([entry.factor, context / before]) if f is not None and f > 1]

    def each(method: str, factor: float | None = None, **params: Any) -> Iterator[Request]:
        length = context if factor is None else None
        for reading in _readings(theirs):
            yield Request(method, factor, length, reading, trained_length, params=params)

    if entry.rope_type in _NAMED:
        for factor in factors:
            yield from each(entry.rope_type, factor)
        return
    if entry.rope_type == "default" and entry.rope_theta is not None and context > before:
        yield from each("ntk")
        yield from each(ABF, rope_theta=entry.rope_theta)
    for factor in factors:
        for method in sorted(set(methods.names()) - {ABF, LENGTH, LONGROPE}):
            yield from each(method, factor)
    if entry.rope_type == LONGROPE and all(key in entry.params for key in LISTS):
        yield from each(LONGROPE, **{key: entry.params[key] for key in LISTS})


def _readings(theirs: RopeSet) -> tuple[str | None, ...]:
    return (None,) if theirs.entries[names.FULL_ATTENTION].unscaled else (ORIGINAL, CURRENT)


def _share(form: Format, theirs: RopeSet, request: Request, entry: LayerRope) -> float:
    """Return the share of pairs of the target's table that the method gives, from 0 to 1.

    For types with a formula, the share is 0 or 1. In lists, single pairs may be wrong.
    """
    method = methods.get(request.method)
    try:
        start = find_start(form, theirs, request)
        goal = Goal.make(start.source.length, request.factor, request.target_length)
        derived = method.derive(start.source, goal, method.params(dict(request.params or {})))
    except RopetoolError:
        return 0.0
    if entry.table is None:
        return 0.0
    if derived.table.agrees(entry.table):
        return 1.0
    if entry.rope_type != LONGROPE or derived.table.rule is not None:
        return 0.0
    pairs = [(derived.table.at(length).inv_freq, entry.table.at(length).inv_freq) for length in (1, goal.target_length)]
    if any(ours.shape != theirs.shape for ours, theirs in pairs):
        return 0.0
    return min(float(np.isclose(ours, theirs, rtol=TABLE_TOLERANCE, atol=0).mean()) for ours, theirs in pairs)


def _growing(source: Checkpoint, plan: Plan, factor: float) -> Plan:
    """Return a plan of `dynamic` with the target's factor. transformers reads it, and stretches faster than the method.

    The method itself writes factor 1.
    """
    edits = tuple(
        replace(edit, new=factor if edit.path[-1] == names.FACTOR else _with_factor(edit.new, factor))
        for edit in plan.edits
    )
    return replace(plan, edits=edits, target=decoded(source.runtime, source.edited(edits)).rope)


def _with_factor(new: Any, factor: float) -> Any:
    """Return new rope keys with this factor in each object of the type `dynamic`."""
    if not isinstance(new, Mapping):
        return new
    kept = {key: _with_factor(value, factor) for key, value in new.items()}
    return {**kept, names.FACTOR: factor} if new.get(names.ROPE_TYPE) == DYNAMIC else kept


def _words(plan: Plan, request: Request) -> str:
    if request.method == ABF and request.params:
        return f"abf with rope_theta {number(request.params[names.ROPE_THETA])}"
    return f"{plan.method} x{number(plan.factor)} of {plan.trained_length} tokens"


# --- keys that may differ


def _overlay(target: Checkpoint, expected: Checkpoint, stated: Mapping[str, str]) -> list[FileEdit]:
    """Return the edits that give the expected checkpoint the target's value of each key that may differ.

    Raises: ConfigError unless the target has the key with the expected value.
    """
    if stated and target.format != expected.format:
        raise ConfigError(
            "the keys of a GGUF file cannot be compared with a directory", where="--stated",
            try_="pass --baseline with the GGUF file that was extended",
        )  # fmt: skip
    edits = []
    for key, text in stated.items():
        places = list(_places(target, key))
        if not places:
            raise ConfigError(
                f"the target's {target.stated_in} does not contain {shown(key)}",
                where="--stated", try_=command("ropetool", "inspect", target.path),
            )  # fmt: skip
        for path, value in places:
            if text != AS_IS and _parsed(text) != value:
                raise ConfigError(
                    f"{key} is {shown(value)} in the target, not {text}",
                    where="--stated", try_=f"--stated {key} {AS_IS}, if that value is intended",
                )  # fmt: skip
            edits.append(_edit(target, expected, path))
    return [edit for edit in edits if edit.old != edit.new]


def _places(target: Checkpoint, key: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each path at which the target has a key, at any depth, and its value.

    In a GGUF file, the prefix is optional.
    """
    if isinstance(target, HfCheckpoint):
        yield from _within(target.config, key, ())
        return
    for name in (key, f"{target.name}.{key}"):
        if name in target.values:
            value: Any = target.values[name].decode()
            yield (name,), value.tolist() if hasattr(value, "tolist") else value


def _within(part: Mapping[str, Any], key: str, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in part.items():
        if name == key:
            yield (*path, name), value
        if isinstance(value, Mapping):
            yield from _within(value, key, (*path, name))


def _edit(target: Checkpoint, expected: Checkpoint, path: tuple[str, ...]) -> FileEdit:
    if isinstance(target, HfCheckpoint) and isinstance(expected, HfCheckpoint):
        return FileEdit(names.CONFIG_JSON, path, _at(expected.config, path), _at(target.config, path))
    assert isinstance(target, GgufCheckpoint)
    assert isinstance(expected, GgufCheckpoint)
    old, new = (plain_value(each.values.get(path[0])) for each in (expected, target))
    return FileEdit(METADATA, path, old, new)


def _at(config: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return the value at a path, or ABSENT. Raises: ConfigError if an object on the path is missing."""
    value: Any = config
    for depth, name in enumerate(path):
        if not isinstance(value, Mapping) or (name not in value and depth < len(path) - 1):
            raise ConfigError(
                f"{'.'.join(path)} does not apply: the rebuilt extension does not contain {'.'.join(path[:depth + 1])}",
                where="--stated", try_="pass only keys of the rebuilt extension",
            )  # fmt: skip
        value = value.get(name, ABSENT)
    return value


def _parsed(text: str) -> Any:
    """Return the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
