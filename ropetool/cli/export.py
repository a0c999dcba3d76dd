"""ropetool export."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropetool.cli import command_line, local_source, print_result
from ropetool.cli.options import FORCE, JSON, SOURCE, WHOLE, check_output_path, gathered, output

if TYPE_CHECKING:
    from ropetool.gguf_export import Exported
    from ropetool.gguf_export.options import ExportOptions


@click.command("export")
@SOURCE
@output("The output file. Default: NAME-TYPE.gguf next to SOURCE.")
@click.option(
    "--outtype", metavar="TYPE", default="auto", show_default=True,
    help="The type of the matrices: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, and with the extra llama also q4_k_m, "
    "q5_k_m, q6_k, iq4_xs and similar types. auto keeps the stored type.",
)  # fmt: skip
@click.option(
    "--imatrix", metavar="FILE", type=click.Path(),
    help="An importance matrix from llama-imatrix, for K-quants and IQ types.",
)  # fmt: skip
@click.option(
    "--split-max-size", metavar="N[K|M|G]",
    help="Write several files, each with at most N bytes of tensors. K, M and G are powers of 1000.",
)  # fmt: skip
@click.option("--split-max-tensors", metavar="N", type=WHOLE, help="Write several files, each with at most N tensors.")
@click.option("--allow-nan", is_flag=True, help="Export weights with NaN or infinity, as f32, f16 or bf16.")
@click.option(
    "--allow-full-attention", is_flag=True,
    help="Accept full attention if llama.cpp ignores the sliding window of the model.",
)  # fmt: skip
@click.option(
    "--require", metavar="publishable|usable|research", default="",
    help="Refuse an extension by ropetool without a certificate of this grade up to its context length.",
)  # fmt: skip
@click.option(
    "--allow-unverified", is_flag=True,
    help="Export an extension by ropetool without verification, or after a failed one.",
)  # fmt: skip
@click.option(
    "--rearch", metavar="ARCH", default="",
    help="Write a different architecture that computes the same. Only llama for qwen2 models, which allows more "
    "RoPE tables.",
)  # fmt: skip
@click.option(
    "--converter", metavar="auto|PATH", default="",
    help="For families that ropetool cannot convert: run llama.cpp's converter in a process without network. PATH is the "
    "script or a folder with llama.cpp's sources, and auto searches for it.",
)  # fmt: skip
@click.option(
    "--shift-safe", is_flag=True,
    help="Multiply the keys by the squared attention factor, so that llama.cpp's context shift and cache reuse stay exact.",
)  # fmt: skip
@click.option(
    "--allow-inexact", is_flag=True,
    help="If llama.cpp cannot compute the exact positions, write the nearest ones and report the difference.",
)  # fmt: skip
@click.option(
    "--no-check", "check", is_flag=True, default=True, flag_value=False,
    help="Do not compare tokens, tables and logits of the file with the checkpoint.",
)  # fmt: skip
@click.option(
    "--no-sidecars", "sidecars", is_flag=True, default=True, flag_value=False,
    help="Do not write a model card and a Modelfile next to the file.",
)  # fmt: skip
@FORCE
@JSON
@gathered(options="ropetool.gguf_export.options.ExportOptions")
def export_command(source: str, output: str | None, options: ExportOptions, as_json: bool) -> None:
    """Write a checkpoint as a GGUF file for llama.cpp.

    llama.cpp computes the same positions from the file as transformers from the checkpoint. If a GGUF file or llama.cpp cannot
    represent the model, export refuses it and does not write a file.

    export also refuses an extension by ropetool that failed verification or differs from its record. If the extension is not
    verified, export measures it if that takes less than two minutes. Otherwise a note reports that it was not measured.

    Before export saves the file, it compares tokens, tables and logits with the checkpoint. The logits need llama.cpp and
    transformers. If a check fails, export deletes the file, and the exit code is 3.

    \b
    ropetool verify model-yarn-8x --suite quick
    ropetool export model-yarn-8x --outtype q8_0 -o model.gguf
    ropetool export model-yarn-8x --outtype q4_k_m --split-max-size 2G
    """
    from ropetool.report.exported import exported_parts, written_json

    several = options.split_max_size is not None or options.split_max_tensors is not None
    check_output_path(output, source, force=options.force, directory=False, several=several)
    target = None if output is None else Path(output)
    written = exported(local_source(source), target, replace(options, command=command_line()))
    print_result(as_json, lambda: written_json(written), lambda: exported_parts(written), written.notes)


def exported(source: Path, output: Path | None, options: ExportOptions) -> Exported:
    """Write a checkpoint as a GGUF file, and show the progress."""
    from ropetool.cli.progress import bar_of_bytes
    from ropetool.gguf_export import COMPARING_LOGITS, export_source

    with bar_of_bytes(COMPARING_LOGITS) as progress:
        return export_source(source, output, options, progress=progress)
