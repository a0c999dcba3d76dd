"""The time of a run: the rest of the budget, and the expected duration of a row."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

RECENT = 8  # pieces that tell how busy the machine is now
ENOUGH = 4  # pieces after which the durations are compared with the line, to measure how busy the machine is
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
        """Return the seconds of a token at depth 0, and the seconds that each token before it adds. Neither is negative."""
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


@dataclass(frozen=True)
class Schedule:
    """The time that the rows of a run need, by the paces of its models.

    clock: the time limit.
    target, source: the paces of the two models. Without a source, both are the target's.
    has_source: the source reads a short prompt of each text.
    short: the tokens of a short prompt.
    """

    clock: Clock
    target: Pace
    source: Pace
    has_source: bool
    short: int

    def rest_fits(self, start: int, goal: int, compared: int) -> bool:
        """Return whether the rest of a target's pass fits into the time left, and the source's pass after it.

        compared: the tokens of the source's pass, if the target's pass is not shorter.
        """
        source = self.source.seconds(0, min(compared, goal))
        return self._pace.seconds(start, goal) + source <= self.clock.left

    def head_fits(self) -> bool:
        """Return whether the target can read a short prompt in the time left."""
        return self._pace.seconds(0, self.short) <= self.clock.left

    def short_text_fits(self) -> bool:
        """Return whether both models can read a short prompt in the time left."""
        return self._pace.seconds(0, self.short) + self.source.seconds(0, self.short) <= self.clock.left

    def text_seconds(self, goal: int, compared: int) -> float:
        """Return the expected seconds of a whole text.

        goal, compared: the tokens of the target's pass and of the source's pass.
        """
        head = self.source.seconds(0, self.short) if self.has_source else 0.0
        return self._pace.seconds(0, goal) + head + self.source.seconds(0, compared)

    @property
    def _pace(self) -> Pace:
        """The pace of the target, or of its source until the target has read something."""
        return self.target if self.target.is_known else self.source
