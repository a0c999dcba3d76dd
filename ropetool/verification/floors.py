"""How far sound files of one model are apart, by the types of their numbers: what limits on KL stand on.

`scripts/floors/kl_floors.py` measures kl_floors.json on two models; docs/judging.md says how limits follow. Measures nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from functools import cache
from operator import mul
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("kl_floors.json")
TIMES = 4.0  # how much further apart sound files may be than those that were measured
# In q8_0 nearly all noise is what llama.cpp rounds of the activations, whose outliers are a model's own: SmolLM2 135M is 3.7 times
# (mean) to 6.6 times (rare tokens) as far as the measured models, scaled to its 30 layers; 1.4 to 2.4 times in bf16 and q4_k_m.
# Weights in blocks of 256 have their inputs rounded in such blocks too: on the demo model q4_k_m and q6_k are 1.7 (rare tokens) to
# 3.5 times (99th percentile) as far as q8_0 from a model of the same weights that rounds no inputs.
INPUTS_BY_256 = "inputs of 256"
TIMES_OF = {"q8_0": 10.0, INPUTS_BY_256: 20.0}
# Nats: what another processor may add to float32 by the order in which it sums; 40 times what was measured.
ROUNDING = 1e-8
# Nats a token: the most that a checkpoint's own noise may raise a limit to. A query matrix 1 % too large is ten times as far
# in a tiny random model (docs/export.md).
MOST_OF_NOISE = 2e-6
# ggml's type, and the mean for Llama 3 8B in the table of tools/perplexity/README.md of llama.cpp: of types that need an
# importance matrix, and of experts stored in MXFP4, whose inputs are rounded as for q8_0.
PUBLISHED = {
    "q2_k_s": ("Q2_K", 0.4), "iq3_xs": ("IQ3_S", 0.14), "iq3_xxs": ("IQ3_XXS", 0.18), "iq2_m": ("IQ2_S", 0.33),
    "iq2_s": ("IQ2_XS", 0.44), "iq2_xs": ("IQ2_XS", 0.55), "iq2_xxs": ("IQ2_XXS", 0.8), "iq1_m": ("IQ1_M", 1.4),
    "iq1_s": ("IQ1_S", 2.2), "mxfp4_moe": ("MXFP4", 0.0014),
    "llama.cpp on a GPU": ("", 0.00055),  # f16 there, computed by CUDA
}  # fmt: skip
GPU = "llama.cpp on a GPU"
ALIKE = "q2_k"  # the tail and the windows that a published mean is taken to have
ROUTER = "ffn_gate_inp."
_BLOCK = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True)
class KlFigures:
    """KL in nats a token: the mean, the 99th percentile, and the worst window of positions."""

    mean: float
    p99: float
    window: float


@dataclass(frozen=True)
class Floor:
    """How far two sound files are apart on texts, and on rows of tokens that the texts do not show."""

    text: KlFigures
    rare: KlFigures


def limit(kinds: Iterable[str], layers: int) -> Floor | None:
    """Return what is allowed between two files where these kinds of numbers meet; None where one is not known.

    kinds: export types, and what the runners compute in (`bfloat16`, GPU, INPUTS_BY_256); each adds its noise. A model of more
    layers than the measured ones adds it up as their square root, as Llama 3 8B does.
    """
    allowed: list[tuple[float, Floor]] = []
    for kind in kinds:
        floor = _worst(kind, layers)
        if floor is None:
            return None
        allowed.append((TIMES_OF.get(kind, TIMES), floor))
    times = [each for each, _ in allowed]
    return _each(lambda values: sum(map(mul, times, values)) + TIMES * ROUNDING, [floor for _, floor in allowed])


def with_noise(floor: Floor, own: Iterable[Floor]) -> Floor:
    """Return a floor that allows `TIMES` the noise of the checkpoint itself, of several the largest.

    The noise raises the mean to at most `MOST_OF_NOISE`, and no other figure by a larger factor than it may raise the mean.
    """
    largest = _each(max, list(own))
    times = min(TIMES, MOST_OF_NOISE / max(largest.text.mean, MOST_OF_NOISE / TIMES))
    most = max(1.0, MOST_OF_NOISE / floor.text.mean)
    return _each(lambda values: max(values[0], min(times * values[1], most * values[0])), [floor, largest])


def of_dtype(dtype: str) -> str:
    """Return the type of a file whose numbers are mostly of this type of ggml's; of several, the least exact."""
    named = {name: str(entry["dtype"]) for name, entry in table()["floors"].items()}
    named |= {name: published[0] for name, published in PUBLISHED.items()}
    known = [(floor.text.mean, name) for name in named if named[name] == dtype and (floor := _worst(name, 1))]
    return max(known)[1] if known else dtype


def layers_of(tensors: Iterable[str]) -> int:
    """Return how many layers there are by the names of tensors, at least 1."""
    return max(1, len({match[1] for match in map(_BLOCK.search, tensors) if match}))


def has_experts(tensors: Iterable[str]) -> bool:
    """Return whether a router chooses experts, by the names of a GGUF file's tensors."""
    return any(ROUTER in name for name in tensors)


@cache
def table() -> Mapping[str, Any]:
    """Return what was measured, as the file has it."""
    found: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def _worst(kind: str, layers: int) -> Floor | None:
    """Return the largest of each figure over the measured models, None where there is none of this kind."""
    measured, models = table()["floors"], table()["models"]
    if kind in PUBLISHED:
        mean, alike = PUBLISHED[kind][1], _worst(ALIKE, 1)
        assert alike is not None
        return _each(lambda values: values[0] * mean / alike.text.mean, [alike])
    kind = "q8_0" if kind == INPUTS_BY_256 else kind
    if kind not in measured:
        return None
    deeper = {name: max(1.0, math.sqrt(layers / models[name]["layers"])) for name in models}
    found = [
        Floor(
            *(KlFigures(*(deeper[name] * value for value in measured[kind][name][part])) for part in ("text", "rare"))
        )
        for name in models
    ]
    return _each(max, found)


def _each(combine: Callable[[list[float]], float], floors: list[Floor]) -> Floor:
    """Return a floor whose every figure is combined of those of others."""

    def combined(figures: list[KlFigures]) -> KlFigures:
        return KlFigures(*(combine(list(values)) for values in zip(*map(astuple, figures), strict=True)))

    return Floor(combined([floor.text for floor in floors]), combined([floor.rare for floor in floors]))
