"""The parts of a tokenizer.json that say how text becomes tokens, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Part = Mapping[str, Any]


@dataclass(frozen=True)
class Core:
    """The model with what goes before and behind it. notes: what the file does not hold, and how it was made up."""

    model: Part
    decoder: Part
    normalizer: Part | None = None
    pre_tokenizer: Part | None = None
    post_processor: Part | None = None
    notes: tuple[str, ...] = ()


def sequence(kind: str, parts: list[Part]) -> Part | None:
    """Return the parts as one, None where there are none. kind: what a Sequence calls its list."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return {"type": "Sequence", kind: parts}


def bpe(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], **settings: Any) -> Part:
    """Return a BPE model with all that tokenizers writes of one."""
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **settings, "vocab": dict(vocabulary),
        "merges": merges,
    }  # fmt: skip
