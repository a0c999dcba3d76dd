#!/usr/bin/env python3
"""Measure what a yardstick costs beside the same blocked attention with one window, and write docs/measurements.md.

One layer of 8 heads and 2 key heads of 64 channels in float32, both sides in turn, after a round that does not count. Seconds are
of the processor, of one thread, so that neither other work nor threads that wait for each other count. The cost is of attention with its
rotations; the rest of a model costs the same either way.

    scripts/benchmarks/bench_yardsticks.py            print the table
    scripts/benchmarks/bench_yardsticks.py --write    and put it into docs/
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
from bench import machine

from ropetool.lab.yardsticks.attention import attention
from ropetool.lab.yardsticks.named import Yardstick, parse
from ropetool.verification.runners.torch_attention import Unrotated

PAGE = ROOT / "docs" / "measurements.md"
BEGIN, END = "<!-- yardsticks -->", "<!-- /yardsticks -->"
ROUNDS = 5
HEADS, KEY_HEADS, CHANNELS = 8, 2, 64
LENGTHS = (2048, 4096, 8192)
TRAINED = 1024
SPECS = ("rerope(512)", "leaky-rerope(512,16)", "self-extend(16,256)", "lambda(1024,10)")
BUDGET = {"rerope(512)": "1.2", "leaky-rerope(512,16)": "1.2"}


class Layer(Unrotated):
    """A layer of no model: its rotation in halves, as Llama's."""

    def __init__(self, states: tuple[Any, Any, Any]) -> None:
        super().__init__(None, states, {})  # type: ignore[arg-type]

    def queries(self, positions: Any = None) -> Any:
        return turned(self._queries, positions)

    def keys(self, positions: Any = None) -> Any:
        return turned(self._keys, positions)


@cache
def table_of(places: bytes) -> tuple[Any, Any]:
    """Return cos and sin of positions, made once: the layers of a model share them."""
    import torch

    positions = torch.from_numpy(np.frombuffer(places).copy()).float()
    angles = positions[:, None] * 10000.0 ** (-torch.arange(CHANNELS // 2) / (CHANNELS / 2))
    return angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)


def turned(states: Any, positions: Any) -> Any:
    """Return states rotated by positions, their own where none are given."""
    import torch

    places = np.arange(states.shape[2], dtype=np.float64) if positions is None else positions
    cos, sin = table_of(places.tobytes())
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat([-second, first], dim=-1) * sin


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Return the median seconds of the first, and the median of its ratios to the second, which runs in turn with it."""
    first()
    second()
    pairs = [(seconds(first), seconds(second)) for _ in range(ROUNDS)]
    return statistics.median(one for one, _ in pairs), statistics.median(one / other for one, other in pairs)


def table() -> str:
    import torch

    torch.set_num_threads(1)
    lines = ["| yardstick | " + " | ".join(f"{length} tokens" for length in LENGTHS) + " | budget |"]
    lines.append("| --- |" + " --- |" * (len(LENGTHS) + 1))
    plain = attention(Yardstick("plain"), TRAINED)
    for spec in SPECS:
        compute, cells = attention(parse(spec, TRAINED, LENGTHS[-1]), TRAINED), []
        for length in LENGTHS:
            torch.manual_seed(length)
            shapes = ((HEADS, length), (KEY_HEADS, length), (KEY_HEADS, length))
            layer = Layer(tuple(torch.randn(1, *shape, CHANNELS) for shape in shapes))  # type: ignore[arg-type]
            with torch.inference_mode():
                taken, found = ratio(
                    lambda layer=layer, compute=compute: compute(layer), lambda layer=layer: plain(layer)
                )  # type: ignore[misc]
            cells.append(f"{found:.2f} ({taken:.2f} s)")
        lines.append(f"| {spec} | {' | '.join(cells)} | {BUDGET.get(spec, '-')} |")
    return f"{machine()}:\n\n" + "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found = table()
    print(found)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        head, _, rest = page.partition(BEGIN)
        _, _, tail = rest.partition(END)
        PAGE.write_text(f"{head}{BEGIN}\n\n{found}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
