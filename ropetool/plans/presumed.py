"""What a bake would change in weights that are not here: the tensors that a config asks for, by its family's sites.

Makes no plan; the words are to be read, before a download or for a model that others hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ropetool.families import Stage
from ropetool.families.rows import K, Q, select
from ropetool.weights import TensorEdit, View

PRESUMED = "the weights are not here: the tensors are those that the config asks for; a bias changes as the rows of its weight do"
QUANTISED = (
    "the config speaks of quantised weights: a factor goes into the scales of a projection that is, or is refused; only "
    "the files say which"
)
PLAIN = "F32"  # any type that stores plain numbers: which one decides the rounding, not the rows


@dataclass(frozen=True)
class _Tensor:
    """A tensor as the config has it; the other extents are of no use here."""

    shape: tuple[int, ...]
    dtype: str = PLAIN


def presumed(view: View) -> View:
    """Return the view with the tensors of queries and keys that the config asks for.

    Raises: LossyExport where the family has no place for it, ConfigError where a size is not stated.
    """
    sites = view.bake
    stages = [
        *((Q, s) for s in (*sites.q, *sites.score)),
        *((K, s) for s in (*sites.k, *sites.k_plain, *sites.indexer_k)),
    ]
    found: dict[str, _Tensor] = {}
    for entry in view.rope.entries.values():
        sizes = view.sizes(entry)
        for layer in entry.layers if entry.table is not None else ():
            prefix = sites.layers[0].format(layer=layer)
            for side, stage in (one for one in stages if _in_use(view.config, one[1])):
                shape = (select(stage.rows, sizes, side).height,)
                for head in range(sizes.of(side) if "{head}" in stage.tensor else 1):
                    found[f"{prefix}.{stage.tensor.format(head=head)}.weight"] = _Tensor(shape)
    return replace(view, tensors=found)


def remarks(view: View) -> tuple[str, ...]:
    """Return what to know of the words."""
    return (PRESUMED, QUANTISED) if view.quantization else (PRESUMED,)


def _in_use(config: Mapping[str, object], stage: Stage) -> bool:
    """Return whether the step is there; one whose switch is not stated is off, as the classes have it."""
    return not (stage.when and not config.get(stage.when)) and not (stage.unless and config.get(stage.unless))


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
