"""Logits of a model before and after a bake, at positions that lie beyond its trained length.

Four times that length costs ten times as much; scripts/grid.py runs every family there and commits what it found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bake_references as references
import numpy as np

BEYOND = 640  # tokens, of a trained length of 512


def logits(
    directory: Path, length: int = BEYOND, *, exact: bool = True, change: references.Change | None = None
) -> np.ndarray[Any, Any]:
    """Return the logits of fixed tokens in float64, or in float32 as transformers has it."""
    return references.logits(directory, length, exact=exact, change=change)
