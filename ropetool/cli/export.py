"""ropetool export."""

from __future__ import annotations

from pathlib import Path

import click

from ropetool.cli import notes, print_json

MEGABYTE = 1_000_000


@click.command("export")
@click.argument("source", type=click.Path())
@click.option("-o", "--output", type=click.Path(), help="Default: NAME-TYPE.gguf beside SOURCE.")
@click.option(
    "--outtype", type=click.Choice(["auto", "f32", "f16", "bf16"]), default="auto", show_default=True,
    help="Type of the matrices; auto: as stored.",
)  # fmt: skip
@click.option(
    "--allow-full-attention", is_flag=True,
    help="Accept that llama.cpp attends to everything where the model has a sliding window that it ignores.",
)  # fmt: skip
@click.option(
    "--allow-unverified", is_flag=True,
    help="Export what ropetool made without the certificate of a passed verification.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def export_command(source: str, output: str | None, outtype: str, force: bool, as_json: bool, **allowed: bool) -> None:
    """Write a checkpoint as a GGUF file for llama.cpp.

    The file states the checkpoint's positions so that llama.cpp computes the same ones. What a GGUF file or llama.cpp
    cannot hold is refused, and nothing is written. So is an output of ropetool whose certificate is missing, failed,
    stale or does not reach its whole context; `ropetool verify` makes one. Any other checkpoint is exported with a note.

    \b
    ropetool verify model-yarn-8x --suite quick
    ropetool export model-yarn-8x --outtype f16 -o model.gguf
    """
    from ropetool.cli.progress import bar
    from ropetool.exporting import export_checkpoint
    from ropetool.report.exported import exported_json, exported_text

    with bar("MB") as shown:
        written = export_checkpoint(
            Path(source), Path(output) if output is not None else None, outtype=outtype, force=force,
            progress=lambda tensor, done, total: shown(tensor, done // MEGABYTE, total // MEGABYTE), **allowed,
        )  # fmt: skip
    if as_json:
        print_json(exported_json(written))
    else:
        click.echo(exported_text(written), nl=False)
        notes(written.notes)
