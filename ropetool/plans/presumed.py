"""Describe the changes of a bake if there are no weights: the tensors follow from the config and the family's steps.

The result is only for reading, for example before a download.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ropetool.families.family import FoldStep
from ropetool.families.rows import K, Q, select
from ropetool.weights.edits import TensorEdit
from ropetool.weights.fold_targets import FoldTargets

PRESUMED = (
    "the source has no weights, so config.json gives the list of tensors; a bias changes like the rows of its weight"
)
QUANTISED = (
    "config.json declares quantised weights: with the files, ropetool folds the factor into the scales of quantised "
    "projections, or refuses"
)
PLAIN = "F32"  # any type with plain numbers works: the type changes the rounding, but not the rows


@dataclass(frozen=True)
class _Tensor:
    """A tensor that follows from the config. Only its number of rows is known, because nothing else is needed."""

    shape: tuple[int, ...]
    dtype: str = PLAIN


def presumed(targets: FoldTargets) -> FoldTargets:
    """Return the targets with the tensors of queries and keys that follow from the config.

    Raises: LossyExport if the family does not support the bake, ConfigError if a size is missing.
    """
    named = targets.steps
    steps = [
        *((Q, s) for s in (*named.q, *named.score)),
        *((K, s) for s in (*named.k, *named.k_plain, *named.indexer_k)),
    ]
    tensors: dict[str, _Tensor] = {}
    for entry in targets.rope.entries.values():
        for layer in entry.layers if entry.table is not None else ():
            sizes = targets.sizes(entry, layer)
            prefix = named.layers[0].format(layer=layer)
            for side, step in (one for one in steps if _in_use(targets.config, one[1])):
                shape = (select(step.rows, sizes, side).height,)
                for head in range(sizes.of(side) if "{head}" in step.tensor else 1):
                    tensors[f"{prefix}.{step.tensor.format(head=head)}.weight"] = _Tensor(shape)
    return replace(targets, tensors=tensors)


def remarks(targets: FoldTargets) -> tuple[str, ...]:
    """Return notes on the reliability of the description."""
    return (PRESUMED, QUANTISED) if targets.quantization else (PRESUMED,)


def _in_use(config: Mapping[str, object], step: FoldStep) -> bool:
    """Return whether the model has this step.

    If the config does not set its switch, it is off, as in the model classes.
    """
    return not (step.when and not config.get(step.when)) and not (step.unless and config.get(step.unless))


def with_rows(edits: Sequence[TensorEdit]) -> tuple[str, ...]:
    """Return the reasons in words, with the names of the tensors (layers as *) and the number of changed rows.

    If queries and keys are in the same tensor, it is listed once with the rows of both.
    """
    rows_of: dict[tuple[str, str, int], set[int]] = {}
    for edit in edits:
        rows_of.setdefault((edit.reason, edit.tensor, edit.height), set()).update(edit.rows.tolist())
    touched: dict[tuple[str, str, int, int], int] = {}
    for (reason, tensor, height), rows in rows_of.items():
        group = reason, re.sub(r"\.\d+\.", ".*.", tensor), len(rows), height
        touched[group] = touched.get(group, 0) + 1
    return tuple(
        f"{reason}: {name} ({count}), {f'all {height}' if rows == height else f'{rows} of {height}'} rows of each"
        for (reason, name, rows, height), count in touched.items()
    )
