"""The types that measurements and runners share: the interface of a runner, its results, and the texts as ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ropetool.errors import ConfigError
from ropetool.rope.tables import Array

PIECE_TOKENS = 512  # positions whose logits are in memory at a time: 0.26 GB in float32 with a vocabulary of 128k

Tokens = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]
Done = Callable[[int], None]
"""Called with the number of tokens that a step computed."""
Progress = Callable[[str, int, int], None]
"""Called with the stage in words, the finished tokens and the tokens of the whole run (0 if they are unknown)."""
MIN_LENGTH = 8  # tokens of a row
# The next step after a value that is not finite.
WIDER = "--dtype float32, if the checkpoint was loaded in a narrower type"


class NoMemory(ConfigError):
    """A row does not fit into memory."""


def ignore(tokens: int) -> None:
    """Do nothing with the progress."""


TARGET, BASELINE, JUDGE = "target", "baseline", "judge"


@dataclass(frozen=True)
class Scores:
    """The scores of tokens.

    losses: the loss of each scored token, in nats. Shape: (rows, scored).
    hits: whether the token was the likeliest one. Shape: (rows, scored).
    """

    losses: Array
    hits: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Predictions:
    """The prediction after the last token of each row.

    log_probs: the log-probability of each candidate. Shape: (rows, candidates).
    top: the likeliest of all tokens. Shape: (rows,).
    """

    log_probs: Array
    top: Tokens


@dataclass(frozen=True)
class Generated:
    """The logits before each of the last tokens of a row, computed in two ways.

    grown: with a cache that grows token by token, as in generation. Shape: (tokens, vocabulary).
    whole: with passes over all previous tokens. Shape: (tokens, vocabulary).
    rounding: the number type of both computations.
    moving: the table depends on the length, so each token needs a separate pass.
    """

    grown: Logits
    whole: Logits
    rounding: str
    moving: bool


@dataclass(frozen=True)
class Piece:
    """A part of a row that was read.

    end: the number of tokens read so far.
    indices: the indices of the scored tokens in the row, increasing. Shape: (scored,).
    losses: the loss of each scored token, in nats. Shape: (scored,).
    """

    end: int
    indices: Tokens
    losses: Array


TokenFilter = Callable[[Tokens], npt.NDArray[np.bool_]]
"""Returns which tokens must be scored. Shapes: indices of tokens in the row (tokens,) -> (tokens,)."""


def before_scored(is_scored: TokenFilter, start: int, stop: int, length: int) -> npt.NDArray[np.bool_]:
    """Return for each position of a piece whether the next token must be scored.

    start, stop: the range of the piece in a row of `length` tokens. The last token of a row does not have a next token.
    Shape: (stop - start,).
    """
    return is_scored(np.arange(start + 1, stop + 1)) & (np.arange(start, stop) < length - 1)


class Tokenizes(Protocol):
    """A tokenizer. prefix: the ids in front of every text (BOS)."""

    @property
    def prefix(self) -> tuple[int, ...]: ...

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""

    def byte_lengths(self, text: str) -> list[int]:
        """Return the number of bytes of each token of the text. Their sum is the size of the text in UTF-8."""


class Runner(Tokenizes, Protocol):
    """Computes with a checkpoint. All rows of a call have the same length, with positions 0, 1, 2 and so on.

    Each row is independent of earlier calls.
    description: the program, the number type and the device, for the record.
    arithmetic: the rounding of the computation, by its name in `floors`; "" for float32 on a CPU.
    Raises: CheckpointError if a logit is not finite, with layer and position; ConfigError if memory runs out.
    """

    @property
    def description(self) -> str: ...

    @property
    def arithmetic(self) -> str: ...

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done) -> Scores:
        """Return the losses of the last `scored` tokens of every row."""

    def predict(self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done) -> Predictions:
        """Return the predictions after every row. Shapes: candidates (rows, candidates)."""

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits after the tokens of one row, `PIECE_TOKENS` at a time, with the index of the first.

        A piece is overwritten by the next one. Shapes: (tokens of the piece, vocabulary).
        """

    def generated(self, ids: Sequence[int], count: int, done: Done) -> Generated:
        """Return the logits before the last `count` tokens of a row, from generation and from whole passes."""

    def close(self) -> None:
        """Free the model."""


class Reader(Tokenizes, Protocol):
    """Reads rows with a checkpoint piece by piece, so that a pass can end early. Raises: as `Runner`; NoMemory."""

    @property
    def description(self) -> str: ...

    def read(self, ids: Sequence[int], is_scored: TokenFilter) -> Iterator[Piece]:
        """Yield the losses of the scored tokens of one row, in pieces of some hundred tokens.

        Calls `is_scored` before each piece with the indices of its tokens. The runner must not compute a different row
        meanwhile. If a table depends on the length of the text, the row is one piece.
        """

    def close(self) -> None:
        """Free the model."""


class FullRunner(Runner, Reader, Protocol):
    """A runner that also reads rows piece by piece."""


@dataclass(frozen=True)
class Corpus:
    """The documents as ids.

    names: the names of the documents.
    tokens: the ids of each document, without `prefix`.
    byte_lengths: the size of each token in UTF-8 bytes.
    prefix: the ids in front of every row.
    kinds: the type of text of each document, for example prose or code; "" if it is unknown.
    """

    names: tuple[str, ...]
    tokens: tuple[Tokens, ...]
    byte_lengths: tuple[Tokens, ...]
    prefix: tuple[int, ...]
    kinds: tuple[str, ...] = ()


class Measurement(Protocol):
    """A measurement with chosen rows, so that target and baseline compute the same rows."""

    @property
    def name(self) -> str: ...

    def rows(self, role: str) -> Mapping[int, int]:
        """Return the number of rows by length that this role reads. Empty: none, but `run` is called for it too."""

    def run(self, runner: Runner, role: str, done: Done) -> Any:
        """Compute the rows of a role with its model, and return the raw figures for `result`."""

    def result(self, target: Any, baseline: Any | None) -> Any:
        """Return the result as frozen data. target, baseline: what `run` returned; None without a baseline."""


class Wrapped:
    """A runner that passes each call to a different runner. Subclasses override some methods."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.prefix = runner.prefix

    @property
    def description(self) -> str:
        """The description of the wrapped runner."""
        return self._runner.description

    @property
    def arithmetic(self) -> str:
        """The rounding of the wrapped runner."""
        return self._runner.arithmetic

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self._runner.tokenize(text)

    def byte_lengths(self, text: str) -> list[int]:
        """Return the number of bytes of each token of the text."""
        return self._runner.byte_lengths(text)

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return the losses of the last `scored` tokens of every row."""
        return self._runner.score(rows, scored, done)

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return the prediction after every row."""
        return self._runner.predict(rows, candidates, done)

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits of a row."""
        return self._runner.logits(ids)

    def generated(self, ids: Sequence[int], count: int, done: Done) -> Generated:
        """Return the logits of generation and of whole passes."""
        return self._runner.generated(ids, count, done)

    def close(self) -> None:
        """Free the model."""
        self._runner.close()
