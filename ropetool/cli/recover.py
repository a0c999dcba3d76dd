"""ropetool recover."""

from __future__ import annotations

import click

from ropetool.cli import notes, print_json, show
from ropetool.cli.options import JSON


@click.command("recover")
@click.argument("file", type=click.Path())
@JSON
def recover_command(file: str, as_json: bool) -> None:
    """Finish or undo an interrupted in-place edit.

    An edit with --in-place first writes a journal next to the file. After a crash or a power failure, recover finishes the edit
    if the disk space for it was already reserved. Otherwise it restores the old file, byte for byte. Until then, every other command
    refuses the file.

    \b
    ropetool recover model.gguf
    """
    from ropetool.escaping import escaped
    from ropetool.files.gguf.in_place import recover

    recovered = recover(file)
    if as_json:
        print_json(
            {"schema": 1, "file": str(recovered.path), "rolled": recovered.direction, "way": recovered.way or None}
        )
    else:
        show(f"{escaped(recovered.path)}\n  {recovered.sentence}\n")
    notes(recovered.notes)
