"""The time of a run: the rest of the budget, and the expected duration of a row."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

RECENT = 8  # pieces that tell how busy the machine is now
ENOUGH = 4  # pieces before which no line is trusted so far
SPARE = 0.02  # of the budget, at most `MOST_SPARE` seconds, kept for what follows the last text
MOST_SPARE = 10.0


@dataclass(frozen=True)
class Clock:
    """The time limit of a command.

    budget: seconds; infinity for no limit.
    started, now: the start, and the clock that counts from it, in seconds.
    """

    budget: float
    started: float = field(default_factory=time.monotonic)
    now: Callable[[], float] = time.monotonic

    @property
    def spent(self) -> float:
        """Seconds since the command started."""
        return self.now() - self.started

    @property
    def left(self) -> float:
        """Seconds that may still be used for reading."""
        if math.isinf(self.budget):
            return math.inf
        return self.budget - min(SPARE * self.budget, MOST_SPARE) - self.spent


@dataclass
class Pace:
    """The seconds per token as a + b x position, by least squares over the pieces that were read.

    The first piece of a model does not count, because it loads the model.
    """

    _seen: list[tuple[float, float, int]] = field(default_factory=list)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _first: tuple[float, float, int] | None = None

    def add(self, start: int, end: int, seconds: float) -> None:
        """Add the duration of a piece: the tokens from `start` up to `end` of a row."""
        piece = ((start + end) / 2, seconds / (end - start), end - start)
        if self._first is None:
            self._first = piece
            return
        if len(self._seen) >= ENOUGH:
            self._recent.append(seconds / max(self._usual(start, end), 1e-9))
        self._seen.append(piece)

    @property
    def is_known(self) -> bool:
        """Whether anything was read yet."""
        return self._first is not None

    def seconds(self, start: int, end: int) -> float:
        """Return the expected seconds for the tokens from `start` up to `end` of a row; 0 before the first piece."""
        if not self.is_known or end <= start:
            return 0.0
        busy = float(np.mean(self._recent)) if self._recent else 1.0
        return self._usual(start, end) * max(busy, 1.0)

    def _usual(self, start: int, end: int) -> float:
        a, b = self._line()
        return (end - start) * (a + b * (start + end) / 2)

    def _line(self) -> tuple[float, float]:
        """Return seconds a token at depth 0, and what each token before it adds; neither is below 0."""
        assert self._first is not None
        depths, paces, counts = np.array(self._seen or [self._first]).T
        mean = float(np.average(paces, weights=counts))
        middle = float(np.average(depths, weights=counts))
        spread = float(np.average((depths - middle) ** 2, weights=counts))
        slope = float(np.average((depths - middle) * (paces - mean), weights=counts)) / spread if spread else 0.0
        if slope <= 0:
            return mean, 0.0
        flat = mean - slope * middle
        return (flat, slope) if flat > 0 else (0.0, mean / middle)
