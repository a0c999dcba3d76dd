"""The command lines with options of llama-server that have the same effect as a patch of a GGUF file.

Source: common/arg.cpp, src/llama-context.cpp, src/llama-model-loader.cpp and tools/server/server-context.cpp of the
llama.cpp within llama-cpp-python 0.3.36. Options take precedence over the file's keys. --override-kv replaces the keys
at load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint, patch_of
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import InvalidRope, sentence_of
from ropetool.escaping import command, word
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.formulas import Source, blend, kept_share_by_dims, yarn_factor
from ropetool.rope.tables import TABLE_TOLERANCE, RopeSet
from ropetool.runtimes.base import NO_FLAG, NoFlags, NotKnown, PlannedChange, Refuses
from ropetool.runtimes.llama_cpp import architectures as keys
from ropetool.runtimes.llama_cpp import decoding
from ropetool.runtimes.llama_cpp.exported import exported
from ropetool.runtimes.llama_cpp.layers import value_of

OPTIONS = {
    keys.SCALING_TYPE: "--rope-scaling", keys.FACTOR: "--rope-scale", keys.FREQ_BASE: "--rope-freq-base",
    keys.ORIGINAL_CONTEXT_LENGTH: "--yarn-orig-ctx",
}  # fmt: skip
OPTION_TYPES = ("none", "linear", "yarn")  # the values of --rope-scaling
# No option removes a key from a file; these values have the same effect. With type none llama.cpp ignores a factor.
NEUTRAL = {
    keys.SCALING_TYPE: Value.of(ValueType.STR, "none"), keys.ATTN_FACTOR: Value.of(ValueType.F32, 1.0),
}  # fmt: skip
TYPE_NAMES = {ValueType.STR: "str", ValueType.F32: "float", ValueType.U32: "int"}

BETAS = dict(zip((names.BETA_FAST, names.BETA_SLOW), keys.BETAS, strict=True))
# The same with two numbers, if these set everything: what KoboldCpp and LM Studio pass to llama.cpp's rope_freq_base
# and rope_freq_scale (gpttype_adapter.cpp; lmstudio.ai/docs/typescript/api-reference/llm-load-model-config).
BY_TWO_NUMBERS = {
    "KoboldCpp": "koboldcpp --model {} --contextsize {} --ropeconfig {} {}",
    "LM Studio": "Context Length {1}, RoPE Frequency Scale {2}, RoPE Frequency Base {3} in its window",
}
EXPORTED = Path("EXPORTED.gguf")


def lines(change: PlannedChange) -> Sequence[str]:
    """Return the lines of llama-server and the programs that run llama.cpp, for the source of a change as its target.

    A directory is served by its export, which contains the source unchanged. There are no lines if ropetool does not
    know the export. Raises: NoFlags if no options reach the target.
    """
    if isinstance(change.source, HfCheckpoint):
        return _exported_lines(change.source, change)
    source, patch = change.source, patch_of(change.edits)
    return _lines(source, patch, decoding.decode(source.after(patch)), change, source.path)


def _exported_lines(source: HfCheckpoint, change: PlannedChange) -> Sequence[str]:
    assert isinstance(change.output, HfCheckpoint)
    try:
        _, before = exported(source)
        _, after = exported(change.output)
    except NotKnown:
        return []
    except Refuses as refusal:
        raise NoFlags(str(refusal)) from None
    changed = {key: value for key, value in after.values.items() if before.values.get(key) != value}
    # A vector that the file has stays in force, and llama.cpp requires it: it would have to become ones.
    vectors = {name: np.ones(info.shape[0], np.float32) for name, info in before.tensors.items()}
    vectors |= {name: after.vector(name) for name in after.tensors}
    same = {name for name in vectors if name in before.tensors and np.array_equal(vectors[name], before.vector(name))}
    vectors = {name: vector for name, vector in vectors.items() if name not in same}
    patch = Patch(changed, frozenset(before.values.keys() - after.values.keys()), vectors)
    return _lines(before, patch, decoding.decode(after), change, EXPORTED)


def _lines(view: GgufCheckpoint, patch: Patch, target: RopeSet, change: PlannedChange, path: Path) -> Sequence[str]:
    """Return the lines for a file at a path as if a patch had made it compute the target."""
    options = options_of(view, patch, target, change)
    own = command("llama-server", "-m", path, *options)
    return [own, *_by_two_numbers(path, options[1], base_and_scale(view, options))]


def _by_two_numbers(path: Path, context: str, numbers: tuple[str, str] | None) -> Sequence[str]:
    """Return how the programs that run llama.cpp serve a file with a new base and scale of positions.

    numbers: base and scale; None if these two do not set everything.
    """
    if numbers is None:
        return [f"{', '.join(BY_TWO_NUMBERS)}: {NO_FLAG}: they accept only a base and a scale"]
    base, scale = numbers
    return [f"{program}: {line.format(word(path), context, scale, base)}" for program, line in BY_TWO_NUMBERS.items()]


def options_of(view: GgufCheckpoint, patch: Patch, target: RopeSet, change: PlannedChange) -> tuple[str, ...]:
    """Return the options that make a file compute the target. The first option is the context.

    patch: the change of the file with the same effect. Each way to express it is tried and decoded.
    Raises: NoFlags if no options reach the target.
    """
    arch = str(value_of(view, keys.ARCHITECTURE, ValueType.STR))
    if patch.tensors:
        ramp = _by_betas(view, arch, target, change)
        if ramp is None:
            raise NoFlags(f"the file itself must contain {' and '.join(patch.tensors)}")
        return ramp
    removed = {key: value for name, value in NEUTRAL.items() if (key := f"{arch}.{name}") in patch.remove}
    values = {key: value for key, value in {**patch.set, **removed}.items() if view.values.get(key) != value}
    reason = ""
    for way in (_by_options, _by_overrides):
        try:
            options, reached = way(view, arch, values)
        except (Refuses, InvalidRope) as refusal:
            reason = sentence_of(refusal)
            continue
        reason = target.mismatch(reached)
        if not reason:
            return ("-c", str(target.max_position_embeddings), *options)
    raise NoFlags(reason)


def base_and_scale(view: GgufCheckpoint, options: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the base and the scale of positions as text, or None if the options need more than these and a context.

    Programs that run llama.cpp accept only these two (KoboldCpp's --ropeconfig, LM Studio's window).
    """
    rest = dict(zip(options[::2], options[1::2], strict=True))
    arch = str(value_of(view, keys.ARCHITECTURE, ValueType.STR))
    scaling_type = rest.pop("--rope-scaling", None)
    scale = rest.pop("--rope-scale", None)
    base = rest.pop("--rope-freq-base", None)
    overrides = rest.pop("--override-kv", f"{arch}.{keys.CONTEXT_LENGTH}=").split(",")
    rest.pop("-c", None)
    if scaling_type == "linear":
        rest.pop(OPTIONS[keys.ORIGINAL_CONTEXT_LENGTH], None)  # a linear scale does not need it
    linear = (value_of(view, f"{arch}.{keys.SCALING_TYPE}", ValueType.STR) or "linear") == "linear"
    only_context = len(overrides) == 1 and overrides[0].startswith(f"{arch}.{keys.CONTEXT_LENGTH}=")
    if rest or not only_context or not linear or scaling_type not in (None, "linear"):
        return None
    if f"{arch}.{keys.CONTEXT_LENGTH}" not in view.values or keys.get(arch).base_key != keys.FREQ_BASE:
        return None  # it does not load without the override, or no option changes its base
    factor = float(scale or value_of(view, f"{arch}.{keys.FACTOR}", ValueType.F32) or 1.0)
    present = decoding.decode(view).entries[names.FULL_ATTENTION].rope_theta
    if base is None and present is None:
        return None
    return base or _text(Value.of(ValueType.F32, present)), _text(Value.of(ValueType.F32, 1 / factor))


