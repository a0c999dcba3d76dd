"""The rotation that llama.cpp computes from a GGUF model's metadata and frequency vectors, with default options.

Source: src/llama-model.cpp, src/llama-context.cpp, src/models/*.cpp and ggml's rope, of llama.cpp within
llama-cpp-python 0.3.36. architectures.py lists the keys of each architecture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import InvalidRope
from ropetool.files.gguf.codec import shown
from ropetool.files.gguf.kinds import F32
from ropetool.rope import arithmetic
from ropetool.rope.tables import Array, LayerRope, Regime, RopeSet, RopeTable, Temperature
from ropetool.runtimes.base import Refuses
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import layers, mscale
from ropetool.runtimes.llama_cpp.layers import ModelKeys

LEAST_FACTOR = 5e-5  # 1 + 0.1 ln s is above 0 from e^-10 on
CONTEXT_STEP = 256  # tokens; llama.cpp allocates a context in multiples of this, and chooses the list only by its size


def decode(view: GgufCheckpoint) -> RopeSet:
    """Return the tables that llama.cpp computes from this model.

    With two lists (longrope), llama.cpp chooses one when it allocates a context, by the size of the context and not of
    the text. `up_to` of a regime is the largest context that uses it.

    Raises: Refuses if loading fails or the process aborts, and for an unknown architecture; InvalidRope for numbers
    that give no rotation.
    """
    model = ModelKeys.of(view)
    by_type = layers.layer_types(model)
    context = int(model.need(archs.CONTEXT_LENGTH))
    if not model.arch.layout:
        return RopeSet({t: _unrotated(model, indices) for t, (indices, _) in by_type.items()}, context, context)
    resolved = _resolve(model, context)
    entries = {
        t: _entry(model, resolved, t, indices) if rotate else _unrotated(model, indices)
        for t, (indices, rotate) in by_type.items()
    }
    rotating = [t for t, (_, rotate) in by_type.items() if rotate]
    trained = entries[rotating[0]].original_max_position_embeddings if rotating else context
    return RopeSet(entries, context, trained)


# --- what the context resolves


@dataclass(frozen=True)
class _Resolved:
    """The values of a context, before the changes for a layer type.

    scaling_type: the value of rope.scaling.type, or linear without it.
    rope_theta: the base.
    factor: 1 / freq_scale.
    mix: ext_factor, the share of YaRN's ramp; 0 for none.
    attn: the factor on cos and sin, before ggml's correction for YaRN.
    mscale_all_dim: of DeepSeek; 0 if the file does not set it.
    beta_fast, beta_slow: the ends of YaRN's ramp, in turns within `length`.
    context: the configured context length, in tokens.
    trained: original_context_length in tokens; None if the file does not set it.
    vectors: the divisors that the graph uses, by the name of the tensor.
    """

    scaling_type: str
    rope_theta: float
    factor: float
    mix: float
    attn: float
    mscale_all_dim: float
    beta_fast: float
    beta_slow: float
    context: int
    trained: int | None
    vectors: Mapping[str, Array]

    @property
    def length(self) -> int:
        """The original length for YaRN's ramp, in tokens."""
        return self.trained or self.context


def _resolve(model: ModelKeys, context: int) -> _Resolved:
    scaling_type = model.get(archs.SCALING_TYPE, "linear")
    if scaling_type not in archs.SCALING_TYPES:
        raise Refuses(
            f"{model.key(archs.SCALING_TYPE)} is {shown(scaling_type)}: llama.cpp aborts the whole process unless it is "
            f"one of {', '.join(archs.SCALING_TYPES)}"
        )
    key = archs.FACTOR if model.get(archs.FACTOR) is not None else archs.SCALE_LINEAR
    factor = model.number(key, 0.0) or 1.0
    if factor < LEAST_FACTOR:
        raise InvalidRope(
            f"is {factor:g}; below e^-10 YaRN's attention factor would be negative", where=model.where(key)
        )
    factor = 1.0 if scaling_type == "none" else factor
    mix = model.get(archs.YARN_EXT_FACTOR, -1.0) if archs.YARN_EXT_FACTOR in model.arch.keys else -1.0
    if mix < 0:
        mix = 1.0 if scaling_type == "yarn" else 0.0
    all_dim = mscale.mscale_all_dim(model)
    return _Resolved(
        scaling_type, _theta(model), factor, mix, _attn(model, factor, mix, all_dim), all_dim,
        model.number_if_read(archs.YARN_BETA_FAST, model.arch.betas[0]),
        model.number_if_read(archs.YARN_BETA_SLOW, model.arch.betas[1]), context, model.get(archs.ORIGINAL_CONTEXT_LENGTH),
        _vectors(model, scaling_type),
    )  # fmt: skip


