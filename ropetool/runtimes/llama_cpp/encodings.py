"""The ways to write a rotary table into a GGUF file, in order of preference: keys, and frequency vectors.

A caller decodes each way, and writes the first one that llama.cpp reads as the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ropetool import names
from ropetool.checkpoint.edits import METADATA, TENSORS, FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint, plain_value
from ropetool.files.gguf import Value, ValueType
from ropetool.files.hf import ABSENT
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.formulas import Source, blend_by_dims, geometric, yarn_factor
from ropetool.rope.tables import TABLE_TOLERANCE, Array, LayerRope, Regime, RopeSet
from ropetool.runtimes.decoded import EncodedTarget
from ropetool.runtimes.llama_cpp import architectures as keys
from ropetool.runtimes.llama_cpp import mscale
from ropetool.runtimes.llama_cpp.architectures import ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT, ROPE_FREQS, Architecture
from ropetool.runtimes.llama_cpp.layers import ModelKeys, divided_channels

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class GgufEncoding:
    """A way to write a table: full keys with the architecture in front, and vectors by their tensor names."""

    name: str
    keys: Mapping[str, Value]
    tensors: Mapping[str, Vector] = field(default_factory=dict)


def gguf_encodings(target: RopeSet, arch: str, rope_theta: float, factor: float | None = None) -> list[GgufEncoding]:
    """Return the encodings to try for the full-attention layers: native keys, then vectors of frequency divisors.

    There are none for a table that depends on the text length, or if the layers do not rotate. Vectors are left out if
    the architecture does not use them.

    rope_theta: the base of the divisors.
    factor: the extension factor of the target; None if unknown.
    Raises: NotKnown for an unknown architecture.
    """
    entry = rotating_entry(target)
    if entry.table is None or entry.table.rule is not None:
        return []
    writer = _Writer(target, arch, rope_theta)
    first, last = entry.table.regimes[0], entry.table.regimes[-1]
    if len(entry.table.regimes) == 2:
        encodings = [writer.lists(first, last, first.up_to)]
    else:
        native = writer.evenly(last) or writer.yarn(last, _yarn_factor(target, arch, last, rope_theta, factor))
        encodings = [native, writer.divisors(last), writer.lists(last, last, target.original_max_position_embeddings)]
    known = keys.get(arch)
    return [encoding for encoding in encodings if encoding is not None and _usable(encoding, known)]


def approximate_encodings(target: RopeSet, arch: str, rope_theta: float) -> list[GgufEncoding]:
    """Return keys for tables near the target, for a target that no encoding gives exactly.

    They are YaRN's keys, YaRN with other original lengths, a larger base, all pairs divided by the factor, and the
    unscaled table, in this order. Another original length moves the ends of the ramp. It is needed because llama.cpp
    rounds the ends to whole pairs, and few architectures read betas. A table that depends on the text length counts at
    the trained length.

    Raises: NotKnown for an unknown architecture.
    """
    entry = rotating_entry(target)
    if entry.table is None:
        return []
    regime = entry.table.regimes[0 if entry.table.rule is not None else -1]
    base = base_inv_freq(rope_theta, entry.rotary_dim)
    slowest = regime.inv_freq[-1]
    factor = entry.factor or (float(base[-1] / slowest) if slowest > 0 else 1.0)
    encodings: list[GgufEncoding | None] = []
    if 1 < factor < math.inf:
        for length in _ramp_lengths(target.original_max_position_embeddings, arch, rope_theta, entry.rotary_dim):
            writer = _Writer(replace(target, original_max_position_embeddings=length), arch, rope_theta)
            encodings.append(writer.yarn(regime, factor))
        larger = rope_theta * factor ** (entry.rotary_dim / max(1, entry.rotary_dim - 2))
        for table in (base_inv_freq(larger, entry.rotary_dim), base / factor):
            encodings.append(_Writer(target, arch, rope_theta).evenly(replace(regime, inv_freq=table)))
    encodings.append(_Writer(target, arch, rope_theta).evenly(replace(regime, inv_freq=base)))
    known = keys.get(arch)
    return [encoding for encoding in encodings if encoding is not None and _usable(encoding, known)]


def _ramp_lengths(original: int | None, arch: str, rope_theta: float, rotary_dim: int) -> list[int]:
    """Return an original length for each possible pair of ends of YaRN's ramp.

    The model's original length is the first.
    """
    if original is None:
        return []
    known = keys.get(arch)
    fast, slow = known.betas

    def index(turns: float, length: int) -> float:
        return rotary_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rope_theta))

    by_ends: dict[tuple[int, int], int] = {}
    whole = [
        math.ceil(turns * 2 * math.pi * rope_theta ** (2 * pair / rotary_dim))
        for turns in (fast, slow)
        for pair in range(rotary_dim // 2)
    ]
    for length in (original, *sorted({each + more for each in whole for more in (-1, 0, 1)})):
        if 0 < length < 2**31:
            ends = max(0, math.floor(index(fast, length))), min(rotary_dim - 1, math.ceil(index(slow, length)))
            by_ends.setdefault(ends, length)
    return list(by_ends.values())


def gguf_length_encodings(checkpoint: GgufCheckpoint, arch: str, target: RopeSet) -> list[EncodedTarget]:
    """Return the ways to set the target's context in a file, in order of preference.

    The second way also sets the length before scaling, because llama.cpp otherwise uses the context length for it.
    """
    context = {keys.CONTEXT_LENGTH: target.max_position_embeddings}
    ways = {"the context": context}
    original = rotating_entry(target).original_max_position_embeddings
    if original is not None:
        ways["the context, and the length before scaling"] = {**context, keys.ORIGINAL_CONTEXT_LENGTH: original}
    return [
        EncodedTarget(
            name,
            partial(_key_edits, checkpoint, {f"{arch}.{k}": Value.of(ValueType.U32, v) for k, v in keys_of.items()}),
        )
        for name, keys_of in ways.items()
    ]


def rotating_entry(target: RopeSet) -> LayerRope:
    """Return the layer type for which a file's scaling is written: full, or sliding if only sliding layers rotate."""
    full = target.entries[names.FULL_ATTENTION]
    return target.entries.get(names.SLIDING_ATTENTION, full) if full.table is None else full


