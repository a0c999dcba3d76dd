"""The options of llama-server with which a GGUF file computes what a patch of it would.

Source: common/arg.cpp, src/llama-context.cpp, src/llama-model-loader.cpp and tools/server/server-context.cpp of the
llama.cpp within llama-cpp-python 0.3.36. Options take precedence over the file's keys. --override-kv replaces the keys at load.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import InvalidRope, sentence_of
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.formulas import Source, blend, kept_share_by_dims, yarn_factor
from ropetool.rope.tables import TABLE_TOLERANCE, RopeSet, in_words
from ropetool.runtimes.base import NoFlags, PlannedChange, Refuses
from ropetool.runtimes.llama_cpp import architectures as keys
from ropetool.runtimes.llama_cpp import decoding
from ropetool.runtimes.llama_cpp.layers import value_of

OPTIONS = {
    keys.SCALING_TYPE: "--rope-scaling", keys.FACTOR: "--rope-scale", keys.FREQ_BASE: "--rope-freq-base",
    keys.ORIGINAL_CONTEXT_LENGTH: "--yarn-orig-ctx",
}  # fmt: skip
OPTION_TYPES = ("none", "linear", "yarn")  # --rope-scaling takes no other
# No option takes a key out of a file; these say the same as its absence. With type none a factor is not used.
NEUTRAL = {
    keys.SCALING_TYPE: Value.of(ValueType.STR, "none"), keys.ATTN_FACTOR: Value.of(ValueType.F32, 1.0),
}  # fmt: skip
KINDS = {ValueType.STR: "str", ValueType.F32: "float", ValueType.U32: "int"}

BETAS = dict(zip((names.BETA_FAST, names.BETA_SLOW), keys.BETAS, strict=True))


def options_of(view: GgufCheckpoint, patch: Patch, target: RopeSet, change: PlannedChange) -> tuple[str, ...]:
    """Return the options with which a file computes the target, as with the patch. Each way is tried and decoded.

    The first option is the context. Raises: NoFlags if no options reach the target.
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
        reason = in_words(target.differences(reached))
        if not reason:
            return ("-c", str(target.max_position_embeddings), *options)
    raise NoFlags(reason)


def base_and_scale(view: GgufCheckpoint, options: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the base and the scale of positions, as text, where these two and a context say all that the options do.

    Programs that hold llama.cpp take no more (KoboldCpp's --ropeconfig, LM Studio's window); None where more is needed.
    """
    stated = dict(zip(options[::2], options[1::2], strict=True))
    arch = str(value_of(view, keys.ARCHITECTURE, ValueType.STR))
    kind = stated.pop("--rope-scaling", None)
    scale = stated.pop("--rope-scale", None)
    base = stated.pop("--rope-freq-base", None)
    overrides = stated.pop("--override-kv", f"{arch}.{keys.CONTEXT_LENGTH}=").split(",")
    stated.pop("-c", None)
    if kind == "linear":
        stated.pop(OPTIONS[keys.ORIGINAL_CONTEXT_LENGTH], None)  # a linear scale does not ask for it
    linear = (value_of(view, f"{arch}.{keys.SCALING_TYPE}", ValueType.STR) or "linear") == "linear"
    context_alone = len(overrides) == 1 and overrides[0].startswith(f"{arch}.{keys.CONTEXT_LENGTH}=")
    if stated or not context_alone or not linear or kind not in (None, "linear"):
        return None
    if f"{arch}.{keys.CONTEXT_LENGTH}" not in view.values or keys.get(arch).base_key != keys.FREQ_BASE:
        return None  # it does not load without the override, or has a base that no option reaches
    factor = float(scale or value_of(view, f"{arch}.{keys.FACTOR}", ValueType.F32) or 1.0)
    present = decoding.decode(view).entries[names.FULL_ATTENTION].rope_theta
    if base is None and present is None:
        return None
    return base or _text(Value.of(ValueType.F32, present)), _text(Value.of(ValueType.F32, 1 / factor))


def _by_betas(view: GgufCheckpoint, arch: str, target: RopeSet, change: PlannedChange) -> tuple[str, ...] | None:
    """Return the options for a YaRN ramp with betas of its own, which no key of these files holds; None where it is not one.

    The file must state no scaling: its vectors would apply too.
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
    options, reached = _by_options(view, arch, {k: v for k, v in values.items() if not _is_stated(view, k, v)})
    if reached.max_position_embeddings != target.max_position_embeddings:
        return None
    stated = [word for name, beta in betas.items() for word in (f"--yarn-{name.replace('_', '-')}", f"{beta:g}")]
    return ("-c", str(target.max_position_embeddings), *stated, *options)


def _is_stated(view: GgufCheckpoint, key: str, value: Value) -> bool:
    """Return whether the file says it already; an attention factor of 1 need not be said."""
    return view.values.get(key) == value or (key.endswith(keys.ATTN_FACTOR) and value.decode() == 1)


def _by_options(view: GgufCheckpoint, arch: str, values: dict[str, Value]) -> tuple[list[str], RopeSet]:
    """Return the options of their own, --override-kv for the rest, and what llama.cpp computes with them.

    Raises: Refuses where the options cannot say it.
    """
    before = value_of(view, f"{arch}.{keys.SCALING_TYPE}", ValueType.STR)
    after = view.after(Patch(set=values))
    kind = value_of(after, f"{arch}.{keys.SCALING_TYPE}", ValueType.STR) or "linear"
    if before == "longrope" or kind not in OPTION_TYPES:
        raise Refuses("--rope-scaling does not support longrope")
    decoded = decoding.decode(after)
    rest = dict(values)
    reach = _rescaled(view, after, arch) if kind == "yarn" else None
    if reach is not None:  # llama.cpp then takes this for the context of the model, whatever the key says
        rest.pop(f"{arch}.{keys.CONTEXT_LENGTH}", None)
        decoded = replace(decoded, max_position_embeddings=reach)
    options = []
    for name, option in OPTIONS.items():
        value = rest.pop(f"{arch}.{name}", None)
        options += [option, _text(value)] if value is not None else []
    return [*options, *_override(rest)], decoded


def _rescaled(before: GgufCheckpoint, after: GgufCheckpoint, arch: str) -> int | None:
    """Return original length / scale in llama.cpp's float32, which a YaRN scale that is not the file's makes the context."""
    scales = [1 / np.float32(value_of(view, f"{arch}.{keys.FACTOR}", ValueType.F32) or 1.0) for view in (before, after)]
    length = value_of(after, f"{arch}.{keys.ORIGINAL_CONTEXT_LENGTH}", ValueType.U32)
    length = length or value_of(after, f"{arch}.{keys.CONTEXT_LENGTH}", ValueType.U32)
    return None if scales[0] == scales[1] else int(np.float32(length) / scales[1])


def _by_overrides(view: GgufCheckpoint, arch: str, values: dict[str, Value]) -> tuple[list[str], RopeSet]:
    return _override(values), decoding.decode(view.after(Patch(set=values)))


def _override(values: dict[str, Value]) -> list[str]:
    stated = [f"{key}={KINDS[value.type]}:{_text(value)}" for key, value in values.items()]
    return ["--override-kv", ",".join(stated)] if stated else []


def _text(value: Value) -> str:
    """Return a value as the command line takes it; a float in as many digits as float32 needs."""
    found: Any = value.decode()
    return np.format_float_positional(np.float32(found), trim="-") if value.type is ValueType.F32 else str(found)