def _theta(model: ModelKeys) -> float:
    key = model.arch.base_key
    if key != archs.FREQ_BASE:
        model.need(key)
    theta = _base(model, key, 10000.0)
    alpha = model.number_if_read(archs.ALPHA, 0.0)
    head_dim = layers.head_dim(model)
    return theta * alpha ** (head_dim / (head_dim - 2)) if alpha > 0 and head_dim > 2 else theta


def _base(model: ModelKeys, suffix: str, default: float) -> float:
    base = float(model.get(suffix, default))
    if not 1 < base < math.inf:
        raise InvalidRope(f"is {base}; it must be a finite number above 1", where=model.where(suffix))
    return base


def _attn(model: ModelKeys, factor: float, mix: float, all_dim: float) -> float:
    """Return attn_factor as the context keeps it. With YaRN it is divided by the factor that ggml multiplies again."""
    stored = model.number(archs.ATTN_FACTOR, 1.0)
    if stored == 0:
        raise InvalidRope("is 0, which removes the positions; it must not be 0", where=model.where(archs.ATTN_FACTOR))
    if mix == 0:
        return model.number_if_read(archs.YARN_ATTN_FACTOR, 1.0) * stored
    return mscale.rotary_factor(model, factor, all_dim) / (1 + 0.1 * math.log(factor)) * stored


# --- frequency vectors


def _vectors(model: ModelKeys, scaling_type: str) -> dict[str, Array]:
    """Return the divisors that the graph uses, by the name of the tensor.

    Raises: Refuses for a vector that stops the loading or aborts the process.
    """
    loaded, tensors = model.arch.loads(scaling_type), model.view.tensors
    if model.arch.name in archs.FREQS_REQUIRED and tensors and archs.ROPE_FREQS not in tensors:
        raise Refuses(f"check_tensor_dims: tensor '{archs.ROPE_FREQS}' not found")
    divisors = {}
    for name in (name for name in archs.VECTORS if name in tensors):
        if name not in loaded:
            raise Refuses(
                f"wrong number of tensors; expected {len(tensors)}, got {len(tensors) - 1}: llama.cpp does not create "
                f"{name} for {model.arch.name} with rope scaling {scaling_type}"
            )
        divisors[name] = _divisors(model, name)
    return divisors if model.arch.vectors else {}


