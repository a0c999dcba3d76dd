"""Opening a checkpoint from its path. Only this module decides the format of a path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from ropetool import names
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import InvalidRope
from ropetool.files import hub
from ropetool.files.regular import open_regular

if TYPE_CHECKING:
    from ropetool.checkpoint.gguf import GgufCheckpoint

    Checkpoint: TypeAlias = HfCheckpoint | GgufCheckpoint
else:
    # Only `typing.get_type_hints` evaluates the text, so that opening a directory does not load the GGUF reader.
    Checkpoint = Union[HfCheckpoint, '__import__("ropetool.checkpoint.gguf", fromlist=["_"]).GgufCheckpoint']


def open_checkpoint(source: Path | Checkpoint) -> Checkpoint:
    """Return the checkpoint at this path: a Hugging Face directory, or a GGUF model by any of its files.

    An open checkpoint is returned unchanged.
    Raises: CheckpointError.
    """
    if not isinstance(source, Path):
        return source
    return _open_gguf(source) if _is_gguf(source) else HfCheckpoint.open(source)


def open_source(source: str | Path | Checkpoint) -> Checkpoint:
    """Return the checkpoint at a path or hub id, downloaded if it is not on disk. Return an open checkpoint unchanged.

    Raises: CheckpointError, HubError.
    """
    return open_checkpoint(hub.local(source) if isinstance(source, (str, os.PathLike)) else source)


def opened_as(
    source: Path | Checkpoint, model_type: str | None
) -> tuple[Checkpoint, tuple[FileEdit, ...], tuple[str, ...]]:
    """Return a checkpoint as one of a built-in class, the edits of its config for this class, and a note on them.

    Without a `model_type` there are no edits and no note.
    Raises: CheckpointError, UnknownFamily, InvalidRope, LossyExport.
    """
    checkpoint = open_checkpoint(source)
    if model_type is None:
        return checkpoint, (), ()
    if checkpoint.format == "gguf":
        raise InvalidRope("does not apply to GGUF files: llama.cpp uses the architecture in the file", where="--as")
    edits = checkpoint.edits_as(model_type)
    inside = not any(edit.path == (names.MODEL_TYPE,) for edit in edits)
    what = (
        f"the text model is read as {model_type}"
        if inside
        else f"the model is read as {model_type}; the output's config.json names this built-in class and no remote code"
    )
    note = f"{what}. The remote code may compute something else: measure the output with `ropetool verify`"
    return checkpoint.edited(edits), tuple(edits), (note,)


def first_file(path: Path) -> Path:
    """Return the first file of a GGUF model, which has its record next to it. Other paths are returned unchanged.

    Raises: CheckpointError.
    """
    return _open_gguf(path).path if _is_gguf(path) else path


def _open_gguf(path: Path) -> GgufCheckpoint:
    from ropetool.checkpoint.gguf import GgufCheckpoint  # a directory does not need the GGUF reader

    return GgufCheckpoint.open(path)


def _is_gguf(path: Path) -> bool:
    """Return whether this is a GGUF file, by its suffix or its first four bytes."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with open_regular(path) as file:
        return file.read(4) == b"GGUF"
