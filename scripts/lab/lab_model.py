"""A small Llama-like transformer whose attention has the field's training-time designs as switches, for scripts/lab/train.

Pre-norm, RMSNorm, SwiGLU, tied embeddings, every head with its own keys. What differs between designs is one `Design`; what is
changed after training is one `Extension`. Attention is written out, without kernels, so that it can be read and compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropetool.rope.methods import Goal, Source, get


@dataclass(frozen=True)
class Design:
    """How a model's attention is made before it is trained.

    window: tokens that a layer sees, itself included, in all layers but number `full`; 0 is no window. rotates: whether the layer
    that sees all rotates (the others do). logn: the layers whose scores are multiplied by ln n / ln L at the n-th token: "", "all"
    or "full". key_norm: keys of length 1 and no division by the root of the head's size. coca: keys are the query times a
    gate that is not negative, one number a pair. alibi: a slope in place of the rotation. positions: what training counts.
    """

    base: float = 1e4
    window: int = 0
    full: int = 0
    rotates: bool = True
    logn: str = ""
    key_norm: bool = False
    coca: bool = False
    alibi: bool = False
    positions: str = "plain"


@dataclass(frozen=True)
class Extension:
    """What is changed of a trained model: a method of ropetool by its name, or distances beyond a window, or log-n added.

    window, leak: a distance t beyond the window counts as window + (t - window) / leak, in layers that see all; leak
    infinite is ReRoPE. logn: scores times max(1, ln n / ln L).
    """

    method: str = ""
    factor: float = 1.0
    window: int = 0
    leak: float = math.inf
    logn: bool = False


@dataclass(frozen=True)
class Sizes:
    """Of a model, and the tokens that it is trained at."""

    vocabulary: int = 2048
    width: int = 128
    inner: int = 352
    layers: int = 4
    heads: int = 4
    trained: int = 64

    @property
    def head(self) -> int:
        """Channels of a head."""
        return self.width // self.heads


def largest_window(sizes: Sizes) -> int:
    """Return HWFA's window: the widest w whose field (w - 1)(layers - 1) + 1 is at most three quarters of the trained length."""
    return (3 * sizes.trained // 4 - 1) // (sizes.layers - 1) + 1


def designs(sizes: Sizes) -> dict[str, Design]:
    """Return the designs by name, the most telling first. Sources: docs/measurements.md."""
    hwfa = Design(window=largest_window(sizes), full=sizes.layers - 1, rotates=False, logn="full")
    return {
        "plain": Design(),
        "log-n": Design(logn="all"),
        "hwfa": hwfa,
        "key-norm": Design(key_norm=True),
        "alibi": Design(alibi=True),
        "pose": Design(positions="pose"),
        "randomized": Design(positions="randomized"),
        "base-1e6": Design(base=1e6),
        "hwfa2": Design(window=sizes.trained // 2, full=sizes.layers // 2, logn="full"),
        "coca": Design(coca=True),
        "key-norm-no-rope": Design(key_norm=True, rotates=False),
        "hwfa-rotated": replace(hwfa, rotates=True),
        "hwfa-wide": replace(hwfa, window=sizes.trained // 2),
        "hwfa-no-log-n": replace(hwfa, logn=""),
        "base-1e3": Design(base=1e3),
        "base-1e5": Design(base=1e5),
    }


def draw_positions(kind: str, rows: int, length: int, target: int, rng: np.random.Generator) -> Tensor:
    """Return the positions that a batch counts, (rows, length) or (1, length): increasing, and below the target.

    randomized: a random subset of all positions, in order (arXiv:2305.16843). pose: two pieces, of which the second
    skips a random number of positions (arXiv:2309.10400).
    """
    positions = np.arange(length)[None]
    if kind == "randomized":
        positions = np.stack([np.sort(rng.choice(target, length, replace=False)) for _ in range(rows)])
    elif kind == "pose":
        border = rng.integers(1, length, size=(rows, 1))
        skipped = rng.integers(0, target - length + 1, size=(rows, 1))
        positions = positions + skipped * (positions >= border)
    return torch.from_numpy(positions).double()


def table(design: Design, sizes: Sizes, extension: Extension) -> tuple[Tensor, float]:
    """Return the frequencies of the pairs, (head / 2,), and what multiplies cos and sin."""
    frequencies = design.base ** (-np.arange(0, sizes.head, 2) / sizes.head)
    if not extension.method:
        return torch.from_numpy(frequencies), 1.0
    method, goal = get(extension.method), Goal.make(sizes.trained, extension.factor, None)
    derived = method.derive(Source(frequencies, sizes.trained, design.base), goal, method.params({}))
    regime = derived.table.at(goal.target_length)
    return torch.from_numpy(regime.inv_freq.copy()), regime.attention_factor


def rotate(x: Tensor, positions: Tensor, frequencies: Tensor, factor: float) -> Tensor:
    """Turn pairs (i, i + d/2) of x, (rows, heads, length, d), by positions, (rows or 1, length), times frequencies."""
    angles = positions[:, None, :, None] * frequencies
    cos, sin = (factor * angles.cos()).to(x.dtype), (factor * angles.sin()).to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def scores(
    q: Tensor, k: Tensor, positions: Tensor, design: Design, sizes: Sizes, full: bool, extension: Extension
) -> Tensor:
    """Return what the softmax of a layer takes, (rows, heads, length, length); what a token does not see is -inf.

    q, k: (rows, heads, length, d), with CoCA k is (rows, heads, length, d / 2).
    """
    length = q.shape[-2]
    index = torch.arange(length, dtype=torch.float64)
    steps = index[:, None] - index  # tokens between, whatever positions count
    if design.coca:
        # The key at n for a query is the query times the gate at n: the score is the sum of |q|^2 gate cos over the pairs.
        first, second = q.chunk(2, dim=-1)
        q = torch.cat([first**2 + second**2, torch.zeros_like(first)], dim=-1)
        k = torch.cat([functional.relu(k), torch.zeros_like(k)], dim=-1)
    if design.key_norm:
        k = functional.normalize(k, dim=-1)
    turned = not design.alibi and (design.rotates or not full)
    found = _rotated(q, k, positions, design, sizes, full, extension) if turned else q @ k.transpose(-1, -2)
    if not design.key_norm:
        found = found / math.sqrt(sizes.head)
    if design.alibi:
        slopes = 2 ** (-8 * torch.arange(1, sizes.heads + 1, dtype=torch.float64) / sizes.heads)
        found = found - (slopes[:, None, None] * steps).to(q.dtype)
    temperature = torch.log(index + 1) / math.log(sizes.trained)
    if design.logn == "all" or (design.logn == "full" and full):
        found = found * temperature[:, None].to(q.dtype)
    elif extension.logn:
        found = found * temperature.clamp(min=1)[:, None].to(q.dtype)
    hidden = steps < 0
    if design.window and not full:
        hidden |= steps >= design.window
    return found.masked_fill(hidden, -math.inf)


def _rotated(
    q: Tensor, k: Tensor, positions: Tensor, design: Design, sizes: Sizes, full: bool, extension: Extension
) -> Tensor:
    frequencies, factor = table(design, sizes, extension)
    found = rotate(q, positions, frequencies, factor) @ rotate(k, positions, frequencies, factor).transpose(-1, -2)
    if not extension.window or not full:
        return found
    # window + (t - window) / leak is the distance between the positions m / leak + window (1 - 1 / leak) and n / leak.
    slow = positions / extension.leak
    shifted = slow + extension.window * (1 - 1 / extension.leak)
    far = rotate(q, shifted, frequencies, factor) @ rotate(k, slow, frequencies, factor).transpose(-1, -2)
    distance = positions[:, None, :, None] - positions[:, None, None, :]
    return torch.where(distance <= extension.window, found, far)


class Layer(nn.Module):
    """Attention, then SwiGLU, each on what RMSNorm leaves and added to what came in."""

    def __init__(self, design: Design, sizes: Sizes, number: int) -> None:
        super().__init__()
        self.design, self.sizes = design, sizes
        self.full = not design.window or number == design.full
        width = sizes.width
        self.before_attention, self.before_inner = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.q, self.v = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width // 2 if design.coca else width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, sizes.inner, bias=False), nn.Linear(width, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, width, bias=False)

    def forward(self, x: Tensor, positions: Tensor, extension: Extension) -> Tensor:
        rows, length, width = x.shape
        normed = self.before_attention(x)
        q, k, v = (
            part(normed).view(rows, length, self.sizes.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        found = scores(q, k, positions, self.design, self.sizes, self.full, extension)
        mixed = found.float().softmax(dim=-1).to(v.dtype) @ v
        x = x + self.o(mixed.transpose(1, 2).reshape(rows, length, width))
        normed = self.before_inner(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    """Tokens (rows, length) and positions (rows or 1, length) to logits of the last `keep` tokens, or of all."""

    def __init__(self, design: Design, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(design, sizes, number) for number in range(sizes.layers))
        self.last_norm = nn.RMSNorm(sizes.width, 1e-5)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                into_the_sum = name.endswith((".o.weight", ".down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * sizes.layers) if into_the_sum else 0.02)

    def forward(self, tokens: Tensor, positions: Tensor, extension: Extension = Extension(), keep: int = 0) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, positions, extension)
        return functional.linear(self.last_norm(x[:, -keep:]), self.embedding.weight)
