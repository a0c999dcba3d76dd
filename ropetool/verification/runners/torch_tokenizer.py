"""The tokenizer of a Hugging Face directory. It needs no weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ropetool.errors import CheckpointError
from ropetool.verification.runners.torch_library import library, quiet


class TorchTokenizer:
    """A tokenizer that transformers loads.

    options: keyword arguments for `from_pretrained`.
    prefix: the ids of the special tokens in front of a text.

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
        return self._ids(text, special=False)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        return str(self._tokenizer.decode(list(map(int, ids)), clean_up_tokenization_spaces=False))

    def byte_lengths(self, text: str) -> list[int]:
        """Return the number of bytes of the text in each token. Their sum is the size of the text in UTF-8.

        A character in several tokens counts as part of the last one.
        """
        fast = self._tokenizer.is_fast
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=fast, verbose=False)
        if "offset_mapping" not in encoded:  # a tokenizer in Python knows no offsets: all tokens alike
            ends = np.linspace(0, len(text), len(encoded["input_ids"]) + 1)[1:].astype(np.int64)
        else:
            offsets = encoded["offset_mapping"]
            last = {end: index for index, (_, end) in enumerate(offsets)}
            ends = np.array([end if last[end] == i else start for i, (start, end) in enumerate(offsets)], np.int64)
        if not len(ends):
            return []
        ends = np.maximum.accumulate(ends)
        ends[-1] = len(text)
        sizes = np.cumsum([0, *(len(character.encode()) for character in text)])
        return [int(size) for size in np.diff(sizes[ends], prepend=0)]

    def _ids(self, text: str, special: bool) -> list[int]:
        # verbose warns of texts above the length that the tokenizer states, which every long text is.
        ids = self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        return [int(token) for token in ids]

    def _prefix(self) -> tuple[int, ...]:
        """Return the special tokens in front of a text. Tokenizes a text, because configs are often wrong about BOS."""
        plain, special = self._ids("a", special=False), self._ids("a", special=True)
        starts = (at for at in range(len(special)) if special[at : at + len(plain)] == plain)
        return tuple(special[: next(starts, 0)])


@contextmanager
def reading(transformers: Any, path: Path) -> Iterator[None]:
    """Raise CheckpointError with one sentence instead of any error that transformers raises while it loads a checkpoint."""
    try:
        with quiet(transformers):
            yield
    except Exception as error:  # whatever it is: errors of validators and of libraries below have classes of their own
        who = "tokenizers" if type(error) is Exception else "transformers"  # it raises nothing more special
        sentence = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{who} cannot load the checkpoint: {sentence:.300}", where=str(path)) from error
