"""Compare the exported tensors of a directory with a GGUF file.

An export shifts, splits, merges and permutes tensors, so the stored tensors often have no direct counterpart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.comparison.pairing import is_norm, together
from ropetool.comparison.reading import CHUNK, Matrix
from ropetool.comparison.relations import CHANGED, COMPUTED, REQUANTISED, Relation, RowFit
from ropetool.comparison.results import ONLY_IN_A, ONLY_IN_B, SKIPPED, TensorDiff
from ropetool.comparison.sides import Opened
from ropetool.errors import RopetoolError
from ropetool.gguf_model.contents import exported_tensors
from ropetool.gguf_model.streaming import numbers
from ropetool.gguf_model.tensors import Placed

LEFT_OUT = "a GGUF file of this model does not contain it"


def as_exported(comparisons: Sequence[TensorDiff], a: Opened, b: Opened) -> tuple[TensorDiff, ...]:
    """Return the comparisons, but compare each differing tensor again, as an export would write it."""
    directory, file = (b, a) if a.is_gguf else (a, b)
    assert isinstance(directory.checkpoint, HfCheckpoint)
    differing = [each for each in comparisons if each.differs]
    if not differing:
        return tuple(comparisons)
    try:
        exported = exported_tensors(directory.checkpoint)
    except RopetoolError:  # no tensor table, or a missing tensor: names and numbers are all there is to compare
        return tuple(comparisons)
    settled = {name for each in comparisons if not each.differs for name in _names(each)}
    differing_names = {name for each in differing for name in _names(each)}
    compared_again = [
        one for one in exported if one.info.name not in settled and differing_names & {one.info.name, *one.source_names}
    ]
    names_compared_again = {name for one in compared_again for name in (one.info.name, *one.source_names)}
    has_place = {name for one in exported for name in one.source_names}
    kept = [
        _left_out(each) if each.name in directory.tensors and each.name not in has_place else each
        for each in comparisons if not (each.differs and names_compared_again & _names(each))
    ]  # fmt: skip
    differing_pairs = {name: each for each in differing if each.other for name in _names(each)}
    return (
        *kept,
        *(
            _clearer(_compared(one, file, from_file=a.is_gguf), differing_pairs.get(one.info.name))
            for one in compared_again
        ),
    )


def _names(each: TensorDiff) -> set[str]:
    return {each.name, each.other or each.name}


def _clearer(as_exported: TensorDiff, as_stored: TensorDiff | None) -> TensorDiff:
    """Return the clearer of two comparisons: the reason for unmoved rows, for example, instead of a mere difference."""
    if as_stored is None or not as_exported.differs or as_stored.relation.kind == CHANGED:
        return as_exported
    return as_stored


def _left_out(each: TensorDiff) -> TensorDiff:
    if not each.differs or each.relation.kind not in (ONLY_IN_A, ONLY_IN_B):
        return each
    return replace(each, relation=Relation(SKIPPED, detail=each.relation.kind), differs=False, reason=LEFT_OUT)


def _compared(one: Placed, file: Opened, *, from_file: bool) -> TensorDiff:
    """Return how a tensor in the file relates to the tensor that an export writes. from_file: the file is A."""
    name, sources = one.info.name, together(one.source_names)
    stored = file.tensors.get(name)
    if stored is None:
        return TensorDiff(sources, Relation(ONLY_IN_B if from_file else ONLY_IN_A), True)
    names = (name, sources) if from_file else (sources, name)
    relation = _relation(one, Matrix((stored,), is_norm(name)), from_file=from_file)
    return TensorDiff(names[0], relation, relation.differs, names[1] if names[1] != names[0] else "")


def _relation(one: Placed, there: Matrix, *, from_file: bool) -> Relation:
    dtypes = (there.dtype, one.dtype) if from_file else (one.dtype, there.dtype)
    shape = one.info.shape[::-1]
    if math.prod(shape) != math.prod(there.shape):
        return Relation(CHANGED, dtypes, detail=f"shape {list(there.shape)} instead of {list(shape)}")
    if not there.is_readable:
        return Relation(CHANGED, dtypes, detail=f"{there.dtype} is not decoded")
    ours = COMPUTED if one.function else one.dtype
    fit = RowFit(there.rows, (there.dtype, ours) if from_file else (ours, there.dtype))
    start = 0
    for rows in _whole_rows(numbers(one), there.columns):
        theirs = there.read(start, start + len(rows))
        fit.add(start, *((theirs, rows) if from_file else (rows, theirs)))
        start += len(rows)
    relation = replace(fit.relation(), dtypes=dtypes)
    if there.dtype != one.dtype and (there.is_quantised or one.dtype not in ("F32", "F16", "BF16")):
        return replace(relation, kind=REQUANTISED, scales=(), rows=())
    return relation


def _whole_rows(pieces: Iterator[npt.NDArray[np.float32]], columns: int) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the numbers as float64 rows, in chunks of about CHUNK numbers. Shapes: (rows, columns)."""
    step, rest = max(1, CHUNK // columns) * columns, np.empty(0, np.float32)
    for piece in pieces:
        rest = np.concatenate([rest, piece]) if rest.size else piece
        while rest.size >= step:
            yield rest[:step].astype(np.float64).reshape(-1, columns)
            rest = rest[step:]
    if rest.size:
        yield rest.astype(np.float64).reshape(-1, columns)
