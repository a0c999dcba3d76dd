"""Compare the exported tensors of a directory with a GGUF file, because exports shift, split, merge and permute tensors."""

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


def as_exported(found: Sequence[TensorDiff], a: Opened, b: Opened) -> tuple[TensorDiff, ...]:
    """Return the same, where those that differ by themselves are held against what an export makes of them."""
    directory, file = (b, a) if a.is_gguf else (a, b)
    assert isinstance(directory.checkpoint, HfCheckpoint)
    differing = [each for each in found if each.differs]
    if not differing:
        return tuple(found)
    try:
        made = exported_tensors(directory.checkpoint)
    except RopetoolError:  # no table, or tensors that a model would need: the names and the numbers must tell
        return tuple(found)
    settled = {name for each in found if not each.differs for name in _names(each)}
    wanted = {name for each in differing for name in _names(each)}
    asked = [one for one in made if one.info.name not in settled and wanted & {one.info.name, *one.source_names}]
    answered = {name for one in asked for name in (one.info.name, *one.source_names)}
    has_place = {name for one in made for name in one.source_names}
    kept = [
        _left_out(each) if each.name in directory.tensors and each.name not in has_place else each
        for each in found if not (each.differs and answered & _names(each))
    ]  # fmt: skip
    alone = {name: each for each in differing if each.other for name in _names(each)}
    return (*kept, *(_clearer(_held(one, file, from_file=a.is_gguf), alone.get(one.info.name)) for one in asked))


def _names(each: TensorDiff) -> set[str]:
    return {each.name, each.other or each.name}


def _clearer(found: TensorDiff, alone: TensorDiff | None) -> TensorDiff:
    """Return what says more of a tensor that differs either way: rows that were not moved, say, and not that they differ."""
    if alone is None or not found.differs or alone.relation.kind == CHANGED:
        return found
    return alone


def _left_out(each: TensorDiff) -> TensorDiff:
    if not each.differs or each.relation.kind not in (ONLY_IN_A, ONLY_IN_B):
        return each
    return replace(each, relation=Relation(SKIPPED, detail=each.relation.kind), differs=False, reason=LEFT_OUT)


def _held(one: Placed, file: Opened, *, from_file: bool) -> TensorDiff:
    """Return how a tensor of the file relates to what an export writes. from_file: the file is A."""
    name, sources = one.info.name, together(one.source_names)
    stored = file.tensors.get(name)
    if stored is None:
        return TensorDiff(sources, Relation(ONLY_IN_B if from_file else ONLY_IN_A), True)
    names = (name, sources) if from_file else (sources, name)
    found = _relation(one, Matrix((stored,), is_norm(name)), from_file=from_file)
    return TensorDiff(names[0], found, found.differs, names[1] if names[1] != names[0] else "")


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
    found = replace(fit.relation(), dtypes=dtypes)
    if there.dtype != one.dtype and (there.is_quantised or one.dtype not in ("F32", "F16", "BF16")):
        return replace(found, kind=REQUANTISED, scales=(), rows=())
    return found


def _whole_rows(pieces: Iterator[npt.NDArray[np.float32]], columns: int) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the numbers as rows, as many as are read at once elsewhere."""
    step, rest = max(1, CHUNK // columns) * columns, np.empty(0, np.float32)
    for piece in pieces:
        rest = np.concatenate([rest, piece]) if rest.size else piece
        while rest.size >= step:
            yield rest[:step].astype(np.float64).reshape(-1, columns)
            rest = rest[step:]
    if rest.size:
        yield rest.astype(np.float64).reshape(-1, columns)
