"""Correct numbers that the converter reads from a different key, or writes in a form that llama.cpp does not use.

Each correction has a note.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.tensor_bytes import StoredTensor, read_bytes
from ropetool.errors import LossyExport
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.gguf_export.converter.reading import listed
from ropetool.gguf_model.shapes.reading import EPSILONS
from ropetool.rope.tables import is_number
from ropetool.runtimes.llama_cpp import architectures as archs

_EPS_KEYS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon", "norm_eps")
_NORM = re.compile(r".*layers\.(\d+)\.self_attn\.([qk])_norm\.(weight|bias)")
ROUNDING = 1e-6  # relative error of float32, the type in the file
# How llama.cpp differs from transformers, by architecture. No key changes this.
DIFFERENCES = {
    "chameleon": "llama.cpp suppresses image tokens only in the first row of a batch (chameleon.cpp:198)",
    "gemma3n": "llama.cpp divides by n - 1 for the standard deviation of n channels in sparse layers (gemma3n.cpp:395)",
    "hrm_text": "llama.cpp always attends causally; it does not compute prefix_lm, full attention in the prompt (hrm-text.cpp:11)",
    "hy_v4": "llama.cpp and vLLM rotate pairs of neighbouring channels, transformers 5.23 pairs half a head apart",
    "minimax-m3": "llama.cpp selects blocks of keys only with flash attention, and otherwise attends to all keys "
    "(minimax-m3.cpp:233); ropetool compares logits without flash attention",
    "qwen4exp": "beyond indexer_budget tokens llama.cpp attends to up to indexer_compress_ratio - 1 extra tokens "
    "(qwen4exp.cpp:688)",
}


def known_differences(file: GgufCheckpoint) -> tuple[str, ...]:
    """Return a note on how llama.cpp differs from transformers for every file of this architecture."""
    return (DIFFERENCES[file.name],) if file.name in DIFFERENCES else ()


def check_norms(file: GgufCheckpoint, checkpoint: HfCheckpoint) -> None:
    """Raise LossyExport if heads have different norms, but the converter gave all heads the first norm
    (chameleon.py:58).
    """
    for name, tensor in checkpoint.stored.items():
        match = _NORM.fullmatch(name)
        if match is None or len(tensor.shape) != 2 or _rows(tensor) == 1:
            continue
        written = file.stored.get(f"blk.{match[1]}.attn_{match[2]}_norm.{match[3]}")
        if written is not None and _rows(written) == 1:
            raise LossyExport(
                f"llama.cpp's converter writes the norm of the first head of {name} for all heads",
                where=checkpoint.where,
            )


def _rows(tensor: StoredTensor) -> int:
    """Return the number of different rows in a matrix."""
    raw, count = read_bytes(tensor), tensor.shape[0]
    size = len(raw) // count
    return len({raw[row * size : (row + 1) * size] for row in range(count)})


def with_heads(file: GgufCheckpoint) -> tuple[GgufCheckpoint, tuple[str, ...]]:
    """Return a converter's file with a number of heads also in its first layer, if this layer keeps a state, and notes.

    The loader calculates the head size of all layers from the heads of the first layer (llama-model.cpp:1437). It
    identifies layers with a state only by their key heads.
    """
    key, heads = f"{file.name}.{archs.HEAD_COUNT}", listed(file, archs.HEAD_COUNT)
    count = max(heads, default=0)
    if file.name not in archs.RECURRENT_WITHOUT_HEADS or not count or heads[0] or {*heads} != {0, count}:
        return file, ()
    note = f"ropetool set {key} to {count}: llama.cpp's converter wrote 0 for layers with a state, and llama.cpp would not rotate"
    return file.after(Patch(set={key: Value.of(ValueType.U32, count)})), (note,)


def corrected(file: GgufCheckpoint, config: Mapping[str, Any]) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return corrected keys for numbers of a converter's file that differ from the config, and notes."""
    epsilons = {key: config[key] for key in _EPS_KEYS if is_number(config.get(key))}
    if len({*epsilons.values()}) != 1:
        return {}, ()
    key, number = next(iter(epsilons.items()))
    corrections: dict[str, Value] = {}
    notes: list[str] = []
    needed = f"{file.name}.{EPSILONS['layer' if file.name in archs.LAYER_NORMS else 'rms']}"
    if needed not in file.values:
        corrections[needed] = Value.of(ValueType.F32, number)
        notes.append(
            f"ropetool set {needed} to {number:g}, {key} in {names.CONFIG_JSON}; llama.cpp's converter wrote a different key"
        )
    for name in (f"{file.name}.{suffix}" for suffix in EPSILONS.values()):
        value = file.values.get(name)
        if value is None or value.type is not ValueType.F32:
            continue
        written = float(str(value.decode()))
        if not math.isclose(written, number, rel_tol=ROUNDING):
            corrections[name] = Value.of(ValueType.F32, number)
            notes.append(
                f"ropetool set {name} to {number:g}, {key} in {names.CONFIG_JSON}; llama.cpp's converter wrote {written:g}"
            )
    return corrections, tuple(notes)
