"""The tokenizer of a Hugging Face directory: texts as ids and back. Needs no weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ropetool.errors import CheckpointError
from ropetool.verification.runners.torch_library import library, quiet


class TorchTokenizer:
    """A tokenizer as transformers reads it. options: of its loading. prefix: the ids in front of a text.

    Raises: MissingDependency without transformers; CheckpointError for files that it cannot read.
    """

    def __init__(self, path: Path, options: Mapping[str, Any] | None = None) -> None:
        self._transformers = library("transformers")
        with reading(self._transformers, path):
            self._tokenizer = self._transformers.AutoTokenizer.from_pretrained(
                str(path), local_files_only=True, trust_remote_code=False, **(options or {})
            )
            self.prefix = self._prefix()

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        with quiet(self._transformers):
            return self._ids(text, special=False)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens written out."""
        with quiet(self._transformers):
            return str(self._tokenizer.decode(list(map(int, ids)), clean_up_tokenization_spaces=False))

    def byte_lengths(self, text: str) -> list[int]:
        """Return how many bytes of the text each of its tokens stands for; they sum to its size in UTF-8.

        A character that is spread over several tokens counts with the last of them.
        """
        with quiet(self._transformers):
            found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=self._tokenizer.is_fast)
        if "offset_mapping" not in found:  # a tokenizer in Python knows no offsets: all tokens alike
            ends = np.linspace(0, len(text), len(found["input_ids"]) + 1)[1:].astype(np.int64)
        else:
            offsets = found["offset_mapping"]
            last = {end: index for index, (_, end) in enumerate(offsets)}
            ends = np.array([end if last[end] == i else start for i, (start, end) in enumerate(offsets)], np.int64)
        if not len(ends):
            return []
        ends = np.maximum.accumulate(ends)
        ends[-1] = len(text)
        sizes = np.cumsum([0, *(len(character.encode()) for character in text)])
        return [int(size) for size in np.diff(sizes[ends], prepend=0)]

    def _ids(self, text: str, special: bool) -> list[int]:
        return [int(token) for token in self._tokenizer(text, add_special_tokens=special)["input_ids"]]

    def _prefix(self) -> tuple[int, ...]:
        """Return the special tokens in front of a text, by tokenizing one: what configs say of BOS is often wrong."""
        plain, special = self._ids("a", special=False), self._ids("a", special=True)
        starts = (at for at in range(len(special)) if special[at : at + len(plain)] == plain)
        return tuple(special[: next(starts, 0)])


@contextmanager
def reading(transformers: Any, path: Path) -> Iterator[None]:
    """Turn what transformers raises for a checkpoint that it cannot read into one sentence."""
    try:
        with quiet(transformers):
            yield
    except Exception as error:  # whatever it is: errors of validators and of libraries below have classes of their own
        who = "tokenizers" if type(error) is Exception else "transformers"  # it raises nothing more special
        sentence = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{who} cannot load the checkpoint: {sentence:.300}", where=str(path)) from error