def _usable(encoding: GgufEncoding, arch: Architecture) -> bool:
    if not encoding.tensors:
        return True
    scaling_type = str(encoding.keys[f"{arch.name}.{keys.SCALING_TYPE}"].decode())
    return arch.vectors and set(encoding.tensors) <= set(arch.loads(scaling_type))


@dataclass(frozen=True, eq=False)
class _Writer:
    """Encodings of one target for one architecture. rope_theta: the base of frequency divisors."""

    target: RopeSet
    arch: str
    rope_theta: float

    def evenly(self, regime: Regime) -> GgufEncoding | None:
        """Return the keys of a table with one divisor for all pairs: unscaled, linear, or with a new base.

        None otherwise.
        """
        fitted = geometric(regime.inv_freq, self.rope_theta)
        if fitted is None or not regime.inv_freq.all():
            return None
        theta, factor = fitted
        scaled = not math.isclose(factor, 1, rel_tol=TABLE_TOLERANCE)
        if scaled:
            scaling_type, scaling = "linear", {keys.FACTOR: Value.of(ValueType.F32, factor)}
        else:
            scaling_type, scaling = "none", {}
        if scaled and keys.get(self.arch).mla:
            return GgufEncoding("linear keys", self._latent(scaling_type, factor, regime, scaling))
        if not scaled and math.isclose(regime.attention_factor, 1, rel_tol=1e-9):
            # An unscaled file sets no scaling, so that the options of llama.cpp still work.
            return GgufEncoding("base frequency", self._named(theta, {}))
        return GgufEncoding(f"{scaling_type} keys", self._scaled(scaling_type, theta, regime.attention_factor, scaling))

    def yarn(self, regime: Regime, factor: float | None) -> GgufEncoding | None:
        """Return YaRN's keys. attn_factor is a quotient, because llama.cpp multiplies it by 0.1 ln s + 1."""
        if factor is None or self.target.original_max_position_embeddings is None:
            return None
        scaling = {keys.FACTOR: Value.of(ValueType.F32, factor), **self._betas()}
        if keys.get(self.arch).mla:
            return GgufEncoding("yarn keys", self._latent("yarn", factor, regime, scaling))
        attn_factor = regime.attention_factor / yarn_factor(factor)
        return GgufEncoding("yarn keys", self._scaled("yarn", self.rope_theta, attn_factor, scaling))

    def _betas(self) -> dict[str, Value]:
        """Return the ends of the ramp that differ from the architecture's defaults."""
        own = keys.get(self.arch).betas
        pairs = zip((keys.YARN_BETA_FAST, keys.YARN_BETA_SLOW), betas(self.target, self.arch), own, strict=True)
        return {key: Value.of(ValueType.F32, value) for key, value, default in pairs if value != default}

    def _latent(
        self, scaling_type: str, factor: float, regime: Regime, scaling: Mapping[str, Value]
    ) -> dict[str, Value]:
        """Return the keys of an MLA graph, which multiplies the whole score by a factor of its own."""
        on_score = math.sqrt(rotating_entry(self.target).softmax_multiplier)
        numbers = mscale.numbers(self.arch, scaling_type, factor, on_score, regime.attention_factor)
        attn_factor = numbers.pop(keys.ATTN_FACTOR)
        more = {key: Value.of(ValueType.F32, number) for key, number in numbers.items() if number}
        return self._scaled(scaling_type, self.rope_theta, attn_factor, {**scaling, **more})

    def divisors(self, regime: Regime) -> GgufEncoding | None:
        """Return any fixed table as the base frequencies divided by one vector.

        None if a pair never rotates, unless the architecture has a divisor for such pairs.
        """
        if not regime.inv_freq.all() and self.arch not in keys.FREQS_REQUIRED:
            return None
        vectors = {keys.ROPE_FREQS: self._divisor(regime)}
        named = self._scaled("none", self.rope_theta, regime.attention_factor, {})
        return GgufEncoding(keys.ROPE_FREQS, named, vectors)

    def lists(self, short: Regime, long: Regime, up_to: int | None) -> GgufEncoding | None:
        """Return two vectors, without a factor. llama.cpp chooses one by the size of the allocated context.

        None if a pair never rotates, the attention factors differ, or the length of the switch is unknown.
        """
        same_factor = short.attention_factor == long.attention_factor
        if up_to is None or not same_factor or not (short.inv_freq.all() and long.inv_freq.all()):
            return None
        vectors = {keys.ROPE_FACTORS_SHORT: self._divisor(short), keys.ROPE_FACTORS_LONG: self._divisor(long)}
        switch = {keys.ORIGINAL_CONTEXT_LENGTH: Value.of(ValueType.U32, up_to)}
        named = self._scaled("longrope", self.rope_theta, long.attention_factor, switch)
        return GgufEncoding("longrope lists", named, vectors)

    def _divisor(self, regime: Regime) -> Vector:
        base = base_inv_freq(self.rope_theta, 2 * regime.inv_freq.size)
        turning = np.where(regime.inv_freq > 0, regime.inv_freq, base / keys.STANDS_STILL)
        return (base / turning).astype(np.float32)

    def _scaled(
        self, scaling_type: str, theta: float, attn_factor: float, more: Mapping[str, Value]
    ) -> dict[str, Value]:
        scaling = {keys.SCALING_TYPE: Value.of(ValueType.STR, scaling_type), **more}
        length = self.target.original_max_position_embeddings
        if length is not None:  # without it llama.cpp uses the extended length as the original length
            scaling.setdefault(keys.ORIGINAL_CONTEXT_LENGTH, Value.of(ValueType.U32, length))
        if not math.isclose(attn_factor, 1, rel_tol=1e-9) and self.arch not in keys.WITHOUT_FACTOR:
            scaling[keys.ATTN_FACTOR] = Value.of(ValueType.F32, attn_factor)
        return self._named(theta, scaling)

    def _named(self, theta: float, scaling: Mapping[str, Value]) -> dict[str, Value]:
        context = Value.of(ValueType.U32, self.target.max_position_embeddings)
        both = {
            keys.CONTEXT_LENGTH: context,
            keys.get(self.arch).base_key: Value.of(ValueType.F32, theta),
            **self._sliding(theta),
        }
        return {f"{self.arch}.{key}": value for key, value in (both | dict(scaling)).items()}

    def _sliding(self, theta: float) -> dict[str, Value]:
        """Return the key for the sliding layers' base, if llama.cpp would otherwise use the full layers' new base."""
        full, sliding = (
            self.target.entries.get(layer_type) for layer_type in (names.FULL_ATTENTION, names.SLIDING_ATTENTION)
        )
        rules = keys.get(self.arch).sliding
        if (
            rules is None
            or rules.shares_base
            or rules.own_base
            or rules.uncompressed
            or full is None
            or sliding is None
        ):
            return {}
        if full.table is None or sliding.table is None or sliding.rope_theta is None:
            return {}
        if theta == sliding.rope_theta or sliding.table.agrees(full.table):
            return {}
        return {keys.FREQ_BASE_SWA: Value.of(ValueType.F32, sliding.rope_theta)}


