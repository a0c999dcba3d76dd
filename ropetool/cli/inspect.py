"""ropetool inspect."""

from __future__ import annotations

import click

from ropetool.cli import notes, print_json, show, terminal_width
from ropetool.cli.options import AS, Length


@click.command("inspect")
@click.argument("source", type=click.Path())
@click.option(
    "--target-length",
    type=Length(),
    help="Show what this length would take: 131072, 128k or 1M tokens. Default: the context stated.",
)
@click.option(
    "--cost", is_flag=True,
    help="What that length costs: parameters, bytes of weights and cache, FLOPs, tokens of `verify`, with the arithmetic.",
)  # fmt: skip
@AS
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, with every table.")
def inspect_command(source: str, target_length: int | None, cost: bool, as_type: str | None, as_json: bool) -> None:
    """Show what a checkpoint says and what runtimes make of it.

    SOURCE is a directory with a config.json, a GGUF file, or a hub id, here and in all commands: ORG/NAME,
    ORG/NAME@REVISION, and of a GGUF file ORG/NAME:FILE.gguf. No weights are read, and of the hub only config and headers.
    The output ends with the command lines that extend the model.

    \b
    ropetool inspect model --target-length 131072
    ropetool inspect Qwen/Qwen3-8B
    ropetool inspect model --target-length 131072 --cost
    """
    from ropetool.plans.proposals import proposals
    from ropetool.report.costing import cost_json, cost_text
    from ropetool.report.inspected import extension_target, inspection_json, inspection_text
    from ropetool.runtimes import inspection

    found, checkpoint = inspection.inspect_opened(source, as_type)
    costing = None
    if cost:
        from ropetool.costs.lines import cost_of

        costing = cost_of(found, checkpoint, target_length)
    if as_json:
        data = inspection_json(found, target_length)
        print_json(data if costing is None else {**data, "cost": cost_json(costing)})
    else:
        ways = proposals(found, extension_target(found.rope, target_length)) if found.rope else []
        show(inspection_text(found, target_length, terminal_width(), ways))
        if costing is not None:
            show(cost_text(costing, terminal_width()))
        notes(found.notes)
