"""Conversion between ids and text with a checkpoint's tokenizer, for servers whose interface uses text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ropetool.verification.runners.server_runner import TextTokenizer


class TokenizerWords:
    """The words of a tokenizer. vocabulary: the number of its ids."""

    def __init__(self, reader: TextTokenizer, vocabulary: int) -> None:
        self._reader, self._vocabulary = reader, vocabulary
        self.prefix = reader.prefix

    def text_of(self, ids: Sequence[int]) -> str | None:
        """Return the text that the tokenizer converts to exactly these ids, or None without such a text."""
        text = self._reader.detokenize(ids)
        return text if self._reader.tokenize(text) == [int(token) for token in ids] else None

    def ids_of(self, word: str) -> tuple[int, ...]:
        """Return the ids whose text is this word."""
        return self._by_text.get(word, ())

    @cached_property
    def _by_text(self) -> dict[str, tuple[int, ...]]:
        """The ids of each word by its text after another word. Some tokenizers drop a leading space at the beginning."""
        by_text: dict[str, tuple[int, ...]] = {}
        before = self._reader.tokenize("a")[-1:]
        begun = len(self._reader.detokenize(before))
        for token in range(self._vocabulary):
            word = self._reader.detokenize([*before, token])[begun:]
            by_text[word] = (*by_text.get(word, ()), token)
        return by_text
