"""Opening a checkpoint of either format for a bake."""

from __future__ import annotations

from typing import TypeAlias

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.weights.gguf_bakeable import GgufBakeable
from ropetool.weights.hf_bakeable import HfBakeable

AnyBakeable: TypeAlias = HfBakeable | GgufBakeable


def bakeable(checkpoint: Checkpoint, bake_dtype: str = "") -> AnyBakeable:
    """Return a checkpoint to bake into. bake_dtype: the type to store scaled tensors in, F32 or F64.

    Raises: LossyExport if its runtime refuses it, or the fold targets of a GGUF file are unknown; CorruptFile.
    """
    if isinstance(checkpoint, GgufCheckpoint):
        return GgufBakeable.of(checkpoint, bake_dtype)
    return HfBakeable.of(checkpoint, bake_dtype)