def _yarn_factor(target: RopeSet, arch: str, regime: Regime, rope_theta: float, factor: float | None) -> float | None:
    """Return the factor of a YaRN table, from a few likely ones; None if none of them gives the table.

    If the rope type is YaRN, its own factor is the fallback, so that the refusal can name the difference.
    """
    entry, length = rotating_entry(target), target.original_max_position_embeddings
    base = base_inv_freq(rope_theta, entry.rotary_dim)
    with np.errstate(divide="ignore"):
        divided = float(base[-1] / regime.inv_freq[-1])  # the slowest pair is divided in full, if the ramp ends in time
    if length is not None:
        source, ends = Source(base, length, rope_theta), betas(target, arch)
        for likely in (factor, entry.factor, divided):
            if likely is not None and 1 <= likely < math.inf and _is_yarn(regime.inv_freq, source, likely, ends):
                return likely
    return entry.factor if entry.rope_type == "yarn" else None


def betas(target: RopeSet, arch: str) -> tuple[float, float]:
    """Return the ends of YaRN's ramp for the target: its own if the architecture reads them, else the defaults."""
    if keys.YARN_BETA_FAST not in keys.get(arch).keys:
        return keys.BETAS
    params, (fast, slow) = rotating_entry(target).params, keys.BETAS
    return float(params.get(names.BETA_FAST) or fast), float(params.get(names.BETA_SLOW) or slow)


