"""The commands for a longer context that `inspect` and `advise` print.

Each is planned first, so it will not be refused.
"""

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
METHOD = "yarn"  # the only method that reaches its target without training
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


def proposals(
    inspected: Inspection, target: int, method: str = METHOD, for_runtimes: Sequence[str] = (),
    original_length: int | None = None,
) -> list[Proposal]:  # fmt: skip
    """Return the ways to this context by a method, each with a planned command.

    If the method does not fit, the proposals use another one: `length` if no layer's table matters, or the only method
    that the architecture supports. For a model on the Hub, the commands are not planned, because that needs a download.
    """
    assert inspected.rope is not None
    entry = inspected.rope.entries.get(names.FULL_ATTENTION)
    if entry is None or inspected.learned_positions:
        return []
    arch = archs.get(inspected.model_type) if inspected.format == "gguf" else None
    within = entry.chunked and entry.sliding_window is not None  # the table never rotates by more than a chunk
    if entry.table is None or within:
        method = LENGTH
    elif method == METHOD and arch is not None:
        method = arch.method
    request = Request(method, None, target, None, original_length, inspected.as_type)
    if method == LENGTH:
        context = inspected.rope.max_position_embeddings
        return [
            _tried(
                inspected,
                request,
                Step("", context, target, request.command(inspected.source)),
                for_runtimes=for_runtimes,
            )
        ]
    # The keys of a GGUF file scale the table of a base. A table on top of another table needs a vector.
    ways = steps(inspected.source, inspected.rope, inspected.origin, inspected.trained_length, request)
    planned = [
        _tried(inspected, request, step, "auto" if arch is None or arch.takes_factor else "none", for_runtimes)
        for step in ways
        if arch is None or arch.vectors or step.reading != CURRENT
    ]
    distinct: dict[str, Proposal] = {}
    for way in planned:
        distinct.setdefault(way.line or way.refusal, way)
    return list(distinct.values())


def proposed(
    inspected: Inspection, request: Request, params: Mapping[str, Any], for_runtimes: Sequence[str] = ()
) -> Proposal | None:
    """Return the proposal for a method with parameters, or None if the file cannot store its plan."""
    reading = () if request.reading is None else ("--from", request.reading)
    words = [word for name, value in params.items() for word in ("-p", name, number(value))]
    line = request.command(inspected.source, *reading, *words)
    step = Step(request.reading or "", inspected.trained_length, request.target_length, line)
    way = _tried(inspected, request, step, for_runtimes=for_runtimes, params=params)
    return way if way.plan else None


def extent_of(inspected: Inspection, method: str, target: int) -> Extent:
    """Return the size of an extension of this source to a target, in tokens."""
    assert inspected.rope is not None
    entry = inspected.rope.entries.get(names.FULL_ATTENTION)
    shipped = inspected.origin is None and entry is not None and not entry.unscaled
    return extent(method, target, inspected.trained_length, inspected.rope.max_position_embeddings if shipped else None)


def _tried(
    inspected: Inspection, request: Request, step: Step, attention_factor: str = "auto", for_runtimes: Sequence[str] = (),
    params: Mapping[str, Any] | None = None,
) -> Proposal:  # fmt: skip
    factor_words = [] if attention_factor == "auto" else ["--attention-factor", attention_factor]
    forced = [FORCE] if extent_of(inspected, request.method, request.target_length or 0).refused else []
    line = " ".join([step.command, *factor_words, *(f"--for {name}" for name in for_runtimes), *forced])
    if step.start is None or inspected.checkpoint is None:
        return Proposal(step, request.method, line, attention_factor=attention_factor)
    try:
        plan = make_plan(
            inspected.checkpoint, request.method, target_length=request.target_length, reading=step.reading or None,
            original_length=request.original_length, attention_factor=attention_factor, as_type=request.as_type,
            for_runtimes=for_runtimes, params=params,
        )  # fmt: skip
    except RopetoolError as refused:
        instead = " ".join([refused.try_, *forced]) if (refused.try_ or "").startswith(EXTEND) else ""
        return Proposal(step, request.method, instead, refused.message, brief=refused.brief.partition(LONGEST)[0])
    return Proposal(step, request.method, line, plan=plan, attention_factor=attention_factor)
