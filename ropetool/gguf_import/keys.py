"""The keys of an architecture in a GGUF file, compared with a config: each one agrees, has no effect, or is refused.

llama.cpp's defaults for missing keys are from src/llama-model.cpp, llama-hparams.h and models/*.cpp of llama-cpp-python
0.3.36. The decoder lists the keys that change positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import LossyExport
from ropetool.escaping import command
from ropetool.files.hf import ABSENT
from ropetool.files.hf.jsontext import shown
from ropetool.gguf_model.shapes import ModelShape, model_keys
from ropetool.gguf_model.shapes.rules import SIGMOID, SOFTMAX
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.verification.readback.keys import plain

# The decoder reads these keys, or knows that llama.cpp ignores them. Import compares the tables that it decodes.
_OF_POSITIONS = frozenset({
    *archs.SCALING_KEYS, archs.CONTEXT_LENGTH, archs.DIMENSION_COUNT, archs.DIMENSION_COUNT_SWA,
    archs.DIMENSION_SECTIONS, archs.FREQ_BASE, archs.FREQ_BASE_SWA, archs.FINETUNED, archs.SLIDING_WINDOW,
    archs.SLIDING_WINDOW_PATTERN, archs.TEMPERATURE_SCALE, archs.TEMPERATURE_LENGTH,
})  # fmt: skip
_SHARED_WIDTH = "expert_shared_feed_forward_length"
_EXPERT_WIDTH = "expert_feed_forward_length"
_GROUPS = ("expert_group_count", "expert_group_used_count")
# With this value a key has no effect, even if the architecture reads it.
_NEUTRAL: Mapping[str, Any] = {
    archs.CAUSAL: True,
    "expert_weights_norm": False,
    **dict.fromkeys(
        (archs.EXPERT_COUNT, "expert_used_count", "expert_shared_count", *_GROUPS, _EXPERT_WIDTH, _SHARED_WIDTH,
         "expert_weights_scale", archs.LEADING_DENSE, archs.NEXTN_LAYERS, "pooling_type", "embedding_length_out",
         "logit_scale", "residual_scale", "embedding_scale", "final_logit_softcapping", "attention.scale",
         "attention.clamp_kqv", "attention.max_alibi_bias", "attention.shared_kv_layers"),
        0,
    ),
}  # fmt: skip
# What llama.cpp assumes if a key is missing. Without any other key it refuses the file, or computes something else.
_ASSUMED: Mapping[str, tuple[Any, ...]] = {
    **{key: (value,) for key, value in _NEUTRAL.items()},
    **dict.fromkeys(_GROUPS, (0, 1)),  # one group is no group
    **dict.fromkeys(("expert_weights_scale", "residual_scale", "embedding_scale"), (1,)),  # 0 there means: not set
    "attn_logit_softcapping": (50,), "final_logit_softcapping": (30,),
}  # fmt: skip
_GATING = {"deepseek2": SOFTMAX, "mistral4": SOFTMAX, **dict.fromkeys(("afmoe", "glm4moe", "hy_v3"), SIGMOID)}
# Architectures whose files may lack the widths of the experts.
_EXPERTS_BY_SHARE = frozenset({"qwen2moe", "qwen3moe", "qwen35moe", "qwen3next"})
_BY_TENSORS = {"stablelm": ("use_parallel_residual",)}  # llama.cpp decides by the tensors and never reads the key
# The decoder infers the layers with attention if one of these is missing.
_OF_LAYERS = frozenset({archs.RECURRENT_LAYERS, archs.ATTENTION_INTERVAL})


def value_of(source: GgufCheckpoint, key: str) -> Any:
    """Return the value of an architecture's key as plain data, or ABSENT."""
    return plain(source.values.get(f"{source.name}.{key}"))


