"""The shape of a model: the tensors that its config asks for, and where each goes in a GGUF file.

One table a family, in the modules beside this one; what bytes make a tensor is for tensors.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ropetool.errors import LossyExport
from ropetool.gguf_export.shapes import dense, experts, gemma, layer_norms, mla
from ropetool.gguf_export.shapes.base import REQUIRED, Family, Model
from ropetool.gguf_export.shapes.orders import Turn, neighbours
from ropetool.gguf_export.shapes.reading import read_model, stated_keys
from ropetool.gguf_export.shapes.rows import Row

__all__ = ["FAMILIES", "Model", "Turn", "Wanted", "family_of", "read_model", "stated_keys", "tensors"]

FAMILIES: dict[str, Family] = {
    **dense.FAMILIES, **gemma.FAMILIES, **layer_norms.FAMILIES, **experts.FAMILIES, **mla.FAMILIES,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tensor of the file: the names that make it up, one after the other, each in these orders.

    shape: that of each source; written: that of the whole. offset: what is added to each number.
    """

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    written: tuple[int, ...]
    turns: tuple[Turn, ...] = ()
    offset: float = 0.0


def family_of(model_type: str, where: str) -> Family:
    """Return the table of the family.

    Raises: LossyExport for a family that cannot be exported.
    """
    family = FAMILIES.get(model_type)
    if family is None:
        raise LossyExport(
            f"{model_type} models cannot be exported yet; these can: {', '.join(FAMILIES)}",
            where=where,
            try_="convert_hf_to_gguf.py of llama.cpp, then ropetool inspect on its file; docs/contributing.md says how to add one",
        )  # fmt: skip
    return family


def tensors(model: Model, interleaved: bool) -> Iterator[Wanted]:
    """Yield every tensor of the model, from the embedding to the head.

    interleaved: llama.cpp pairs neighbouring channels, where the checkpoint pairs those half a head apart.
    """
    first, *last = (row for row in model.family.outer if model.has(row))
    yield _wanted(model, first, "", "", interleaved)
    for layer in range(model.layers):
        for row in model.family.layer:
            if model.has(row, layer):
                yield _wanted(model, row, f"{model.family.prefix}{layer}.", f"blk.{layer}.", interleaved)
    for row in last:
        yield _wanted(model, row, "", "", interleaved)
    if model.tied and model.family.head == REQUIRED:
        yield _wanted(model, Row(first.source, "output.weight", first.shape), "", "", interleaved)


def _wanted(model: Model, row: Row, prefix: str, block: str, interleaved: bool) -> Wanted:
    shape = model.shape(row.shape)
    numbers = range(model.counts[row.many]) if row.many else (0,)
    sources = tuple(prefix + row.source.replace("{x}", str(x)) for x in numbers)
    order = None if row.order is neighbours and not interleaved else row.order
    written = (len(sources), *shape) if row.many else model.shape(row.written or row.shape)
    turns = order(model.counts, shape) if order else ()
    return Wanted(block + row.name, sources, shape, written, turns, row.offset)
