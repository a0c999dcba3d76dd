"""ropetool advise."""

from __future__ import annotations

import click

from ropetool.cli import print_result, terminal_width
from ropetool.cli.options import AS, JSON, SOURCE, explain, for_runtimes, target_length


@click.command("advise")
@SOURCE
@target_length("The target context length in tokens: 131072, 128k or 1M.", required=True)
@for_runtimes(
    "A runtime that must read the output correctly (repeatable). Default: transformers, or llama.cpp for GGUF files."
)
@AS
@explain()
@JSON
def advise_command(
    source: str, target_length: int, for_runtimes: tuple[str, ...], as_type: str | None, explain: bool, as_json: bool
) -> None:
    """Recommend a method for a context length, with reasons.

    Does not run the model. The reach of a method, in tokens, follows from the angles of its rotary pairs. ropetool also plans
    each method, to check that the file can store it. `ropetool extend` without --method uses the recommended method.

    \b
    ropetool advise model --target-length 131072
    ropetool advise model.gguf --target-length 128k
    """
    from ropetool.plans.advice import advise, with_bounds
    from ropetool.report.advised import advice_json, advice_parts
    from ropetool.runtimes.inspection import inspect

    inspection = inspect(source, as_type)
    advice = with_bounds(advise(inspection, target_length, for_runtimes))
    print_result(
        as_json, lambda: advice_json(advice), lambda: advice_parts(advice, explain=explain), inspection.notes,
        width=terminal_width(),
    )  # fmt: skip
