"""The outputs of `extend --variants` together: which prompts each serves, the routing files, and the space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ropetool.plans.routing import prompt_limits
from ropetool.plans.variants import Variants
from ropetool.report.planned import SCHEMA
from ropetool.sections import Part, listing


def routed_parts(planned: Variants, shared: int = 0) -> Iterator[Part]:
    """Yield the prompts that LiteLLM sends to each output, the space, and the lines that start the routers.

    shared: the bytes that the outputs share.
    """
    limits = prompt_limits(planned.models)
    rows = [
        (model.name, f"context {model.context}", f"prompts up to {limit} tokens" if limit else "longer prompts")
        for model, limit in zip(planned.models, limits, strict=True)
    ]
    yield listing("routing by prompt length", rows)
    yield listing("space", [(planned.space(shared),)])
    yield listing("routers", [(line,) for line in planned.start_lines()], whole=True)


def routed_json(
    planned: Variants, results: Sequence[dict[str, Any]], shared: int = 0, *, written: bool
) -> dict[str, Any]:
    """Return what `ropetool extend --variants --json` prints.

    results: the JSON of each output.
    shared: the bytes that the outputs share.
    """
    limits = prompt_limits(planned.models)
    models = [
        {"name": model.name, "path": str(model.path), "context": model.context, "max_input_tokens": limit}
        for model, limit in zip(planned.models, limits, strict=True)
    ]
    return {
        "schema": SCHEMA, "written": written, "variants": list(results), "models": models,
        "server": planned.server.program, "model_group": planned.group,
        "routing": {router: str(path) for router, path in planned.files.items()},
        "new_bytes": sum(variant.new_bytes for variant in planned.variants), "shared_bytes": shared,
    }  # fmt: skip
