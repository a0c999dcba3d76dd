"""A GGUF run by llama.cpp: tokens in, losses of the last tokens out.

Holds the logits of one chunk at a time. Knows nothing of documents, segments or verdicts.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ropetool.errors import CheckpointError, ConfigError
from ropetool.formats.gguf import GgufHeader, read_shards
from ropetool.runtimes import llama_cpp
from ropetool.runtimes.base import GgufView, NotKnown, Refuses
from ropetool.spec import Array
from ropetool.verification.llama_library import (
    CHUNK_TOKENS,
    LlamaModel,
    Logits,
    Tokens,
    free,
    library,
    load,
    tokens_of,
)  # fmt: skip

CACHE_TYPES = {"auto": "F32", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class LlamaRunner:
    """A GGUF of any quantisation; its vocabulary is read at once, the weights when the first losses are asked for.

    device: cpu, auto, or a GPU's name; auto takes a GPU where llama.cpp was built for one. dtype: the type of the cache, float32 for auto.
    context_length: tokens that every context is made for. Without it a context is as long as the rows, which
    matters where the file holds two lists of frequencies: llama.cpp chooses by the size of the context.

    Raises: MissingDependency without llama-cpp-python; ConfigError for a device or dtype that is not there;
    CheckpointError for a file that llama.cpp refuses, or that would abort the process.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        report: Callable[[str], None] | None = None,
        context_length: int | None = None,
        flash_attention: bool = False,
    ) -> None:
        self._library = lib = library()
        self._gpu = _is_gpu(lib, device)
        if dtype not in CACHE_TYPES:
            raise ConfigError(f"{dtype!r} is not one of {', '.join(CACHE_TYPES)}", where="--dtype")
        self._cache = CACHE_TYPES[dtype]
        self._context_length, self._flash_attention = context_length, flash_attention
        headers = _checked(path)
        self.path, self._weights = headers[0].path, _weight_type(headers)
        self._model: LlamaModel | None = None
        vocabulary = load(lib, self.path, gpu=False, vocabulary_only=True)
        weakref.finalize(self, free, lib, vocabulary)
        self._vocabulary = lib.llama_model_get_vocab(vocabulary)
        bos = int(lib.llama_vocab_bos(self._vocabulary))
        self.prefix = (bos,) if lib.llama_vocab_get_add_bos(self._vocabulary) and bos >= 0 else ()

    @property
    def description(self) -> str:
        """The library, device, weight type and cache type, for the record."""
        device = "GPU" if self._gpu else "cpu"
        attention = ", flash attention" if self._flash_attention else ""
        return f"llama-cpp-python {self._library.__version__}, {device}, {self._weights} weights, {self._cache} cache{attention}"

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without any in front or behind.

        Raises: CheckpointError if the file has no vocabulary.
        """
        if self._library.llama_vocab_type(self._vocabulary) == self._library.LLAMA_VOCAB_TYPE_NONE:
            raise CheckpointError("it has no vocabulary, so no text can be read", where=str(self.path))
        return tokens_of(self._library, self._vocabulary, text)

    def losses(self, rows: Sequence[Sequence[int]], scored: int, done: Callable[[int], None] | None = None) -> Array:
        """Return the loss of each of the last `scored` tokens of every row, in float64.

        `done` is told after each row how many tokens it had.

        Shapes: rows of one length, over `scored` -> (rows, scored). Units: nats.
        Raises: ConfigError if a context of that length does not fit into memory; CheckpointError as for loading.
        """
        ids = np.array(rows, dtype=np.int64)
        model = self._open(ids, min(scored, CHUNK_TOKENS))
        result = np.empty((len(ids), scored))
        for row, found in zip(ids, result, strict=True):
            first = len(row) - scored - 1
            for start, logits in model.logits(row, first, len(row) - 1):
                targets = row[start + 1 : start + 1 + len(logits)]
                found[start - first : start - first + len(logits)] = _cross_entropy(logits, targets)
            if done is not None:
                done(row.size)
        return result

    def logits(self, ids: Sequence[int]) -> Logits:
        """Return the logits after every token of a row.

        Shapes: (tokens,) -> (tokens, vocabulary). Raises: as `losses`.
        """
        row = np.array(ids, dtype=np.int64)
        model = self._open(row[None], CHUNK_TOKENS)
        return np.concatenate([piece.copy() for _, piece in model.logits(row, 0, row.size)])

    def close(self) -> None:
        """Free the model."""
        if self._model is not None:
            self._model.close()
        self._model = None

    def _open(self, ids: Tokens, outputs: int) -> LlamaModel:
        """Return the model with a context for these rows. Raises: CheckpointError if a token has no embedding."""
        if self._model is None:
            self._model = LlamaModel(
                self._library, self.path, gpu=self._gpu, cache=self._cache, flash_attention=self._flash_attention
            )
        if ids.max() >= self._model.vocabulary_size:
            raise CheckpointError(
                f"there is no token {ids.max()}; the vocabulary has {self._model.vocabulary_size}", where=str(self.path)
            )
        # llama.cpp pads a context to 256 tokens, and aborts where a batch is not allowed even one token per sequence.
        self._model.open(max(self._context_length or 0, ids.shape[1], 256), outputs)
        return self._model


def _checked(path: Path) -> tuple[GgufHeader, ...]:
    """Return the headers of the model's files.

    Raises: CheckpointError for a broken file, and one of which is known that llama.cpp would abort the process.
    """
    headers = read_shards(path)
    try:
        llama_cpp.decode(GgufView.of(headers))
    except NotKnown:
        pass  # a newer llama.cpp may well run it
    except Refuses as refusal:
        raise CheckpointError(f"llama.cpp does not load it: {refusal}", where=str(path)) from None
    return headers


def _weight_type(headers: tuple[GgufHeader, ...]) -> str:
    """Return the tensor type that most bytes of the model have."""
    sizes: Counter[str] = Counter()
    for tensor in (tensor for header in headers for tensor in header.tensors):
        sizes[tensor.type_name] += tensor.nbytes
    return max(sizes, key=lambda name: sizes[name], default="no")


def _is_gpu(lib: Any, device: str) -> bool:
    """Return whether layers go to a GPU; llama.cpp chooses which."""
    if device == "cpu":
        return False
    offloads = bool(lib.llama_supports_gpu_offload())
    if device != "auto" and not offloads:
        raise ConfigError(
            f"{device} was asked for, and this llama.cpp is built for the CPU alone", where="--device",
            try_="--device cpu",
        )  # fmt: skip
    return offloads


def _cross_entropy(logits: Logits, targets: Tokens) -> Array:
    """Return the loss of each target, in float64 row by row.

    Shapes: logits (tokens, vocabulary), targets (tokens,) -> (tokens,).
    """
    found = np.empty(len(targets))
    for index, (row, target) in enumerate(zip(logits, targets, strict=True)):
        wide = row.astype(np.float64)
        top = wide.max()
        found[index] = top + np.log(np.exp(wide - top).sum()) - wide[target]
    return found
