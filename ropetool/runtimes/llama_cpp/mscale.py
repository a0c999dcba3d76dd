"""DeepSeek's mscale_all_dim in GGUF files: how llama.cpp reads it, and the numbers that give the factors of a table.

An MLA graph multiplies cos and sin by one factor and the whole score by another. With s the scaling factor and
g(m) = 0.1 m ln s + 1, YaRN multiplies both by g(1). The file's mscale_all_dim changes the factor of the score.
Source: src/models/deepseek2.cpp and llama_context in src/llama-context.cpp.
"""

from __future__ import annotations

import math

import numpy as np

from ropetool.errors import InvalidRope
from ropetool.rope.tables import TABLE_TOLERANCE
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp.layers import ModelKeys

_STORED = float(np.float32(0.1))  # the share of mscale_all_dim that files contain; mistral3 files contain all of it
_EQUAL = "deepseek2"  # its loader assumes that mscale is mscale_all_dim, so that cos and sin get no factor of YaRN


def mscale_all_dim(model: ModelKeys) -> float:
    """Return DeepSeek's mscale_all_dim, or 0 without the key."""
    if archs.YARN_LOG_MULTIPLIER not in model.arch.keys:
        return 0.0
    stored = model.number(archs.YARN_LOG_MULTIPLIER, 0.0, least=-math.inf)
    return stored if model.arch.name == "mistral3" else stored / _STORED


def rotary_factor(model: ModelKeys, factor: float, all_dim: float) -> float:
    """Return YaRN's factor on cos and sin.

    factor: the scaling factor.
    all_dim: the file's mscale_all_dim; 0 without the key.
    Raises: InvalidRope if the factor would not be positive.
    """
    if all_dim == 0:
        return _g(factor, 1.0)
    if model.arch.name == _EQUAL:
        return 1.0
    below = _g(factor, all_dim)
    if below <= 0:
        raise InvalidRope(
            f"is {all_dim:g} after loading; with factor {factor:g} the attention factor would not be positive",
            where=model.where(archs.YARN_LOG_MULTIPLIER),
        )
    return _g(factor, 1.0) / below


def _g(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def numbers(arch: str, scaling_type: str, factor: float, on_score: float, rotary: float) -> dict[str, float]:
    """Return the numbers, by the key without the architecture, that give these two factors in an MLA graph.

    scaling_type: the value of rope.scaling.type.
    factor: the scaling factor.
    on_score: the square root of the factor on the whole score.
    rotary: the factor on cos and sin.
    """
    stretch = 0.1 * math.log(factor)
    # With linear scaling ggml does not multiply cos and sin by g(1), but the score gets it all the same.
    ratio = on_score / rotary if scaling_type == "yarn" else on_score / (rotary * (1 + stretch))
    all_dim = 0.0 if math.isclose(ratio, 1, rel_tol=TABLE_TOLERANCE) or not stretch else (ratio - 1) / stretch
    # Only YaRN, and only above 1, puts a factor of its own on cos and sin.
    whole = scaling_type == "yarn" and factor > 1 and not (all_dim and arch == _EQUAL)
    attn_factor = on_score / (1 + stretch) if whole else rotary
    return {archs.ATTN_FACTOR: attn_factor, archs.YARN_LOG_MULTIPLIER: 0.1 * all_dim}