def _divisors(model: ModelKeys, name: str) -> Array:
    info = model.view.tensors[name]
    width = layers.divided_channels(model)
    shape = tuple(length for at, length in enumerate(info.shape) if at == 0 or length != 1)
    if shape != (width // 2,):
        raise Refuses(f"tensor '{name}' has wrong shape; expected [{width // 2}], got {list(info.shape)}")
    if info.ggml_type != F32:
        raise Refuses(f"{name} is {info.type_name}: ggml aborts the whole process unless it is F32")
    divisors = model.view.vector(name).astype(np.float64)
    bad = np.isnan(divisors) | (divisors <= 0)
    if bad.any():
        pair = int(np.argmax(bad))
        raise InvalidRope(
            f"entry {pair} is {divisors[pair]}; it divides a frequency and must be above 0",
            where=f"{model.view.where}: {name}",
        )
    if model.arch.name in archs.FREQS_REQUIRED:
        divisors[divisors >= archs.STANDS_STILL] = np.inf
    return divisors


# --- the entries


def _unrotated(model: ModelKeys, indices: tuple[int, ...]) -> LayerRope:
    return LayerRope("none", None, layers.head_dim(model), 0, model.arch.layout or "half", indices)


def _entry(model: ModelKeys, resolved: _Resolved, layer_type: str, indices: tuple[int, ...]) -> LayerRope:
    sliding = layer_type == names.SLIDING_ATTENTION
    resolved = _for_sliding(model, resolved) if sliding else resolved
    multiplier = _softmax_multiplier(model, resolved)
    resolved = _of_the_graph(model, resolved) if model.arch.fixed_base else resolved
    rotary_dim = layers.rotary_dim(model, sliding)
    table = _table(model, resolved, rotary_dim)
    head_dim = rotary_dim if model.arch.decoupled else layers.head_dim(model, sliding)
    if rotary_dim > head_dim:
        raise Refuses(f"{rotary_dim} rotary channels in a head of {head_dim}: ggml aborts the whole process")
    rope_type = _rope_type(resolved, table)
    return LayerRope(
        rope_type=rope_type, table=table, head_dim=head_dim, rotary_dim=rotary_dim, layout=_layout(model),
        layers=indices, rope_theta=resolved.rope_theta, factor=resolved.factor if resolved.factor != 1 else None,
        params=_rope_keys(model), original_max_position_embeddings=_trained(resolved, rope_type),
        softmax_multiplier=multiplier, temperature=_temperature(model, resolved),
        sliding_window=layers.window_of(model) if sliding else None,
        chunked=sliding and model.arch.sliding is not None and model.arch.sliding.chunked,
    )  # fmt: skip


def _for_sliding(model: ModelKeys, resolved: _Resolved) -> _Resolved:
    """Return the values of a sliding layer: a separate base and scale, but the same YaRN ramp and factors."""
    rules = model.arch.sliding
    assert rules is not None
    if model.arch.name in archs.FREQS_ON_FULL_LAYERS:
        resolved = replace(resolved, vectors={})
    if rules.uncompressed:
        resolved = replace(resolved, rope_theta=_base(model, archs.FREQ_BASE, 10000.0))
    elif not rules.shares_base:
        base = 10000.0 if rules.own_base else resolved.rope_theta
        if rules.needs_base:
            model.need(archs.FREQ_BASE_SWA)
        resolved = replace(resolved, rope_theta=_base(model, archs.FREQ_BASE_SWA, base))
        resolved = resolved if rules.scaled else replace(resolved, factor=1.0)
    return replace(resolved, factor=1.0, mix=0.0, attn=1.0) if rules.plain else resolved


def _of_the_graph(model: ModelKeys, r: _Resolved) -> _Resolved:
    """Return the values of a graph with a fixed base. deepseek2-ocr also asserts that the file has this base."""
    fixed = model.arch.fixed_base
    if model.arch.name == "deepseek2-ocr" and r.rope_theta != fixed:
        raise Refuses(
            f"{model.key(archs.FREQ_BASE)} is {r.rope_theta:g}: llama.cpp aborts the whole process unless it is {fixed:g}"
        )
    return replace(r, rope_theta=fixed, factor=1.0, mix=0.0, attn=1.0)


def _table(model: ModelKeys, r: _Resolved, rotary_dim: int) -> RopeTable:
    base = arithmetic.base_inv_freq(r.rope_theta, rotary_dim) * _turning(model, rotary_dim)
    kept = _kept(r, rotary_dim)
    magnitude = r.attn * (1 + 0.1 * math.log(r.factor)) if r.mix else r.attn
    magnitude = 1.0 if layers.loses_factor(model) else magnitude

    def regime(name: str, up_to: int | None = None) -> Regime:
        divisors = r.vectors.get(name)
        turned = base if divisors is None else base / divisors[: base.size]
        return Regime(turned * ((1 - kept) / r.factor + kept), magnitude, up_to)

    if archs.ROPE_FREQS in r.vectors or not r.vectors:
        return RopeTable((regime(archs.ROPE_FREQS),))
    long = regime(archs.ROPE_FACTORS_LONG)
    trained = r.context if r.trained is None else r.trained
    up_to = trained // CONTEXT_STEP * CONTEXT_STEP  # a context is longer than `trained` from the next step on
    short = regime(archs.ROPE_FACTORS_SHORT, up_to)
    return RopeTable((long,) if up_to == 0 or np.array_equal(short.inv_freq, long.inv_freq) else (short, long))


def _turning(model: ModelKeys, rotary_dim: int) -> Array:
    """Return 1 for each rotating pair, 0 in the fourth image section: text is at 0 there (llama-graph.cpp:140)."""
    pairs = np.arange(rotary_dim // 2)
    sections = layers.image_sections(model)
    if not sections or sections[3] <= 0:
        return np.ones(pairs.size)
    return (pairs % sum(sections) < sum(sections[:3])).astype(np.float64)


def _kept(r: _Resolved, rotary_dim: int) -> Array:
    """Return the unscaled share of each pair's frequency, by ggml's ramp. Unlike other ramps, it allows low > high."""
    pairs = np.arange(rotary_dim // 2, dtype=np.float64)
    if r.mix == 0:
        return np.zeros_like(pairs)
    if min(r.beta_fast, r.beta_slow, r.length) <= 0:
        raise InvalidRope(
            f"beta_fast is {r.beta_fast:g}, beta_slow {r.beta_slow:g} and the original length {r.length}; "
            "all must be above 0"
        )

    def index(turns: float) -> float:
        return rotary_dim * math.log(r.length / (turns * 2 * math.pi)) / (2 * math.log(r.rope_theta))

    low, high = max(0, math.floor(index(r.beta_fast))), min(rotary_dim - 1, math.ceil(index(r.beta_slow)))
    kept: Array = r.mix * (1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1))
    return kept


def _rope_type(r: _Resolved, table: RopeTable) -> str:
    """Return the rope type in Hugging Face's terms, or `table` if no single type gives this table."""
    if archs.ROPE_FREQS not in r.vectors and r.vectors:
        return "longrope"
    if any((divisors != 1).any() for divisors in r.vectors.values()):
        return "table"
    if r.mix:
        return "yarn"
    if r.factor != 1:
        return "linear"
    return "default" if table.regimes[-1].attention_factor == 1 else "table"


def _trained(r: _Resolved, rope_type: str) -> int | None:
    """Return the length before any scaling, in tokens.

    Without the key, it is the context length for the types default, yarn and longrope, and None for other types.
    """
    if r.trained:
        return r.trained
    return r.context if rope_type in ("default", "yarn", "longrope") else None


def _layout(model: ModelKeys) -> str:
    return "half" if model.arch.name in archs.HALF_WITH_SECTIONS and layers.image_sections(model) else model.arch.layout


def _softmax_multiplier(model: ModelKeys, r: _Resolved) -> float:
    """Return the factor on the whole score in MLA graphs, and 1 in others. Linear scaling also gets YaRN's factor."""
    if not model.arch.mla and model.arch.name not in archs.WITH_A_GRAPH_OF_MLA:
        return 1.0
    original = r.attn * (1 + 0.1 * math.log(r.factor))
    return (original * (1 + 0.1 * r.mscale_all_dim * math.log(r.factor))) ** 2


def _temperature(model: ModelKeys, r: _Resolved) -> Temperature | None:
    if archs.TEMPERATURE_SCALE not in model.arch.keys:
        return None
    beta = model.number(archs.TEMPERATURE_SCALE, 0.0, least=-math.inf)
    has_length = archs.TEMPERATURE_LENGTH in model.arch.keys
    length = model.get(archs.TEMPERATURE_LENGTH, 0) if has_length else (r.context if r.trained is None else r.trained)
    if beta == 0:
        return None
    if length == 0:
        raise Refuses(f"{model.key(archs.TEMPERATURE_SCALE)} is {beta:g}, but the length that it refers to is 0")
    return Temperature(beta, int(length))


def _rope_keys(model: ModelKeys) -> dict[str, Any]:
    """Return the rope keys of the file that this architecture reads, except the type and the base."""
    separate = {archs.SCALING_TYPE, archs.FREQ_BASE}
    suffixes = sorted(s for s in archs.reads(model.arch.name) if s.startswith("rope.") and s not in separate)
    values = {model.key(suffix): model.scalar(suffix) for suffix in suffixes}
    return {key: value for key, value in values.items() if value is not None}
