"""A GGUF file opened through llama-cpp-python's C interface: loading, contexts, batches, and log messages.

llama-cpp-python's high-level class is not used, because it overrides values of the file (YaRN's factor and betas).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_int32, c_void_p, create_string_buffer
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import CheckpointError, MissingDependency
from ropetool.escaping import install_line
from ropetool.files.gguf import ggml_type
from ropetool.machine import processors
from ropetool.verification.scoring import PIECE_TOKENS, Logits, NoMemory, TokenFilter, Tokens, before_scored

ERROR_LEVEL = 4  # ggml/include/ggml.h; the list in llama-cpp-python's _logger.py is outdated


def library() -> Any:
    """Return the imported llama_cpp. Raises: MissingDependency if it is not installed."""
    try:
        return import_module("llama_cpp")
    except ImportError as error:
        raise MissingDependency(
            f"running a GGUF file needs llama-cpp-python: {error}", try_=install_line("llama")
        ) from error


@contextmanager
def listening(lib: Any) -> Iterator[list[str]]:
    """Hide llama.cpp's log within the context and yield the list of its error lines, then restore the previous log."""
    pieces: list[tuple[int, str]] = []
    lines: list[str] = []

    @lib.llama_log_callback  # type: ignore[untyped-decorator]
    def listen(level: int, text: bytes, user_data: Any) -> None:
        pieces.append((level, text.decode("utf-8", "replace")))
        if text.endswith(b"\n"):
            if any(level == ERROR_LEVEL for level, _ in pieces):
                lines.append("".join(piece for _, piece in pieces).strip())
            pieces.clear()

    before, data = lib.llama_log_callback(), c_void_p()
    lib.llama_log_get(byref(before), byref(data))
    lib.llama_log_set(listen, c_void_p())
    try:
        yield lines
    finally:
        lib.llama_log_set(before, data)


class LlamaModel:
    """A model with one context. `close` frees both.

    cache: a type of ggml, such as `q8_0`. flash_attention: None lets llama.cpp choose.

    Raises: CheckpointError with llama.cpp's message if the file does not load.
    """

    def __init__(self, lib: Any, path: Path, *, gpu: bool, cache: str, flash_attention: bool | None) -> None:
        self._lib, self._path, self._gpu = lib, path, gpu
        self._cache = ggml_type(cache.upper())  # llama_cpp has no name for BF16
        self._flash_attention = flash_attention
        self._model = load(lib, path, gpu=gpu)
        self._context: Any = None
        self._opened = (0, 0)
        self._batch = lib.llama_batch_init(PIECE_TOKENS, 0, 1)
        self.vocabulary_size = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model)))

    def open(self, length: int, outputs: int) -> None:
        """Make a context of `length` tokens for chunks with up to `outputs` rows of logits, unless it exists already.

        Raises: NoMemory if it does not fit into memory.
        """
        if self._opened == (length, outputs):
            return
        self._free_context()
        lib = self._lib
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = length, PIECE_TOKENS, PIECE_TOKENS
        settings.n_outputs_max = outputs
        settings.n_threads = settings.n_threads_batch = processors()
        settings.type_k = settings.type_v = self._cache
        settings.flash_attn_type = {
            True: lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            False: lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
            None: lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
        }[self._flash_attention]
        settings.offload_kqv = settings.op_offload = self._gpu
        with listening(lib) as errors:
            self._context = lib.llama_init_from_model(self._model, settings)
        if not self._context:
            raise NoMemory(
                f"llama.cpp cannot create a context of {length} tokens: {last_words(errors)}",
                where=str(self._path),
                try_="shorter --lengths, or another --cache-type",
            )
        self._opened = (length, outputs)

    def logits(self, row: Tokens, first: int, end: int, single: int | None = None) -> Iterator[tuple[int, Logits]]:
        """Yield the logits after the tokens `first` to `end` of a row, in pieces with the index of their first token.

        A piece is overwritten by the next one.
        single: from this token on, tokens are decoded one by one, as generation does. None decodes all in large pieces.
        Shapes: (tokens of the piece, vocabulary).
        Raises: CheckpointError if the computation fails.
        """
        prompt = end if single is None else single
        edges = [*range(0, prompt, PIECE_TOKENS), *range(prompt, end), end]
        for _, positions, logits in self._pieces(row, edges, lambda start, stop: np.arange(start, stop) >= first):
            if len(positions):
                yield int(positions[0]), logits

    def steps(self, row: Tokens, is_scored: TokenFilter) -> Iterator[tuple[int, Tokens, Logits]]:
        """Yield the number of tokens read so far, the positions before the scored tokens of a piece, and their logits.

        Raises: as `logits`.
        """
        edges = [*range(0, len(row), PIECE_TOKENS), len(row)]
        yield from self._pieces(row, edges, lambda start, stop: before_scored(is_scored, start, stop, len(row)))

    def _pieces(
        self, row: Tokens, edges: Sequence[int], chosen: Callable[[int, int], npt.NDArray[np.bool_]]
    ) -> Iterator[tuple[int, Tokens, Logits]]:
        """Decode a row from edge to edge. Yield the end of each piece, its chosen positions, and the logits there."""
        lib = self._lib
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        for start, stop in pairwise(edges):
            mask = chosen(start, stop)
            self._decode(row[start:stop], start, mask)
            positions = start + np.flatnonzero(mask)
            logits = np.empty((0, self.vocabulary_size), np.float32)
            if len(positions):
                logits = np.ctypeslib.as_array(
                    lib.llama_get_logits(self._context), (len(positions), self.vocabulary_size)
                )
            yield stop, positions, logits

    def close(self) -> None:
        """Free everything."""
        self._free_context()
        self._lib.llama_batch_free(self._batch)
        free(self._lib, self._model)

    def _decode(self, ids: Tokens, start: int, mask: npt.NDArray[np.bool_]) -> None:
        lib, batch, count = self._lib, self._batch, len(ids)
        batch.n_tokens = count
        np.ctypeslib.as_array(batch.token, (count,))[:] = ids
        np.ctypeslib.as_array(batch.pos, (count,))[:] = np.arange(start, start + count)
        np.ctypeslib.as_array(batch.n_seq_id, (count,))[:] = 1
        np.ctypeslib.as_array(batch.logits, (count,))[:] = mask
        for row in range(count):
            batch.seq_id[row][0] = 0
        with listening(lib) as errors:
            code = lib.llama_decode(self._context, batch)
        if code != 0:
            raise CheckpointError(
                f"llama.cpp fails at tokens {start} to {start + count - 1}: {last_words(errors, f'code {code}')}",
                where=str(self._path),
            )

    def _free_context(self) -> None:
        if self._context is not None:
            with listening(self._lib):
                self._lib.llama_free(self._context)
        self._context, self._opened = None, (0, 0)


