"""ropetool inspect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, print_result, terminal_width
from ropetool.cli.options import AS, SOURCE, target_length
from ropetool.errors import ConfigError

if TYPE_CHECKING:
    from ropetool.costs.lines import Cost
    from ropetool.plans.advice import Advice
    from ropetool.plans.proposals import Proposal
    from ropetool.runtimes.inspection import Inspection
    from ropetool.sections import Part


@click.command("inspect")
@SOURCE
@target_length(
    "Show cost and methods for this context length in tokens: 131072, 128k or 1M. Default: the configured length for "
    "the cost, and twice that for the methods."
)
@click.option(
    "--cost", is_flag=True,
    help="Print the cost at that length and its calculation: parameters, bytes of weights and KV cache, FLOPs, and tokens that "
    "`verify` reads.",
)  # fmt: skip
@click.option(
    "--html", type=click.Path(),
    help="Write charts to this file: wavelengths before and after, the table of each runtime, and commands for a longer context.",
)  # fmt: skip
@AS
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, with every table.")
def inspect_command(
    source: str, target_length: int | None, cost: bool, html: str | None, as_type: str | None, as_json: bool
) -> None:
    """Show the RoPE settings and how each runtime reads them.

    In all commands, SOURCE is a directory with a config.json, a GGUF file, or a Hub id: ORG/NAME, ORG/NAME@REVISION, or
    ORG/NAME:FILE.gguf for a GGUF file. inspect does not read weights. From the Hub it downloads only the config and headers.

    The output ends with commands that extend the model. With a longer --target-length, it ends with the advice of
    `ropetool advise` instead.

    \b
    ropetool inspect model --target-length 131072
    ropetool inspect Qwen/Qwen3-8B
    ropetool inspect model --target-length 131072 --cost
    ropetool inspect model.gguf --target-length 128k --html model.html
    """
    from ropetool.report.inspected import extension_target, inspection_json
    from ropetool.runtimes import inspection

    if html is not None:
        from ropetool.report.page import check_file

        check_file(Path(html))
    inspected, checkpoint = inspection.inspect_opened(source, as_type)
    costing = None
    if cost:  # costs plans the rows of `verify`, which loads half of the package
        from ropetool.costs.lines import cost_of

        costing = cost_of(inspected, checkpoint, target_length)
    advice = None
    if inspected.rope is not None and (target_length is not None or html is not None):
        from ropetool.plans.advice import advise

        advice = advise(inspected, extension_target(inspected.rope, target_length))
    if html is not None:
        if advice is None:
            raise ConfigError(
                "its RoPE settings cannot be decoded, so there is nothing to draw", where=source,
                try_="leave out --html",
            )  # fmt: skip
        _draw(inspected, advice, Path(html))
    if target_length is None or (inspected.rope and target_length <= inspected.rope.max_position_embeddings):
        advice = None  # no method is recommended within the configured context length
    print_result(
        as_json,
        lambda: {**inspection_json(inspected, target_length, advice), **_cost_json(costing)},
        lambda: _parts(inspected, target_length, advice, costing),
        [*inspected.notes, *([f"drawn: {html}"] if html is not None else [])],
        width=terminal_width(),
    )


def _draw(inspected: Inspection, advice: Advice, file: Path) -> None:
    """Write the page with charts."""
    from ropetool.plans.advice import with_bounds
    from ropetool.report.inspected_page import inspection_page
    from ropetool.report.page import write_file

    write_file(inspection_page(inspected, with_bounds(advice), command_line()), file)


def _cost_json(costing: Cost | None) -> dict[str, Any]:
    if costing is None:
        return {}
    from ropetool.report.costing import cost_json

    return {"cost": cost_json(costing)}


def _parts(
    inspected: Inspection, target_length: int | None, advice: Advice | None, costing: Cost | None
) -> Iterator[Part]:
    """Yield the inspection, and its cost if requested."""
    from ropetool.report.inspected import extension_target, inspection_parts

    ways: list[Proposal] = []
    if inspected.rope and advice is None:
        from ropetool.plans.proposals import proposals

        ways = proposals(inspected, extension_target(inspected.rope, target_length))
    yield from inspection_parts(inspected, target_length, ways, advice)
    if costing is not None:
        from ropetool.report.costing import cost_parts

        yield from cost_parts(costing)
