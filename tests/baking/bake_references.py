"""What transformers computes of a checkpoint when its rotation is changed by hand: oracles for bakes that no key asks for.

Changes loaded models alone: knows where transformers keeps cos, sin and the scale of the score, and no tensor of a file.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers import AutoConfig

Change = Callable[[Any], None]
FULL = "full_attention"


def with_gains(gains: Sequence[float]) -> Change:
    """Return the change after which the score of each rotary pair of full attention counts so many times.

    cos and sin turn queries and keys alike, so each takes the root.
    """

    def weighted(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if FULL not in (*args, *kwargs.values()) and isinstance(getattr(module, "rope_type", ""), dict):
            return output  # the call for another kind of layer
        return _weighted(output, torch.tensor(gains, dtype=torch.float64).sqrt())

    def change(model: Any) -> None:
        for module in _rotary_modules(model):
            module.register_forward_hook(weighted, with_kwargs=True)

    return change


def _weighted(output: Any, roots: torch.Tensor) -> Any:
    if isinstance(output, torch.Tensor):  # deepseek_v2: one complex number a pair
        return output * roots.to(output.real.dtype)
    return tuple(part * _spread(output[0], roots).to(part.dtype) for part in output)


def _spread(cos: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
    """Return the numbers of pairs as this cos has pairs: once each, side by side, or in two halves."""
    if cos.shape[-1] == roots.numel():
        return roots
    return roots.repeat_interleave(2) if torch.equal(cos[..., 0::2], cos[..., 1::2]) else roots.repeat(2)


def with_score(multiplier: float, layers: Sequence[int], pairs: int) -> Change:
    """Return the change after which the attention of these layers multiplies its scores once more."""

    def change(model: Any) -> None:
        found = [m for m in model.modules() if getattr(m, "layer_idx", None) in layers and _is_attention(m)]
        assert len(found) == len(layers)
        if all(hasattr(module, "scaling") for module in found):
            for module in found:
                module.scaling *= multiplier
        else:  # falcon has no such number, and rotates whole heads
            with_gains([multiplier] * pairs)(model)

    return change


def _is_attention(module: Any) -> bool:
    return type(module).__name__.endswith("Attention")


def with_still_pairs(pairs: Sequence[int]) -> Change:
    """Return the change after which these pairs of full attention never turn."""

    def change(model: Any) -> None:
        for module in _rotary_modules(model):
            table = getattr(module, f"{FULL}_inv_freq", None)
            (module.inv_freq if table is None else table)[list(pairs)] = 0

    return change


def _rotary_modules(model: Any) -> list[Any]:
    found = [m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding")]
    assert found
    return found


@contextlib.contextmanager
def rotated(model_type: str, order: str) -> Iterator[None]:
    """Let the family's code rotate channels of this order, half or interleaved, whatever its own is."""
    config = type(AutoConfig.for_model(model_type)).__module__
    module = importlib.import_module(config.replace("configuration_", "modeling_"))
    # Of two functions the first is that of the main attention; an indexer keeps its own.
    names = ("apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb", "apply_rotary_emb")
    name = next(name for name in names if hasattr(module, name))
    before = getattr(module, name)
    setattr(module, name, _rotation(order))
    try:
        yield
    finally:
        setattr(module, name, before)


def _rotation(order: str) -> Callable[..., Any]:
    def apply(q: torch.Tensor, k: torch.Tensor, first: torch.Tensor, *more: Any, **_: Any) -> Any:
        cos, sin = (first.real, first.imag) if first.is_complex() else (first, more[0])
        cos, sin = (_by_pair(cos, part).unsqueeze(1) for part in (cos, sin))
        return _turned(q, cos, sin, order), _turned(k, cos, sin, order)

    return apply


def _by_pair(cos: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return cos or sin with one number a pair."""
    half = cos.shape[-1] // 2
    if torch.equal(cos[..., 0::2], cos[..., 1::2]):
        return part[..., 0::2]
    return part[..., :half] if torch.equal(cos[..., :half], cos[..., half:]) else part


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, order: str) -> torch.Tensor:
    """Return the first channels turned; in which order they come out changes no score."""
    width = 2 * cos.shape[-1]
    part, rest = x[..., :width], x[..., width:]
    if order == "interleaved":
        a, b = part[..., 0::2], part[..., 1::2]
    else:
        a, b = part[..., : width // 2], part[..., width // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)
