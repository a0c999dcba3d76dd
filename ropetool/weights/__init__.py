"""Baking: what a runtime cannot be told, put into the weights as tensor edits, and the writer that carries them out.

Knows where a family's queries and keys are made; not how a plan is chosen or shown.
"""

from ropetool.weights.bakeable import Bakeable
from ropetool.weights.bakes import Bake
from ropetool.weights.checking import LayerCheck, check_scores, reader
from ropetool.weights.edits import PERMUTE, SCALE, RowChange, TensorEdit, by_tensor, described, row_change
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.opening import bakeable
from ropetool.weights.residual import Residual, residual_edits, residual_of, residual_words, without_residual
from ropetool.weights.weight_files import weight_files
from ropetool.weights.writing import Baked, BakedTensor, WeightFile, baked_bytes, growth, marks, write_weights

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
    "WeightFile",
    "bakeable",
    "baked_bytes",
    "by_tensor",
    "check_scores",
    "described",
    "growth",
    "marks",
    "reader",
    "residual_edits",
    "residual_of",
    "residual_words",
    "row_change",
    "weight_files",
    "without_residual",
    "write_weights",
]
