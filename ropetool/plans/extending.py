"""`ropetool.extend`: a plan and its output in one call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ropetool.errors import ConfigError
from ropetool.files import hub
from ropetool.plans.advice import advised_method
from ropetool.plans.applied import Applied
from ropetool.plans.applying import apply
from ropetool.plans.basis import PlanArguments, Request, Unpack, takes_fields
from ropetool.plans.search import plan_for

UNDECIDED = ""  # the method of a request before `advise` has recommended one


@takes_fields(Request, PlanArguments)
def extend(
    source: str | Path,
    output: str | Path | None = None,
    *,
    method: str | None = None,
    force: bool = False,
    copy: bool = False,
    **options: Unpack[PlanArguments],
) -> Applied:
    """Write a copy of a model with a longer context, as the command `extend` does.

    source: a path, or the id of a model on the hub.
    output: None chooses a name with the method and the length, next to the source.
    method: None chooses the method that `advise` recommends.
    force: replace an output that ropetool made.
    copy: copy unchanged weight files, and do not link them.
    options: the other fields of `Request`, by name, such as `factor` or `target_length`.

    The notes of the result include the notes of the plan. Raises: as `plan` and `apply`.
    """
    path = hub.local(source)
    request = Request(UNDECIDED if method is None else method, **dict[str, Any](options))
    if method is None:
        request = _with_method(path, request, keeps_factor="attention_factor" in options)
    plan = plan_for(path, request)
    written = apply(plan, path, plan.output_beside(path) if output is None else output, force=force, copy=copy)
    return replace(written, notes=(*plan.notes, *written.notes))


def _with_method(path: Path, request: Request, *, keeps_factor: bool) -> Request:
    """Return the request with the recommended method, and with its attention factor unless the caller passed one."""
    if request.params:
        raise ConfigError("the parameters belong to a method", where="params", try_="name the method with method=")
    method, attention_factor, _ = advised_method(
        path, request.factor, request.target_length, request.reading, request.original_length, request.as_type,
        request.for_runtimes, request.force_factor,
    )  # fmt: skip
    return replace(
        request, method=method, attention_factor=request.attention_factor if keeps_factor else attention_factor
    )
