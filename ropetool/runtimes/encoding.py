"""A way to write a target into a checkpoint's files, to be decoded as every runtime would before it is kept."""

from __future__ import annotations

from typing import NamedTuple

from ropetool.checkpoint.edits import FileEdit


class Candidate(NamedTuple):
    """An encoding as edits of the source's files; in_weights: whether the weights take what the keys leave of a factor."""

    name: str
    edits: list[FileEdit]
    in_weights: bool = False
