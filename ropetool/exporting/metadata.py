"""The keys of a GGUF file about the model itself: general.* from the model card and the folder, sizes from the config.

Rotary keys come from encodings_gguf, those of the tokenizer from tokenizer.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.errors import ConfigError, RopetoolError
from ropetool.exporting.sizes import Sizes
from ropetool.exporting.tensors import Layout
from ropetool.formats.gguf import Value, ValueType
from ropetool.formats.hf import read_optional_object
from ropetool.runtimes import llama_cpp_archs as keys

if TYPE_CHECKING:
    from gguf import GGUFWriter, Metadata

FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32}  # llama_ftype in llama.h; readers print it, none decides by it
MAX_CARD = 4 << 20  # bytes of README.md; the largest known have a tenth of it
MAX_FRONT_MATTER = 128 << 10  # bytes, which PyYAML reads in a second
CARD, GENERATION_CONFIG = "README.md", "generation_config.json"


def model_values(s: Sizes, layout: Layout) -> dict[str, Value]:
    """Return the sizes of the model under its architecture's name; none of its rotary keys but how many channels."""
    stated = {
        keys.BLOCK_COUNT: s.layers, keys.EMBEDDING_LENGTH: s.hidden, "feed_forward_length": s.intermediate,
        keys.HEAD_COUNT: s.heads, keys.HEAD_COUNT_KV: s.kv_heads, keys.KEY_LENGTH: s.head_dim,
        "attention.value_length": s.head_dim, keys.DIMENSION_COUNT: s.head_dim, "vocab_size": s.vocabulary,
    }  # fmt: skip
    if s.experts:
        stated |= {"expert_count": s.experts, "expert_used_count": s.experts_used}
    values = {f"{s.arch}.{key}": Value.of(ValueType.U32, number) for key, number in stated.items()}
    values[f"{s.arch}.attention.layer_norm_rms_epsilon"] = Value.of(ValueType.F32, s.rms_eps)
    values["general.file_type"] = Value.of(ValueType.U32, FILE_TYPES[layout.outtype])
    return values


def general_values(source: Path, s: Sizes, layout: Layout) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the general.* keys, and notes.

    They follow the gguf package's rules, which are the stock converter's: model card, then config.json, then the name
    of the folder. A card that cannot be read is a note, and the rest is taken without it.
    """
    import gguf

    source = source.resolve()  # its name counts, and "." has none
    total = sum(math.prod(placed.info.shape) for placed in layout.tensors)
    label = _size_label(s, layout, total)
    # What authors' files do to the package: no YAML, no UTF-8, a list where it wants text.
    broken = (
        gguf.metadata.yaml.YAMLError, RopetoolError, OSError, TypeError, ValueError, LookupError, AttributeError,
        RecursionError,
    )  # fmt: skip
    try:
        _check_bounds(source)
        known = gguf.Metadata.load(None, source, None, total)
        return _general(known, source, label, s.arch), ()
    except broken as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
    known = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), {}, {}, source, total)
    note = f"name, licence and the like come from the folder alone, not from {CARD} and {GENERATION_CONFIG}: {reason}"
    return _general(known, source, label, s.arch), (note,)


def _general(known: Metadata, source: Path, size_label: str, arch: str) -> dict[str, Value]:
    import gguf

    known.name = known.name or source.name
    known.size_label = known.size_label or size_label

    def fill(writer: GGUFWriter) -> None:
        writer.add_type(gguf.GGUFType.MODEL)
        known.set_gguf_meta_model(writer)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)

    return collected(arch, fill)


def collected(arch: str, fill: Callable[[GGUFWriter], None]) -> dict[str, Value]:
    """Return the keys that the gguf package's writer is given, which knows their spelling and types."""
    import gguf

    writer = gguf.GGUFWriter(None, arch)
    fill(writer)
    return {key: _value(ValueType(entry.type), entry.value) for key, entry in writer.kv_data[0].items()}


def _value(kind: ValueType, value: Any) -> Value:
    if kind is ValueType.ARR:  # names of tags, languages and templates: text, all of them
        return Value.array(ValueType.STR, map(_text, value))
    return Value.of(kind, _text(value) if kind is ValueType.STR else value)


def _text(value: Any) -> str:
    """Return a word of the model card as text; YAML makes numbers and dates of what looks like them."""
    if isinstance(value, (list, dict)):
        raise ConfigError(f"{value!r} stands where text belongs")
    return str(value)


def _check_bounds(source: Path) -> None:
    """Refuse what the package would read without bounds, or be kept busy by for minutes."""
    read_optional_object(source / GENERATION_CONFIG)
    card = source / CARD
    if not card.is_file():
        return
    with card.open("rb") as file:
        head = file.read(MAX_FRONT_MATTER)
    front = head.partition(b"\n---")[0] if head.startswith(b"---") else b""
    if card.stat().st_size > MAX_CARD or len(front) == MAX_FRONT_MATTER:
        raise ConfigError(f"it has more than {MAX_CARD:,} bytes, or {MAX_FRONT_MATTER:,} of front matter", where=CARD)
    if b"<<" in front:
        raise ConfigError("its front matter merges mappings, which can grow without end", where=CARD)


def _size_label(s: Sizes, layout: Layout, total: int) -> str:
    """Return the size in words, as 8x7B for experts: what all tokens share, and one expert."""
    import gguf

    expert = sum(math.prod(p.info.shape) // s.experts for p in layout.tensors if len(p.info.shape) == 3)
    shared = sum(math.prod(p.info.shape) for p in layout.tensors if len(p.info.shape) < 3)
    label: str = gguf.size_label(total, shared, expert, s.experts)
    return label
