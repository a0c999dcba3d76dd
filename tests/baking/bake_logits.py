"""Logits of a model before and after a bake, at positions that lie beyond its trained length.

Four times that length costs ten times as much; scripts/bake_grid/grid.py runs every family there and commits what it found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bake_gguf_models as gguf_models
import bake_references as references
import numpy as np

BEYOND = 640  # tokens, of a trained length of 512
PLACES = (5, 150, 300, 511, 512, 550, 600, 638, 639)


def logits(
    directory: Path, length: int = BEYOND, *, exact: bool = True, change: references.Change | None = None
) -> np.ndarray[Any, Any]:
    """Return the logits of fixed tokens in float64, or in float32 as transformers has it."""
    return references.logits(directory, length, exact=exact, change=change)


def logits_of_gguf(path: Path) -> np.ndarray[Any, Any]:
    """Return the logits at these places by llama.cpp, in float32."""
    run = gguf_models.Run(path, BEYOND)
    try:
        return run.decode(gguf_models.TOKENS[:BEYOND], 0)[list(PLACES)]
    finally:
        run.close()
