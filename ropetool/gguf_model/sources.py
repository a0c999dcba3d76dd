"""A tensor of a checkpoint that becomes part of a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ropetool.files.hf import SafetensorsInfo
from ropetool.gguf_model.shapes.orders import Permutation
from ropetool.weights.edits import RowChange


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor of the checkpoint, with the changes on the way to the GGUF file.

    path: the file that contains the tensor.
    scales: the scales of an FP8 weight or of MXFP4 experts; None for other tensors.
    block: the rows and columns that share an FP8 scale.
    gains: factors for its rows, applied before any other change; None for no factors.
    order: the order of its elements in the output; None for the stored order.
    """

    path: Path
    stored: SafetensorsInfo
    scales: SourceTensor | None = None
    block: tuple[int, int] = (0, 0)
    gains: RowChange | None = None
    order: Permutation | None = None
