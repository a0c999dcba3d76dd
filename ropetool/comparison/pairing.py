"""Pair the tensors of two checkpoints, and calculate in which order the rows of a pair should be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ropetool.comparison.reading import Matrix
from ropetool.comparison.relations import Ints
from ropetool.comparison.sides import Opened
from ropetool.errors import RopetoolError
from ropetool.families.rows import K, Q
from ropetool.rope.tables import RopeSet
from ropetool.weights.fold_targets import FoldTargets, by_step, layers
from ropetool.weights.operations import layout_edits

_BUFFERS = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
_TABLES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_HEADS = ("lm_head.weight", "output.weight")
# Matched after _LAYERS, so it runs in linear time.
_EXPERT = re.compile(r"(([0-9]+)\.(?:\w+\.)+experts)\.[0-9]+\.(\w+)\.weight")
_LAYERS = "layers."
_MAX_LAYERS = 512  # llama.cpp's limit, so no GGUF file has tensors of more layers


@dataclass(frozen=True, eq=False)
class Pair:
    """A tensor of A and its counterpart in B.

    name: its name in A, or in B if only B has it.
    other: its name in B. Empty if it is the same.
    a, b: the tensors. None if it is missing on that side.
    order: row i of B should be row order[i] of A. None for the same order.
    order_name: the name of the order, for example "half to interleaved".
    offset: the number that the runtime adds to the tensor's numbers.
    """

    name: str
    other: str
    a: Matrix | None
    b: Matrix | None
    order: Ints | None = None
    order_name: str = ""
    offset: float = 0.0

    @property
    def is_buffer(self) -> bool:
        """Return whether runtimes compute the tensor and do not read it."""
        return self.name.endswith(_BUFFERS)

    @property
    def is_table(self) -> bool:
        """Return whether it contains frequency factors. If a runtime is known, the decoded tables include them."""
        return self.name in _TABLES

    @property
    def is_head(self) -> bool:
        """Return whether it is the output matrix. It may be missing if the embedding is also the head."""
        return self.name in _HEADS


def pairs(a: Opened, b: Opened, ours: RopeSet | None, theirs: RopeSet | None) -> Iterator[Pair]:
    """Yield all tensors of both, A's first. ours, theirs: the decoded tables, or None if they are unknown."""
    first, second = _matrices(a, b), _matrices(b, a)
    orders = _orders(a, ours, theirs) if ours and theirs else {}
    offsets = _offsets(a) if a.checkpoint.format == b.checkpoint.format else {}
    for common in dict.fromkeys([*first, *second]):
        name, one = first.get(common, ("", None))
        other_name, other = second.get(common, ("", None))
        order, order_name = orders.get(name, (None, ""))
        yield Pair(
            name or other_name, other_name if name and name != other_name else "", one, other, order, order_name,
            offsets.get(name, 0.0),
        )  # fmt: skip


# --- names


def _matrices(side: Opened, other: Opened) -> dict[str, tuple[str, Matrix]]:
    """Return the tensors by a name that both sides share, each with its own name. Two formats share the GGUF names."""
    if side.is_gguf == other.is_gguf or side.is_gguf:
        return {name: (name, Matrix((stored,), is_norm(name))) for name, stored in side.tensors.items()}
    parts: dict[str, list[str]] = {}
    renamed = _gguf_names(side, other.inspection.model_type)
    for name in sorted(side.tensors, key=_by_number):
        parts.setdefault(renamed[name], []).append(name)
    return {
        common: (together(names), Matrix(tuple(side.tensors[name] for name in names), is_norm(names[0])))
        for common, names in parts.items()
    }


def _gguf_names(side: Opened, arch: str) -> dict[str, str]:
    """Return the name of each tensor in a GGUF file. Its own name if the gguf package does not know it."""
    import gguf

    number = next((number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), None)
    if number is None:
        return {name: name for name in side.tensors}
    layer_count = 1 + max((int(n) for name in side.tensors for n in re.findall(r"layers\.([0-9]+)\.", name)), default=0)
    known = gguf.get_tensor_name_map(number, min(layer_count, _MAX_LAYERS))
    return {name: _gguf_name(name, known.get_name) for name in side.tensors}


def _gguf_name(name: str, known: Callable[..., str | None]) -> str:
    expert = _expert(name)
    if expert is not None:  # a GGUF file merges the experts of a layer into a tensor, and names differ by family
        stem, layer, matrix = expert
        merged = f"{stem}.{matrix}", f"layers.{layer}.feed_forward.experts.{matrix}"
        originals = [f"{one}.weight" for one in merged]
    else:
        originals = [name]
    candidates = (known(one, try_suffixes=(".weight", ".bias")) for one in originals)
    return next((one for one in candidates if one), name)


def _expert(name: str) -> tuple[str, str, str] | None:
    """Return the part before the expert's number, the layer, and the matrix.

    None if it is not a tensor of an expert.
    """
    before, layers, rest = name.partition(_LAYERS)
    match = _EXPERT.fullmatch(rest)
    return (before + layers + match[1], match[2], match[3]) if match else None


def is_norm(name: str) -> bool:
    """Return whether a tensor belongs to a norm, by its name."""
    return "norm" in name.rpartition(".")[0].rpartition(".")[2]


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def together(names: list[str]) -> str:
    """Return a common name for the tensors of all experts in a layer, else the name of the only tensor."""
    expert = _expert(names[0])
    return f"{expert[0]}.{{0-{len(names) - 1}}}.{expert[2]}.weight" if expert and len(names) > 1 else names[0]


# --- orders and offsets


def _orders(a: Opened, ours: RopeSet, theirs: RopeSet) -> dict[str, tuple[Ints, str]]:
    """Return the row orders that follow from a change of the layout, by the tensor's name in A."""
    by_tensor: dict[str, tuple[Ints, str]] = {}
    for layer_type, entry in ours.entries.items():
        other = theirs.entries.get(layer_type)
        if a.targets is not None and other is not None and other.layout != entry.layout:
            name = f"{entry.layout} to {other.layout}"
            by_tensor |= {tensor: (order, name) for tensor, order in _edited(a.targets, layer_type, other.layout)}
    return by_tensor


def _edited(targets: FoldTargets, layer_type: str, layout: str) -> list[tuple[str, Ints]]:
    try:
        edits = layout_edits(targets, layer_type, layout, "")
    except RopetoolError:  # layers do not rotate, or rows are missing: then only the rows themselves can show the order
        return []
    return [(edit.tensor, _whole_order(edit.height, edit.starts, np.array(edit.order))) for edit in edits]


def _whole_order(height: int, starts: Iterable[int], order: Ints) -> Ints:
    whole = np.arange(height)
    for start in starts:
        whole[start : start + len(order)] = start + order
    return whole


def _offsets(side: Opened) -> dict[str, float]:
    """Return the number that the runtime adds to each norm before it multiplies, by tensor name.

    Empty if it adds none.
    """
    if side.targets is None:
        return {}
    targets, by_tensor = side.targets, dict[str, float]()
    for steps, one in ((targets.steps.q, Q), (targets.steps.k, K)):
        if not any(step.offset for step in steps):
            continue
        for entry in targets.rope.entries.values():
            with suppress(RopetoolError):  # rows are missing: the numbers are compared without an offset
                for layer in layers(targets, entry):
                    some = by_step(targets, entry, layer, steps, one)
                    by_tensor |= {p.tensor: p.offset for _, places in some for p in places if p.offset}
    return by_tensor
