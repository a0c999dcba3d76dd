"""ropetool export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, local_source, notes, print_json, show
from ropetool.cli.options import WHOLE

if TYPE_CHECKING:
    from ropetool.gguf_export import Exported


@click.command("export")
@click.argument("source", type=click.Path())
@click.option("-o", "--output", type=click.Path(), help="Default: NAME-TYPE.gguf beside SOURCE.")
@click.option(
    "--outtype", metavar="TYPE", default="auto", show_default=True,
    help="Type of the matrices: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0; with the extra llama also q4_k_m, q5_k_m, "
    "q6_k, iq4_xs and the like. auto: as stored.",
)  # fmt: skip
@click.option(
    "--imatrix",
    metavar="FILE",
    type=click.Path(),
    help="Importance matrix of llama-imatrix, for K-quants and IQ types.",
)
@click.option("--split-max-size", metavar="N[K|M|G]", help="Several files, with tensors of at most so many bytes each.")
@click.option("--split-max-tensors", metavar="N", type=WHOLE, help="Several files, with at most N tensors each.")
@click.option("--allow-nan", is_flag=True, help="Export weights that are NaN or infinite; blocks hold neither.")
@click.option(
    "--allow-full-attention", is_flag=True,
    help="Accept that llama.cpp attends to everything where the model has a sliding window that it ignores.",
)  # fmt: skip
@click.option(
    "--require", metavar="publishable|usable|research", default="",
    help="Refuse a checkpoint of ropetool without a certificate of this grade for its whole context.",
)  # fmt: skip
@click.option(
    "--allow-unverified", is_flag=True,
    help="Export what ropetool made without looking at it.",
)  # fmt: skip
@click.option(
    "--rearch", metavar="ARCH", default="",
    help="Write for another architecture whose graph computes the same: qwen2 models as llama, which takes any table.",
)  # fmt: skip
@click.option(
    "--converter", metavar="auto|PATH", default="",
    help="For a family that ropetool has no table of: llama.cpp's own converter, as a child process without network. PATH: "
    "its script, or a folder of llama.cpp's sources.",
)  # fmt: skip
@click.option(
    "--shift-safe", is_flag=True,
    help="Put the attention factor into the keys: llama.cpp's context shift and cache reuse stay exact.",
)  # fmt: skip
@click.option(
    "--allow-inexact", is_flag=True,
    help="Write the nearest positions where llama.cpp cannot hold the checkpoint's, and say how far they are apart.",
)  # fmt: skip
@click.option(
    "--no-check", "check", is_flag=True, default=True, flag_value=False,
    help="Keep the file without comparing its tokens, tables and logits with the checkpoint's.",
)  # fmt: skip
@click.option(
    "--no-sidecars", "sidecars", is_flag=True, default=True, flag_value=False,
    help="Write no model card and no Modelfile beside the file.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a file that ropetool wrote.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def export_command(
    source: str, output: str | None, imatrix: str | None, as_json: bool, **choices: Any
) -> None:  # fmt: skip
    """Write a checkpoint as a GGUF file for llama.cpp.

    The file states the checkpoint's positions so that llama.cpp computes the same ones. What a GGUF file or llama.cpp
    cannot hold is refused, and nothing is written. So is an output of ropetool that failed its verification, or that is not
    what its record says. If nobody verified it, export measures it, provided that takes less than two minutes. Otherwise a
    note says that it was not measured.

    Before the file gets its name it is read back: its tokens, its tables and, where llama.cpp and transformers are
    installed, its logits on a bundled text are compared with the checkpoint's. One that differs is not kept (exit code 3).

    \b
    ropetool verify model-yarn-8x --suite quick
    ropetool export model-yarn-8x --outtype q8_0 -o model.gguf
    ropetool export model-yarn-8x --outtype q4_k_m --split-max-size 2G
    """
    from ropetool.report.exported import exported_text, written_json

    written = exported(
        local_source(source), Path(output) if output is not None else None,
        imatrix=Path(imatrix) if imatrix is not None else None, **choices,
    )  # fmt: skip
    if as_json:
        print_json(written_json(written))
    else:
        show(exported_text(written))
        notes(written.notes)


def exported(source: Path, output: Path | None, *, command: str | None = None, **choices: Any) -> Exported:
    """Write a checkpoint as a GGUF file with these options of the command, and show how far it is."""
    from ropetool.cli.progress import BYTES, bar
    from ropetool.gguf_export import COMPARING_LOGITS, export_checkpoint

    command = command_line() if command is None else command
    with bar(BYTES) as shown:

        def tell(stage: str, done: int, total: int) -> None:
            shown(stage, done, total, "tokens" if stage == COMPARING_LOGITS else BYTES)

        return export_checkpoint(source, output, command=command, progress=tell, **choices)
