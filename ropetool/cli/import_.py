"""ropetool import."""

from __future__ import annotations

from pathlib import Path

import click

from ropetool.cli import local_source, print_result
from ropetool.cli.options import FORCE, JSON, check_output_path, output


@click.command("import")
@click.argument("source", metavar="FILE.gguf", type=click.Path())
@output("The output directory. Default: the name of FILE, next to it.", metavar="DIR")
@click.option(
    "--dtype", metavar="TYPE", default="auto", show_default=True,
    help="The type of the tensors: bf16, f16 or f32. auto is the most common type of the file, and bf16 for quantised numbers.",
)  # fmt: skip
@click.option(
    "--as", "as_type", metavar="MODEL_TYPE", default="",
    help="Write a different class with the same architecture, such as mistral for a llama file.",
)  # fmt: skip
@click.option(
    "--no-check", "check", is_flag=True, default=True, flag_value=False,
    help="Do not compare tokens, tables and logits of the checkpoint with the file.",
)  # fmt: skip
@FORCE
@JSON
def import_command(
    source: str, output: str | None, dtype: str, as_type: str, check: bool, force: bool, as_json: bool
) -> None:
    """Write a GGUF file as a Hugging Face checkpoint.

    The checkpoint computes the same as llama.cpp with the file. ropetool decodes quantised numbers. If no class of transformers
    computes the same, import refuses the file and does not write anything. A GGUF file lacks some settings of the
    tokenizer. import chooses them, with a note.

    Before import saves the checkpoint, it compares tokens, tables and logits with the file. The logits need llama.cpp and
    transformers. If a check fails, import deletes the checkpoint, and the exit code is 3.

    \b
    ropetool import model-Q8_0.gguf -o model
    ropetool import model-Q4_K_M.gguf --dtype f32
    """
    from ropetool.cli.progress import bar_of_bytes
    from ropetool.gguf_import import COMPARING_LOGITS, import_gguf
    from ropetool.report.exported import imported_parts, written_json

    check_output_path(output, source, force=force, directory=True)
    with bar_of_bytes(COMPARING_LOGITS) as progress:
        written = import_gguf(
            local_source(source), None if output is None else Path(output), dtype=dtype, as_type=as_type, check=check,
            force=force, progress=progress,
        )  # fmt: skip
    print_result(as_json, lambda: written_json(written), lambda: imported_parts(written), written.notes)
