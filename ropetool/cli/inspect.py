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
@AS
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, with every table.")
def inspect_command(source: str, target_length: int | None, as_type: str | None, as_json: bool) -> None:
    """Show what a checkpoint says and what runtimes make of it.

    SOURCE is a directory with a config.json, a GGUF file, or a hub id, here and in all commands: ORG/NAME,
    ORG/NAME@REVISION, and of a GGUF file ORG/NAME:FILE.gguf. No weights are read, and of the hub only config and headers.
    The output ends with the command lines that extend the model.

    \b
    ropetool inspect model --target-length 131072
    ropetool inspect Qwen/Qwen3-8B
    """
    from ropetool.plans.proposals import proposals
    from ropetool.report.inspected import extension_target, inspection_json, inspection_text
    from ropetool.runtimes import inspection

    found = inspection.inspect(source, as_type)
    if as_json:
        print_json(inspection_json(found, target_length))
    else:
        ways = proposals(found, extension_target(found.rope, target_length)) if found.rope else []
        show(inspection_text(found, target_length, terminal_width(), ways))
        notes(found.notes)
