"""Orders of elements: how a checkpoint's tensor is split and transposed into the tensors that llama.cpp reads."""

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
    """A selection and an order of the elements of a tensor.

    shape: the shape in which the elements are viewed.
    axes: the order of the axes of the result. The first axis stays first, so that a few of its units can be converted
      at a time.
    axis: the axis that only a part is taken from.
    part: the arguments of slice() for this axis.
    numbers: the entries of this axis in their new order, for an order that a slice cannot express; empty to use `part`.
    """

    shape: Shape
    axes: tuple[int, ...]
    axis: int = 0
    part: tuple[int | None, ...] = (None,)
    numbers: tuple[int, ...] = ()

    @property
    def unit(self) -> int:
        """The number of elements in one unit of the first axis."""
        return int(np.prod(self.shape[1:], dtype=np.int64))

    def apply(self, elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the selected elements of whole units in their new order, flat.

        Shapes: (units * unit,) -> (units * taken,).
        """
        viewed = elements.reshape(-1, *self.shape[1:])
        flat: npt.NDArray[Any] = viewed[self._selection].transpose(self.axes).reshape(-1)
        return flat

    @property
    def _selection(self) -> tuple[Any, ...]:
        part = list(self.numbers) if self.numbers else slice(*self.part)
        return (*(slice(None),) * self.axis, part)

    @property
    def taken(self) -> int:
        """The number of elements of one unit that the order selects."""
        length = self.shape[self.axis]
        return self.unit * (len(self.numbers) or len(range(*slice(*self.part).indices(length)))) // length

    def put(self, elements: npt.NDArray[Any], whole: npt.NDArray[Any]) -> None:
        """Write elements that `apply` returned back to their places in `whole`.

        Shapes: elements (units * taken,), whole (units * unit,).
        """
        viewed = whole.reshape(-1, *self.shape[1:])
        shape = viewed[self._selection].shape
        transposed = elements.reshape([shape[axis] for axis in self.axes])
        viewed[self._selection] = transposed.transpose(np.argsort(self.axes))


def interleave_pairs(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order that makes channels half a head apart neighbours."""
    head = counts["head_dim"]
    return (Permutation((shape[0] // head, 2, head // 2, *shape[1:]), (0, 2, 1, *range(3, 2 + len(shape)))),)


def split_qkv(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return three orders: all queries, all keys, all values.

    The rows are grouped by key head: its queries, its key, its value.
    """
    groups = counts["kv_heads"]
    seen = (groups, counts["heads"] // groups + 2, counts["head_dim"], *shape[1:])
    parts = ((None, -2), (-2, -1), (-1, None))
    return tuple(Permutation(seen, tuple(range(len(seen))), 1, part) for part in parts)


def columns_first(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order that transposes the matrices of experts."""
    return (Permutation(shape, (0, 2, 1)),)


def even(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the outputs 0, 2, 4 and so on of experts."""
    return (_every_second(shape, 0),)


def odd(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the outputs 1, 3, 5 and so on of experts."""
    return (_every_second(shape, 1),)


def _every_second(shape: Shape, first: int) -> Permutation:
    axes = (0, 1) if len(shape) == 2 else (0, 2, 1)  # the biases of experts, or their matrices, to be transposed
    return Permutation(shape, axes, len(shape) - 1, (first, None, 2))


def first_half(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the first half of a matrix's rows, or of the rows of each expert."""
    return (_half(shape, (None, shape[-2] // 2)),)


def second_half(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the second half of a matrix's rows, or of the rows of each expert."""
    return (_half(shape, (shape[-2] // 2, None)),)


def _half(shape: Shape, part: tuple[int | None, ...]) -> Permutation:
    return Permutation((1, *shape)[-3:], (0, 1, 2), 1, part)


def first_columns(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the first half of the columns of each expert, transposed."""
    return (Permutation(shape, (0, 2, 1), 2, (None, shape[2] // 2)),)


def last_columns(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the second half of the columns of each expert, transposed."""
    return (Permutation(shape, (0, 2, 1), 2, (shape[2] // 2, None)),)


def latent_keys(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of MLA's plain keys, transposed. In each head, they precede the values."""
    return (_of_latent(counts, shape, (counts["plain"],), (0, 2, 1)),)


def latent_values(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of MLA's values. In each head, they follow the plain keys."""
    return (_of_latent(counts, shape, (counts["plain"], None), (0, 1, 2)),)


def _of_latent(counts: Counts, shape: Shape, part: tuple[int | None, ...], axes: tuple[int, ...]) -> Permutation:
    return Permutation((counts["heads"], counts["plain"] + counts["value"], shape[1]), axes, 1, part)


# --- gated delta nets: several value heads for each key head


def delta_qkv(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return three orders: all queries, all keys, all values.

    The rows are grouped by key head: query, key, values, gates.
    """
    key, values = counts["linear_key_dim"], _values_of_key(counts)
    seen = (counts["linear_keys"], 2 * (key + values), *shape[1:])
    ends = (0, key, 2 * key, 2 * key + values)
    return tuple(Permutation(seen, tuple(range(len(seen))), 1, ends[at : at + 2]) for at in range(3))


def delta_gate(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the gates, the last rows of each key head."""
    key, values = counts["linear_key_dim"], _values_of_key(counts)
    seen = (counts["linear_keys"], 2 * (key + values), *shape[1:])
    return (Permutation(seen, tuple(range(len(seen))), 1, (2 * key + values, None)),)


def _values_of_key(counts: Counts) -> int:
    return counts["linear_values"] // counts["linear_keys"] * counts["linear_value_dim"]


def _tiled(counts: Counts, shape: Shape, first: int, axis: int) -> tuple[Permutation, ...]:
    """Return the order with the first value heads of all keys, then the second ones, as llama.cpp repeats keys.

    first: the number of entries of this axis before the value heads.
    """
    keys, values = counts["linear_keys"], counts["linear_values"]
    if keys == values:
        return ()
    heads = np.arange(values * ((shape[axis] - first) // values)).reshape(keys, values // keys, -1)
    numbers = (*range(first), *(first + int(at) for at in heads.swapaxes(0, 1).reshape(-1)))
    seen = shape if axis else (1, *shape)
    return (Permutation(seen, tuple(range(len(seen))), axis or 1, (None,), numbers),)


def tiled_tail(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the rows of queries, keys and values, with tiled values."""
    return _tiled(counts, shape, 2 * counts["linear_keys"] * counts["linear_key_dim"], 0)


def tiled_rows(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the rows of the value heads, or of one number for each value head."""
    return _tiled(counts, shape, 0, 0)


def tiled_columns(counts: Counts, shape: Shape) -> tuple[Permutation, ...]:
    """Return the order of the columns of the value heads."""
    return _tiled(counts, shape, 0, 1)


# By the name in a row of a family's table.
ORDERS: Mapping[str, Callable[[Counts, Shape], tuple[Permutation, ...]]] = {
    order.__name__: order
    for order in (
        interleave_pairs, split_qkv, columns_first, even, odd, first_half, second_half, first_columns, last_columns,
        latent_keys, latent_values, delta_qkv, delta_gate, tiled_tail, tiled_rows, tiled_columns,
    )
}  # fmt: skip
