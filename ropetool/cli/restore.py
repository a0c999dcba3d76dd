"""ropetool restore."""

from __future__ import annotations

import click

from ropetool.cli import print_result
from ropetool.cli.options import JSON


@click.command("restore")
@click.argument("source", metavar="FILE", type=click.Path())
@click.option("--all", "every", is_flag=True, help="Undo all edits in the log.")
@click.option(
    "--copy-if-needed", is_flag=True, help="Rewrite the whole file if an added tensor cannot be removed in place."
)
@JSON
def restore_command(source: str, every: bool, copy_if_needed: bool, as_json: bool) -> None:
    """Undo the last in-place edit of a GGUF file.

    Keys, vectors and the record get their old content from the log next to the file. restore refuses a file that
    another program changed.

    For a directory or a file that is a copy, restore prints the command that deletes it, if the source is unchanged.

    \b
    ropetool restore model.gguf
    ropetool restore model-yarn-8x
    """
    from ropetool.plans.restoring import restore
    from ropetool.report.restored import restored_json, restored_parts

    done = restore(source, every=every, copy_if_needed=copy_if_needed)
    print_result(as_json, lambda: restored_json(done), lambda: restored_parts(done), done.notes)
