"""The KL between sound files of one model, by the types of their numbers. The limits on KL follow from these figures.

`scripts/floors/kl_floors.py` measures kl_floors.json on two models. docs/judging.md explains the limits.
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
TIMES = 4.0  # the factor from the measured KL to the allowed KL
# In q8_0 nearly all noise comes from the rounding of activations, whose outliers depend on the model. SmolLM2 135M has 3.7
# times (mean) to 6.6 times (rare tokens) the KL of the measured models, scaled to its 30 layers, and 1.4 to 2.4 times in bf16
# and q4_k_m. For weights in blocks of 256, llama.cpp also rounds the inputs in such blocks. On the demo model, q4_k_m and q6_k
# have 1.7 (rare tokens) to 3.5 times (99th percentile) the KL of q8_0, compared with a model with the same weights whose
# inputs are not rounded.
INPUTS_BY_256 = "inputs of 256"
TIMES_OF = {"q8_0": 10.0, INPUTS_BY_256: 20.0}
# Nats per token: a different processor may add this much in float32, because it sums in a different order. 40 times the
# measured value.
ROUNDING = 1e-8
# Nats per token: a checkpoint's own noise raises a limit to at most this value. In a tiny random model, a query matrix that is
# 1 % too large has ten times this KL (docs/export.md).
MOST_OF_NOISE = 2e-6
# ggml's type, and the mean for Llama 3 8B in the table in llama.cpp's tools/perplexity/README.md: for types that need an
# importance matrix, and for experts in MXFP4, whose inputs are rounded as for q8_0.
PUBLISHED = {
    "q2_k_s": ("Q2_K", 0.4), "iq3_xs": ("IQ3_S", 0.14), "iq3_xxs": ("IQ3_XXS", 0.18), "iq2_m": ("IQ2_S", 0.33),
    "iq2_s": ("IQ2_XS", 0.44), "iq2_xs": ("IQ2_XS", 0.55), "iq2_xxs": ("IQ2_XXS", 0.8), "iq1_m": ("IQ1_M", 1.4),
    "iq1_s": ("IQ1_S", 2.2), "mxfp4_moe": ("MXFP4", 0.0014),
    "llama.cpp on a GPU": ("", 0.00055),  # f16 there, computed by CUDA
}  # fmt: skip
GPU = "llama.cpp on a GPU"
ALIKE = "q2_k"  # a published mean gets the tail and the windows of this type, scaled
ROUTER = "ffn_gate_inp."
_BLOCK = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True)
class KlFigures:
    """KL in nats per token.

    mean: over all tokens. p99: the 99th percentile. window: the mean of the worst window of positions.
    """

    mean: float
    p99: float
    window: float


@dataclass(frozen=True)
class Floor:
    """The KL between two sound files. text: on texts. rare: on rows of tokens that do not occur in the texts."""

    text: KlFigures
    rare: KlFigures


def limit(kinds: Iterable[str], layers: int) -> Floor | None:
    """Return the allowed KL between two files with these causes of rounding; None if a cause is unknown.

    kinds: the export types of the files, and the rounding of the runners (`bfloat16`, GPU, INPUTS_BY_256). Each adds
      noise.
    layers: the number of layers. With more layers than in the measured models, noise grows with the square root, as in
      Llama 3 8B.
    """
    allowed: list[tuple[float, Floor]] = []
    for cause in kinds:
        floor = _worst(cause, layers)
        if floor is None:
            return None
        allowed.append((TIMES_OF.get(cause, TIMES), floor))
    times = [each for each, _ in allowed]
    return _each(lambda values: sum(map(mul, times, values)) + TIMES * ROUNDING, [floor for _, floor in allowed])


def with_noise(floor: Floor, own: Iterable[Floor]) -> Floor:
    """Return a floor that allows `TIMES` the largest noise of the checkpoint itself.

    The noise raises the mean to at most `MOST_OF_NOISE`, and each other figure by at most the factor allowed for the
    mean.
    """
    largest = _each(max, list(own))
    times = min(TIMES, MOST_OF_NOISE / max(largest.text.mean, MOST_OF_NOISE / TIMES))
    most = max(1.0, MOST_OF_NOISE / floor.text.mean)
    return _each(lambda values: max(values[0], min(times * values[1], most * values[0])), [floor, largest])


def of_dtype(dtype: str) -> str:
    """Return the export type of a file with mostly this ggml type. If several match, this is the least exact one."""
    named = {name: str(entry["dtype"]) for name, entry in table()["floors"].items()}
    named |= {name: published[0] for name, published in PUBLISHED.items()}
    known = [(floor.text.mean, name) for name in named if named[name] == dtype and (floor := _worst(name, 1))]
    return max(known)[1] if known else dtype


def layers_of(tensors: Iterable[str]) -> int:
    """Return the number of layers by the names of the tensors, at least 1."""
    return max(1, len({match[1] for match in map(_BLOCK.search, tensors) if match}))


def has_experts(tensors: Iterable[str]) -> bool:
    """Return whether a router chooses experts, by the names of a GGUF file's tensors."""
    return any(ROUTER in name for name in tensors)


@cache
def table() -> Mapping[str, Any]:
    """Return the content of kl_floors.json."""
    content: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return content


def _worst(cause: str, layers: int) -> Floor | None:
    """Return the largest of each figure over the measured models, or None if this cause of rounding was not measured."""
    measured, models = table()["floors"], table()["models"]
    if cause in PUBLISHED:
        mean, alike = PUBLISHED[cause][1], _worst(ALIKE, 1)
        assert alike is not None
        return _each(lambda values: values[0] * mean / alike.text.mean, [alike])
    cause = "q8_0" if cause == INPUTS_BY_256 else cause
    if cause not in measured:
        return None
    deeper = {name: max(1.0, math.sqrt(layers / models[name]["layers"])) for name in models}

    def scaled(name: str, part: str) -> KlFigures:
        return KlFigures(*(deeper[name] * value for value in measured[cause][name][part]))

    return _each(max, [Floor(scaled(name, "text"), scaled(name, "rare")) for name in models])


def _each(combine: Callable[[list[float]], float], floors: list[Floor]) -> Floor:
    """Return a floor in which each figure is combined from the same figure of all floors."""

    def combined(figures: list[KlFigures]) -> KlFigures:
        return KlFigures(*(combine(list(values)) for values in zip(*map(astuple, figures), strict=True)))

    return Floor(combined([floor.text for floor in floors]), combined([floor.rare for floor in floors]))
