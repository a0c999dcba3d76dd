"""The shape of a model: the tensors that its config requires, and the name of each in a GGUF file.

Each family has a table: the `export` part of its file in families/.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ropetool import families
from ropetool.errors import LossyExport
from ropetool.families.family import Family
from ropetool.families.tensors import Function, Row
from ropetool.gguf_model.shapes.base import REQUIRED, ModelShape
from ropetool.gguf_model.shapes.orders import ORDERS, Permutation
from ropetool.gguf_model.shapes.reading import model_keys, read_model

__all__ = [
    "ExpectedTensor",
    "ModelShape",
    "Permutation",
    "check_exported",
    "model_keys",
    "read_model",
    "tensors",
    "unread",
]


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """A tensor of the GGUF file that the config requires.

    name: its name in the file.
    sources: the checkpoint's tensors that it consists of, in order.
    shape: the shape of each source.
    written: the shape of the whole tensor.
    orders: the orders of elements. Each source is written once in each of them; empty for the stored order.
    offset: added to each number.
    function: applied to each number after the offset; empty for none.
    """

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    written: tuple[int, ...]
    orders: tuple[Permutation, ...] = ()
    offset: float = 0.0
    function: Function = ""


def check_exported(family: Family, where: str) -> None:
    """Raise LossyExport if a family has no export table."""
    if family.export is None:
        raise LossyExport(
            f"ropetool has no tensor table for {family.name}, only for {len(families.exported())} other families "
            "(docs/families.md)",
            where=where,
            try_="--converter auto, which uses llama.cpp's converter for the tensors",
        )  # fmt: skip


def tensors(model: ModelShape, interleaved: bool) -> Iterator[ExpectedTensor]:
    """Yield every tensor of the model, from the embedding to the head.

    interleaved: whether llama.cpp pairs neighbouring channels, but the checkpoint pairs channels half a head apart.
    """
    first, *last = (row for row in model.table.outer if model.has(row))
    yield _expected(model, first, "", "", interleaved)
    for layer in range(model.layers):
        for row in model.table.layer:
            if row.gguf and model.has(row, layer):
                yield _expected(model, row, f"{model.table.prefix}{layer}.", f"blk.{layer}.", interleaved)
    for row in last:
        yield _expected(model, row, "", "", interleaved)
    if model.tied and model.table.head == REQUIRED:
        yield _expected(model, Row(first.hf, "output.weight", first.shape), "", "", interleaved)


def unread(model: ModelShape) -> Iterator[str]:
    """Yield the names of tensors that the checkpoint may contain, but transformers ignores."""
    for row in model.table.layer:
        if not row.gguf:
            yield from (
                f"{model.table.prefix}{layer}.{row.hf}" for layer in range(model.layers) if model.has(row, layer)
            )


def _expected(model: ModelShape, row: Row, prefix: str, block: str, interleaved: bool) -> ExpectedTensor:
    shape = model.shape(row.shape)
    numbers = range(model.counts[row.many]) if row.many else (0,)
    sources = tuple(prefix + row.hf.replace("{x}", str(x)) for x in numbers)
    reorders = row.order and (row.order != "interleave_pairs" or interleaved)
    written = (len(sources), *shape) if row.many else model.shape(row.written or row.shape)
    orders = ORDERS[row.order](model.counts, shape) if reorders else ()
    return ExpectedTensor(block + row.gguf, sources, shape, written, orders, row.offset, row.function)
