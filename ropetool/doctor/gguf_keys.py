"""Rules about the keys and vectors of GGUF files: which of them llama.cpp reads, and which it ignores."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from difflib import get_close_matches

import numpy as np

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.doctor.cases import Case
from ropetool.doctor.findings import ERROR, NOTE, WARNING, Finding, misspelt
from ropetool.doctor.remedies import again, baked, with_llama3, without
from ropetool.files.gguf import Value, ValueType
from ropetool.rope.tables import TABLE_TOLERANCE, LayerRope
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import key_types, loading_rules

NEAR = 0.85  # similarity by difflib; allows one or two wrong letters
POSITIONS = re.compile(r"(rope\.|attention\.temperature_|context_length$)")  # after the name of an architecture
# Other loaders read these, or llama.cpp only prints them. A file that has them is correct.
HARMLESS = frozenset({archs.FINETUNED, archs.DIMENSION_COUNT_SWA, "rope.scaling.alpha"})
SAME = 1e-3  # relative, because converters write factors with few digits
SHORT = 8192  # tokens: the longest context that models of base 10000 without scaling were trained on
# Llama 3.1 to 3.3 and models built from them. No other family has this base, context and vocabulary together.
LLAMA_3 = {"base": 500000, "context": 131072, "vocabulary": 128256, "trained": 8192}
NAME_OF_LLAMA_3 = re.compile(r"llama[-_ .]?3[._-]?([123])\b", re.IGNORECASE)


def rope_freqs_missing(case: Case) -> Iterator[Finding]:
    checkpoint, entry = case.gguf, case.full
    arch = case.arch
    if checkpoint is None or entry is None or arch is None or case.rope is None or not checkpoint.tensors:
        return
    if archs.ROPE_FREQS not in arch.loads("none") or not arch.vectors or entry.rope_type != "default":
        return
    is_like_llama_3 = (
        entry.rope_theta == LLAMA_3["base"] and case.rope.max_position_embeddings >= LLAMA_3["context"]
        and _vocabulary(checkpoint) == LLAMA_3["vocabulary"]
    )  # fmt: skip
    if not is_like_llama_3:
        return
    texts = (_text(checkpoint, key) for key in checkpoint.values if key.startswith("general."))
    version = next(filter(None, map(NAME_OF_LLAMA_3.search, texts)), None)
    sentence = (
        f"{archs.ROPE_FREQS} is missing: the {'name, ' if version else ''}base, context and vocabulary match Llama 3.1, which divides slow "
        "pairs by 8, or Llama 3.2, by 32"
    )
    factor = (32.0 if version[1] == "2" else 8.0) if version else 0.0
    fix = with_llama3(case, factor, LLAMA_3["trained"]) if version else ""
    step = "export the model again with ropetool export, or with a converter of July 2024 or later"
    yield Finding("rope-freqs", ERROR if version else WARNING, sentence, fix or step, archs.ROPE_FREQS)


def _vocabulary(checkpoint: GgufCheckpoint) -> int:
    tokens = checkpoint.values.get("tokenizer.ggml.tokens")
    return tokens.count if tokens is not None and tokens.type is ValueType.ARR else 0


def _text(checkpoint: GgufCheckpoint, key: str) -> str:
    value = checkpoint.values[key]
    return str(value.decode()) if value.type is ValueType.STR and len(value.raw) < 4096 else ""


def unread_key(case: Case) -> Iterator[Finding]:
    """Yield rope keys that llama.cpp does not read for this architecture, unless they set the default value."""
    checkpoint, rope = case.gguf, case.rope
    arch = case.arch
    if checkpoint is None or arch is None or rope is None or not arch.layout:
        return
    read = archs.reads(arch.name) | HARMLESS | {archs.YARN_ATTN_FACTOR} | loading_rules.own(arch.name)
    for key, value in checkpoint.values.items():
        prefix, _, suffix = key.partition(".")
        if not POSITIONS.match(suffix) or prefix in ("general", "tokenizer", "ropetool"):
            continue
        if prefix != arch.name:
            sentence = f"{key} applies only to {prefix} files, but this file is {arch.name}"
            yield Finding("unread-key", WARNING, sentence, f"rename it to {arch.name}.{suffix}, or remove it", key)
        elif suffix not in read and not _is_default(arch, suffix, value):
            similar = [] if suffix in archs.TYPES else get_close_matches(suffix, sorted(read), 1, NEAR)
            sentence = f"llama.cpp does not read {key} for {arch.name}, so it has no effect"
            hint = f"did you mean {arch.name}.{similar[0]}?" if similar else ""
            yield Finding("unread-key", WARNING, sentence, hint, key)
    yield from _misspelt(checkpoint, arch.name, read)


def _misspelt(checkpoint: GgufCheckpoint, arch: str, read: frozenset[str]) -> Iterator[Finding]:
    """Yield keys of the architecture that resemble a key of llama.cpp or a converter that the file lacks."""
    known = [key for key in key_types.known(arch) if key.startswith(f"{arch}.") and key not in checkpoint.values]
    for key in checkpoint.values:
        suffix = key.removeprefix(f"{arch}.")
        if suffix == key or POSITIONS.match(suffix) or key_types.loaded(key, arch) or key_types.written(key, arch):
            continue
        if suffix not in read and (similar := get_close_matches(key, known, 1, NEAR)):
            yield misspelt(key, similar[0], key)


def _is_default(arch: archs.Architecture, suffix: str, value: Value) -> bool:
    """Return whether a key sets the value that llama.cpp uses without the key."""
    default = (arch.fixed_base or None) if suffix == archs.FREQ_BASE else archs.DEFAULTS.get(suffix)
    return default is not None and value.type is ValueType.F32 and math.isclose(value.number, default)


def lost_factor(case: Case) -> Iterator[Finding]:
    """Yield an attention factor that llama.cpp ignores for this architecture, under the key that converters write."""
    checkpoint, entry, rope = case.gguf, case.full, case.rope
    arch = case.arch
    if checkpoint is None or entry is None or arch is None or rope is None or archs.YARN_ATTN_FACTOR in arch.keys:
        return
    key = f"{arch.name}.{archs.YARN_ATTN_FACTOR}"
    value = checkpoint.values.get(key)
    if value is None or value.type is not ValueType.F32 or entry.rope_type != "yarn":
        return
    configured = value.number
    if configured > 0 and not math.isclose(configured, entry.attention_factor, rel_tol=SAME):
        sentence = (
            f"{key} sets an attention factor of {configured:.6g}, which llama.cpp ignores: it multiplies cos and sin by "
            f"{entry.attention_factor:.6g}, so scores are {(entry.attention_factor / configured) ** 2:.4g} times as large as configured"
        )
        as_written = float(str(np.float32(configured)))  # the fewest digits that give the same float32
        yield Finding(
            "attention-factor", ERROR, sentence, _with_factor(case, entry, as_written), key, (checkpoint.runtime,)
        )


def _with_factor(case: Case, entry: LayerRope, factor: float) -> str:
    """Return the command that writes this factor under keys that llama.cpp reads, or an empty string."""
    if case.path is None or case.rope is None or entry.table is None:
        return ""
    target = case.rope.with_entry(names.FULL_ATTENTION, entry.with_factor(factor))
    return again(case, target.entries[names.FULL_ATTENTION], target)


def window_unread(case: Case) -> Iterator[Finding]:
    checkpoint, rope = case.gguf, case.rope
    if checkpoint is None or rope is None or any(entry.sliding_window for entry in rope.entries.values()):
        return
    key = f"{checkpoint.name}.{archs.SLIDING_WINDOW}"
    value = checkpoint.values.get(key)
    window = value.decode() if value is not None and value.type is ValueType.U32 else 0
    if isinstance(window, int) and 0 < window < rope.max_position_embeddings:
        sentence = f"llama.cpp ignores {key} {window} and attends to the whole context of {rope.max_position_embeddings} tokens"
        step = f"keep texts within {window} tokens in llama.cpp"
        yield Finding("sliding-window", WARNING, sentence, step, key, (checkpoint.runtime,))


def base_missing(case: Case) -> Iterator[Finding]:
    checkpoint, entry, rope = case.gguf, case.full, case.rope
    arch = case.arch
    if checkpoint is None or entry is None or arch is None or rope is None or arch.fixed_base:
        return
    key = f"{arch.name}.{arch.base_key}"
    if key in checkpoint.values:
        return
    context = rope.max_position_embeddings
    sentence = f"{key} is missing, so llama.cpp uses 10000"
    if context > SHORT:
        sentence += f", a base that few models of {context} tokens were trained with"
    yield Finding(
        "base-missing", WARNING if context > SHORT else NOTE, sentence, f"set {key} to the source's rope_theta", key
    )


def double_scaling(case: Case) -> Iterator[Finding]:
    checkpoint, entry = case.gguf, case.full
    if checkpoint is not None and entry is not None and entry.rope_type == "longrope" and entry.factor not in (None, 1):
        key = f"{checkpoint.name}.{archs.FACTOR}"
        sentence = (
            f"{key} is {entry.factor:g} in a file with longrope lists: llama.cpp also divides every frequency by it"
        )
        yield Finding("double-scaling", ERROR, sentence, without(case, key), key, (checkpoint.runtime,))


def rotation_off(case: Case) -> Iterator[Finding]:
    checkpoint, rope = case.gguf, case.rope
    arch = case.arch
    if checkpoint is None or rope is None or arch is None or not arch.layout or archs.FINETUNED not in arch.keys:
        return
    key = f"{arch.name}.{archs.FINETUNED}"
    if key in checkpoint.values and all(entry.table is None for entry in rope.entries.values()):
        sentence = f"{key} is false, so llama.cpp does not rotate {arch.name}: right only for a model without positions"
        yield Finding("rotation-off", WARNING, sentence, without(case, key), key, (checkpoint.runtime,))


def context_shift(case: Case) -> Iterator[Finding]:
    checkpoint, entry = case.gguf, case.full
    if checkpoint is None or entry is None or math.isclose(entry.attention_factor, 1.0, rel_tol=TABLE_TOLERANCE):
        return
    sentence = (
        f"the attention factor is {entry.attention_factor:.6g}, and llama.cpp multiplies cached keys by it again at every context "
        "shift (--context-shift, --cache-reuse)"
    )
    yield Finding("context-shift", NOTE, sentence, baked(case, "shift-safe"), runtimes=(checkpoint.runtime,))


def allocated_context(case: Case) -> Iterator[Finding]:
    checkpoint, entry = case.gguf, case.full
    if checkpoint is None or entry is None or entry.table is None or len(entry.table.regimes) < 2:
        return
    limit = entry.table.regimes[0].up_to
    sentence = (
        f"llama.cpp selects one of two tables by the allocated context, not by the text: above {limit} allocated tokens, short texts "
        "get the long table"
    )
    yield Finding(
        "allocated-context",
        NOTE,
        sentence,
        f"pass -c {limit} to llama.cpp for texts up to {limit} tokens",
        runtimes=(checkpoint.runtime,),
    )
