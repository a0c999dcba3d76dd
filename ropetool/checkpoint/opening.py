"""Which format a path has, and the file that a model is named by."""

from __future__ import annotations

from pathlib import Path

from ropetool.files.gguf import read_shards
from ropetool.files.regular import open_regular


def first_file(path: Path) -> Path:
    """Return the file that a GGUF model in several files is named by, beside which its record stands; else the path.

    Raises: CheckpointError.
    """
    return read_shards(path)[0].path if is_gguf(path) else path


def is_gguf(path: Path) -> bool:
    """Return whether this is a file of the GGUF kind, by its name or its first letters."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with open_regular(path) as file:
        return file.read(4) == b"GGUF"