def load(lib: Any, path: Path, *, gpu: bool, vocabulary_only: bool = False) -> Any:
    """Return a loaded model, which `free` frees. Raises: CheckpointError with llama.cpp's message."""
    params = lib.llama_model_default_params()
    params.vocab_only = vocabulary_only
    if not gpu:
        params.n_gpu_layers = 0
    with listening(lib) as errors:
        model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise CheckpointError(not_loaded(last_words(errors)), where=str(path))
    return model


def not_loaded(reason: object) -> str:
    """Return the message for a file that llama.cpp refuses."""
    return f"llama.cpp cannot load the file: {reason}"


def free(lib: Any, model: Any) -> None:
    """Free a loaded model."""
    with listening(lib):
        lib.llama_model_free(model)


def last_words(errors: list[str], default: str = "it gives no reason") -> str:
    """Return the last error line with a reason, without a function name in front. default: the text without errors."""
    reasons = [line for line in errors if not line.endswith("failed to load model")]
    line = (reasons or errors or [default])[-1]
    name, _, rest = line.partition(": ")
    return rest if rest and " " not in name else line


def tokens_of(lib: Any, vocabulary: Any, text: str) -> list[int]:
    """Return the ids of a text, without special tokens at its ends. Special tokens in the text are recognised."""
    raw = text.encode()
    ids = (c_int32 * (2 * len(raw) + 16))()
    count = lib.llama_tokenize(vocabulary, raw, len(raw), ids, len(ids), False, True)
    return list(ids[:count])


def piece_of(lib: Any, vocabulary: Any, token: int) -> bytes:
    """Return the bytes of a token, or the name of a special token."""
    size = 64
    while True:
        buffer = create_string_buffer(size)
        count = int(lib.llama_token_to_piece(vocabulary, token, buffer, size, 0, True))
        if count >= 0:
            return buffer.raw[:count]
        size = -count
