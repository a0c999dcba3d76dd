"""Ids as text and back by a checkpoint's own tokenizer, for servers that take and give text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ropetool.verification.runners.server_runner import TextTokenizer


class TokenizerWords:
    """The words of a tokenizer. vocabulary: how many ids there are."""

    def __init__(self, reader: TextTokenizer, vocabulary: int) -> None:
        self._reader, self._vocabulary = reader, vocabulary
        self.prefix = reader.prefix

    def text_of(self, ids: Sequence[int]) -> str | None:
        """Return the text that is read as these ids, None where none is."""
        text = self._reader.detokenize(ids)
        return text if self._reader.tokenize(text) == [int(token) for token in ids] else None

    def ids_of(self, word: str) -> tuple[int, ...]:
        """Return the ids that are written so."""
        return self._by_text.get(word, ())

    @cached_property
    def _by_text(self) -> dict[str, tuple[int, ...]]:
        """Each word as it is written behind another one: alone, some tokenizers leave out the space in front."""
        found: dict[str, tuple[int, ...]] = {}
        before = self._reader.tokenize("a")[-1:]
        begun = len(self._reader.detokenize(before))
        for token in range(self._vocabulary):
            word = self._reader.detokenize([*before, token])[begun:]
            found[word] = (*found.get(word, ()), token)
        return found
