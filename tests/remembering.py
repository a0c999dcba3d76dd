"""What tests share of the package's long texts: the ids of each tokenizer, which take longer than the rows of a tiny model."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from ropetool.verification.runners.torch_tokenizer import TorchTokenizer

LONG = 2000  # characters of a text that is worth it


def remember_ids(patch: pytest.MonkeyPatch) -> None:
    """Compute the ids and byte lengths of a long text once for all tokenizers that are the same."""
    for name in ("tokenize", "byte_lengths"):
        patch.setattr(TorchTokenizer, name, _remembered(getattr(TorchTokenizer, name)))


def _remembered(compute: Callable[[Any, str], list[int]]) -> Callable[[Any, str], list[int]]:
    known: dict[tuple[bytes, bytes], array[int]] = {}

    def remembered(self: Any, text: str) -> list[int]:
        if len(text) < LONG or not getattr(self._tokenizer, "is_fast", False):
            return compute(self, text)
        key = _identity(self), hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if key not in known:
            known[key] = array("l", compute(self, text))
        return known[key].tolist()

    return remembered


def _identity(reader: Any) -> bytes:
    """Return a hash of the loaded tokenizer, all of it."""
    if not hasattr(reader, "identity"):
        tokenizer = reader._tokenizer
        state = f"{type(tokenizer)} {tokenizer.split_special_tokens} {tokenizer.backend_tokenizer.to_str()}"
        reader.identity = hashlib.sha256(state.encode()).digest()
    found: bytes = reader.identity
    return found
