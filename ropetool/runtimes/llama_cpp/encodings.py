"""The ways to write a rotary table into a GGUF file, in order of preference: keys, and frequency vectors.

Pure data from data. Whether llama.cpp reads a candidate back as the table is its decoder's to say, and the caller's
to ask; what no candidate holds is not written.
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
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.gguf_edits import plain_value
from ropetool.files.gguf import Value, ValueType
from ropetool.files.hf import ABSENT
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.formulas import Source, blend, geometric, kept_share_by_dims, yarn_factor
from ropetool.rope.tables import TABLE_TOLERANCE, Array, LayerRope, Regime, RopeSet
from ropetool.runtimes.decoded import EncodedTarget
from ropetool.runtimes.llama_cpp import architectures as keys
from ropetool.runtimes.llama_cpp.architectures import ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT, ROPE_FREQS, Architecture
from ropetool.runtimes.llama_cpp.layers import Model, divided_channels

Vector = npt.NDArray[np.float32]

# Every key that scales a rotation: what an encoding does not state must not be in the file beside it.
SCALING_KEYS = (
    keys.SCALING_TYPE, keys.FACTOR, keys.SCALE_LINEAR, keys.ATTN_FACTOR, keys.ORIGINAL_CONTEXT_LENGTH, keys.ALPHA,
    keys.YARN_LOG_MULTIPLIER, keys.YARN_EXT_FACTOR, keys.YARN_ATTN_FACTOR, keys.YARN_BETA_FAST, keys.YARN_BETA_SLOW,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class GgufEncoding:
    """One way to state the table: full keys with the architecture in front, and vectors by their tensor names."""

    name: str
    keys: Mapping[str, Value]
    tensors: Mapping[str, Vector] = field(default_factory=dict)


def gguf_encodings(target: RopeSet, arch: str, rope_theta: float, factor: float | None = None) -> list[GgufEncoding]:
    """Return the encodings to try for the full-attention layers: native keys, then vectors of frequency divisors.

    `rope_theta` is the base that the divisors refer to, `factor` what the target multiplied the length by, where it
    is known. A table that follows the length, or layers that do not rotate, have none; vectors that the architecture
    does not use are not tried.
    Raises: NotKnown for an architecture that is not described.
    """
    entry = rotating_entry(target)
    if entry.table is None or entry.table.rule is not None:
        return []
    writer = _Writer(target, arch, rope_theta)
    first, last = entry.table.regimes[0], entry.table.regimes[-1]
    if len(entry.table.regimes) == 2:
        found = [writer.lists(first, last, first.up_to)]
    else:
        native = writer.evenly(last) or writer.yarn(last, _yarn_factor(target, arch, last, rope_theta, factor))
        found = [native, writer.divisors(last), writer.lists(last, last, target.original_max_position_embeddings)]
    known = keys.get(arch)
    return [encoding for encoding in found if encoding is not None and _usable(encoding, known)]


def approximate_encodings(target: RopeSet, arch: str, rope_theta: float) -> list[GgufEncoding]:
    """Return keys that llama.cpp decodes to tables like the target's, where it cannot hold that one: none is exact.

    YaRN's own keys come first, then those with another original length, which moves the ends of the ramp: llama.cpp rounds
    them to whole pairs, and few architectures read other betas. Then a larger base, all pairs divided alike, and the
    unscaled table. Of a table that follows the length, its value at the trained length is taken.
    Raises: NotKnown for an architecture that is not described.
    """
    entry = rotating_entry(target)
    if entry.table is None:
        return []
    regime = entry.table.regimes[0 if entry.table.rule is not None else -1]
    base = base_inv_freq(rope_theta, entry.rotary_dim)
    slowest = regime.inv_freq[-1]
    factor = entry.factor or (float(base[-1] / slowest) if slowest > 0 else 1.0)
    found: list[GgufEncoding | None] = []
    if 1 < factor < math.inf:
        for length in _ramp_lengths(target.original_max_position_embeddings, arch, rope_theta, entry.rotary_dim):
            writer = _Writer(replace(target, original_max_position_embeddings=length), arch, rope_theta)
            found.append(writer.yarn(regime, factor))
        larger = rope_theta * factor ** (entry.rotary_dim / max(1, entry.rotary_dim - 2))
        for table in (base_inv_freq(larger, entry.rotary_dim), base / factor):
            found.append(_Writer(target, arch, rope_theta).evenly(replace(regime, inv_freq=table)))
    found.append(_Writer(target, arch, rope_theta).evenly(replace(regime, inv_freq=base)))
    known = keys.get(arch)
    return [encoding for encoding in found if encoding is not None and _usable(encoding, known)]


def _ramp_lengths(stated: int | None, arch: str, rope_theta: float, rotary_dim: int) -> list[int]:
    """Return an original length for each pair of ends that YaRN's ramp can have, that of the model itself first."""
    if stated is None:
        return []
    known = keys.get(arch)
    fast, slow = known.betas

    def index(turns: float, length: int) -> float:
        return rotary_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rope_theta))

    found: dict[tuple[int, int], int] = {}
    whole = [
        math.ceil(turns * 2 * math.pi * rope_theta ** (2 * pair / rotary_dim))
        for turns in (fast, slow)
        for pair in range(rotary_dim // 2)
    ]
    for length in (stated, *sorted({each + more for each in whole for more in (-1, 0, 1)})):
        if 0 < length < 2**31:
            ends = max(0, math.floor(index(fast, length))), min(rotary_dim - 1, math.ceil(index(slow, length)))
            found.setdefault(ends, length)
    return list(found.values())


def gguf_length_encodings(checkpoint: GgufCheckpoint, arch: str, target: RopeSet) -> list[EncodedTarget]:
    """Return the ways to state the target's context in a file, in order of preference.

    Without the length before scaling llama.cpp takes the stated context for it, so the second states it.
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
    """Return the kind of layer that a file's scaling is written for: the full one, or the sliding if that alone turns."""
    full = target.entries[names.FULL_ATTENTION]
    return target.entries.get(names.SLIDING_ATTENTION, full) if full.table is None else full


def _usable(encoding: GgufEncoding, arch: Architecture) -> bool:
    if not encoding.tensors:
        return True
    kind = str(encoding.keys[f"{arch.name}.{keys.SCALING_TYPE}"].decode())
    return arch.vectors and set(encoding.tensors) <= set(arch.loads(kind))


@dataclass(frozen=True, eq=False)
class _Writer:
    """What all encodings of one target share."""

    target: RopeSet
    arch: str
    rope_theta: float

    def evenly(self, regime: Regime) -> GgufEncoding | None:
        """Return the table of a base whose pairs are all divided alike: unscaled, linear, or another base."""
        found = geometric(regime.inv_freq, self.rope_theta)
        if found is None or not regime.inv_freq.all():
            return None
        theta, factor = found
        scaled = not math.isclose(factor, 1, rel_tol=TABLE_TOLERANCE)
        if scaled:
            kind, stated = "linear", {keys.FACTOR: Value.of(ValueType.F32, factor)}
        else:
            kind, stated = "none", {}
        if scaled and keys.get(self.arch).mla:
            return GgufEncoding("linear keys", self._latent(kind, factor, regime, yarn_factor(factor), stated))
        if not scaled and math.isclose(regime.attention_factor, 1, rel_tol=1e-9):
            # An unscaled file states no scaling at all, so that llama.cpp's own options still work on it.
            return GgufEncoding("base frequency", self._named(theta, {}))
        return GgufEncoding(f"{kind} keys", self._scaled(kind, theta, regime.attention_factor, stated))

    def yarn(self, regime: Regime, factor: float | None) -> GgufEncoding | None:
        """Return YaRN's keys; llama.cpp multiplies 0.1 ln s + 1 by attn_factor, so that one is the quotient."""
        if factor is None or self.target.original_max_position_embeddings is None:
            return None
        stated = {keys.FACTOR: Value.of(ValueType.F32, factor), **self._betas()}
        if keys.get(self.arch).mla:
            return GgufEncoding("yarn keys", self._latent("yarn", factor, regime, 1.0, stated))
        attn_factor = regime.attention_factor / yarn_factor(factor)
        return GgufEncoding("yarn keys", self._scaled("yarn", self.rope_theta, attn_factor, stated))

    def _betas(self) -> dict[str, Value]:
        """Return the ends of the ramp where the architecture reads them and they are not its own."""
        own = keys.get(self.arch).betas
        stated = zip((keys.YARN_BETA_FAST, keys.YARN_BETA_SLOW), betas(self.target, self.arch), own, strict=True)
        return {key: Value.of(ValueType.F32, value) for key, value, default in stated if value != default}

    def _latent(
        self, kind: str, factor: float, regime: Regime, uncorrected: float, stated: Mapping[str, Value]
    ) -> dict[str, Value]:
        """Return the keys of an MLA graph, which multiplies the whole score by the rotary factor and a multiplier.

        With R = attn_factor, c what YaRN's own correction leaves uncorrected (1 with YaRN, g(1) without) and L the
        multiplier, cos and sin get R and the score (R c (1 + 0.1 L ln s))^2. Without L YaRN gives g(1) R, twice.
        Source: src/models/deepseek2.cpp and llama_context in src/llama-context.cpp.
        """
        entry = rotating_entry(self.target)
        wanted, rotary = math.sqrt(entry.softmax_multiplier), regime.attention_factor
        multiplier = (wanted / (rotary * uncorrected) - 1) / (0.1 * math.log(factor))
        if abs(multiplier) < 1e-9:
            return self._scaled(kind, self.rope_theta, rotary / yarn_factor(factor), stated)
        log_multiplier = {keys.YARN_LOG_MULTIPLIER: Value.of(ValueType.F32, 0.1 * multiplier)}
        whole = kind == "yarn" and self.arch != "deepseek2"  # the others divide g(1) by g(L)
        attn_factor = wanted / yarn_factor(factor) if whole else rotary
        return self._scaled(kind, self.rope_theta, attn_factor, {**stated, **log_multiplier})

    def divisors(self, regime: Regime) -> GgufEncoding | None:
        """Return any fixed table as the base frequencies divided by one vector.

        None where a pair never turns, unless the architecture's files have a divisor that says so.
        """
        if not regime.inv_freq.all() and self.arch not in keys.FREQS_REQUIRED:
            return None
        vectors = {keys.ROPE_FREQS: self._divisor(regime)}
        stated = self._scaled("none", self.rope_theta, regime.attention_factor, {})
        return GgufEncoding(keys.ROPE_FREQS, stated, vectors)

    def lists(self, short: Regime, long: Regime, up_to: int | None) -> GgufEncoding | None:
        """Return two vectors, of which llama.cpp takes one by the context that it allocates; no factor beside them.

        None where a pair never turns, the attention factors differ, or the length of the switch is not known.
        """
        same_factor = short.attention_factor == long.attention_factor
        if up_to is None or not same_factor or not (short.inv_freq.all() and long.inv_freq.all()):
            return None
        vectors = {keys.ROPE_FACTORS_SHORT: self._divisor(short), keys.ROPE_FACTORS_LONG: self._divisor(long)}
        switch = {keys.ORIGINAL_CONTEXT_LENGTH: Value.of(ValueType.U32, up_to)}
        stated = self._scaled("longrope", self.rope_theta, long.attention_factor, switch)
        return GgufEncoding("longrope lists", stated, vectors)

    def _divisor(self, regime: Regime) -> Vector:
        base = base_inv_freq(self.rope_theta, 2 * regime.inv_freq.size)
        turning = np.where(regime.inv_freq > 0, regime.inv_freq, base / keys.STANDS_STILL)
        return (base / turning).astype(np.float32)

    def _scaled(self, kind: str, theta: float, attn_factor: float, more: Mapping[str, Value]) -> dict[str, Value]:
        stated = {keys.SCALING_TYPE: Value.of(ValueType.STR, kind), **more}
        length = self.target.original_max_position_embeddings
        if length is not None:  # without it llama.cpp takes the extended length for the original one
            stated.setdefault(keys.ORIGINAL_CONTEXT_LENGTH, Value.of(ValueType.U32, length))
        if not math.isclose(attn_factor, 1, rel_tol=1e-9) and self.arch not in keys.WITHOUT_FACTOR:
            stated[keys.ATTN_FACTOR] = Value.of(ValueType.F32, attn_factor)
        return self._named(theta, stated)

    def _named(self, theta: float, stated: Mapping[str, Value]) -> dict[str, Value]:
        context = Value.of(ValueType.U32, self.target.max_position_embeddings)
        both = {
            keys.CONTEXT_LENGTH: context,
            keys.get(self.arch).base_key: Value.of(ValueType.F32, theta),
            **self._sliding(theta),
        }
        return {f"{self.arch}.{key}": value for key, value in (both | dict(stated)).items()}

    def _sliding(self, theta: float) -> dict[str, Value]:
        """Return the base of sliding layers that keep theirs, where llama.cpp would give them that of the others."""
        full, sliding = (self.target.entries.get(kind) for kind in (names.FULL_ATTENTION, names.SLIDING_ATTENTION))
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
    """Return the factor whose YaRN table this is, as far as one of the likely ones makes it.

    Where none does, a table that says it is YaRN's gets its own factor, so that the refusal can name what differs.
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
    """Return the ends of YaRN's ramp that a file of this architecture can have for the target."""
    if keys.YARN_BETA_FAST not in keys.get(arch).keys:
        return keys.BETAS
    params, (fast, slow) = rotating_entry(target).params, keys.BETAS
    return float(params.get(names.BETA_FAST) or fast), float(params.get(names.BETA_SLOW) or slow)


def _is_yarn(inv_freq: Array, source: Source, factor: float, ends: tuple[float, float]) -> bool:
    table = blend(source.inv_freq, kept_share_by_dims(source, *ends, truncate=True), factor)
    return bool(np.allclose(inv_freq, table, rtol=TABLE_TOLERANCE, atol=0))


def edits_of(encoding: GgufEncoding, arch: str, view: GgufCheckpoint) -> list[FileEdit]:
    """Return what turns the model into one that states the encoding, and nothing else that scales a rotation.

    A vector that is there and not part of the encoding becomes ones, which divide nothing: llama.cpp demands the
    tensors that it was given.
    """
    edits = _key_edits(view, encoding.keys)
    for key in (f"{arch}.{name}" for name in SCALING_KEYS):
        if key in view.values and key not in encoding.keys:
            edits.append(FileEdit(METADATA, (key,), plain_value(view.values[key]), ABSENT))
    wanted = dict(encoding.tensors)
    pairs = divided_channels(Model.of(view)) // 2 if wanted else 0
    wanted = {name: np.append(vector, np.ones(pairs - vector.size, np.float32)) for name, vector in wanted.items()}
    for name in (ROPE_FREQS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG):
        if name in view.tensors and name not in wanted:
            wanted[name] = np.ones(view.tensors[name].shape[0], np.float32)
    for name, vector in wanted.items():
        present = view.numbers(name)
        if present != vector.tolist():
            edits.append(FileEdit(TENSORS, (name,), present, vector.tolist()))
    return edits


def _key_edits(view: GgufCheckpoint, stated: Mapping[str, Value]) -> list[FileEdit]:
    """Return the edits of the keys whose values differ."""
    before = {key: view.values.get(key) for key in stated}
    return [
        FileEdit(METADATA, (key,), plain_value(before[key]), plain_value(value))
        for key, value in stated.items()
        if before[key] != value
    ]