def _by_betas(view: GgufCheckpoint, arch: str, target: RopeSet, change: PlannedChange) -> tuple[str, ...] | None:
    """Return the options for a YaRN ramp with other betas, which these files have no keys for; None for other tables.

    The file must not have scaling keys or vectors, because they would also apply.
    """
    scaled = any(f"{arch}.{key}" in view.values for key in (keys.SCALING_TYPE, keys.FACTOR, keys.ATTN_FACTOR))
    entry = target.entries[names.FULL_ATTENTION]
    if scaled or entry.table is None or not entry.table.is_fixed or not BETAS.keys() & change.params.keys():
        return None
    if any(name in view.tensors for name in keys.VECTORS) or entry.rope_theta is None:
        return None
    betas = {name: float(change.params.get(name, default)) for name, default in BETAS.items()}
    regime, base = entry.table.regimes[0], base_inv_freq(entry.rope_theta, entry.rotary_dim)
    source = Source(base, change.trained_length, entry.rope_theta)
    kept = kept_share_by_dims(source, betas[names.BETA_FAST], betas[names.BETA_SLOW], truncate=True)
    if not np.allclose(blend(base, kept, change.factor), regime.inv_freq, rtol=TABLE_TOLERANCE, atol=0):
        return None
    values = {
        f"{arch}.{keys.SCALING_TYPE}": Value.of(ValueType.STR, "yarn"),
        f"{arch}.{keys.FACTOR}": Value.of(ValueType.F32, change.factor),
        f"{arch}.{keys.ORIGINAL_CONTEXT_LENGTH}": Value.of(ValueType.U32, change.trained_length),
        f"{arch}.{keys.FREQ_BASE}": Value.of(ValueType.F32, entry.rope_theta),
        f"{arch}.{keys.ATTN_FACTOR}": Value.of(ValueType.F32, regime.attention_factor / yarn_factor(change.factor)),
    }
    options, reached = _by_options(view, arch, {k: v for k, v in values.items() if not _is_set(view, k, v)})
    if reached.max_position_embeddings != target.max_position_embeddings:
        return None
    words = [word for name, beta in betas.items() for word in (f"--yarn-{name.replace('_', '-')}", f"{beta:g}")]
    return ("-c", str(target.max_position_embeddings), *words, *options)


