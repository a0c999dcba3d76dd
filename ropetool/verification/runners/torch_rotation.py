"""The rotation of a loaded transformers model: its state, and changes of its tables, channel pairs and softmax scales."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ropetool.rope.tables import Regime

TABLES = ("cos", "sin", "freqs_cis")  # in a rotation's signature, the first of these follows the rotated arguments


class RopeState:
    """The state of rotary modules after loading. Restoring it makes each batch independent of earlier calls.

    A `dynamic` table keeps the longest length of all calls (transformers' modeling_rope_utils.py,
    dynamic_frequency_update). After a call with 200 tokens, the logits of 100 tokens differ by more than 1 from the
    logits of a freshly loaded model.
    """

    def __init__(self, model: Any) -> None:
        self._attributes: list[tuple[Any, str, Any]] = []
        self._buffers: list[tuple[Any, str, Any]] = []
        self.rope_types: set[str] = set()
        for module in model.modules():
            if not hasattr(module, "rope_type"):
                continue
            rope_type = module.rope_type
            self.rope_types |= set(rope_type.values()) if isinstance(rope_type, dict) else {rope_type}
            self._buffers += [(module, name, value.clone()) for name, value in module.named_buffers(recurse=False)]
            self._attributes += [
                (module, name, value)
                for name, value in vars(module).items()
                if name.endswith(("max_seq_len_cached", "attention_scaling"))
            ]

    def restore(self) -> None:
        """Restore the state after loading."""
        for module, name, value in self._attributes:
            setattr(module, name, value)
        for module, name, value in self._buffers:
            setattr(module, name, value.clone())  # a clone: longrope writes into the buffer


def set_tables(model: Any, tables: Mapping[str, Regime], nested: bool) -> int:
    """Put fixed tables into the rotary modules of a loaded transformers model, and return the number of these modules.

    tables: by layer type. nested: whether the modules have a table for each layer type.
    """
    import torch

    count = 0
    for module in model.modules():
        if hasattr(module, "rope_type") and any(
            name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False)
        ):
            for layer_type, regime in tables.items():
                prefix = f"{layer_type}_" if nested else ""
                buffer = getattr(module, f"{prefix}inv_freq")
                table = torch.tensor(np.array(regime.inv_freq), dtype=buffer.dtype, device=buffer.device)
                setattr(module, f"{prefix}inv_freq", table)
                setattr(module, f"{prefix}original_inv_freq", table.clone())
                setattr(module, f"{prefix}attention_scaling", regime.attention_factor)
                # With the type "default", the module does not recompute the table as it does for dynamic and longrope.
                if isinstance(module.rope_type, dict):
                    module.rope_type[layer_type] = "default"
                else:
                    module.rope_type = "default"
            count += 1
    return count


class SoftmaxScales:
    """The softmax scale of each layer, which transformers stores in its attention modules.

    layers: the layers whose scale can be changed.
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
        """Multiply the original scale of each layer by its ratio. A layer without a ratio gets its original scale."""
        for module, scale in self._modules:
            module.scaling = scale * ratios.get(module.layer_idx, 1.0)


def rotations(model: Any) -> list[tuple[Any, str]]:
    """Return the functions that rotate queries and keys in this model: the Python module and the name of each."""
    owners = {type(module).__module__ for module in model.modules() if hasattr(module, "layer_idx")}
    return [
        (sys.modules[owner], name)
        for owner in sorted(owners)
        for name, value in vars(sys.modules[owner]).items()
        if name.startswith("apply_rotary") and set(TABLES) & set(inspect.signature(value).parameters)
    ]


@contextmanager
def swapped_pairs(model: Any, widths: Mapping[int, int], layout: str) -> Iterator[None]:
    """Pair the channels of queries and keys as the other layout does, within the context.

    Queries and keys are both permuted before the rotation, so their products only differ by the rotation.
    widths: the number of rotated channels, by the number of all channels.
    layout: the layout of the class.
    """
    import torch

    def order(channels: int) -> Any:
        count = widths[channels]
        halves = torch.arange(count).reshape(2, count // 2)  # the two rows have the two channels of each pair
        first = halves.T.reshape(-1) if layout == "interleaved" else torch.arange(count).reshape(-1, 2).T.reshape(-1)
        return torch.cat([first, torch.arange(count, channels)])

    def other(rotate: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(rotate).parameters)
        rotated = names[: next(at for at, name in enumerate(names) if name in TABLES)]

        def swapped(*arguments: Any, **named: Any) -> Any:
            bound = inspect.signature(rotate).bind(*arguments, **named)
            for name in rotated:
                if isinstance(given := bound.arguments.get(name), torch.Tensor):
                    bound.arguments[name] = given[..., order(given.shape[-1]).to(given.device)]
            return rotate(*bound.args, **bound.kwargs)

        return swapped

    functions = [(module, name, getattr(module, name)) for module, name in rotations(model)]
    for module, name, rotate in functions:
        setattr(module, name, other(rotate))
    try:
        yield
    finally:
        for module, name, rotate in functions:
            setattr(module, name, rotate)
