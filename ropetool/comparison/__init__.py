"""Compare two checkpoints of any format: tables, lengths, factors, and the relation of each tensor to its counterpart.

Both are read in bounded memory. A different spelling of the same meaning does not count as a difference.
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

Progress = Callable[[str, int, int], None]  # the tensor's name, the finished bytes of A, and all bytes of A's tensors

__all__ = ["Progress", "compare"]


def compare(a: str | Path, b: str | Path, *, progress: Progress | None = None) -> Diff:
    """Return how two checkpoints relate. Each is a Hugging Face directory, a GGUF file or a Hub id.

    If tensors of a directory and a GGUF file differ, they are compared as an export would write them.
    Raises: CheckpointError if a path is not a checkpoint or a file is broken. ConfigError for invalid values of a known
    family.
    """
    first, second = opened(hub.local(a)), opened(hub.local(b))
    compared = facts.compare_facts(first, second)
    tensors = _tensors(first, second, compared, progress or nobody)
    if first.is_gguf != second.is_gguf:
        from ropetool.comparison.exported import as_exported  # two files of the same format do not need the export

        tensors = as_exported(tensors, first, second)
    by_name = {tensor.name: tensor for tensor in tensors}
    nets = scores.net_scores(first, compared.a, compared.b, by_name) if compared.a and compared.b and tensors else ()
    return Diff(
        _side(first, compared.runtimes[0]), _side(second, compared.runtimes[1]), compared.facts, tensors, nets,
        (*compared.differences, *_tensor_differences(tensors)), (*_notes(first, second), *compared.notes),
    )  # fmt: skip


def _side(side: Opened, runtime: str) -> Side:
    family = side.inspection.family.model_type if side.inspection.family else None
    return Side(
        str(side.path),
        side.checkpoint.format,
        family,
        side.inspection.model_type,
        runtime,
        side.config_style,
        len(side.tensors),
    )


def _notes(a: Opened, b: Opened) -> list[str]:
    notes = [
        f"{name} {side.why_no_tensors}, so only the settings were compared"
        for name, side in (("A", a), ("B", b))
        if side.why_no_tensors
    ]
    if a.path.resolve() == b.path.resolve():
        notes.append("A and B are the same path")
    if a.inspection.model_type != b.inspection.model_type and a.checkpoint.format == b.checkpoint.format:
        notes.append(f"the model types differ: {a.inspection.model_type} and {b.inspection.model_type}")
    return notes


def _tensor_differences(tensors: tuple[TensorDiff, ...]) -> list[str]:
    counted = Counter(tensor.relation.kind for tensor in tensors if tensor.differs)
    return [f"{relation}: {count} tensor{'s' if count > 1 else ''}" for relation, count in counted.items()]


# --- tensors


def _tensors(a: Opened, b: Opened, compared: facts.Compared, progress: Progress) -> tuple[TensorDiff, ...]:
    if a.why_no_tensors or b.why_no_tensors:
        return ()
    runs = {entry.rotary_dim for rope in (compared.a, compared.b) if rope for entry in rope.entries.values()}
    layouts = [{entry.layout for entry in rope.entries.values()} for rope in (compared.a, compared.b) if rope]
    done, total = 0, sum(stored.nbytes for stored in a.tensors.values())
    results = []
    for pair in pairs(a, b, compared.a, compared.b):
        progress(pair.name, done, total)
        weight = not (pair.is_buffer or (pair.is_table and compared.a and compared.b))
        results.append(_tensor(pair, runs, layouts, _tied(a, b)) if weight else _not_weights(pair))
        done += pair.a.nbytes if pair.a else 0
    progress("", total, total)
    return tuple(results)


def _tied(a: Opened, b: Opened) -> bool:
    """Return whether a head may be missing in one checkpoint because the embedding is also the head."""
    directories = [side for side in (a, b) if not side.is_gguf]
    return all(side.config.get("tie_word_embeddings") is True for side in directories) and bool(directories)


def _tensor(pair: Pair, runs: set[int], layouts: list[set[str]], tied: bool) -> TensorDiff:
    if pair.a is None or pair.b is None:
        return _in_one_only(pair, tied)
    relation, reason = _relation(pair, pair.a, pair.b, runs)
    differs = relation.differs or bool(reason)
    if relation.kind == PERMUTED and _goes_with(relation, pair, layouts):
        differs, reason = False, "with the layout"
    return TensorDiff(pair.name, relation, differs, pair.other, reason)


def _not_weights(pair: Pair) -> TensorDiff:
    """Return the relation of a tensor that no runtime reads, or whose table has been compared already."""
    if pair.a is None or pair.b is None:
        relation = Relation(SKIPPED, detail=ONLY_IN_A if pair.a is not None else ONLY_IN_B)
    else:
        relation = Relation(IDENTICAL if same_bytes(pair.a, pair.b) else SKIPPED)
    return TensorDiff(pair.name, relation, False, pair.other)


def _in_one_only(pair: Pair, tied: bool) -> TensorDiff:
    where = ONLY_IN_A if pair.a is not None else ONLY_IN_B
    if pair.is_head and tied:
        return TensorDiff(
            pair.name, Relation(SKIPPED, detail=where), False, reason=f"{where}; the model uses the embedding as head"
        )
    return TensorDiff(pair.name, Relation(where), True)


def _goes_with(relation: Relation, pair: Pair, layouts: list[set[str]]) -> bool:
    """Return whether the rows have the order that the change of the layout requires."""
    if pair.order is not None:
        return relation.order == pair.order_name
    expected = [f"{one} to {other}" for one in layouts[0] for other in layouts[-1] if one != other]
    return len(layouts) == 2 and relation.order in expected


def _relation(pair: Pair, a: Matrix, b: Matrix, runs: set[int]) -> tuple[Relation, str]:
    """Return the relation between the tensors, and a reason if the relation does not show that it is a difference."""
    dtypes = (a.dtype, b.dtype)
    if pair.order is None and same_bytes(a, b):
        return Relation(IDENTICAL, dtypes, total=a.rows), ""
    if (a.rows, a.columns) != (b.rows, b.columns):
        return Relation(CHANGED, dtypes, detail=f"shape {list(b.shape)} instead of {list(a.shape)}"), ""
    if not (a.is_readable and b.is_readable):
        return _by_bytes(a, b), ""
    if (a.is_quantised or b.is_quantised) and a.dtype != b.dtype:
        order = pair.order if pair.order is not None and len(pair.order) == a.rows else None
        relation = _fitted(a, b, order, 0.0)
        return replace(relation, kind=REQUANTISED, scales=(), rows=()), ""
    return _ordered(pair, a, b) if pair.order is not None else _unordered(pair, a, b, runs)


def _by_bytes(a: Matrix, b: Matrix) -> Relation:
    if (a.dtype, a.nbytes, len(a.parts)) != (b.dtype, b.nbytes, len(b.parts)):
        return Relation(CHANGED, (a.dtype, b.dtype), detail="of types that are not decoded")
    count = differing_bytes(a, b)
    detail = f"{count} of {a.nbytes} bytes differ; {a.dtype} is not decoded" if count else ""
    return Relation(CHANGED if count else IDENTICAL, (a.dtype, b.dtype), detail=detail)


def _ordered(pair: Pair, a: Matrix, b: Matrix) -> tuple[Relation, str]:
    """Return the relation under the row order that the layouts require.

    If only the plain order fits, the second value is the reason why this is a difference.
    """
    assert pair.order is not None
    if len(pair.order) != a.rows:
        return _unordered(pair, a, b, set())
    relation = _fitted(a, b, pair.order, pair.offset)
    if relation.kind == CHANGED:
        plain = _fitted(a, b, None, pair.offset)
        if plain.kind != CHANGED:
            settled = plain.kind in (IDENTICAL, CONVERTED)
            why = f"the layouts differ, but the rows were not permuted from {pair.order_name}"
            return (replace(plain, kind=UNMOVED) if settled else plain), why
    moved = bool(np.any(pair.order != np.arange(a.rows)))
    if moved and relation.kind == IDENTICAL:
        relation = replace(relation, kind=PERMUTED)
    return replace(relation, order=pair.order_name if moved and relation.kind != CHANGED else ""), ""


def _unordered(pair: Pair, a: Matrix, b: Matrix, runs: set[int]) -> tuple[Relation, str]:
    fit = _fit(a, b, None, pair.offset)
    relation = fit.relation()
    if relation.kind == CHANGED and a.rows > 1 and fit.may_be_permuted:
        reordered = permuted(_keys(a), _keys(b), runs)
        if reordered is not None:
            return replace(reordered, dtypes=relation.dtypes), ""
    return relation, ""


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