def _is_set(view: GgufCheckpoint, key: str, value: Value) -> bool:
    """Return whether the file already has the value, or it is an attention factor of 1, which is the default."""
    return view.values.get(key) == value or (key.endswith(keys.ATTN_FACTOR) and value.decode() == 1)


def _by_options(view: GgufCheckpoint, arch: str, values: dict[str, Value]) -> tuple[list[str], RopeSet]:
    """Return options for keys that have one, --override-kv for the rest, and the tables that llama.cpp then computes.

    Raises: Refuses if the options cannot set the values.
    """
    before = value_of(view, f"{arch}.{keys.SCALING_TYPE}", ValueType.STR)
    after = view.after(Patch(set=values))
    scaling_type = value_of(after, f"{arch}.{keys.SCALING_TYPE}", ValueType.STR) or "linear"
    if before == "longrope" or scaling_type not in OPTION_TYPES:
        raise Refuses("--rope-scaling does not support longrope")
    decoded = decoding.decode(after)
    rest = dict(values)
    reach = _rescaled(view, after, arch) if scaling_type == "yarn" else None
    if reach is not None:  # llama.cpp then uses this as the context length of the model, and ignores the key
        rest.pop(f"{arch}.{keys.CONTEXT_LENGTH}", None)
        decoded = replace(decoded, max_position_embeddings=reach)
    options = []
    for name, option in OPTIONS.items():
        value = rest.pop(f"{arch}.{name}", None)
        options += [option, _text(value)] if value is not None else []
    return [*options, *_override(rest)], decoded


def _rescaled(before: GgufCheckpoint, after: GgufCheckpoint, arch: str) -> int | None:
    """Return llama.cpp's context for a new YaRN scale: original length / scale in float32; None without a new scale."""
    scales = [1 / np.float32(value_of(view, f"{arch}.{keys.FACTOR}", ValueType.F32) or 1.0) for view in (before, after)]
    length = value_of(after, f"{arch}.{keys.ORIGINAL_CONTEXT_LENGTH}", ValueType.U32)
    length = length or value_of(after, f"{arch}.{keys.CONTEXT_LENGTH}", ValueType.U32)
    return None if scales[0] == scales[1] else int(np.float32(length) / scales[1])


def _by_overrides(view: GgufCheckpoint, arch: str, values: dict[str, Value]) -> tuple[list[str], RopeSet]:
    return _override(values), decoding.decode(view.after(Patch(set=values)))


def _override(values: dict[str, Value]) -> list[str]:
    pairs = [f"{key}={TYPE_NAMES[value.type]}:{_text(value)}" for key, value in values.items()]
    return ["--override-kv", ",".join(pairs)] if pairs else []


def _text(value: Value) -> str:
    """Return a value as text for the command line. A float has the digits that float32 needs."""
    plain: Any = value.decode()
    return np.format_float_positional(np.float32(plain), trim="-") if value.type is ValueType.F32 else str(plain)
