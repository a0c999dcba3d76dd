"""ropetool import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ropetool.cli import local_source, notes, print_json, show


@click.command("import")
@click.argument("source", metavar="FILE.gguf", type=click.Path())
@click.option("-o", "--output", metavar="DIR", type=click.Path(), help="Default: beside FILE, under its name.")
@click.option(
    "--dtype", metavar="TYPE", default="auto", show_default=True,
    help="Type of the tensors: bf16, f16, f32. auto: that of most of the file's numbers, bf16 for quantised ones.",
)  # fmt: skip
@click.option(
    "--as", "as_type", metavar="MODEL_TYPE", default="",
    help="Become another class of the file's architecture: mistral for a llama file, say.",
)  # fmt: skip
@click.option(
    "--no-check", "check", is_flag=True, default=True, flag_value=False,
    help="Keep the checkpoint without comparing its tokens, tables and logits with the file's.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a directory that ropetool wrote.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def import_command(source: str, output: str | None, as_json: bool, **choices: Any) -> None:
    """Write a GGUF file as a Hugging Face checkpoint.

    The checkpoint computes what llama.cpp does with the file: its positions, its sizes, its numbers as the file has
    them, quantised ones decoded. A file that says what no class of transformers computes is refused, and nothing is
    written. What a GGUF file does not hold, parts of the tokenizer, is made up and told.

    Before the checkpoint gets its name it is read back, as an export is: its tokens, its tables and, where llama.cpp and
    transformers are installed, its logits. One that differs is not kept (exit code 3).

    \b
    ropetool import model-Q8_0.gguf -o model
    ropetool import model-Q4_K_M.gguf --dtype f32
    """
    from ropetool.cli.progress import BYTES, bar
    from ropetool.gguf_import import COMPARING_LOGITS, import_gguf
    from ropetool.report.exported import imported_text, written_json

    with bar(BYTES) as shown:

        def tell(stage: str, done: int, total: int) -> None:
            shown(stage, done, total, "tokens" if stage == COMPARING_LOGITS else BYTES)

        target = Path(output) if output is not None else None
        written = import_gguf(local_source(source), target, progress=tell, **choices)
    if as_json:
        print_json(written_json(written))
    else:
        show(imported_text(written))
        notes(written.notes)
