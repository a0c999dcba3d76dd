"""GGUF headers of any architecture without vocabulary or weights, and what llama.cpp's formulas make of their rope keys.

The reading is written after llama.cpp's sources, from the keys as the gguf package reads them, and knows nothing of
ropetool. It is for one kind of layer, and for what these headers can hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
from gguf import GGUFValueType
from gguf_files import tensors, values

CONTEXT, THETA, SLIDING_THETA, WINDOW, LAYERS = 8192, 1e6, 1e4, 1024, 8
HEAD, LATENT, ROTARY = 128, 576, 64  # a head; what MLA keeps as a key, and what of it rotates

MLA = {"deepseek2", "deepseek32", "mistral4", "glm-dsa"}
LATENT_KEYS = MLA | {"bailingmoe3", "dots3note", "hy_v4"}  # the others scale no score
DEPTHS = {"baichuan": 32}  # with any other number of layers it does not rotate (src/models/baichuan.cpp)
STATELY = {"lfm2", "lfm2moe", "plamo2", "granitehybrid", "bailingmoe3"}  # layers without key heads keep a state
# Layers that slide, by what rope.scaling.factor, ext_factor and attn_factor do to them (src/models/*.cpp).
# exaone4 has them only with 64 layers, and then its full ones do not rotate.
SCALED = {"gemma2", "cohere2", "gpt-oss", "exaone-moe", "smallthinker", "afmoe", "maple", "spark2_5", "granite_swa",
          "cohere2moe", "dots3note", "llama4"}  # fmt: skip
UNSCALED = {"gemma3", "gemma3n", "gemma4", "gemma-embedding", "modern-bert", "plamo3", "mimo2", "muse-glimmer",
            "step35"}  # fmt: skip
PLAIN = {"olmo2", "mellum", "laguna", "deepseek4"}  # no factor of any kind
TEN_THOUSAND = UNSCALED - {"muse-glimmer"}  # their base where the file has none for them; else that of the others
NEVER_OWN_BASE = {"olmo2", "mellum", "cohere2", "cohere2moe", "exaone-moe", "granite_swa"}
# deepseek4's sliding layers are those without compressed keys, and rope.freq_base is theirs.
OWN_KEYS = {
    "deepseek4": {"attention__compress_ratios": ("array", [0, 0, 0, 4] * (LAYERS // 4)),
                  "attention__compress_rope_freq_base": ("float32", THETA)},
    "dots3note": {"rope__freq_base_swa": ("float32", SLIDING_THETA)},
    # Of 64 pairs, by time, height and width of an image; the fourth turns by nothing.
    **{arch: {"rope__dimension_sections": ("array", [24, 20, 20, 0])}
       for arch in ("qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen3tts", "qwen35", "qwen35moe", "qwen4exp")},
    "cohere2moe": {"leading_dense_block_count": ("uint32", 1)},
}  # fmt: skip
FIXED = {"cogvlm", "deepseek2-ocr"}  # by 10000, whatever the file says
HALVED = {"step35"}  # full layers rotate half of rope.dimension_count
READS_BETAS = {"grok": (8.0, 1.0), "mistral3": (32.0, 1.0)}
LOG_MULTIPLIER = {"deepseek2": 0.1, "deepseek32": 0.1, "mistral4": 0.1, "mistral3": 1.0}  # what is divided by
NORM_BEHIND = {"hunyuan-moe", "hunyuan-dense", "hunyuan_vl", "maincoder", "talkie"}


def write(path: Path, arch: str, **more: tuple[str, Any]) -> Path:
    """Write a header: 8 layers unless it must be another number, every fourth a full one where there are sliding ones."""
    mla = arch in LATENT_KEYS
    more = {key.replace("__", "."): value for key, value in (OWN_KEYS.get(arch, {}) | more).items()}
    numbers = {
        "context_length": CONTEXT, "embedding_length": 8 * HEAD, "block_count": DEPTHS.get(arch, LAYERS), "attention.head_count": 8,
        "attention.key_length": LATENT if mla else HEAD, "rope.dimension_count": ROTARY if mla else HEAD,
    }  # fmt: skip
    keys: dict[str, Any] = {key: number for key, number in numbers.items() if key not in more}
    keys["rope.freq_base"] = SLIDING_THETA if arch in FIXED | {"deepseek4"} else THETA
    keys["attention.head_count_kv"] = [0, 2] * (LAYERS // 2) if arch in STATELY else 1 if mla else 2
    if arch in SCALED | UNSCALED | PLAIN:
        keys["attention.sliding_window"] = WINDOW
        keys["attention.sliding_window_pattern"] = [layer % 4 != 3 for layer in range(LAYERS)]
    return gguf_files.write(
        path, arch, keys | {key: (GGUFValueType[name.upper()], value) for key, (name, value) in more.items()}
    )


@dataclass(frozen=True)
class Rotation:
    """Inverse frequencies, the factor on cos and sin, and that on the whole score."""

    inv_freq: np.ndarray
    attention_factor: float
    softmax_multiplier: float


def rotation(path: Path, sliding: bool = False) -> Rotation:
    """Return how llama.cpp rotates full layers, or sliding ones, by the keys of this file.

    Source: llama_context in src/llama-context.cpp, ggml_compute_forward_rope in ggml/src/ggml-cpu/ops.cpp and the
    graphs of src/models/, llama.cpp within llama-cpp-python 0.3.36.
    """
    held = values(path)
    arch = held["general.architecture"][1]

    def key(name: str, default: Any) -> Any:
        return held.get(f"{arch}.{name}", ("", default))[1]

    scaling, context = key("rope.scaling.type", "linear"), key("context_length", 0)
    factor = 1.0 if scaling == "none" else key("rope.scaling.factor", 0.0) or 1.0
    stretch = math.log(factor) if factor > 1 else 0.0
    mix = 1.0 if scaling == "yarn" else 0.0
    multiplier = key("rope.scaling.yarn_log_multiplier", 0.0) / LOG_MULTIPLIER.get(arch, math.inf)
    attn = key("rope.scaling.attn_factor", 1.0)
    if mix:
        above = 1.0 if not multiplier or (arch != "deepseek2" and multiplier) else multiplier
        attn *= (1 + 0.1 * above * stretch) / (1 + 0.1 * multiplier * stretch) / (1 + 0.1 * stretch)
    whole = (attn * (1 + 0.1 * stretch) * (1 + 0.1 * multiplier * stretch)) ** 2 if arch in MLA else 1.0
    theta, betas = key("rope.freq_base", 1e4), READS_BETAS.get(arch, (32.0, 1.0))
    if arch in READS_BETAS:
        betas = key("rope.scaling.yarn_beta_fast", betas[0]), key("rope.scaling.yarn_beta_slow", betas[1])
    if arch == "deepseek4" and not sliding:
        theta = key("attention.compress_rope_freq_base", None)
    if sliding:
        if arch not in NEVER_OWN_BASE | {"deepseek4"}:
            theta = key("rope.freq_base_swa", 1e4 if arch in TEN_THOUSAND else theta)
        factor = factor if arch in SCALED else 1.0
        mix, attn = (0.0, 1.0) if arch in PLAIN else (mix, attn)
    magnitude = attn * (1 + 0.1 * math.log(factor)) if mix else attn
    dim = key("rope.dimension_count", 0) // (2 if arch in HALVED and not sliding else 1)
    base = float(theta) ** (-np.arange(0, dim, 2) / dim) / _divisors(path, dim // 2, arch, sliding)
    length = key("rope.scaling.original_context_length", context)
    ends = [dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in betas]
    low, high = max(0, math.floor(ends[0])), min(dim - 1, math.ceil(ends[1]))
    kept = mix * (1 - np.clip((np.arange(dim // 2) - low) / max(0.001, high - low), 0, 1))
    return Rotation(
        base * ((1 - kept) / factor + kept), 1.0 if arch in NORM_BEHIND | {"deepseek4"} else magnitude, whole
    )


def _divisors(path: Path, pairs: int, arch: str, sliding: bool) -> np.ndarray:
    """Return the divisors of a file with one vector, or with two that are alike."""
    vectors = ((name, data) for name, (_, _, data) in tensors(path).items() if name.startswith("rope_f"))
    lists = {name: np.frombuffer(data, np.float32) for name, data in vectors}
    if not lists or (arch in {"gemma4", "step35"} and sliding):
        return np.ones(pairs)
    first, *others = lists.values()
    assert all(np.array_equal(first, other) for other in others)
    assert first.size == (2 * pairs if arch in HALVED else pairs)
    return first[:pairs].astype(np.float64)
