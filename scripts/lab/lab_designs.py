"""The designs of attention that the laboratory trains: one function each, to be held against its source.

A design returns the scores that the softmax of a layer takes, from queries and keys. A later token is hidden by the layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import torch
from lab_rotation import Extension, Sizes, rotate, table
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Attention:
    """What a design sees in one layer.

    q: (rows, heads, length, d). k: the same, or (rows, heads, length, d / 2) for a design with gates.
    positions: what training or the test counts, (rows or 1, length), in float64.
    learned: what the design trains besides the projections, (heads,) each. training: whether the model is being trained.
    """

    q: Tensor
    k: Tensor
    positions: Tensor
    layer: int
    sizes: Sizes
    base: float
    extension: Extension
    learned: Mapping[str, Tensor]
    training: bool

    @property
    def root(self) -> float:
        """The square root of the head size, by which scores are divided."""
        return math.sqrt(self.sizes.head)

    @property
    def tokens(self) -> Tensor:
        """The places of the tokens, (length,), from 0, whatever positions count."""
        return torch.arange(self.q.shape[-2], dtype=torch.float64)

    @property
    def distances(self) -> Tensor:
        """The tokens from a key to a query, (length, length)."""
        return _distances(self.q.shape[-2])

    @property
    def log_n(self) -> Tensor:
        """ln n / ln L for the n-th token, (length, 1): kexue 8823."""
        return (torch.log(self.tokens + 1) / math.log(self.sizes.trained))[:, None].to(self.q.dtype)

    @property
    def last(self) -> bool:
        """Whether no layer follows."""
        return self.layer == self.sizes.layers - 1

    def by_head(self, values: Tensor) -> Tensor:
        """Return a number for each head, (heads, 1, 1)."""
        return values.to(self.q.dtype)[:, None, None]

    def turned(self, q: Tensor, k: Tensor, window: float = math.inf, leak: float = math.inf) -> Tensor:
        """Return the products of rotated queries and keys, (rows, heads, length, length).

        A distance t beyond the window counts as window + (t - window) / leak. A window of the extension comes first.
        """
        frequencies, factor = table(self.base, self.sizes, self.extension)
        near = _products(q, k, self.positions, self.positions, frequencies, factor)
        if self.extension.window:
            window, leak = self.extension.window, self.extension.leak
        if window == math.inf:
            return near
        # That distance lies between the positions m / leak + window (1 - 1 / leak) and n / leak.
        slow = self.positions / leak
        far = _products(q, k, slow + window * (1 - 1 / leak), slow, frequencies, factor)
        distances = self.positions[:, None, :, None] - self.positions[:, None, None, :]
        return torch.where(distances <= window, near, far)

    def within(self, scores: Tensor, window: int) -> Tensor:
        """Return the scores of a layer whose tokens see so many tokens, themselves included."""
        return scores.masked_fill(self.distances >= window, -math.inf)


Scores = Callable[[Attention], Tensor]


@lru_cache(maxsize=4)
def _distances(length: int) -> Tensor:
    tokens = torch.arange(length, dtype=torch.float64)
    return tokens[:, None] - tokens


def _products(q: Tensor, k: Tensor, at: Tensor, seen: Tensor, frequencies: Tensor, factor: float) -> Tensor:
    return rotate(q, at, frequencies, factor) @ rotate(k, seen, frequencies, factor).transpose(-1, -2)


def plain(a: Attention) -> Tensor:
    """RoPE: arXiv:2104.09864."""
    return a.turned(a.q, a.k) / a.root


def unrotated(a: Attention) -> Tensor:
    """Return scores without any position."""
    return a.q @ a.k.transpose(-1, -2) / a.root


def log_n(a: Attention) -> Tensor:
    """RoPE, with scores times ln n / ln L from the first step on: kexue 8823."""
    return plain(a) * a.log_n


def rerope(a: Attention) -> Tensor:
    """ReRoPE in training as at the test: a distance beyond half the trained length counts as that: kexue 9708."""
    return a.turned(a.q, a.k, window=a.sizes.trained // 2) / a.root


def inverse_leaky_rerope(a: Attention) -> Tensor:
    """Trained with distances beyond L / 4 counted 16 times as far, tested as RoPE, with log-n: kexue 9728.

    The article takes twice the factor of the extension for the 16, so that 8 times the trained length is met in training.
    """
    if not a.training:
        return log_n(a)
    return a.turned(a.q, a.k, window=a.sizes.trained // 4, leak=1 / 16) / a.root * a.log_n


def largest_window(sizes: Sizes) -> int:
    """Return HWFA's window: the widest w whose field (w - 1)(layers - 1) + 1 is at most three quarters of the trained length."""
    return (3 * sizes.trained // 4 - 1) // (sizes.layers - 1) + 1


def hwfa(a: Attention) -> Tensor:
    """Windows that rotate, then one layer that sees all, does not rotate and has log-n: kexue 9603."""
    if a.last:
        return unrotated(a) * a.log_n
    return a.within(plain(a), largest_window(a.sizes))


def hwfa_windows_unrotated(a: Attention) -> Tensor:
    """HWFA whose windows do not rotate either: ablation 1 of kexue 9603."""
    return hwfa(a) if a.last else a.within(unrotated(a), largest_window(a.sizes))


def hwfa_rotated(a: Attention) -> Tensor:
    """HWFA whose last layer rotates too: ablation 2 of kexue 9603."""
    return log_n(a) if a.last else hwfa(a)


def hwfa_no_log_n(a: Attention) -> Tensor:
    """HWFA whose last layer has no log-n: ablation 3 of kexue 9603."""
    return unrotated(a) if a.last else hwfa(a)


def hwfa_windows_alone(a: Attention) -> Tensor:
    """HWFA's windows in all layers: ablation 4 of kexue 9603."""
    return a.within(plain(a), largest_window(a.sizes))


def hwfa_two_full(a: Attention) -> Tensor:
    """HWFA with two layers that see all, and one layer of windows fewer, as wide as in HWFA: ablation 5 of kexue 9603."""
    return unrotated(a) * a.log_n if a.layer >= a.sizes.layers - 2 else hwfa(a)


def hwfa_wide(a: Attention) -> Tensor:
    """HWFA with windows of half the trained length, which together see more than it: ablation 6 of kexue 9603."""
    return hwfa(a) if a.last else a.within(plain(a), a.sizes.trained // 2)


def hwfa2(a: Attention) -> Tensor:
    """The middle layer sees all, rotates and has log-n; the others see an eighth of the trained length: kexue 9731, w64-f1."""
    if a.layer == a.sizes.layers // 2:
        return log_n(a)
    return a.within(plain(a), a.sizes.trained // 8)


def key_norm(a: Attention) -> Tensor:
    """Keys of length 1, and no division by the root of the head size: kexue 9859."""
    return a.turned(a.q, functional.normalize(a.k, dim=-1))


def key_norm_unrotated(a: Attention) -> Tensor:
    """Key norm without rotation, which fails in kexue 9859."""
    return a.q @ functional.normalize(a.k, dim=-1).transpose(-1, -2)


def coca(a: Attention) -> Tensor:
    """A key is the query times a gate that is not negative, one number a pair: arXiv:2309.08646.

    So the score at a distance t is the sum of |q|^2 gate cos(t f) over the pairs, of which the query is real and the gate too.
    """
    first, second = a.q.chunk(2, dim=-1)
    q = torch.cat([first**2 + second**2, torch.zeros_like(first)], dim=-1)
    k = torch.cat([functional.relu(a.k), torch.zeros_like(a.k)], dim=-1)
    return a.turned(q, k) / a.root


def alibi(a: Attention) -> Tensor:
    """No rotation, and a penalty by the distance with a slope of each head: arXiv:2108.12409."""
    slopes = 2 ** (-8 * torch.arange(1, a.sizes.heads + 1, dtype=torch.float64) / a.sizes.heads)
    return unrotated(a) - (slopes[:, None, None] * a.distances).to(a.q.dtype)


def kerple(a: Attention) -> Tensor:
    """No rotation, and a penalty r1 ln(1 + r2 t), both numbers learned by each head: arXiv:2205.09921, its best variant."""
    r1, r2 = (a.by_head(functional.softplus(a.learned[name])) for name in ("r1", "r2"))
    return unrotated(a) - r1 * torch.log1p(r2 * a.distances.clamp(min=0).to(a.q.dtype))


def sandwich(a: Attention) -> Tensor:
    """No rotation, and a bonus of the product of two sinusoidal positions, smaller in each further head: arXiv:2212.10356.

    The product of positions t tokens apart is the sum of cos(t f) over the pairs. What all keys share does not matter.
    The positions have the size of a head; the paper takes 128 channels, whatever the head.
    """
    pairs = a.sizes.head // 2
    frequencies = 1e4 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    product = torch.stack([torch.cos(a.distances * f) for f in frequencies]).sum(dim=0)
    shares = 8 * torch.arange(1, a.sizes.heads + 1, dtype=torch.float64) / a.sizes.heads
    return unrotated(a) + (product / shares[:, None, None]).to(a.q.dtype)


def xpos(a: Attention) -> Tensor:
    """RoPE, with each pair's product shrunk by z^(t / L') at a distance t: arXiv:2212.10554.

    z is (i / pairs + 0.4) / 1.4 for pair i. L' is half the trained length, as 512 is of 1024 in the paper's code. The paper also hides
    far keys at the test (blockwise causal attention), which is not done here.
    """
    pairs = a.sizes.head // 2
    z = (torch.arange(pairs, dtype=torch.float64) / pairs + 0.4) / 1.4
    frequencies, factor = table(a.base, a.sizes, a.extension)
    q, k = (rotate(x, a.positions, frequencies, factor) for x in (a.q, a.k))
    powers = (a.tokens - a.tokens.mean())[:, None] / (a.sizes.trained / 2)  # around the middle, against overflow
    shrunk = (z**powers).repeat(1, 2).to(q.dtype)
    return (q * shrunk) @ (k / shrunk).transpose(-1, -2) / a.root


@dataclass(frozen=True)
class Design:
    """A design by its name: how it scores, what it trains besides, and what is tested.

    positions: what training counts, see `draw_positions`. heads: of a layer, where not as in the sizes. post_norm: RMSNorm after
    each sum in place of before each part. gates: keys of half the channels. learned: initial values.
    extensions: the names of what is changed after training.
    """

    scores: Scores
    base: float = 1e4
    positions: str = "plain"
    heads: int = 0
    post_norm: bool = False
    gates: bool = False
    learned: Mapping[str, float] = field(default_factory=dict)
    extensions: tuple[str, ...] = ("none",)


ROTATED = ("none", "rerope", "ntk", "yarn")
BASE_1E4 = (*ROTATED, "linear", "mixed-ntk", "leaky-rerope")
PLAIN = (*BASE_1E4, "ntk, log-n", "rerope, log-n")
KERPLE = {"r1": 0.0, "r2": 0.0}
_PRE_NORM = {
    "plain": Design(plain, extensions=PLAIN),
    "log-n": Design(log_n, extensions=BASE_1E4),
    "hwfa": Design(hwfa),
    "key-norm": Design(key_norm, extensions=PLAIN),
    "alibi": Design(alibi),
    "pose": Design(plain, positions="pose"),
    "randomized": Design(plain, positions="randomized"),
    "base-1e6": Design(plain, base=1e6, extensions=ROTATED),
    "hwfa2": Design(hwfa2, extensions=("none", "rerope")),
    "coca": Design(coca, gates=True, extensions=ROTATED),
    "key-norm-no-rope": Design(key_norm_unrotated),
    "hwfa-rotated": Design(hwfa_rotated, extensions=("none", "rerope")),
    "hwfa-wide": Design(hwfa_wide),
    "hwfa-no-log-n": Design(hwfa_no_log_n),
    "base-1e3": Design(plain, base=1e3, extensions=ROTATED),
    "base-1e5": Design(plain, base=1e5, extensions=ROTATED),
    "hwfa-windows-unrotated": Design(hwfa_windows_unrotated),
    "hwfa-windows-alone": Design(hwfa_windows_alone),
    "hwfa-two-full": Design(hwfa_two_full),
    "rerope-trained": Design(rerope),
    "inverse-leaky-rerope": Design(inverse_leaky_rerope),
    "kerple": Design(kerple, learned=KERPLE),
    "sandwich": Design(sandwich),
    "xpos": Design(xpos),
    "coca-one-head": Design(coca, gates=True, heads=1, extensions=ROTATED),
    "plain-one-head": Design(plain, heads=1, extensions=ROTATED),
}
_POST_NORM = ("plain", "hwfa", "alibi", "sandwich", "xpos", "kerple", "rerope-trained")
DESIGNS: Mapping[str, Design] = {
    **_PRE_NORM,
    **{
        f"post-norm-{name}-one-head": replace(_PRE_NORM[name], post_norm=True, heads=1, extensions=("none",))
        for name in _POST_NORM
    },
}


def extensions(sizes: Sizes, factor: float) -> dict[str, Extension]:
    """Return what is changed of trained models, by name."""
    half = sizes.trained // 2
    table = partial(Extension, factor=factor)
    return {
        "none": Extension(), "rerope": Extension(window=half),
        **{name: table(name) for name in ("ntk", "yarn", "linear", "mixed-ntk")},
        "leaky-rerope": Extension(window=half, leak=2 * factor),
        "ntk, log-n": table("ntk", logn=True),
        "rerope, log-n": Extension(window=half, logn=True),
    }  # fmt: skip
