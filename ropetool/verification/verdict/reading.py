"""The reading of one text: a pass of the target, and two shorter passes of the source over the same tokens.

A pass may end early, because the time is up or because the target has lost the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ropetool.rope.tables import Array
from ropetool.verification.journal import Journal
from ropetool.verification.scoring import Piece, Progress, Reader, Tokens
from ropetool.verification.verdict.pacing import Clock, Pace

SHORT = 2048  # tokens of a short prompt, at most
MOST_SCORED = 2048  # at the end of a pass; of a small model a quarter of its trained length, or a half up to FEW
FEW = 256
STEP, WINDOW = 512, 64  # the curve: the last WINDOW of each STEP tokens
FRESH = STEP - 1  # tokens that are scored after an alarm: the first of a piece was asked with the piece before it
WINDOWS = 4  # within the trained length, before which nothing is said to be lost
# The target may have lost the text if two windows in a row are this many nats above the mean of the windows within the
# trained length, and this many of their standard deviations.
LOST = 1.0
SPREADS = 2.5


@dataclass(frozen=True)
class Shape:
    """The lengths of a run in tokens, including the prefix.

    trained: the longest row of the source.
    target: the row of the target.
    short: a short prompt.
    scored: the scored tokens at the end of a row.
    moving: the target's table follows the text length, so a short prompt needs a separate row.
    """

    trained: int
    target: int
    short: int
    scored: int
    moving: bool = False

    @classmethod
    def of(cls, trained: int, target: int, moving: bool) -> Shape:
        """Return the shape for these two lengths."""
        trained = min(trained, target)
        scored = min(MOST_SCORED, max(trained // 4, min(trained // 2, FEW)))
        return cls(trained, target, min(SHORT, trained), scored, moving)


class OutOfTime(Exception):
    """A row does not fit into the time left."""


class Stages:
    """The progress of a run: the tokens of the current stage."""

    def __init__(self, tell: Progress) -> None:
        self._tell, self._stage, self._total, self._done = tell, "", 0, 0

    def begin(self, stage: str, tokens: int) -> None:
        self._stage, self._total, self._done = stage, tokens, 0
        self._tell(stage, 0, tokens)

    def read(self, tokens: int) -> None:
        self._done += tokens
        self._tell(self._stage, self._done, self._total)


class Timed:
    """A model that reads rows against the clock, and saves their losses.

    journal: the place for the losses. None saves nothing.
    progress: receives the number of tokens of each piece.
    """

    def __init__(self, reader: Reader, clock: Clock, journal: Journal | None, progress: Callable[[int], None]) -> None:
        self.reader, self.pace = reader, Pace()
        self._clock, self._journal, self._progress = clock, journal, progress
        self._name = reader.description

    def read(self, row: Sequence[int], wanted: Callable[[Tokens], npt.NDArray[np.bool_]]) -> Iterator[Piece]:
        """Yield the pieces of a row, and measure how long each takes."""
        end, began = 0, self._clock.now()
        for piece in self.reader.read(row, wanted):
            self.pace.add(end, piece.end, self._clock.now() - began)
            self._progress(piece.end - end)
            yield piece
            end, began = piece.end, self._clock.now()

    def last(self, row: Sequence[int], scored: int) -> Array:
        """Return the losses of the last tokens of a row, in nats. Shape: (scored,). Raises: OutOfTime."""
        kept = self.kept(row, f"last {scored}")
        if kept is not None:
            self._progress(len(row))
            return kept
        if self.pace.seconds(0, len(row)) > self._clock.left:
            raise OutOfTime
        first, losses = len(row) - scored, []
        for piece in self.read(row, lambda tokens: tokens >= first):
            losses.append(piece.losses)
            if (
                piece.end < len(row)
                and self.pace.seconds(piece.end, min(piece.end + STEP, len(row))) > self._clock.left
            ):
                raise OutOfTime
        scores = np.concatenate(losses)
        self.keep(row, f"last {scored}", scores)
        return scores

    def kept(self, row: Sequence[int], what: str) -> Array | None:
        """Return the saved figures of a row, or None."""
        return None if self._journal is None else self._journal.get(self._key(row, what))

    def keep(self, row: Sequence[int], what: str, figures: Array) -> None:
        """Save figures of a row for another run."""
        if self._journal is not None:
            self._journal.put([self._key(row, what)], figures[None])

    def _key(self, row: Sequence[int], what: str) -> bytes:
        return hashlib.sha256(f"{self._name} {what} ".encode() + np.array(row, dtype=np.int64).tobytes()).digest()


class Pass:
    """A pass of the target over one row: the scored tokens, and their losses so far.

    goal: the end of the pass in tokens. The clock may move it to an earlier token.
    end: the tokens read so far.
    step: the tokens of a piece.
    losses: nats by token, NaN for a token that is not scored.
    scored: the scored tokens at the end.
    cut: whether the pass ended early because the target had lost the text.
    """

    def __init__(self, row: Sequence[int], shape: Shape, watched: bool) -> None:
        self.row, self.goal, self.end = row, len(row), 0
        self.losses = np.full(len(row), np.nan)
        self.scored = shape.scored
        self.cut, self.step = False, STEP
        self._shape, self._watched, self._closer = shape, watched, False

    def wanted(self, tokens: Tokens) -> npt.NDArray[np.bool_]:
        """Return the mask of the scored tokens: in the short prompt, in the curve, at the end, and after an alarm."""
        short = (tokens >= self._shape.short // 2) & (tokens < self._shape.short)
        curve = tokens % STEP >= STEP - WINDOW
        return short | curve | (tokens >= self.goal - self.scored) | self._closer

    def take(self, piece: Piece) -> bool:
        """Add the losses of a piece. Return whether all of its tokens were scored, after an alarm."""
        self.losses[piece.indices] = piece.losses
        self.step, self.end = max(STEP, piece.end - self.end), piece.end
        looked_closer, self._closer = self._closer, False
        return looked_closer

    def only_short(self) -> None:
        """End with the short prompt."""
        self.goal, self.scored = self._shape.short, 0

    def to_keep(self) -> Array:
        """Return the state of the pass as an array, for `restore`."""
        return np.array([self.goal, self.scored, self.cut, *self.losses[: self.goal]])

    def restore(self, figures: Array) -> None:
        """Set the state of the pass from the array of `to_keep`."""
        self.goal = self.end = int(figures[0])
        self.scored, self.cut = int(figures[1]), bool(figures[2])
        self.losses[: self.goal] = figures[3:]

    @property
    def short(self) -> Array:
        """The losses of the second half of the short prompt."""
        return self.losses[self._shape.short // 2 : self._shape.short]

    @property
    def windows(self) -> Array:
        """The mean loss of each window that was read."""
        whole = self.losses[: self.end // STEP * STEP].reshape(-1, STEP)
        means: Array = whole[:, STEP - WINDOW :].mean(axis=1)
        return means

    def is_lost(self) -> bool:
        """Return whether the loss of the last two windows is much higher than within the trained length.

        False if a closer look has already been taken.
        """
        within, windows = self._shape.trained // STEP, self.windows
        if (
            not self._watched
            or within < WINDOWS
            or len(windows) < within + 2
            or self.end + STEP > self.goal - self.scored
        ):
            return False
        own = windows[:within]
        return bool((windows[-2:] > own.mean() + max(LOST, SPREADS * own.std(ddof=1))).all())

    def look_closer(self) -> None:
        """Score every token of the next piece, to compare it with the source."""
        self._closer, self._watched = True, False

    def cut_here(self) -> None:
        """End the pass here. The scored tokens are those of the last piece."""
        self.goal, self.scored, self.cut = self.end, FRESH, True

    @property
    def can_end_later(self) -> bool:
        """Whether the end may still move: the scoring of the last tokens has not begun."""
        return self.end < self.goal - self.scored

    @property
    def soonest(self) -> int:
        """The earliest end that leaves room for all scored tokens, in tokens."""
        return min(self.goal, max(self.end + self.step + self.scored, self._shape.short))

    def end_soon(self) -> None:
        """End the pass as soon as possible. If the scoring of the last tokens has begun, end it here. Raises: OutOfTime."""
        if self.can_end_later:
            self.goal = self.soonest
            return
        ready = self.end - (self.goal - self.scored)
        if ready < STEP:
            raise OutOfTime
        self.goal, self.scored = self.end, ready
