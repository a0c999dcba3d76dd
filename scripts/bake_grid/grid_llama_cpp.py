"""The cells of the bake grid that llama.cpp runs: tiny GGUF models before and after a bake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bake_gguf_models as models
import numpy as np
from models import apart

from ropetool import errors, families
from ropetool.weights import bakes
from ropetool.weights.bakeable import Bakeable
from ropetool.weights.bakes import Bake

BY = "llama.cpp"
FORMATS = ("f32", "f16", "q8_0", "q4_0")
EXACT = {"f32": 2e-4}  # of the largest logit: llama.cpp computes in float32
SEEN = 20 * EXACT["f32"]
MODELS: Mapping[str, Any] = models.ARCHITECTURES
Cell = dict[str, Any]


def family_of(name: str) -> str:
    """Return the family whose facts files of an architecture have."""
    return families.by_gguf_architecture()[name].model_type


def _factor(side: str) -> Callable[[Bakeable], Bake]:
    return lambda model: bakes.attention_factor(model, side)


def _softmax(side: str) -> Callable[[Bakeable], Bake]:
    return lambda model: bakes.softmax_scale(model, side)


def _layout(model: Bakeable) -> Bake:
    _, entry = model.targets.leading
    return bakes.layout(model, "half" if entry.layout == "interleaved" else "interleaved")


RECIPES = {
    "attention-factor k": _factor("k"),
    "attention-factor q": _factor("q"),
    "attention-factor both": _factor("both"),
    "softmax-scale norm": _softmax("norm"),
    "softmax-scale q": _softmax("q"),
    "layout": _layout,
    "rearch": bakes.rearch_llama,
}


def versions() -> dict[str, str]:
    """Return what the cells are measured with."""
    return {"llama-cpp-python": version("llama-cpp-python")}


def measure(arch: Any, bake: str, folder: Path) -> Cell:
    """Return what a bake does to a model of this architecture, or why it is refused.

    f32: the largest difference of any logit, as a share of the largest logit. The other types: the highest and the mean
    relative error that the products were rounded by. without: as f32, had the weights stayed as they were.
    """
    name = next(name for name, one in MODELS.items() if one is arch)
    source = models.write(folder / "source.gguf", name)
    try:
        made = RECIPES[bake](models.opened(source))
    except errors.RopetoolError as error:
        return {"refused": error.message}
    models.carry_out(made, source, folder / "baked.gguf")
    models.carry_out(Bake((), made.edits), source, folder / "unbaked.gguf")
    wanted = models.logits(source)
    cell: Cell = {
        "without": _rounded(apart(wanted, models.logits(folder / "unbaked.gguf"))),
        "f32": _rounded(apart(wanted, models.logits(folder / "baked.gguf"))),
    }
    for dtype in FORMATS[1:]:
        cell[dtype] = rounding(bake, name, dtype.upper(), folder)
    return cell


def rounding(bake: str, arch: str, dtype: str, folder: Path) -> list[float]:
    """Return the highest and the mean relative error of the scaled numbers of a file of this type."""
    source = models.write(folder / f"{dtype}.gguf", arch, dtype=dtype)
    made = RECIPES[bake](models.opened(source))
    done = models.carry_out(made, source, folder / f"{dtype}-baked.gguf").tensors
    sizes = {name: int(np.prod(shape)) for name, (_, shape, _) in models.stored(source).items()}
    found = [one for one in done if one.mean_error]
    mean = np.average([one.mean_error for one in found], weights=[sizes[one.tensor] for one in found]) if found else 0
    return [_rounded(max((one.max_error for one in done), default=0.0)), _rounded(mean)]


def _rounded(number: float) -> float:
    return float(f"{number:.2g}")