def _is_yarn(inv_freq: Array, source: Source, factor: float, ends: tuple[float, float]) -> bool:
    table = blend_by_dims(source, *ends, truncate=True, factor=factor)
    return bool(np.allclose(inv_freq, table, rtol=TABLE_TOLERANCE, atol=0))


def edits_of(encoding: GgufEncoding, arch: str, view: GgufCheckpoint) -> list[FileEdit]:
    """Return the edits that write an encoding into a model, and remove all other scaling.

    A vector that is not part of the encoding becomes ones, which have no effect. It cannot be removed, because
    llama.cpp requires the tensors of the file.
    """
    edits = _key_edits(view, encoding.keys)
    for key in (f"{arch}.{name}" for name in keys.SCALING_KEYS):
        if key in view.values and key not in encoding.keys:
            edits.append(FileEdit(METADATA, (key,), plain_value(view.values[key]), ABSENT))
    vectors = dict(encoding.tensors)
    pairs = divided_channels(ModelKeys.of(view)) // 2 if vectors else 0
    vectors = {name: np.append(vector, np.ones(pairs - vector.size, np.float32)) for name, vector in vectors.items()}
    for name in (ROPE_FREQS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG):
        if name in view.tensors and name not in vectors:
            vectors[name] = np.ones(view.tensors[name].shape[0], np.float32)
    for name, vector in vectors.items():
        present = view.numbers(name)
        if present != vector.tolist():
            edits.append(FileEdit(TENSORS, (name,), present, vector.tolist()))
    return edits


def _key_edits(view: GgufCheckpoint, values: Mapping[str, Value]) -> list[FileEdit]:
    """Return the edits of the keys whose values differ."""
    before = {key: view.values.get(key) for key in values}
    return [
        FileEdit(METADATA, (key,), plain_value(before[key]), plain_value(value))
        for key, value in values.items()
        if before[key] != value
    ]
