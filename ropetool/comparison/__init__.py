"""Two checkpoints of any format compared: tables, lengths, factors, and how each tensor relates to its counterpart.

Reads both in bounded memory and writes nothing; a difference in how a meaning is written down is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ropetool.comparison import facts, scores
from ropetool.comparison.orders import Keys, permuted, row_keys
from ropetool.comparison.pairing import Pair, pairs
from ropetool.comparison.reading import Matrix, differing_bytes, same_bytes
from ropetool.comparison.relations import (
    CHANGED,
    CONVERTED,
    IDENTICAL,
    PERMUTED,
    REQUANTISED,
    UNMOVED,
    Ints,
    Relation,
    RowFit,
)
from ropetool.comparison.results import ONLY_IN_A, ONLY_IN_B, SKIPPED, Diff, Side, TensorDiff
from ropetool.comparison.sides import Opened, opened
from ropetool.files import hub
from ropetool.files.counting import nobody

Progress = Callable[[str, int, int], None]  # the tensor, the bytes of A done, those of all its tensors

__all__ = ["Progress", "compare"]


def compare(a: str | Path, b: str | Path, *, progress: Progress | None = None) -> Diff:
    """Return how two checkpoints relate: Hugging Face directories, GGUF files, or one of each.

    If tensors of a directory and a GGUF file differ, they are compared as an export would write them.
    Raises: CheckpointError for what is not a checkpoint and for broken files; ConfigError for broken values of a known
    family.
    """
    first, second = opened(hub.local(a)), opened(hub.local(b))
    found = facts.compare_facts(first, second)
    tensors = _tensors(first, second, found, progress or nobody)
    if first.is_gguf != second.is_gguf:
        from ropetool.comparison.exported import as_exported  # what is of one format needs nothing of an export

        tensors = as_exported(tensors, first, second)
    by_name = {tensor.name: tensor for tensor in tensors}
    nets = scores.net_scores(first, found.a, found.b, by_name) if found.a and found.b and tensors else ()
    return Diff(
        _side(first, found.runtimes[0]), _side(second, found.runtimes[1]), found.facts, tensors, nets,
        (*found.differences, *_tensor_differences(tensors)), (*_notes(first, second), *found.notes),
    )  # fmt: skip


def _side(side: Opened, runtime: str) -> Side:
    family = side.found.family.model_type if side.found.family else None
    return Side(
        str(side.path),
        side.checkpoint.format,
        family,
        side.found.model_type,
        runtime,
        side.config_style,
        len(side.tensors),
    )


def _notes(a: Opened, b: Opened) -> list[str]:
    found = [
        f"{name} {side.why_no_tensors}, so only the settings were compared"
        for name, side in (("A", a), ("B", b))
        if side.why_no_tensors
    ]
    if a.path.resolve() == b.path.resolve():
        found.append("A and B are the same path")
    if a.found.model_type != b.found.model_type and a.checkpoint.format == b.checkpoint.format:
        found.append(f"the model types differ: {a.found.model_type} and {b.found.model_type}")
    return found


def _tensor_differences(tensors: tuple[TensorDiff, ...]) -> list[str]:
    counted = Counter(tensor.relation.kind for tensor in tensors if tensor.differs)
    return [f"{kind}: {count} tensor{'s' if count > 1 else ''}" for kind, count in counted.items()]


# --- tensors


def _tensors(a: Opened, b: Opened, found: facts.Compared, progress: Progress) -> tuple[TensorDiff, ...]:
    if a.why_no_tensors or b.why_no_tensors:
        return ()
    runs = {entry.rotary_dim for rope in (found.a, found.b) if rope for entry in rope.entries.values()}
    layouts = [{entry.layout for entry in rope.entries.values()} for rope in (found.a, found.b) if rope]
    done, total = 0, sum(stored.nbytes for stored in a.tensors.values())
    results = []
    for pair in pairs(a, b, found.a, found.b):
        progress(pair.name, done, total)
        weight = not (pair.is_buffer or (pair.is_table and found.a and found.b))
        results.append(_tensor(pair, runs, layouts, _tied(a, b)) if weight else _beside(pair))
        done += pair.a.nbytes if pair.a else 0
    progress("", total, total)
    return tuple(results)


def _tied(a: Opened, b: Opened) -> bool:
    """Return whether a head that one of them stores may be missing in the other: its embedding serves there."""
    directories = [side for side in (a, b) if not side.is_gguf]
    return all(side.config.get("tie_word_embeddings") is True for side in directories) and bool(directories)


def _tensor(pair: Pair, runs: set[int], layouts: list[set[str]], tied: bool) -> TensorDiff:
    if pair.a is None or pair.b is None:
        return _alone(pair, tied)
    found, reason = _relation(pair, pair.a, pair.b, runs)
    differs = found.differs or bool(reason)
    if found.kind == PERMUTED and _goes_with(found, pair, layouts):
        differs, reason = False, "with the layout"
    return TensorDiff(pair.name, found, differs, pair.other, reason)


def _beside(pair: Pair) -> TensorDiff:
    """Return the relation of what no runtime computes with, or what the tables speak for."""
    if pair.a is None or pair.b is None:
        found = Relation(SKIPPED, detail=ONLY_IN_A if pair.a is not None else ONLY_IN_B)
    else:
        found = Relation(IDENTICAL if same_bytes(pair.a, pair.b) else SKIPPED)
    return TensorDiff(pair.name, found, False, pair.other)


def _alone(pair: Pair, tied: bool) -> TensorDiff:
    where = ONLY_IN_A if pair.a is not None else ONLY_IN_B
    if pair.is_head and tied:
        return TensorDiff(
            pair.name, Relation(SKIPPED, detail=where), False, reason=f"{where}; the model uses the embedding as head"
        )
    return TensorDiff(pair.name, Relation(where), True)


def _goes_with(found: Relation, pair: Pair, layouts: list[set[str]]) -> bool:
    """Return whether the order is the one that the change of the layout asks for."""
    if pair.order is not None:
        return found.order == pair.order_name
    wanted = [f"{one} to {other}" for one in layouts[0] for other in layouts[-1] if one != other]
    return len(layouts) == 2 and found.order in wanted


def _relation(pair: Pair, a: Matrix, b: Matrix, runs: set[int]) -> tuple[Relation, str]:
    """Return what makes B's tensor of A's, and why that is a difference where the relation alone does not say."""
    dtypes = (a.dtype, b.dtype)
    if pair.order is None and same_bytes(a, b):
        return Relation(IDENTICAL, dtypes, total=a.rows), ""
    if (a.rows, a.columns) != (b.rows, b.columns):
        return Relation(CHANGED, dtypes, detail=f"shape {list(b.shape)} instead of {list(a.shape)}"), ""
    if not (a.is_readable and b.is_readable):
        return _by_bytes(a, b), ""
    if (a.is_quantised or b.is_quantised) and a.dtype != b.dtype:
        order = pair.order if pair.order is not None and len(pair.order) == a.rows else None
        found = _fitted(a, b, order, 0.0)
        return replace(found, kind=REQUANTISED, scales=(), rows=()), ""
    return _ordered(pair, a, b) if pair.order is not None else _unordered(pair, a, b, runs)


def _by_bytes(a: Matrix, b: Matrix) -> Relation:
    if (a.dtype, a.nbytes, len(a.parts)) != (b.dtype, b.nbytes, len(b.parts)):
        return Relation(CHANGED, (a.dtype, b.dtype), detail="of types that are not decoded")
    count = differing_bytes(a, b)
    detail = f"{count} of {a.nbytes} bytes differ; {a.dtype} is not decoded" if count else ""
    return Relation(CHANGED if count else IDENTICAL, (a.dtype, b.dtype), detail=detail)


def _ordered(pair: Pair, a: Matrix, b: Matrix) -> tuple[Relation, str]:
    """Return the relation under the order that the layouts ask for; where only the plain one fits, that is a difference."""
    assert pair.order is not None
    if len(pair.order) != a.rows:
        return _unordered(pair, a, b, set())
    found = _fitted(a, b, pair.order, pair.offset)
    if found.kind == CHANGED:
        plain = _fitted(a, b, None, pair.offset)
        if plain.kind != CHANGED:
            settled = plain.kind in (IDENTICAL, CONVERTED)
            why = f"the layouts differ, but the rows were not permuted from {pair.order_name}"
            return (replace(plain, kind=UNMOVED) if settled else plain), why
    moved = bool(np.any(pair.order != np.arange(a.rows)))
    if moved and found.kind == IDENTICAL:
        found = replace(found, kind=PERMUTED)
    return replace(found, order=pair.order_name if moved and found.kind != CHANGED else ""), ""


def _unordered(pair: Pair, a: Matrix, b: Matrix, runs: set[int]) -> tuple[Relation, str]:
    fit = _fit(a, b, None, pair.offset)
    found = fit.relation()
    if found.kind == CHANGED and a.rows > 1 and fit.may_be_permuted:
        again = permuted(_keys(a), _keys(b), runs)
        if again is not None:
            return replace(again, dtypes=found.dtypes), ""
    return found, ""


def _fitted(a: Matrix, b: Matrix, order: Ints | None, offset: float) -> Relation:
    return _fit(a, b, order, offset).relation()


def _fit(a: Matrix, b: Matrix, order: Ints | None, offset: float) -> RowFit:
    fit = RowFit(a.rows, (a.dtype, b.dtype), offset)
    for start, stop in a.chunks():
        ours = a.read(start, stop) if order is None else a.read_ordered(order, start, stop)
        fit.add(start, ours, b.read(start, stop))
    return fit


def _keys(matrix: Matrix) -> Keys:
    return np.concatenate([row_keys(matrix.read(*part)) for part in matrix.chunks()])
