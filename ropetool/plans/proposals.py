"""The ways to a longer context that `inspect` and `advise` name: each is planned before it is named, so none is refused when run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropetool import names
from ropetool.errors import RopetoolError
from ropetool.escaping import number
from ropetool.plans.basis import CURRENT, Request, Step, steps
from ropetool.plans.plan import Plan
from ropetool.plans.refusals import LONGEST
from ropetool.plans.scope import FORCE, Extent, extent
from ropetool.plans.search import make_plan
from ropetool.runtimes.inspection import Inspection
from ropetool.runtimes.llama_cpp import architectures as archs

LENGTH = "length"
METHOD = "yarn"  # the only one that reaches its target without training
EXTEND = "ropetool extend "


@dataclass(frozen=True)
class Proposal:
    """A way to a longer context.

    step: the interpretation of the source, its trained length, its reach and its command.
    method: the method's name.
    line: the command; empty if the method does not work.
    refusal: why the method does not work; empty if it does.
    plan: the method's plan; None if it is refused or was not tried.
    attention_factor: the value of --attention-factor.
    brief: a shorter refusal; may be empty.
    """

    step: Step
    method: str
    line: str
    refusal: str = ""
    plan: Plan | None = None
    attention_factor: str = "auto"
    brief: str = ""


def proposals(found: Inspection, target: int, method: str = METHOD, for_runtimes: Sequence[str] = ()) -> list[Proposal]:
    """Return the ways to this context by a method, each with a command that was planned.

    Another method is named where this one does not fit: where nothing is to rotate otherwise, or no other key is read.
    Of a model on the hub, which planning would download, the commands are named untried.
    """
    assert found.rope is not None
    entry = found.rope.entries.get(names.FULL_ATTENTION)
    if entry is None or found.learned_positions:
        return []
    arch = archs.get(found.model_type) if found.format == "gguf" else None
    within = entry.chunked and entry.sliding_window is not None  # no distance that a table turns is longer than a chunk
    if entry.table is None or within:
        method = LENGTH
    elif method == METHOD and arch is not None:
        method = arch.method
    request = Request(method, None, target, None, None, found.as_type)
    if method == LENGTH:
        context = found.rope.max_position_embeddings
        return [
            _tried(found, request, Step("", context, target, request.command(found.source)), for_runtimes=for_runtimes)
        ]
    # Keys of a GGUF file say what to do with one base; what comes on top of another table only a vector says.
    ways = steps(found.source, found.rope, found.made, found.trained_length, request)
    tried = [
        _tried(found, request, step, "auto" if arch is None or arch.takes_factor else "none", for_runtimes)
        for step in ways
        if arch is None or arch.vectors or step.reading != CURRENT
    ]
    distinct: dict[str, Proposal] = {}
    for way in tried:
        distinct.setdefault(way.line or way.refusal, way)
    return list(distinct.values())


def proposed(
    found: Inspection, request: Request, params: Mapping[str, Any], for_runtimes: Sequence[str] = ()
) -> Proposal | None:
    """Return the proposal for a method with parameters, or None if the file cannot store its plan."""
    reading = () if request.reading is None else ("--from", request.reading)
    words = [word for name, value in params.items() for word in ("-p", name, number(value))]
    line = request.command(found.source, *reading, *words)
    step = Step(request.reading or "", found.trained_length, request.target_length, line)
    way = _tried(found, request, step, for_runtimes=for_runtimes, params=params)
    return way if way.plan else None


def extent_of(found: Inspection, method: str, target: int) -> Extent:
    """Return the size of an extension of this source to a target, in tokens."""
    assert found.rope is not None
    entry = found.rope.entries.get(names.FULL_ATTENTION)
    shipped = found.made is None and entry is not None and not entry.unscaled
    return extent(method, target, found.trained_length, found.rope.max_position_embeddings if shipped else None)


def _tried(
    found: Inspection, request: Request, step: Step, attention_factor: str = "auto", for_runtimes: Sequence[str] = (),
    params: Mapping[str, Any] | None = None,
) -> Proposal:  # fmt: skip
    said = [] if attention_factor == "auto" else ["--attention-factor", attention_factor]
    forced = [FORCE] if extent_of(found, request.method, request.target_length or 0).refused else []
    line = " ".join([step.command, *said, *(f"--for {name}" for name in for_runtimes), *forced])
    if step.start is None or found.checkpoint is None:
        return Proposal(step, request.method, line, attention_factor=attention_factor)
    try:
        plan = make_plan(
            found.checkpoint, request.method, target_length=request.target_length, reading=step.reading or None,
            attention_factor=attention_factor, as_type=request.as_type, for_runtimes=for_runtimes, params=params,
        )  # fmt: skip
    except RopetoolError as refused:
        instead = " ".join([refused.try_, *forced]) if (refused.try_ or "").startswith(EXTEND) else ""
        return Proposal(step, request.method, instead, refused.message, brief=refused.brief.partition(LONGEST)[0])
    return Proposal(step, request.method, line, plan=plan, attention_factor=attention_factor)
