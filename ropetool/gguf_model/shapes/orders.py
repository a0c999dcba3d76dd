"""Orders of elements: how what a checkpoint stores is taken apart and turned into what llama.cpp reads.

Knows shapes and sizes, neither names nor files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Counts = Mapping[str, int]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Permutation:
    """An order: the elements seen in `shape`, of one axis only a part, the axes then in the order `axes`.

    The first axis stays the first, so that a tensor can be turned a few units of it at a time. numbers: those of the
    entries of that axis, in their new order, where the part has no step.
    """

    shape: Shape
    axes: tuple[int, ...]
    axis: int = 0
    part: tuple[int | None, ...] = (None,)  # what slice() is called with
    numbers: tuple[int, ...] = ()

    @property
    def unit(self) -> int:
        """How many elements one unit of the first axis has."""
        return int(np.prod(self.shape[1:], dtype=np.int64))

    def apply(self, elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the elements of whole units in their new order, flat.

        Shapes: (units * unit,) -> fewer where a part is taken.
        """
        seen = elements.reshape(-1, *self.shape[1:])
        flat: npt.NDArray[Any] = seen[self._taken].transpose(self.axes).reshape(-1)
        return flat

    @property
    def _taken(self) -> tuple[Any, ...]:
        part = list(self.numbers) if self.numbers else slice(*self.part)
        return (*(slice(None),) * self.axis, part)

    @property
    def taken(self) -> int:
        """How many elements of one unit the order takes."""
        length = self.shape[self.axis]
        return self.unit * (len(self.numbers) or len(range(*slice(*self.part).indices(length)))) // length

    def put(self, elements: npt.NDArray[Any], whole: npt.NDArray[Any]) -> None:
        """Put back what `apply` returned, into the whole units that it came from.

        Shapes: (units * taken,), (units * unit,)
        """
        seen = whole.reshape(-1, *self.shape[1:])
        shape = seen[self._taken].shape
        turned = elements.reshape([shape[axis] for axis in self.axes])
        seen[self._taken] = turned.transpose(np.argsort(self.axes))


def interleave_pairs(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order that brings channels half a head apart side by side."""
    head = counts["head_dim"]
    return (Permutation((shape[0] // head, 2, head // 2, *shape[1:]), (0, 2, 1, *range(3, 2 + len(shape)))),)


def split_qkv(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return three orders: of the queries that share a key, this and its value all queries, all keys, all values."""
    groups = counts["kv_heads"]
    seen = (groups, counts["heads"] // groups + 2, counts["head_dim"], *shape[1:])
    parts = ((None, -2), (-2, -1), (-1, None))
    return tuple(Permutation(seen, tuple(range(len(seen))), 1, part) for part in parts)


def columns_first(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of experts whose matrices are stored by columns."""
    return (Permutation(shape, (0, 2, 1)),)


def even(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of every second output of experts, from the first on."""
    return (_every_second(shape, 0),)


def odd(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of every second output of experts, from the second on."""
    return (_every_second(shape, 1),)


def _every_second(shape: Shape, first: int) -> Permutation:
    axes = (0, 1) if len(shape) == 2 else (0, 2, 1)  # the bias of experts, or their matrices by columns
    return Permutation(shape, axes, len(shape) - 1, (first, None, 2))


def first_half(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the first half of a matrix's rows, or of the rows of each expert's."""
    return (_half(shape, (None, shape[-2] // 2)),)


def second_half(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the other half of these rows."""
    return (_half(shape, (shape[-2] // 2, None)),)


def _half(shape: Shape, part: tuple[int | None, ...]) -> Permutation:
    return Permutation((1, *shape)[-3:], (0, 1, 2), 1, part)


def first_columns(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of experts whose matrices are stored by columns, of the first half of the columns."""
    return (Permutation(shape, (0, 2, 1), 2, (None, shape[2] // 2)),)


def last_columns(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the other half of these columns."""
    return (Permutation(shape, (0, 2, 1), 2, (shape[2] // 2, None)),)


def latent_keys(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of MLA's plain keys: per head before its values, their matrices transposed."""
    return (_of_latent(counts, shape, (counts["plain"],), (0, 2, 1)),)


def latent_values(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of MLA's values: per head after its plain keys."""
    return (_of_latent(counts, shape, (counts["plain"], None), (0, 1, 2)),)


def _of_latent(counts: Counts, shape: Shape, part: tuple[int | None, ...], axes: tuple[int, ...]) -> Permutation:
    return Permutation((counts["heads"], counts["plain"] + counts["value"], shape[1]), axes, 1, part)


# --- gated delta nets: values have several heads for each of the keys'


def delta_qkv(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return three orders: of [query, key, values, gates] in each head of keys all queries, all keys, all values."""
    key, values = counts["linear_key_dim"], _values_of_key(counts)
    seen = (counts["linear_keys"], 2 * (key + values), *shape[1:])
    ends = (0, key, 2 * key, 2 * key + values)
    return tuple(Permutation(seen, tuple(range(len(seen))), 1, ends[at : at + 2]) for at in range(3))


def delta_gate(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the gates, the last of each head of keys."""
    key, values = counts["linear_key_dim"], _values_of_key(counts)
    seen = (counts["linear_keys"], 2 * (key + values), *shape[1:])
    return (Permutation(seen, tuple(range(len(seen))), 1, (2 * key + values, None)),)


def _values_of_key(counts: Counts) -> int:
    return counts["linear_values"] // counts["linear_keys"] * counts["linear_value_dim"]


def _tiled(counts: Counts, shape: Shape, first: int, axis: int) -> tuple[Permutation, ...]:
    """Return the order in which the first value heads of all keys come before the second ones, as llama.cpp repeats keys.

    The heads stand behind `first` entries of this axis.
    """
    keys, values = counts["linear_keys"], counts["linear_values"]
    if keys == values:
        return ()
    heads = np.arange(values * ((shape[axis] - first) // values)).reshape(keys, values // keys, -1)
    numbers = (*range(first), *(first + int(at) for at in heads.swapaxes(0, 1).reshape(-1)))
    seen = shape if axis else (1, *shape)
    return (Permutation(seen, tuple(range(len(seen))), axis or 1, (None,), numbers),)


def tiled_tail(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of rows of queries, keys and values, of which the values' are tiled."""
    return _tiled(counts, shape, 2 * counts["linear_keys"] * counts["linear_key_dim"], 0)


def tiled_rows(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of rows of the value heads, or of one number for each."""
    return _tiled(counts, shape, 0, 0)


def tiled_columns(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of columns of the value heads."""
    return _tiled(counts, shape, 0, 1)


# By the name that a row of a family's table gives.
ORDERS: Mapping[str, Callable[[Counts, Shape], tuple[Permutation, ...]]] = {
    order.__name__: order
    for order in (
        interleave_pairs, split_qkv, columns_first, even, odd, first_half, second_half, first_columns, last_columns,
        latent_keys, latent_values, delta_qkv, delta_gate, tiled_tail, tiled_rows, tiled_columns,
    )
}  # fmt: skip
