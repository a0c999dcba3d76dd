"""What layers of text models are made of, in torch and float64: for classes that are written out here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Tensor = Any  # torch is imported where it is needed


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return a token's numbers with a mean square of 1, times the weight."""
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def rotated(x: Tensor, base: float, share: float = 1.0, *, interleaved: bool = False) -> Tensor:
    """Return heads whose first channels, a share of all, are turned by their position, pairs half of those apart or neighbours.

    Shapes: (heads, tokens, head_dim) -> same.
    """
    import torch

    dim = int(x.shape[-1] * share)
    x, still = x[..., :dim], x[..., dim:]
    angles = torch.outer(torch.arange(x.shape[-2]).double(), base ** -(torch.arange(0, dim, 2).double() / dim))
    cos, sin = angles.cos(), angles.sin()
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., : dim // 2], x[..., dim // 2 :])
    pairs = first * cos - second * sin, second * cos + first * sin
    turned = torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)
    return torch.cat((turned, still), -1)


def heads(x: Tensor, size: int) -> Tensor:
    """Return heads of a size. Shapes: (tokens, heads * size) -> (heads, tokens, size)."""
    return x.unflatten(-1, (-1, size)).transpose(0, 1)


def attended(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, cap: float = 0.0, window: int = 0
) -> Tensor:
    """Return what each token takes from those before it. Shapes: (heads, tokens, size) -> (tokens, heads * size).

    scale: of the scores; None: the root of 1 / size. cap: what scores are bent to by tanh, 0 for nothing. window:
    how many tokens each looks back to, itself among them, 0 for all.
    """
    import torch

    tokens, shared = q.shape[1], q.shape[0] // k.shape[0]
    scores = q @ k.repeat_interleave(shared, 0).mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = cap * (scores / cap).tanh() if cap else scores
    ages = torch.arange(tokens)[:, None] - torch.arange(tokens)
    unseen = (ages < 0) | ((ages >= window) if window else False)
    weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
    return (weights @ v.repeat_interleave(shared, 0)).transpose(0, 1).flatten(1)


def attention(
    x: Tensor, w: Mapping[str, Tensor], place: str, config: Mapping[str, Any], base: float | None, *,
    share: float = 1.0, window: int = 0,
) -> Tensor:  # fmt: skip
    """Return a llama's attention, of the matrices below a place; base: None for a layer that does not rotate."""
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    q, k, v = (heads(x @ w[f"{place}{name}_proj.weight"].T, size) for name in "qkv")
    if f"{place}q_norm.weight" in w:
        q = rms(q, w[f"{place}q_norm.weight"], config["rms_norm_eps"])
        k = rms(k, w[f"{place}k_norm.weight"], config["rms_norm_eps"])
    if base is not None:
        q, k = rotated(q, base, share), rotated(k, base, share)
    return attended(q, k, v, window=window) @ w[f"{place}o_proj.weight"].T


def gated(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a feed-forward with a gate."""
    return (act(x @ gate.T) * (x @ up.T)) @ down.T


def feed_forward(x: Tensor, w: Mapping[str, Tensor], place: str) -> Tensor:
    """Return a llama's feed-forward, of the matrices below a place."""
    from torch.nn.functional import silu

    return gated(x, *(w[f"{place}{name}_proj.weight"] for name in ("gate", "up", "down")), silu)


def mixed(x: Tensor, weights: Tensor, chosen: Tensor, expert: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Return what the chosen experts make of each token, in these weights. Shapes: weights and chosen (tokens, experts)."""
    import torch

    rows = [
        sum(weight * expert(token[None], int(one))[0] for weight, one in zip(row, ones, strict=True))
        for token, row, ones in zip(x, weights, chosen, strict=True)
    ]
    return torch.stack(rows)
