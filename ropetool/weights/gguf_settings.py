"""The metadata of a GGUF file after a bake: what llama.cpp is then asked for, and no longer for what the weights do.

Knows keys and frequency vectors, not the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import LossyExport
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.files.gguf.patch import Vector
from ropetool.rope.tables import TABLE_TOLERANCE, LayerRope
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp.layers import Model
from ropetool.weights.dropping import STILL_DIVISOR


def factor_patch(model: GgufCheckpoint, entry: LayerRope, factor: float, scale: float) -> Patch:
    """Return the keys by which llama.cpp multiplies cos and sin by `factor`, and MLA's score by the square of `scale`."""
    reader = Model.of(model)
    if not reader.arch.mla:
        old = reader.number(archs.ATTN_FACTOR, 1.0)
        return _stating(reader, {archs.ATTN_FACTOR: (old * factor / entry.attention_factor, 1.0)})
    if archs.YARN_LOG_MULTIPLIER not in reader.arch.keys:
        raise LossyExport(f"llama.cpp has no key for the softmax scale of {reader.arch.name}", where=model.where)
    stretch = 0.1 * math.log(entry.factor or 1.0)
    yarn = reader.get(archs.SCALING_TYPE, "linear") == "yarn"
    whole = scale / factor if yarn else scale / (factor * (1 + stretch))  # linear scaling gets YaRN's factor there too
    log_multiplier = (whole - 1) / stretch if stretch else 0.0
    if is_one(whole):
        log_multiplier = 0.0
    # src/llama-context.cpp: deepseek2 takes both multipliers to be equal, so their ratio is 1; others divide by theirs.
    if not yarn or (log_multiplier and reader.arch.name == "deepseek2"):
        stated = factor
    else:
        stated = scale / (1 + stretch)
    multiplier = log_multiplier * float(np.float32(0.1))
    return _stating(reader, {archs.ATTN_FACTOR: (stated, 1.0), archs.YARN_LOG_MULTIPLIER: (multiplier, 0.0)})


def _stating(reader: Model, wanted: Mapping[str, tuple[float, float]]) -> Patch:
    """Return the patch that states these numbers, and leaves out those that are llama.cpp's defaults."""
    stated: dict[str, Value] = {}
    removed = set()
    for suffix, (number, default) in wanted.items():
        key = reader.key(suffix)
        if not math.isclose(number, default, rel_tol=1e-9, abs_tol=1e-12):
            stated[key] = Value.of(ValueType.F32, number)
        elif key in reader.view.values:
            removed.add(key)
    return Patch(stated, frozenset(removed))


def stopped(model: GgufCheckpoint, pairs: int, gone: Sequence[int]) -> dict[str, Vector]:
    """Return the frequency vectors of the model with the divisors of these pairs beyond any length."""
    reader = Model.of(model)
    wanted = reader.arch.loads(reader.get(archs.SCALING_TYPE, "linear")) if reader.arch.vectors else ()
    if not wanted:
        more = " or --rearch llama" if reader.arch.name == "qwen2" else ""
        raise LossyExport(
            f"llama.cpp takes no frequency vectors for {reader.arch.name}, so every pair of these files turns",
            where=model.where, try_=f"--mode mute{more}",
        )  # fmt: skip
    found = {}
    for name in wanted:
        vector = model.vector(name).copy() if name in model.tensors else np.ones(pairs, np.float32)
        vector[list(gone)] = STILL_DIVISOR
        found[name] = vector
    return found


def renamed(model: GgufCheckpoint, old: str, new: str) -> Patch:
    """Return the patch that gives a model another architecture's name, in all its keys."""
    keys = {key: value for key, value in model.values.items() if key.startswith(f"{old}.")}
    values = {f"{new}.{key.removeprefix(f'{old}.')}": value for key, value in keys.items()}
    return Patch({archs.ARCHITECTURE: Value.of(ValueType.STR, new), **values}, frozenset(keys))


def is_one(factor: float) -> bool:
    return math.isclose(factor, 1, rel_tol=TABLE_TOLERANCE)
