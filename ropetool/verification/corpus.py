"""The documents as ids of the target's tokenizer, and the check that all other tokenizers return the same ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from ropetool.errors import ConfigError
from ropetool.verification.scoring import TARGET, Corpus, Tokenizes
from ropetool.verification.texts import Document

PREFIX = "the leading special tokens"


def read_corpus(texts: Sequence[Document], runners: Mapping[str, Tokenizes], paths: Mapping[str, Path]) -> Corpus:
    """Return the documents as ids of the target's tokenizer.

    runners, paths: the tokenizer and the path of each role.
    Raises: ConfigError if the tokenizers of two roles return different ids.
    """
    target = runners[TARGET]
    tokens = [target.tokenize(document.text) for document in texts]
    for role, runner in runners.items():
        if role != TARGET:
            others = [runner.tokenize(document.text) for document in texts]
            names = [PREFIX, *(document.name for document in texts)]
            for name, ours, theirs in zip(names, [target.prefix, *tokens], [runner.prefix, *others], strict=True):
                refuse_other_ids(name, ours, theirs, paths[TARGET], paths[role])
    return Corpus(
        names=tuple(document.name for document in texts),
        tokens=tuple(np.array(ids, dtype=np.int64) for ids in tokens),
        byte_lengths=tuple(np.array(target.byte_lengths(document.text), dtype=np.int64) for document in texts),
        prefix=tuple(target.prefix),
        kinds=tuple(document.kind for document in texts),
    )


def refuse_other_ids(name: str, ours: Sequence[int], theirs: Sequence[int], target: Path, other: Path) -> None:
    """Raise ConfigError if the ids of two tokenizers for the text `name` differ. target, other: their paths."""
    if list(ours) == list(theirs):
        return
    pairs = enumerate(zip_longest(ours, theirs, fillvalue="nothing"))
    at, our, their = next((i, our, their) for i, (our, their) in pairs if our != their)
    raise ConfigError(
        f"the tokenizer does not match {target}: in {name}, token {at} is {their} instead of {our}; "
        "verify compares losses token by token",
        where=str(other),
    )
