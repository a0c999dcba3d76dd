"""Export to GGUF: a Hugging Face checkpoint as one file that llama.cpp runs, computing the same positions.

Tensors are streamed; what the file or llama.cpp cannot hold is refused, and what differs otherwise is noted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.errors import NotACheckpoint
from ropetool.exporting import container, metadata, rotary
from ropetool.exporting.container import Progress
from ropetool.exporting.sizes import kind_of, sizes
from ropetool.exporting.tensors import AUTO, Layout, lay_out
from ropetool.exporting.tokenizer import tokenizer_values
from ropetool.formats.hf import headers
from ropetool.formats.output import check_output, staged
from ropetool.hosts import HfHost

SUFFIX = ".gguf"

__all__ = ["Exported", "Progress", "export_checkpoint"]


@dataclass(frozen=True)
class Exported:
    """A file that was written. encoding: how its rotary table is stated. nbytes: its size."""

    output: Path
    arch: str
    outtype: str
    tensors: int
    nbytes: int
    encoding: str
    context_length: int
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return {**vars(self), "output": str(self.output), "notes": list(self.notes)}


def export_checkpoint(
    source: str | Path,
    output: str | Path | None = None,
    *,
    outtype: str = AUTO,
    force: bool = False,
    allow_full_attention: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write a checkpoint as a GGUF file, whole or not at all, and return what was written.

    Without an output it goes beside the source, as NAME-TYPE.gguf. `outtype` is the type of the matrices: f32, f16,
    bf16, or auto for the source's own. `progress` is told the tensor, the bytes done, and those of the whole file.
    Raises: CheckpointError for broken files, ConfigError for broken values, UnknownName for an unknown family or type,
    LossyExport for what a GGUF file or llama.cpp cannot hold, OutputError.
    """
    host = HfHost.open(Path(source), None)
    checkpoint, where = host.checkpoint, host.where
    kind = kind_of(host.family.model_type, where)
    if checkpoint.config_only:
        raise NotACheckpoint("holds a config and no weights", where=str(host.path))
    rotation = rotary.rotation(host, allow_full_attention=allow_full_attention)
    shape = sizes(checkpoint.config, kind, rotation.arch, rotation.head_dim, where)
    layout = lay_out(headers(checkpoint), shape, outtype, interleaved=rotation.interleaved, where=str(host.path))
    target = Path(output) if output is not None else _beside(host.path, layout)
    check_output(target, host.path, force=force)  # before the tokenizer, which takes a second

    general, card_notes = metadata.general_values(host.path, shape, layout)
    values = general | metadata.model_values(shape, layout)
    encoding, rope_notes = rotary.encode(rotation, values, [placed.info for placed in layout.tensors], where)
    tokenizer, token_notes = tokenizer_values(host.path, checkpoint.config, shape.vocabulary)

    with staged(target, host.path, force=force) as stage:
        everything = values | dict(encoding.keys) | tokenizer
        nbytes = container.write(stage, everything, layout, encoding.tensors, progress or _ignore)
    return Exported(
        target, shape.arch, layout.outtype, len(layout.tensors) + len(encoding.tensors), nbytes, encoding.name,
        rotation.target.max_position_embeddings,
        notes=(*host.notes(), *layout.notes, *rotation.notes, *rope_notes, *token_notes, *card_notes),
    )  # fmt: skip


def _beside(source: Path, layout: Layout) -> Path:
    source = source.absolute()
    return source.with_name(f"{source.name}-{layout.outtype.upper()}{SUFFIX}")


def _ignore(tensor: str, done: int, total: int) -> None:
    """Be told of progress, and do nothing."""
