"""The shape of a model: the tensors that its config asks for, and where each goes in a GGUF file.

The table of each family is the `export` part of its file in families/; what bytes make a tensor is for tensors.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ropetool import families
from ropetool.errors import LossyExport
from ropetool.families.family import Family
from ropetool.families.tensors import Function, Row
from ropetool.gguf_model.shapes.base import REQUIRED, Model
from ropetool.gguf_model.shapes.orders import ORDERS, Permutation
from ropetool.gguf_model.shapes.reading import read_model, stated_keys

__all__ = ["Model", "Permutation", "Wanted", "check_exported", "read_model", "stated_keys", "tensors", "unread"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tensor of the file: the names that make it up, one after the other, each in these orders.

    shape: that of each source; written: that of the whole. offset: what is added to each number. function: what else is
    done to it.
    """

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    written: tuple[int, ...]
    turns: tuple[Permutation, ...] = ()
    offset: float = 0.0
    function: Function = ""


def check_exported(family: Family, where: str) -> None:
    """Raise LossyExport where a family has no table."""
    if family.export is None:
        raise LossyExport(
            f"ropetool has no tensor table for {family.name}, only for {len(families.exported())} other families "
            "(docs/families.md)",
            where=where,
            try_="--converter auto, which uses llama.cpp's converter for the tensors",
        )  # fmt: skip


def tensors(model: Model, interleaved: bool) -> Iterator[Wanted]:
    """Yield every tensor of the model, from the embedding to the head.

    interleaved: llama.cpp pairs neighbouring channels, where the checkpoint pairs those half a head apart.
    """
    first, *last = (row for row in model.table.outer if model.has(row))
    yield _wanted(model, first, "", "", interleaved)
    for layer in range(model.layers):
        for row in model.table.layer:
            if row.gguf and model.has(row, layer):
                yield _wanted(model, row, f"{model.table.prefix}{layer}.", f"blk.{layer}.", interleaved)
    for row in last:
        yield _wanted(model, row, "", "", interleaved)
    if model.tied and model.table.head == REQUIRED:
        yield _wanted(model, Row(first.hf, "output.weight", first.shape), "", "", interleaved)


def unread(model: Model) -> Iterator[str]:
    """Yield the tensors that the checkpoint may have and transformers leaves aside."""
    for row in model.table.layer:
        if not row.gguf:
            yield from (
                f"{model.table.prefix}{layer}.{row.hf}" for layer in range(model.layers) if model.has(row, layer)
            )


def _wanted(model: Model, row: Row, prefix: str, block: str, interleaved: bool) -> Wanted:
    shape = model.shape(row.shape)
    numbers = range(model.counts[row.many]) if row.many else (0,)
    sources = tuple(prefix + row.hf.replace("{x}", str(x)) for x in numbers)
    moves = row.order and (row.order != "interleave_pairs" or interleaved)
    written = (len(sources), *shape) if row.many else model.shape(row.written or row.shape)
    turns = ORDERS[row.order](model.counts, shape) if moves else ()
    return Wanted(block + row.gguf, sources, shape, written, turns, row.offset, row.function)
