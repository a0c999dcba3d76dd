"""The components of a tokenizer.json that turn text into tokens, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Component = Mapping[str, Any]


@dataclass(frozen=True)
class Core:
    """The components of a tokenizer: the model, and the steps before and after it.

    notes: values that the GGUF file does not contain, and their replacements.
    """

    model: Component
    decoder: Component
    normalizer: Component | None = None
    pre_tokenizer: Component | None = None
    post_processor: Component | None = None
    notes: tuple[str, ...] = ()


def sequence(list_key: str, parts: list[Component]) -> Component | None:
    """Return the components as one, or None for no components. list_key: the name of the list in a Sequence."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return {"type": "Sequence", list_key: parts}


def bpe(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], **settings: Any) -> Component:
    """Return a BPE model with all keys that the tokenizers library writes."""
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **settings, "vocab": dict(vocabulary),
        "merges": merges,
    }  # fmt: skip
