"""Blocked attention against full matrices in float64, with positions written from the papers' formulas pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from ropetool.lab.yardsticks import blocked, pairs
from ropetool.lab.yardsticks.attention import attention
from ropetool.lab.yardsticks.named import parse
from ropetool.lab.yardsticks.pairs import Bands

torch = pytest.importorskip("torch")

Floats = npt.NDArray[np.float64]
Rule = Callable[[int, int], float | None]
"""The distance of a query and a key, None where the key is not seen."""
TRAINED = 64  # of the inverse frequencies


def plain(m: int, n: int) -> float | None:
    return m - n


def capped(window: int) -> Rule:
    return lambda m, n: min(m - n, window)


def leaky(window: int, factor: float) -> Rule:
    return lambda m, n: m - n if m - n < window else window + (m - n - window) / factor


def grouped(group: int, window: int) -> Rule:
    return lambda m, n: m - n if m - n < window else m // group - n // group + window - window // group


def windowed(window: int) -> Rule:
    return lambda m, n: m - n if m - n < window else None


def with_sinks(window: int, sinks: int) -> Rule:
    return lambda m, n: min(m - n, window) if m - n < window or n < sinks else None


def score(query: Floats, key: Floats, distance: float) -> float:
    """Return the product of a query and a key turned apart by a distance. Shapes: (channels,), pairs are halves."""
    count = len(query) // 2
    inv_freq = 100.0 ** (-np.arange(count) / count)
    q = query[:count] + 1j * query[count:]
    k = key[:count] + 1j * key[count:]
    return float((q * k.conj() * np.exp(1j * inv_freq * distance)).real.sum())


def naive(
    q: Floats, k: Floats, v: Floats, rule: Rule, softcap: float | None = None, sinks: Floats | None = None
) -> Floats:
    """Return attention by the definition. Shapes: (heads, tokens, channels) each, of one text."""
    heads, tokens, channels = q.shape
    found = np.zeros((heads, tokens, v.shape[-1]))
    for head in range(heads):
        other = head * len(k) // heads
        for m in range(tokens):
            weights = np.zeros(m + 1)
            for n in range(m + 1):
                distance = rule(m, n)
                if distance is not None:
                    s = score(q[head, m], k[other, n], distance) / math.sqrt(channels)
                    weights[n] = math.exp(s if softcap is None else softcap * math.tanh(s / softcap))
            total = weights.sum() + (0.0 if sinks is None else math.exp(sinks[head]))
            found[head, m] = weights @ v[other, : m + 1] / total
    return found


def turned(states: Floats, positions: Floats) -> Floats:
    """Return states rotated by positions. Shapes: states (heads, tokens, channels), positions (tokens,)."""
    count = states.shape[-1] // 2
    angles = positions[:, None] * 100.0 ** (-np.arange(count) / count)
    first, second = states[..., :count], states[..., count:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def by_blocks(
    q: Floats, k: Floats, v: Floats, rule: Bands, softcap: float | None = None, sinks: Floats | None = None
) -> Floats:
    """Return attention of one text as the yardstick computes it."""
    places = np.arange(q.shape[1], dtype=np.float64)
    queries = [torch.from_numpy(turned(q, band.query(places)))[None] for band in rule.bands]
    keys = [torch.from_numpy(turned(k, band.key(places)))[None] for band in rule.bands]
    more = None if sinks is None else torch.from_numpy(sinks)
    found = blocked.attend(
        queries, keys, torch.from_numpy(v)[None], rule, scaling=q.shape[-1] ** -0.5, softcap=softcap, sinks=more
    )
    return np.asarray(found[0])


def states(heads: int, tokens: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Return queries, keys and values; two heads of queries share one of keys."""
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((count, tokens, 8)) * 2 for count in (heads, heads // 2, heads // 2))  # type: ignore[return-value]


CASES = {
    "plain": (pairs.PLAIN, plain),
    "rerope": (pairs.rerope(20), capped(20)),
    "rerope of one token": (pairs.rerope(1), capped(1)),
    "rerope wider than a block": (pairs.rerope(70), capped(70)),
    "leaky rerope": (pairs.leaky_rerope(20, 4), leaky(20, 4)),
    "leaky rerope by a fraction": (pairs.leaky_rerope(13, 2.5), leaky(13, 2.5)),
    "self-extend": (pairs.self_extend(4, 20), grouped(4, 20)),
    "self-extend of a window that groups do not fill": (pairs.self_extend(4, 22), grouped(4, 22)),
    "sliding window": (pairs.sliding_window(20), windowed(20)),
    "sliding window of one token": (pairs.sliding_window(1), windowed(1)),
    "lambda mask": (pairs.lambda_mask(20, 3), with_sinks(20, 3)),
    "lambda mask with more sinks than a block": (pairs.lambda_mask(10, 40), with_sinks(10, 40)),
}


@pytest.mark.parametrize("blocks", [(128, 2048), (32, 16), (7, 5)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_blocks_give_what_the_full_matrix_does(
    name: str, blocks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "QUERIES", blocks[0])
    monkeypatch.setattr(blocked, "KEYS", blocks[1])
    rule, definition = CASES[name]
    q, k, v = states(2, 100 if blocks[0] < 128 else 150, seed=len(name))
    assert np.abs(by_blocks(q, k, v, rule) - naive(q, k, v, definition)).max() < 1e-9


@pytest.mark.parametrize("name", ["rerope", "lambda mask", "sliding window"])
def test_a_cap_on_scores_and_sinks_of_heads_are_kept(name: str) -> None:
    rule, definition = CASES[name]
    q, k, v = states(4, 90, seed=3)
    sinks = np.array([0.5, -1.0, 3.0, 0.0])
    found = by_blocks(q, k, v, rule, softcap=2.0, sinks=sinks)
    assert np.abs(found - naive(q, k, v, definition, softcap=2.0, sinks=sinks)).max() < 1e-9


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("rerope", capped(21)),
        ("rerope", capped(19)),
        ("leaky rerope", leaky(21, 4)),
        ("self-extend", grouped(4, 21)),
        ("sliding window", windowed(21)),
        ("lambda mask", with_sinks(20, 4)),
        ("lambda mask", with_sinks(19, 3)),
    ],
)
def test_a_window_off_by_one_is_seen(name: str, off: Rule) -> None:
    q, k, v = states(2, 90, seed=5)
    assert np.abs(by_blocks(q, k, v, CASES[name][0]) - naive(q, k, v, off)).max() > 1e-3


def test_only_blocks_that_straddle_an_edge_are_computed_twice() -> None:
    tokens, window = 1024, 256
    twice = single = 0
    for first in range(0, tokens, blocked.QUERIES):
        for stretch in blocked.stretches(pairs.rerope(window), first, first + blocked.QUERIES):
            size = (stretch.end - stretch.start) * blocked.QUERIES
            single += size
            twice += size * (len(stretch.bands) - 1)
    blocks = tokens // blocked.QUERIES
    assert single == blocks * (blocks + 1) // 2 * blocked.QUERIES**2
    assert 0 < twice <= blocks * blocked.QUERIES**2  # a block's width for each block of queries
    masked = [stretch for stretch in blocked.stretches(pairs.rerope(window), 512, 640) if stretch.masked]
    assert [(stretch.start, stretch.end) for stretch in masked] == [(512, 640)]  # the diagonal alone


class Layer:
    """Queries and keys of a layer that rotates its first channels, in a layout, with its pairs' frequencies."""

    def __init__(self, layout: str, pairs: int) -> None:
        rng = np.random.default_rng(5)
        self.layout, self.count = layout, pairs
        self.q, self.k = rng.normal(size=(2, 1, 1, 50, 40))  # 32 channels rotate
        self.values = torch.from_numpy(rng.normal(size=(1, 1, 50, 4)))
        self.tokens, self.scaling, self.softcap, self.sinks = 50, 40**-0.5, None, None

    def pair(self, x: Floats, i: int) -> tuple[int, int]:
        return (i, i + self.count) if self.layout == "half" else (2 * i, 2 * i + 1)

    def turned(self, x: Floats, positions: Floats | None) -> object:
        at = np.arange(50.0) if positions is None else positions
        out = x.copy()
        for i in range(self.count):
            first, second = self.pair(x, i)
            turn = np.exp(1j * at * 100.0 ** (-i / self.count)) * (x[0, 0, :, first] + 1j * x[0, 0, :, second])
            out[0, 0, :, first], out[0, 0, :, second] = turn.real, turn.imag
        return torch.from_numpy(out)

    def queries(self, positions: Floats | None = None) -> object:
        return self.turned(self.q, positions)

    def keys(self, positions: Floats | None = None) -> object:
        return self.turned(self.k, positions)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_dpe_gives_each_eighth_of_the_pairs_its_own_distance(layout: str) -> None:
    sizes, window = (1, 2, 3, 4, 5, 6, 7, 8), 10
    layer = Layer(layout, 16)
    yardstick = parse(f"dpe({window},{','.join(map(str, sizes))})", 64, 512)
    measured = np.asarray(attention(yardstick, 64, layout, 16)(layer))[0, 0]
    for m in (0, 9, 10, 33, 49):
        weights = np.zeros(m + 1)
        for n in range(m + 1):
            score = (layer.q[0, 0, m, 32:] * layer.k[0, 0, n, 32:]).sum()
            for i in range(16):
                first, second = layer.pair(layer.q, i)
                a = layer.q[0, 0, m, first] + 1j * layer.q[0, 0, m, second]
                b = layer.k[0, 0, n, first] + 1j * layer.k[0, 0, n, second]
                s = sizes[i // 2]
                t = m - n if m - n < window else m // s - n // s + window - window // s
                score += (a * np.conj(b) * np.exp(1j * t * 100.0 ** (-i / 16))).real
            weights[n] = math.exp(score * layer.scaling)
        expected = weights @ np.asarray(layer.values)[0, 0, : m + 1] / weights.sum()
        assert np.abs(measured[m] - expected).max() < 1e-9
