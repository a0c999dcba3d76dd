"""Which tensor of one checkpoint stands for which of the other, and in which order its rows should come.

Knows names and layouts of both formats, no numbers.
"""

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
_EXPERT = re.compile(r"(([0-9]+)\.(?:\w+\.)+experts)\.[0-9]+\.(\w+)\.weight")  # behind LAYERS; in linear time
_LAYERS = "layers."
_MAX_LAYERS = 512  # of llama.cpp; the names of more than that could be no GGUF file's


@dataclass(frozen=True, eq=False)
class Pair:
    """A tensor of A and the one of B that stands for it, either None where there is none.

    order: row i of B should be row order[i] of A; None: as it is. offset: what the runtime adds to its numbers.
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
        """Whether runtimes compute it anew instead of reading it."""
        return self.name.endswith(_BUFFERS)

    @property
    def is_table(self) -> bool:
        """Whether it holds divisors of frequencies, which the tables speak for where a runtime is known."""
        return self.name in _TABLES

    @property
    def is_head(self) -> bool:
        """Whether it is the output matrix, for which the embedding serves where both are tied."""
        return self.name in _HEADS


def pairs(a: Opened, b: Opened, ours: RopeSet | None, theirs: RopeSet | None) -> Iterator[Pair]:
    """Yield all tensors of both, those of A first; ours, theirs: what they compute, if that is known."""
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
    """Return the tensors by a name that both sides have in common, GGUF's between formats, each with its own name."""
    if side.is_gguf == other.is_gguf or side.is_gguf:
        return {name: (name, Matrix((stored,), is_norm(name))) for name, stored in side.tensors.items()}
    parts: dict[str, list[str]] = {}
    renamed = _gguf_names(side, other.found.model_type)
    for name in sorted(side.tensors, key=_by_number):
        parts.setdefault(renamed[name], []).append(name)
    return {
        common: (together(names), Matrix(tuple(side.tensors[name] for name in names), is_norm(names[0])))
        for common, names in parts.items()
    }


def _gguf_names(side: Opened, arch: str) -> dict[str, str]:
    """Return the name in a GGUF file of each tensor of a directory; its own where the gguf package knows none."""
    import gguf

    number = next((number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), None)
    if number is None:
        return {name: name for name in side.tensors}
    layer_count = 1 + max((int(n) for name in side.tensors for n in re.findall(r"layers\.([0-9]+)\.", name)), default=0)
    known = gguf.get_tensor_name_map(number, min(layer_count, _MAX_LAYERS))
    return {name: _gguf_name(name, known.get_name) for name in side.tensors}


def _gguf_name(name: str, known: Callable[..., str | None]) -> str:
    expert = _expert(name)
    if expert is not None:  # the experts of a layer are one tensor, known under another name for each family
        stem, layer, kind = expert
        merged = f"{stem}.{kind}", f"layers.{layer}.feed_forward.experts.{kind}"
        tried = [f"{one}.weight" for one in merged]
    else:
        tried = [name]
    found = (known(one, try_suffixes=(".weight", ".bias")) for one in tried)
    return next((one for one in found if one), name)


def _expert(name: str) -> tuple[str, str, str] | None:
    """Return what stands before the expert's number, the layer and the kind of matrix; None for other tensors."""
    before, layers, rest = name.partition(_LAYERS)
    found = _EXPERT.fullmatch(rest)
    return (before + layers + found[1], found[2], found[3]) if found else None


def is_norm(name: str) -> bool:
    return "norm" in name.rpartition(".")[0].rpartition(".")[2]


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def together(names: list[str]) -> str:
    expert = _expert(names[0])
    return f"{expert[0]}.{{0-{len(names) - 1}}}.{expert[2]}.weight" if expert and len(names) > 1 else names[0]


# --- orders and offsets


def _orders(a: Opened, ours: RopeSet, theirs: RopeSet) -> dict[str, tuple[Ints, str]]:
    """Return by the name in A which rows change places because the layouts differ."""
    found: dict[str, tuple[Ints, str]] = {}
    for layer_type, entry in ours.entries.items():
        other = theirs.entries.get(layer_type)
        if a.targets is not None and other is not None and other.layout != entry.layout:
            name = f"{entry.layout} to {other.layout}"
            found |= {tensor: (order, name) for tensor, order in _edited(a.targets, layer_type, other.layout)}
    return found


def _edited(targets: FoldTargets, layer_type: str, layout: str) -> list[tuple[str, Ints]]:
    try:
        edits = layout_edits(targets, layer_type, layout, "")
    except RopetoolError:  # layers without rotation, or rows that the file does not have: then the rows must tell
        return []
    return [(edit.tensor, _whole_order(edit.height, edit.starts, np.array(edit.order))) for edit in edits]


def _whole_order(height: int, starts: Iterable[int], order: Ints) -> Ints:
    whole = np.arange(height)
    for start in starts:
        whole[start : start + len(order)] = start + order
    return whole


def _offsets(side: Opened) -> dict[str, float]:
    """Return what the runtime adds to the numbers of norms before it multiplies, where it does."""
    if side.targets is None:
        return {}
    targets, found = side.targets, dict[str, float]()
    for steps, one in ((targets.steps.q, Q), (targets.steps.k, K)):
        if not any(step.offset for step in steps):
            continue
        for entry in targets.rope.entries.values():
            with suppress(RopetoolError):  # rows that the file does not have: the numbers must tell
                for layer in layers(targets, entry):
                    some = by_step(targets, entry, layer, steps, one)
                    found |= {p.tensor: p.offset for _, places in some for p in places if p.offset}
    return found
