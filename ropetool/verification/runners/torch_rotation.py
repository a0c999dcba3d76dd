"""How a loaded model of transformers rotates: what its modules remember, and other tables, pairs and scales put into them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ropetool.rope.tables import Regime

TABLES = ("cos", "sin", "freqs_cis")  # where the arguments of a rotation end that are rotated


class RopeState:
    """What rotary modules remember between calls, so that every batch meets them as a fresh model's.

    A `dynamic` table stays at the longest length it has seen (transformers' modeling_rope_utils.py,
    dynamic_frequency_update): the same 100 tokens after a call of 200 differ by whole logits from a fresh model's.
    """

    def __init__(self, model: Any) -> None:
        self._attributes: list[tuple[Any, str, Any]] = []
        self._buffers: list[tuple[Any, str, Any]] = []
        self.rope_types: set[str] = set()
        for module in model.modules():
            if not hasattr(module, "rope_type"):
                continue
            kinds = module.rope_type
            self.rope_types |= set(kinds.values()) if isinstance(kinds, dict) else {kinds}
            self._buffers += [(module, name, value.clone()) for name, value in module.named_buffers(recurse=False)]
            self._attributes += [
                (module, name, value)
                for name, value in vars(module).items()
                if name.endswith(("max_seq_len_cached", "attention_scaling"))
            ]

    def restore(self) -> None:
        """Set everything back to what it was after loading."""
        for module, name, value in self._attributes:
            setattr(module, name, value)
        for module, name, value in self._buffers:
            setattr(module, name, value.clone())  # a clone: longrope writes into the buffer


def set_tables(model: Any, tables: Mapping[str, Regime], nested: bool) -> int:
    """Make the rotary modules of a loaded model of transformers turn by fixed tables; return how many there were.

    tables: by kind of layer. nested: whether the modules keep a table for each kind.
    """
    import torch

    found = 0
    for module in model.modules():
        if hasattr(module, "rope_type") and any(
            name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False)
        ):
            for kind, regime in tables.items():
                prefix = f"{kind}_" if nested else ""
                buffer = getattr(module, f"{prefix}inv_freq")
                table = torch.tensor(np.array(regime.inv_freq), dtype=buffer.dtype, device=buffer.device)
                setattr(module, f"{prefix}inv_freq", table)
                setattr(module, f"{prefix}original_inv_freq", table.clone())
                setattr(module, f"{prefix}attention_scaling", regime.attention_factor)
                # A fixed table: the module must not recompute it as dynamic and longrope do.
                if isinstance(module.rope_type, dict):
                    module.rope_type[kind] = "default"
                else:
                    module.rope_type = "default"
            found += 1
    return found


class SoftmaxScales:
    """What the scores of each layer are multiplied by, which transformers keeps in its attention modules.

    layers: those whose scale can be changed.
    """

    def __init__(self, model: Any) -> None:
        self._modules = [
            (module, float(module.scaling))
            for module in model.modules()
            if isinstance(getattr(module, "layer_idx", None), int)
            and isinstance(getattr(module, "scaling", None), float)
        ]
        self.layers = frozenset(module.layer_idx for module, _ in self._modules)

    def times(self, ratios: Mapping[int, float]) -> None:
        """Multiply the scales that the model was loaded with, by layer; those of no ratio are put back."""
        for module, scale in self._modules:
            module.scaling = scale * ratios.get(module.layer_idx, 1.0)


def rotations(model: Any) -> list[tuple[Any, str]]:
    """Return the functions that the model's attention rotates queries and keys by: the module of Python's, and the name."""
    owners = {type(module).__module__ for module in model.modules() if hasattr(module, "layer_idx")}
    return [
        (sys.modules[owner], name)
        for owner in sorted(owners)
        for name, found in vars(sys.modules[owner]).items()
        if name.startswith("apply_rotary") and set(TABLES) & set(inspect.signature(found).parameters)
    ]


@contextmanager
def swapped_pairs(model: Any, widths: Mapping[int, int], layout: str) -> Iterator[None]:
    """Pair the channels of queries and keys as the other layout does.

    Both are put into another order before they are rotated, which their products do not see. widths: how many of so many
    channels rotate. layout: of the class.
    """
    import torch

    def order(channels: int) -> Any:
        count = widths[channels]
        halves = torch.arange(count).reshape(
            2, count // 2
        )  # row j: the j-th of each pair, where a pair is (i, i + count / 2)
        first = halves.T.reshape(-1) if layout == "interleaved" else torch.arange(count).reshape(-1, 2).T.reshape(-1)
        return torch.cat([first, torch.arange(count, channels)])

    def other(rotate: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(rotate).parameters)
        turned = names[: next(at for at, name in enumerate(names) if name in TABLES)]

        def swapped(*arguments: Any, **named: Any) -> Any:
            bound = inspect.signature(rotate).bind(*arguments, **named)
            for name in turned:
                if isinstance(given := bound.arguments.get(name), torch.Tensor):
                    bound.arguments[name] = given[..., order(given.shape[-1]).to(given.device)]
            return rotate(*bound.args, **bound.kwargs)

        return swapped

    found = [(module, name, getattr(module, name)) for module, name in rotations(model)]
    for module, name, rotate in found:
        setattr(module, name, other(rotate))
    try:
        yield
    finally:
        for module, name, rotate in found:
            setattr(module, name, rotate)
