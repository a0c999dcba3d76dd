"""A tensor of a checkpoint that goes into an export: where its bytes lie, and what is done to its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ropetool.files.hf import SafetensorsInfo
from ropetool.gguf_model.shapes.orders import Permutation
from ropetool.weights.edits import RowChange


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of the checkpoint, and the file that holds it.

    scales: those of an FP8 weight or of MXFP4 experts; block: how many rows and columns share one of them. gains: what
    its rows are multiplied by before anything else. turn: the order in which its elements are written, None for the one
    in which they are stored.
    """

    path: Path
    stored: SafetensorsInfo
    scales: Source | None = None
    block: tuple[int, int] = (0, 0)
    gains: RowChange | None = None
    turn: Permutation | None = None