def compare_keys(source: GgufCheckpoint, model: ModelShape) -> tuple[str, ...]:
    """Return a note on missing keys for which llama.cpp's default agrees with the config.

    Raises: LossyExport for a key with a different value, a key without a place in a config, and a missing key that
    matters.
    """
    expected, front = model_keys(model), f"{source.name}."
    for key, value in expected.items():
        if key in source.values and plain(source.values[key]) != plain(value):
            raise LossyExport(
                f"{key} is {shown(plain(source.values[key]))}, but a {model.family.model_type} model of these sizes uses "
                f"{shown(plain(value))}",
                where=source.where,
            )
    for key, value in source.values.items():
        if key.startswith(front) and key not in expected:
            _check_other(source, model, key, plain(value))
    elsewhere = _OF_LAYERS.union(_BY_TENSORS.get(model.arch, ()))
    missing = [key for key in expected if key not in source.values and key.removeprefix(front) not in elsewhere]
    following = _following(model, expected) if missing else {}
    absent = []
    for key in missing:
        value, follows = plain(expected[key]), following.get(key.removeprefix(front), ABSENT)
        if follows is ABSENT:
            _check_assumed(source, model, key, value)
            absent.append(f"{key} ({shown(value)})")
        elif follows != value:
            raise _missing(source, model, key, f"llama.cpp then uses {shown(follows)}", value)
    listed = ", ".join(absent)
    return (f"the file does not set {listed}: the config gets the defaults of llama.cpp",) if listed else ()


def _check_other(source: GgufCheckpoint, model: ModelShape, key: str, value: Any) -> None:
    """Raise LossyExport for a key that may change what llama.cpp computes, and that no config has."""
    of_arch = key.removeprefix(f"{source.name}.")
    if of_arch in _OF_POSITIONS or value == _NEUTRAL.get(of_arch, ABSENT):
        return
    known = f"; import accepts only {shown(_NEUTRAL[of_arch])}" if of_arch in _NEUTRAL else ""
    raise LossyExport(
        f"{key} is {shown(value)}, which a {model.family.model_type} config cannot set{known}", where=source.where
    )


def _following(model: ModelShape, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that llama.cpp calculates from others, with their values."""
    sizes = model.counts
    head = sizes["hidden"] // sizes["heads"]
    following = {
        "vocab_size": sizes["vocabulary"],  # the tokenizer's size; llama.cpp does not load a different number of rows
        archs.HEAD_COUNT_KV: sizes["heads"], archs.KEY_LENGTH: head, archs.VALUE_LENGTH: head,
        archs.DIMENSION_COUNT: plain(expected.get(f"{model.arch}.{archs.KEY_LENGTH}")),
    }  # fmt: skip
    if model.arch in _EXPERTS_BY_SHARE:
        following[_EXPERT_WIDTH] = sizes["intermediate"] // max(1, sizes["used"])
        following[_SHARED_WIDTH] = sizes["intermediate"]
    return following


def _check_assumed(source: GgufCheckpoint, model: ModelShape, key: str, value: Any) -> None:
    """Raise LossyExport for a missing key, unless llama.cpp assumes this value."""
    of_arch = key.removeprefix(f"{source.name}.")
    assumed = _ASSUMED.get(of_arch, ())
    if of_arch == _GROUPS[1] and model.counts.get("groups", 1) > 1:
        assumed = (0,)
    if of_arch == "attention.scale":
        assumed = (1 / math.sqrt(model.counts["head_dim"]),)
    if of_arch == "expert_gating_func" and model.arch in _GATING:
        assumed = (_GATING[model.arch],)
    if value in assumed:
        return
    if assumed:
        raise _missing(source, model, key, f"llama.cpp then uses {shown(assumed[0])}", value)
    raise _missing(source, model, key, "the file has no other source for its value")


def _missing(source: GgufCheckpoint, model: ModelShape, key: str, why: str, value: Any = ABSENT) -> LossyExport:
    config = f", but a {model.family.model_type} model with these tensors uses {shown(value)}"
    return LossyExport(
        f"does not set {key}: {why}{'' if value is ABSENT else config}", where=source.where,
        try_=f"{command('ropetool', 'gguf', 'set', source.path, key)} VALUE -o NEW.gguf, with the value in "
        "the original config.json",
    )  # fmt: skip
