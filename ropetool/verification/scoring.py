"""What a checkpoint can be asked, and the texts as ids: the types that measurements and runners share.

Knows nothing of torch, llama.cpp, files or verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ropetool.errors import ConfigError
from ropetool.rope.tables import Array

PIECE_TOKENS = 512  # positions whose logits are held at a time: 0.26 GB in float32 at a vocabulary of 128k

Tokens = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]
Done = Callable[[int], None]
"""Told how many tokens of model input a step took."""
Progress = Callable[[str, int, int], None]
"""Told the stage in words, the tokens computed so far, and those of the whole run (0: not known yet)."""
MIN_LENGTH = 8  # tokens of a row
WIDER = (
    "--dtype float32, if the checkpoint was loaded in a narrower type"  # the next step after a value that is not finite
)


class NoMemory(ConfigError):
    """A row does not fit into memory."""


def ignore(tokens: int) -> None:
    """Be told of progress, and do nothing."""


TARGET, BASELINE, JUDGE = "target", "baseline", "judge"


@dataclass(frozen=True)
class Scores:
    """The loss of each scored token in nats, and whether it was the likeliest one. Shapes: (rows, scored)."""

    losses: Array
    hits: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Predictions:
    """What comes after the last token of each row: log-probabilities of candidates, and the likeliest token of all.

    Shapes: log_probs (rows, candidates), top (rows,).
    """

    log_probs: Array
    top: Tokens


@dataclass(frozen=True)
class Generated:
    """The logits that choose each of the last tokens of a row: by a cache that grows, and by passes over all before it.

    rounding: the type that both compute in. moving: whether the table follows the length, so that each token has a pass of
    its own. Shapes: both (tokens, vocabulary).
    """

    grown: Logits
    whole: Logits
    rounding: str
    moving: bool


@dataclass(frozen=True)
class Piece:
    """A part of a row that was read. end: tokens of the row read so far.

    indices: of the scored tokens in the row, rising. losses: of each, in nats. Shapes: both (scored,).
    """

    end: int
    indices: Tokens
    losses: Array


Wanted = Callable[[Tokens], npt.NDArray[np.bool_]]
"""Tells which tokens are to be scored. Shapes: indices of tokens in the row (tokens,) -> (tokens,)."""


def asked(wanted: Wanted, start: int, stop: int, length: int) -> npt.NDArray[np.bool_]:
    """Return after which positions of a piece a wanted token follows.

    start, stop: the piece, of a row of `length` tokens. After the last token of a row nothing follows.
    Shapes: (stop - start,).
    """
    return wanted(np.arange(start + 1, stop + 1)) & (np.arange(start, stop) < length - 1)


class Tokenizes(Protocol):
    """A tokenizer. prefix: the ids that it puts in front of a text (BOS)."""

    @property
    def prefix(self) -> tuple[int, ...]: ...

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""

    def byte_lengths(self, text: str) -> list[int]:
        """Return how many bytes of the text each of its tokens stands for; they sum to its size in UTF-8."""


class Runner(Tokenizes, Protocol):
    """A checkpoint that can be asked. Every row is computed as by a fresh model, positions in unit steps from 0.

    arithmetic: what it rounds to while it computes, as `floors`
    names it, empty where that is float32 on a processor. Rows of one call have one length.
    Raises: CheckpointError where a logit is not finite, with layer and position; ConfigError where memory runs out.
    """

    @property
    def description(self) -> str: ...

    @property
    def arithmetic(self) -> str: ...

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done) -> Scores:
        """Return what the last `scored` tokens of every row cost."""

    def predict(self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done) -> Predictions:
        """Return what comes after every row. Shapes: candidates (rows, candidates)."""

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits after the tokens of one row, `PIECE_TOKENS` at a time, with the index of the first.

        A piece is overwritten by the next one. Shapes: (tokens of the piece, vocabulary).
        """

    def generated(self, ids: Sequence[int], count: int, done: Done) -> Generated:
        """Return what generation of the last `count` tokens of a row has for logits, one token after the other, and one pass."""

    def close(self) -> None:
        """Free the model."""


class Reader(Tokenizes, Protocol):
    """A checkpoint that reads rows piece by piece, so that a reading can be stopped. Raises: as a runner; NoMemory."""

    @property
    def description(self) -> str: ...

    def read(self, ids: Sequence[int], wanted: Wanted) -> Iterator[Piece]:
        """Yield the losses of the wanted tokens of one row as it is read, some hundred tokens at a time.

        `wanted` is asked before each piece, of its tokens. The runner computes no other row meanwhile. A table that
        follows the length of the text takes the row in one piece.
        """

    def close(self) -> None:
        """Free the model."""


class FullRunner(Runner, Reader, Protocol):
    """A runner that reads rows piece by piece too."""


@dataclass(frozen=True)
class Corpus:
    """The documents as ids. byte_lengths: of each token, in UTF-8. kinds: of each document, empty where nothing says it."""

    names: tuple[str, ...]
    tokens: tuple[Tokens, ...]
    byte_lengths: tuple[Tokens, ...]
    prefix: tuple[int, ...]
    kinds: tuple[str, ...] = ()


class Measurement(Protocol):
    """One thing to measure, its rows chosen beforehand, so that target and baseline get the same ones."""

    @property
    def name(self) -> str: ...

    def rows(self, role: str) -> Mapping[int, int]:
        """Return how many rows of each length the target or the baseline has to compute; none: it is not needed."""

    def run(self, runner: Runner, role: str, done: Done) -> Any:
        """Return what `result` wants to know of this model."""

    def result(self, target: Any, baseline: Any | None) -> Any:
        """Return the result as frozen data."""


class Wrapped:
    """A runner around another one, which it asks for all that it does not do itself."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.prefix = runner.prefix

    @property
    def description(self) -> str:
        """That of the runner."""
        return self._runner.description

    @property
    def arithmetic(self) -> str:
        """What the runner rounds to while it computes."""
        return self._runner.arithmetic

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self._runner.tokenize(text)

    def byte_lengths(self, text: str) -> list[int]:
        """Return how many bytes of the text each of its tokens stands for."""
        return self._runner.byte_lengths(text)

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return the loss of the last tokens of every row."""
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
