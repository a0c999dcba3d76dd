"""What a bake would change in weights that are not here: the tensors that a config asks for, by its family's steps.

Makes no plan; the words are to be read, before a download or for a model that others hold.
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
PLAIN = "F32"  # any type that stores plain numbers: which one decides the rounding, not the rows


@dataclass(frozen=True)
class _Tensor:
    """A tensor as the config has it; the other extents are of no use here."""

    shape: tuple[int, ...]
    dtype: str = PLAIN


def presumed(targets: FoldTargets) -> FoldTargets:
    """Return the targets with the tensors of queries and keys that the config asks for.

    Raises: LossyExport where the family has no place for it, ConfigError where a size is not stated.
    """
    named = targets.steps
    steps = [
        *((Q, s) for s in (*named.q, *named.score)),
        *((K, s) for s in (*named.k, *named.k_plain, *named.indexer_k)),
    ]
    found: dict[str, _Tensor] = {}
    for entry in targets.rope.entries.values():
        for layer in entry.layers if entry.table is not None else ():
            sizes = targets.sizes(entry, layer)
            prefix = named.layers[0].format(layer=layer)
            for side, step in (one for one in steps if _in_use(targets.config, one[1])):
                shape = (select(step.rows, sizes, side).height,)
                for head in range(sizes.of(side) if "{head}" in step.tensor else 1):
                    found[f"{prefix}.{step.tensor.format(head=head)}.weight"] = _Tensor(shape)
    return replace(targets, tensors=found)


def remarks(targets: FoldTargets) -> tuple[str, ...]:
    """Return what to know of the words."""
    return (PRESUMED, QUANTISED) if targets.quantization else (PRESUMED,)


def _in_use(config: Mapping[str, object], step: FoldStep) -> bool:
    """Return whether the step is there; one whose switch is not stated is off, as the classes have it."""
    return not (step.when and not config.get(step.when)) and not (step.unless and config.get(step.unless))


def with_rows(edits: Sequence[TensorEdit]) -> tuple[str, ...]:
    """Return the reasons in words, each with the names of its tensors, layers as *, and how many of their rows change.

    Queries and keys in one tensor are one tensor with the rows of both.
    """
    rows_of: dict[tuple[str, str, int], set[int]] = {}
    for edit in edits:
        rows_of.setdefault((edit.reason, edit.tensor, edit.height), set()).update(edit.rows.tolist())
    touched: dict[tuple[str, str, int, int], int] = {}
    for (reason, tensor, height), rows in rows_of.items():
        kind = reason, re.sub(r"\.\d+\.", ".*.", tensor), len(rows), height
        touched[kind] = touched.get(kind, 0) + 1
    return tuple(
        f"{reason}: {name} ({count}), {f'all {height}' if rows == height else f'{rows} of {height}'} rows of each"
        for (reason, name, rows, height), count in touched.items()
    )
