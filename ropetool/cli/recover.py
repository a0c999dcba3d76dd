"""ropetool recover."""

from __future__ import annotations

import click

from ropetool.cli import notes, print_json, show


@click.command("recover")
@click.argument("file", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def recover_command(file: str, as_json: bool) -> None:
    """Finish or take back an interrupted edit in place.

    An edit with --in-place writes beside the file, before it begins, what it is going to do. After a crash or a power
    failure the file is made the new one where its room was on the disk, else the old one again, byte for byte. Until then
    every other command refuses it.

    \b
    ropetool recover model.gguf
    """
    from ropetool.escaping import escaped
    from ropetool.files.gguf.in_place import recover

    found = recover(file)
    if as_json:
        print_json({"schema": 1, "file": str(found.path), "rolled": found.direction, "way": found.way or None})
    else:
        show(f"{escaped(found.path)}\n  {found.sentence}\n")
    notes(found.notes)
