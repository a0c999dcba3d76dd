"""ropetool restore."""

from __future__ import annotations

import click

from ropetool.cli import notes, print_json, show


@click.command("restore")
@click.argument("source", metavar="FILE", type=click.Path())
@click.option("--all", "every", is_flag=True, help="Undo every edit of the log, back to the first.")
@click.option(
    "--copy-if-needed",
    is_flag=True,
    help="Write the whole file again where nothing less will do: an added tensor goes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def restore_command(source: str, every: bool, copy_if_needed: bool, as_json: bool) -> None:
    """Undo the last edit in place of a GGUF file.

    The log beside the file says what every key and vector was. They become that again, in place too, and so does the
    record. A file that is not as its log says is left alone.

    Of any other output, a directory or a file that is a copy, it says what is to be deleted: its source is as it was.

    \b
    ropetool restore model.gguf
    ropetool restore model-yarn-8x
    """
    from ropetool.plans.restoring import restore
    from ropetool.report.restored import restored_json, restored_text

    done = restore(source, every=every, copy_if_needed=copy_if_needed)
    if as_json:
        print_json(restored_json(done))
    else:
        show(restored_text(done))
        notes(done.notes)
