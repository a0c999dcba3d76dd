"""Baking: what a runtime cannot be told, put into the weights as tensor edits, and the writer that carries them out.

Knows where a family's queries and keys are made; not how a plan is chosen or shown.
"""

from ropetool.weights.bakeable import Bakeable
from ropetool.weights.bakes import (
    Bake,
    attention_factor,
    drop_pairs,
    layout,
    pair_gain,
    rearch_llama,
    score_gain,
    shift_safe,
    softmax_scale,
)
from ropetool.weights.checking import LayerCheck, check_scores, reader
from ropetool.weights.edits import PERMUTE, SCALE, RowChange, TensorEdit, by_tensor, described, row_change
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.opening import bakeable
from ropetool.weights.residual import Residual, residual_edits, residual_of, residual_words, without_residual
from ropetool.weights.writing import Baked, BakedTensor, bake_tensors, baked_bytes, growth, marks

__all__ = [
    "PERMUTE",
    "SCALE",
    "Bake",
    "Bakeable",
    "Baked",
    "BakedTensor",
    "FoldTargets",
    "LayerCheck",
    "Residual",
    "RowChange",
    "TensorEdit",
    "attention_factor",
    "bake_tensors",
    "bakeable",
    "baked_bytes",
    "by_tensor",
    "check_scores",
    "described",
    "drop_pairs",
    "growth",
    "layout",
    "marks",
    "pair_gain",
    "reader",
    "rearch_llama",
    "residual_edits",
    "residual_of",
    "residual_words",
    "row_change",
    "score_gain",
    "shift_safe",
    "softmax_scale",
    "without_residual",
]
