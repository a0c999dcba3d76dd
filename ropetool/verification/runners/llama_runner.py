"""A runner for GGUF files in llama.cpp. It has the logits of one chunk in memory at a time."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import CheckpointError, ConfigError
from ropetool.files.gguf import GgufHeader, read_shards
from ropetool.rope.tables import Array
from ropetool.runtimes.base import NotKnown, Refuses
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import decoding
from ropetool.verification.floors import GPU
from ropetool.verification.runners.llama_cache import BLOCK_TYPES, UNROTATED, check_cache_type, unrotated
from ropetool.verification.runners.llama_library import (  # fmt: skip
    LlamaModel,
    free,
    library,
    load,
    not_loaded,
    piece_of,
    tokens_of,
)
from ropetool.verification.scoring import (
    PIECE_TOKENS,
    Done,
    Generated,
    Logits,
    Piece,
    Predictions,
    Scores,
    TokenFilter,
    Tokens,
    ignore,
)

DTYPES = {"auto": "f32", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class LlamaRunner:
    """A GGUF file with any quantisation. The vocabulary is read immediately, the weights on the first computation.

    device: cpu, auto, or the name of a GPU. auto uses a GPU if llama.cpp was built for one.
    dtype: the type of the cache; auto is float32.
    report: not called, because this runner never has to change anything.
    context_length: the size of every context in tokens. None makes a context as long as the rows. If the file has two
      factor lists, llama.cpp chooses one by the size of the context.
    flash_attention: use flash attention.
    cache_type: the type of the cache by llama.cpp's names; overrides `dtype`. A block type turns on flash attention,
      which it needs.
    as_served: compute as llama.cpp's own programs do: auto is a float16 cache, and llama.cpp chooses flash attention.

    Raises: MissingDependency without llama-cpp-python; ConfigError for an unknown device, dtype or cache type;
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
        cache_type: str | None = None,
        as_served: bool = False,
    ) -> None:
        self._library = lib = library()
        self._gpu = _is_gpu(lib, device)
        if dtype not in DTYPES:
            raise ConfigError(f"{dtype!r} is not one of {', '.join(DTYPES)}", where="--dtype")
        check_cache_type(cache_type)
        self._cache = cache_type or ("f16" if as_served and dtype == "auto" else DTYPES[dtype])
        self._context_length = context_length
        self._flash_attention = True if flash_attention or self._in_blocks else None if as_served else False
        headers = _checked(path)
        self.path, self._weights = headers[0].path, _weight_type(headers)
        self._looks_ahead = _looks_ahead(headers)
        self._model: LlamaModel | None = None
        vocabulary = load(lib, self.path, gpu=False, vocabulary_only=True)
        weakref.finalize(self, free, lib, vocabulary)
        self._vocabulary = lib.llama_model_get_vocab(vocabulary)
        bos = int(lib.llama_vocab_bos(self._vocabulary))
        self.prefix = (bos,) if lib.llama_vocab_get_add_bos(self._vocabulary) and bos >= 0 else ()

    @property
    def _in_blocks(self) -> bool:
        return self._cache in BLOCK_TYPES

    @property
    def _rounding(self) -> str:
        """The type whose rounding limits how similar two computations are: the type of the weights, or of the cache."""
        return self._weights if self._weights != "F32" and not self._in_blocks else self._cache.upper()

    @property
    def description(self) -> str:
        """The library, device, weight type and cache type, for the record."""
        device = "GPU" if self._gpu else "cpu"
        attention = {True: ", flash attention", False: "", None: ", attention chosen by llama.cpp"}[
            self._flash_attention
        ]
        cache = f"{self._cache.upper()} cache{f' not rotated ({UNROTATED})' if self._in_blocks and unrotated() else ''}"
        return f"llama-cpp-python {self._library.__version__}, {device}, {self._weights} weights, {cache}{attention}"

    @property
    def arithmetic(self) -> str:
        """The rounding of a GPU or of a cache narrower than float32, by its name in `floors`; "" for neither."""
        if self._in_blocks:
            return f"{self._cache} cache"
        return GPU if self._gpu else {"f16": "float16", "bf16": "bfloat16"}.get(self._cache, "")

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens at its ends. Raises: CheckpointError without a vocabulary."""
        if self._library.llama_vocab_type(self._vocabulary) == self._library.LLAMA_VOCAB_TYPE_NONE:
            raise CheckpointError("the file has no vocabulary, so ropetool cannot tokenize text", where=str(self.path))
        return tokens_of(self._library, self._vocabulary, text)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of ids, including special tokens. Bytes that are not valid UTF-8 become replacement characters."""
        pieces = (piece_of(self._library, self._vocabulary, int(token)) for token in ids)
        return b"".join(pieces).decode("utf-8", "replace")

    def byte_lengths(self, text: str) -> list[int]:
        """Return the number of bytes of each token of the text. Their sum is the size of the text in UTF-8.

        A space that the vocabulary adds in front does not count. Bytes that it drops count with the last token.
        """
        sizes = [len(piece_of(self._library, self._vocabulary, token)) for token in self.tokenize(text)]
        if sizes:
            surplus = sum(sizes) - len(text.encode())
            sizes[0 if surplus > 0 else -1] -= surplus
        return sizes

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return the losses of the last `scored` tokens of every row, in float64.

        done: called after each row with its number of tokens.

        Shapes: rows of one length, over `scored` -> (rows, scored). Units: nats.
        Raises: ConfigError if a context of that length does not fit into memory; CheckpointError as for loading, or
        if a logit is not finite.
        """
        ids = np.array(rows, dtype=np.int64)
        self._refuse_looking_ahead()
        model = self._open(ids, min(scored, PIECE_TOKENS))
        losses, hits = np.empty((len(ids), scored)), np.empty((len(ids), scored), dtype=np.bool_)
        for index, row in enumerate(ids):
            first = len(row) - scored - 1
            for start, logits in model.logits(row, first, len(row) - 1):
                self._refuse_not_finite(logits, np.arange(start, start + len(logits)), len(row))
                place = slice(start - first, start - first + len(logits))
                targets = row[start + 1 : start + 1 + len(logits)]
                losses[index, place] = _cross_entropy(logits, targets)
                hits[index, place] = logits.argmax(axis=1) == targets
            done(row.size)
        return Scores(losses, hits)

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return the predictions after every row. Shapes: candidates (rows, candidates). Raises: as `score`."""
        ids, few = np.array(rows, dtype=np.int64), np.array(candidates, dtype=np.int64)
        self._refuse_looking_ahead()
        model = self._open(ids, 1)
        log_probs, top = np.empty(few.shape), np.empty(len(ids), dtype=np.int64)
        for index, row in enumerate(ids):
            for start, logits in model.logits(row, len(row) - 1, len(row)):
                self._refuse_not_finite(logits, np.arange(start, start + len(logits)), len(row))
                log_probs[index] = -_cross_entropy(np.repeat(logits, few.shape[1], axis=0), few[index])
                top[index] = logits[0].argmax()
            done(row.size)
        return Predictions(log_probs, top)

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits after the tokens of a row, `PIECE_TOKENS` at a time, with the index of the first.

        A piece is overwritten by the next one. Shapes: (tokens of the piece, vocabulary). Raises: as `score`.
        """
        row = np.array(ids, dtype=np.int64)
        model = self._open(row[None], PIECE_TOKENS)
        yield from model.logits(row, 0, row.size)

    def generated(self, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
        """Return the logits before the last `count` tokens, once decoded one by one, and once in large pieces.

        Both use the tables for the size of the context. Raises: as `score`.
        """
        row = np.array(ids, dtype=np.int64)
        self._refuse_looking_ahead()
        first, model = row.size - 1 - count, self._open(row[None], min(count, PIECE_TOKENS))
        both = []
        for single in (first + 1, None):
            pieces = [logits.copy() for _, logits in model.logits(row, first, row.size - 1, single)]
            both.append(np.concatenate(pieces))
        for logits in both:
            self._refuse_not_finite(logits, np.arange(first, first + len(logits)), row.size)
        done(row.size)
        return Generated(both[0], both[1], self._rounding, False)

    def read(self, ids: Sequence[int], is_scored: TokenFilter) -> Iterator[Piece]:
        """Yield the losses of the scored tokens of a row piece by piece. Raises: as `score`."""
        row = np.array(ids, dtype=np.int64)
        self._refuse_looking_ahead()
        for end, positions, logits in self._open(row[None], PIECE_TOKENS).steps(row, is_scored):
            self._refuse_not_finite(logits, positions, row.size)
            yield Piece(end, positions + 1, _cross_entropy(logits, row[positions + 1]))

    def close(self) -> None:
        """Free the model."""
        if self._model is not None:
            self._model.close()
        self._model = None

    def _refuse_looking_ahead(self) -> None:
        if self._looks_ahead:
            raise CheckpointError(
                "each token attends to all others, so this model does not predict the next token; verify cannot measure it",
                where=str(self.path),
            )  # fmt: skip

    def _refuse_not_finite(self, logits: Logits, positions: Tokens, length: int) -> None:
        bad = np.flatnonzero(~np.isfinite(logits).all(axis=1))
        if bad.size:
            raise CheckpointError(
                f"llama.cpp computes logits that are not finite, first at position {positions[bad[0]]} of {length}",
                where=str(self.path),
                try_="--dtype float32 or --cache-type f32, if the cache was narrower",
            )

    def _open(self, ids: Tokens, outputs: int) -> LlamaModel:
        """Return the model with a context for these rows. Raises: CheckpointError if a token has no embedding."""
        if self._model is None:
            self._model = LlamaModel(
                self._library, self.path, gpu=self._gpu, cache=self._cache, flash_attention=self._flash_attention
            )
        if ids.max() >= self._model.vocabulary_size:
            raise CheckpointError(
                f"token {ids.max()} does not exist; the vocabulary has {self._model.vocabulary_size} tokens",
                where=str(self.path),
            )
        # llama.cpp pads a context to 256 tokens, and aborts if a batch must have less than one token per sequence.
        self._model.open(max(self._context_length or 0, ids.shape[1], 256), outputs)
        return self._model


def _checked(path: Path) -> tuple[GgufHeader, ...]:
    """Return the headers of the model's files.

    Raises: CheckpointError for a broken file, or if llama.cpp is known to refuse the file or to abort the process.
    """
    headers = read_shards(path)
    try:
        decoding.decode(GgufCheckpoint.of(headers))
    except NotKnown:
        pass  # llama.cpp may be newer and run it
    except Refuses as refusal:
        raise CheckpointError(not_loaded(refusal), where=str(path)) from None
    return headers


def _looks_ahead(headers: tuple[GgufHeader, ...]) -> bool:
    """Return whether tokens attend to later tokens, as in models that fill in text."""
    view = GgufCheckpoint.of(headers)
    causal = view.values.get(f"{view.name}.{archs.CAUSAL}")
    return causal is not None and causal.decode() is False


def _weight_type(headers: tuple[GgufHeader, ...]) -> str:
    """Return the tensor type with the most bytes in the model."""
    sizes: Counter[str] = Counter()
    for tensor in (tensor for header in headers for tensor in header.tensors):
        sizes[tensor.type_name] += tensor.nbytes
    return max(sizes, key=lambda name: sizes[name], default="no")


def _is_gpu(lib: Any, device: str) -> bool:
    """Return whether llama.cpp may put layers on a GPU. Raises: ConfigError if this llama.cpp supports only the CPU."""
    if device == "cpu":
        return False
    offloads = bool(lib.llama_supports_gpu_offload())
    if device != "auto" and not offloads:
        raise ConfigError(
            f"this llama.cpp is built only for the CPU, not for {device}", where="--device",
            try_="--device cpu",
        )  # fmt: skip
    return offloads


def _cross_entropy(logits: Logits, targets: Tokens) -> Array:
    """Return the loss of each target in nats, in float64 row by row.

    Shapes: logits (tokens, vocabulary), targets (tokens,) -> (tokens,).
    """
    losses = np.empty(len(targets))
    for index, (row, target) in enumerate(zip(logits, targets, strict=True)):
        wide = row.astype(np.float64)
        top = wide.max()
        losses[index] = top + np.log(np.exp(wide - top).sum()) - wide[target]
    return losses
