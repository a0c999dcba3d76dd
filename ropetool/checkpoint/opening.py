"""A checkpoint from its path, whatever its format: the one place that asks which it is."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.files.regular import open_regular

Checkpoint: TypeAlias = HfCheckpoint | GgufCheckpoint


def open_checkpoint(source: Path | Checkpoint) -> Checkpoint:
    """Return the checkpoint at this path, a GGUF model by any of its files or a Hugging Face directory; an open one as it is.

    Raises: CheckpointError.
    """
    if isinstance(source, (HfCheckpoint, GgufCheckpoint)):
        return source
    return GgufCheckpoint.open(source) if _is_gguf(source) else HfCheckpoint.open(source)


def first_file(path: Path) -> Path:
    """Return the file that a GGUF model in several files is named by, beside which its record stands; else the path.

    Raises: CheckpointError.
    """
    return GgufCheckpoint.open(path).path if _is_gguf(path) else path


def _is_gguf(path: Path) -> bool:
    """Return whether this is a file of the GGUF kind, by its name or its first letters."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with open_regular(path) as file:
        return file.read(4) == b"GGUF"
