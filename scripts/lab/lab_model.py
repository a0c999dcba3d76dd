"""A small Llama-like transformer with the attention of a design, for scripts/lab/train.

RMSNorm before each part (or after each sum), SwiGLU, tied embeddings, every head with its own keys. Attention is written out,
without kernels, so that it can be read and compared.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from lab_designs import Attention, Design
from lab_rotation import Extension, Sizes
from torch import Tensor, nn
from torch.nn import functional

NOTHING = Extension()


class Layer(nn.Module):
    """Attention, then SwiGLU, each added to what came in."""

    def __init__(self, design: Design, sizes: Sizes, number: int) -> None:
        super().__init__()
        self.design, self.sizes, self.number = design, sizes, number
        width = sizes.width
        self.before_attention, self.before_inner = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.q, self.v = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width // 2 if design.gates else width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, sizes.inner, bias=False), nn.Linear(width, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, width, bias=False)
        self.learned = nn.ParameterDict(
            {name: nn.Parameter(torch.full((sizes.heads,), value)) for name, value in design.learned.items()}
        )

    def forward(self, x: Tensor, positions: Tensor, extension: Extension) -> Tensor:
        if self.design.post_norm:
            carried = (2 * self.sizes.layers) ** 0.25  # DeepNorm, arXiv:2203.00555
            x = self.before_attention(carried * x + self.attention(x, positions, extension))
            return self.before_inner(carried * x + self.inner(x))
        x = x + self.attention(self.before_attention(x), positions, extension)
        return x + self.inner(self.before_inner(x))

    def attention(self, x: Tensor, positions: Tensor, extension: Extension) -> Tensor:
        """Return what attention adds to x, (rows, length, width)."""
        rows, length, width = x.shape
        q, k, v = (
            part(x).view(rows, length, self.sizes.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        mixed = self.scores(q, k, positions, extension).float().softmax(dim=-1).to(v.dtype) @ v
        return self.o(mixed.transpose(1, 2).reshape(rows, length, width))

    def scores(self, q: Tensor, k: Tensor, positions: Tensor, extension: Extension) -> Tensor:
        """Return what the softmax takes, (rows, heads, length, length); what a token does not see is -inf."""
        a = Attention(
            q, k, positions, self.number, self.sizes, self.design.base, extension, self.learned, self.training
        )
        scores = self.design.scores(a)
        if extension.logn:
            scores = scores * a.log_n.clamp(min=1)
        return scores.masked_fill(a.distances < 0, -math.inf)

    def inner(self, x: Tensor) -> Tensor:
        """Return what SwiGLU adds to x, (rows, length, width)."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Model(nn.Module):
    """Tokens (rows, length) and positions (rows or 1, length) to logits of the last `keep` tokens, or of all."""

    def __init__(self, design: Design, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes = replace(sizes, heads=design.heads or sizes.heads)
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(design, sizes, number) for number in range(sizes.layers))
        self.last_norm = nn.Identity() if design.post_norm else nn.RMSNorm(sizes.width, 1e-5)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                into_the_sum = name.endswith((".o.weight", ".down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * sizes.layers) if into_the_sum else 0.02)

    def forward(self, tokens: Tensor, positions: Tensor, extension: Extension = NOTHING, keep: int = 0) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.sizes.bfloat16):
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x, positions, extension)
            return functional.linear(self.last_norm(x[:, -keep:]), self.embedding.weight)
