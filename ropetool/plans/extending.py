"""`ropetool.extend`: a plan and its output in one call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ropetool.errors import ConfigError
from ropetool.escaping import read_length
from ropetool.files import hub
from ropetool.plans.advice import advised_method
from ropetool.plans.applying import Applied, apply
from ropetool.plans.search import listed, make_plan


def extend(
    source: str | Path,
    output: str | Path | None = None,
    *,
    method: str | None = None,
    factor: float | None = None,
    target_length: int | str | None = None,
    force: bool = False,
    copy: bool = False,
    **options: Any,
) -> Applied:
    """Write a copy of a model with a longer context, as the command `extend` does.

    source: a path, or the id of a model on the hub.
    output: None chooses a name with the method and the length, next to the source.
    method: None chooses the method that `advise` recommends.
    factor, target_length: one of the two. A length is a number of tokens, or a text like "32k".
    force: replace an output that ropetool made.
    copy: copy unchanged weight files, and do not link them.
    options: other arguments of `plan`, such as `for_runtimes`, `reading` and `params`.

    The notes of the result include the notes of the plan. Raises: as `plan` and `apply`.
    """
    path = hub.local(source)
    length = None if target_length is None else read_length(target_length, "target_length")
    if method is None:
        if options.get("params"):
            raise ConfigError("the parameters belong to a method", where="params", try_="name the method with method=")
        method, attention_factor = _advised(path, factor, length, options)
        options = {"attention_factor": attention_factor, **options}
    plan = make_plan(path, method, factor=factor, target_length=length, **options)
    written = apply(plan, path, plan.output_beside(path) if output is None else output, force=force, copy=copy)
    return replace(written, notes=(*plan.notes, *written.notes))


def _advised(path: Path, factor: float | None, length: int | None, options: dict[str, Any]) -> tuple[str, str]:
    names = ("reading", "original_length", "as_type", "force_factor")
    asked = {name: options[name] for name in names if name in options}
    runtimes = listed(options.get("for_runtimes", ()))
    method, attention_factor, _ = advised_method(path, factor, length, for_runtimes=runtimes, **asked)
    return method, attention_factor
