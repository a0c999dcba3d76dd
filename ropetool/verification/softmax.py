"""Log-probabilities from logits."""

from __future__ import annotations

import numpy as np

from ropetool.rope.tables import Array
from ropetool.verification.scoring import Logits


def log_softmax(logits: Logits | Array) -> Array:
    """Return the log-probabilities of logits in float64. Shapes: (..., vocabulary) -> the same."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    log_probs: Array = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return log_probs
