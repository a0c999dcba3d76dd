"""A tensor of a checkpoint that becomes part of a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ropetool.files.hf import SafetensorsInfo
from ropetool.gguf_model.shapes.orders import Permutation
from ropetool.packed.base import Part, Unpacking
from ropetool.weights.edits import RowChange


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor of the checkpoint, with the changes on the way to the GGUF file.

    path: the file that contains the tensor.
    scales: the scales of MXFP4 experts; None for other tensors.
    unpacking: the way to the numbers of a packed matrix; None for other tensors.
    gains: factors for its rows, applied before any other change; None for no factors.
    order: the order of its elements in the output; None for the stored order.
    """

    path: Path
    stored: SafetensorsInfo
    scales: SourceTensor | None = None
    unpacking: Unpacking | None = None
    gains: RowChange | None = None
    order: Permutation | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its numbers, which differs from the stored shape for packed matrices."""
        return self.stored.shape if self.unpacking is None else self.unpacking.shape

    @property
    def dtype(self) -> str:
        """The type of its numbers, in notes."""
        return self.stored.dtype if self.unpacking is None else self.unpacking.dtype

    @property
    def others(self) -> tuple[Part, ...]:
        """The tensors that are read with it."""
        if self.unpacking is not None:
            return tuple(self.unpacking.parts.values())
        return () if self.scales is None else (self.scales,)
