"""The run: text after text until the bounds decide, the time is up, or no text is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ropetool.rope.tables import Array
from ropetool.verification.gate import SUSPICIOUS_BITS
from ropetool.verification.scoring import NoMemory
from ropetool.verification.verdict import bounds
from ropetool.verification.verdict.answers import Answers, CurvePoint, Question, TextAnswer
from ropetool.verification.verdict.pacing import Clock, Pace
from ropetool.verification.verdict.places import Place
from ropetool.verification.verdict.reading import FRESH, STEP, OutOfTime, Pass, Shape, Timed

USUAL = 0.05  # nats: by how much texts differ, where nothing tells it yet
DECIDED, TIME, TEXTS, FILE = "decided", "time", "texts", "file"

Stage = Callable[[str, int], None]
"""A callback with the name of the next stage and its number of tokens."""


@dataclass
class Run:
    """A verification that goes on text by text.

    source: the model before the extension. None compares the target with itself within its trained length.
    shape: the lengths to read.
    stated: the target's context length in tokens. It is longer than the shape if texts or memory do not reach it.
    stage: receives each stage.
    notes: sentences for the result.
    answers, places: each text that was read, and its place.
    short_only: there is no time for a whole text any more.
    reach: the position at which the previous pass was cut; the next pass ends there. 0 for none.
    """

    target: Timed
    source: Timed | None
    shape: Shape
    stated: int
    clock: Clock
    stage: Stage
    notes: list[str] = field(default_factory=list)
    answers: list[TextAnswer] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    short_only: bool = False
    reach: int = 0
    _passes: list[Pass] = field(default_factory=list)

    def decide(self, places: Iterable[Place]) -> str:
        """Read texts until the run ends; return why it did."""
        for place in places:
            if not self._has_time():
                return TIME
            try:
                self._read(place)
            except OutOfTime:
                self.short_only = True
                continue
            except NoMemory as error:
                if self.answers or self.shape.target <= 2 * self.shape.trained:
                    raise
                self.shape = replace(self.shape, target=self.shape.target // 2 // STEP * STEP)
                self.notes.append(f"{error.message}; continuing with texts of {self.shape.target} tokens")
                continue
            if bounds.is_final(self.verdict):
                return DECIDED
            if len(self.answers) == bounds.LOOKS[-1]:
                return TEXTS
            if self.answers:
                self._plan(self.answers[-1])
        return TEXTS

    def _has_time(self) -> bool:
        """Return whether another text may begin: a whole one, or a short one if the short question is still open."""
        if not self.answers and not self.short_only:
            return True  # it is read as far as time allows
        self.short_only = self.short_only or not self._fits()
        return not self.short_only or (self._fits() and not self._short_is_settled)

    def _plan(self, last: TextAnswer) -> None:
        """Decide how far the next text is read."""
        if not last.broken:
            self.reach = 0  # it was one text that broke: further ones are read to the end
        if last.length < self.shape.target and not last.cut:
            self.short_only = True  # the clock shortened it

    @property
    def _reference(self) -> Timed:
        """The model that the target is compared with: its source, else the target itself."""
        return self.source or self.target

    @property
    def verdict(self) -> str:
        """The verdict so far. Texts that were not read to the end can only show that the target is broken."""
        asked = [each for each in (self._bounds("short"), self._bounds("long")) if each is not None]
        found = bounds.verdict(asked, [answer.broken for answer in self.answers])
        whole = self.shape.target >= self.stated and bool(self._whole)
        return found if found == bounds.BROKEN or whole else bounds.MEASURED

    def result(self, ended: str) -> Answers:
        """Return the answers of a run that has ended."""
        whole = self._whole or self.answers
        length = max((answer.length for answer in whole), default=0)
        found = self.verdict
        more = None if bounds.is_final(found) else self._needed()
        return Answers(
            verdict=found,
            trained_length=self.shape.trained,
            target_length=self.stated,
            length=length,
            short=self._question("short", self.shape.short),
            long=self._question("long", length),
            texts=tuple(self.answers),
            curve=tuple(self._curve()),
            looks=bounds.last_look(len(self.answers)),
            own=self.source is None,
            minutes=self.clock.spent / 60,
            more_texts=more,
            more_minutes=None if more is None else self._seconds(more) / 60,
            ended=ended,
        )

    # --- one text

    def _read(self, place: Place) -> None:
        goal = self.reach or self.shape.target
        row = place.row(goal, goal)
        short: Array | None = None
        head = place.row(self.shape.short, self.shape.short)
        half = self.shape.short - self.shape.short // 2
        number = f"text {len(self.answers) + 1}"
        if self.source is not None:
            timing = (
                "timing the model" if not self.source.pace.is_known else f"{number}: the source reads a short prompt"
            )
            self.stage(timing, len(head))
            short = self.source.last(head, half)
            if self._recites(place, short):
                return
        self.stage(f"{number}: the target reads {goal} tokens", goal)
        found = Pass(row, self.shape, watched=not self.reach)
        gaps: Array | None = None
        try:
            self._go(found, place)
            if self.source is None and self._recites(place, found.short):
                return
            gaps = self._long(found, place)
        finally:  # a text that the clock cuts still tells what short texts pay
            if gaps is not None or (short is not None and found.end >= self.shape.short):
                own = None if short is None else self._short(found, head, half) - short
                self._add(place, found, own, gaps)

    def _short(self, found: Pass, head: Sequence[int], half: int) -> Array:
        return self.target.last(head, half) if self.shape.moving else found.short

    def _go(self, found: Pass, place: Place) -> None:
        """Let the target read a row until its end, the end of the time, or a cut."""
        if self.reach:
            found.scored = FRESH
        kept = self.target.kept(found.row, "pass")
        if kept is not None:
            found.restore(kept)
            self.reach = found.goal if found.cut else self.reach
            return
        if self.short_only or not (self._pace_fits(0, found.goal) or self._pace_fits(0, found.soonest)):
            if self.source is None or self._pace.seconds(0, self.shape.short) > self.clock.left:
                raise OutOfTime
            found.only_short()
        for piece in self.target.read(found.row, found.wanted):
            looked_closer = found.take(piece)
            if found.end >= found.goal:
                break
            if looked_closer and self._is_lost(found, place):
                found.cut_here()
                self.reach = found.goal
                break
            if found.is_lost():
                found.look_closer()
            if not self._pace_fits(found.end, found.goal) and not self._may_go_on(found):
                found.end_soon()
                if found.end >= found.goal:
                    break
        if not found.scored:
            raise OutOfTime
        if found.goal == len(found.row) or found.cut:
            self.target.keep(found.row, "pass", found.to_keep())

    def _may_go_on(self, found: Pass) -> bool:
        """Return whether a pass that does not fit whole can read another piece, and still end in time."""
        return found.can_end_later and self._pace_fits(found.end, found.soonest + found.step)

    def _is_lost(self, found: Pass, place: Place) -> bool:
        """Return whether the reference predicts the last tokens much better from only a short prompt."""
        own = self._reference.last(place.row(found.end, self.shape.short), FRESH)
        gaps = found.losses[found.end - FRESH : found.end] - own
        return bounds.is_broken(float(gaps.mean()), bounds.own_error(gaps))

    def _long(self, found: Pass, place: Place) -> Array:
        """Return the gap of each token at the end of a pass."""
        source = self._reference
        length = self.shape.short if found.cut or self.reach else self.shape.trained
        self.stage(f"text {len(self.answers) + 1}: the source reads the same tokens", length)
        own = source.last(place.row(found.goal, min(length, found.goal)), found.scored)
        return found.losses[found.goal - found.scored : found.goal] - own

    def _add(self, place: Place, found: Pass, short: Array | None, long: Array | None) -> None:
        gaps = [None if each is None else float(each.mean()) for each in (short, long)]
        errors = [None if each is None else bounds.own_error(each) for each in (short, long)]
        broken = any(
            bounds.is_broken(gap, error)
            for gap, error in zip(gaps, errors, strict=True)
            if gap is not None and error is not None
        )
        cut = found.cut or bool(self.reach)
        self.answers.append(
            TextAnswer(
                place.name,
                place.kind,
                place.start,
                min(found.end, found.goal),
                gaps[0],
                errors[0],
                gaps[1],
                errors[1],
                cut,
                broken,
            )
        )
        self.places.append(place)
        self._passes.append(found)

    def _recites(self, place: Place, losses: Array) -> bool:
        """Return whether the model knows a text by heart, and add a note. Such a text hides what an extension costs."""
        bits = float(losses.mean()) / math.log(2) / place.size
        if bits >= SUSPICIOUS_BITS:
            return False
        self.notes.append(f"{place.name} is left out, because the model has memorised it ({bits:.2f} bits per byte)")
        return True

    # --- time

    def _pace_fits(self, start: int, goal: int) -> bool:
        """Return whether the rest of a pass fits into the time left, and the source's pass after it."""
        source = self._reference.pace
        return self._pace.seconds(start, goal) + source.seconds(0, min(self.shape.trained, goal)) <= self.clock.left

    @property
    def _pace(self) -> Pace:
        """The pace of the target, or of its source until the target has read something."""
        return self.target.pace if self.target.pace.is_known else self._reference.pace

    def _fits(self) -> bool:
        if not self.short_only:
            return self._seconds(1) <= self.clock.left
        source = self._reference.pace
        return self._pace.seconds(0, self.shape.short) + source.seconds(0, self.shape.short) <= self.clock.left

    @property
    def _short_is_settled(self) -> bool:
        """Whether the short question has an answer, or no source to ask."""
        found = self._bounds("short")
        if self.source is None:
            return True
        return found is not None and (found.upper <= math.log(bounds.KEPT) or found.lower > math.log(bounds.KEPT))

    def _seconds(self, texts: int) -> float:
        """Return the expected seconds for this number of further texts."""
        goal, source = self.reach or self.shape.target, self._reference
        rows = (self.shape.short if self.source is not None else 0, self.shape.trained)
        return texts * (self._pace.seconds(0, goal) + sum(source.pace.seconds(0, row) for row in rows))

    def _needed(self) -> int | None:
        """Return how many more texts are likely to decide; None where 64 are not."""
        needed = 0
        for name in ("short", "long"):
            gaps, authors = self._gaps(name)
            if name == "short" and not gaps:
                continue
            if name == "long" and not self._whole and not self.reach:
                gaps, authors = [], []  # texts that were read less far say nothing of the whole length
            texts = bounds.texts_needed(gaps, authors, USUAL)
            if texts is None:
                return None
            needed = max(needed, texts - len(gaps))
        return max(needed, 1)

    # --- what was found

    @property
    def _whole(self) -> list[TextAnswer]:
        """The texts that were read to the end of the target's length."""
        return [answer for answer in self.answers if answer.length >= self.shape.target]

    @property
    def _long_ones(self) -> list[TextAnswer]:
        """The texts that count for the full length: read to its end, or broken before."""
        whole = self._whole
        return (
            [answer for answer in self.answers if answer in whole or (answer.cut and answer.broken)]
            if whole
            else self.answers
        )

    def _gaps(self, name: str) -> tuple[list[float], list[int]]:
        chosen = self.answers if name == "short" else self._long_ones
        pairs = [
            (getattr(answer, name), place.author)
            for answer, place in zip(self.answers, self.places, strict=True)
            if answer in chosen and getattr(answer, name) is not None
        ]
        return [gap for gap, _ in pairs], [author for _, author in pairs]

    def _bounds(self, name: str) -> bounds.Bounds | None:
        gaps, authors = self._gaps(name)
        return bounds.bounds(gaps, authors) if gaps else None

    def _question(self, name: str, length: int) -> Question | None:
        found, (gaps, _) = self._bounds(name), self._gaps(name)
        if found is None:
            return None
        known = math.isfinite(found.upper)
        return Question(
            length,
            math.exp(found.mean),
            math.exp(found.lower) if known else None,
            math.exp(found.upper) if known else None,
            len(gaps),
        )

    def _curve(self) -> Iterator[CurvePoint]:
        windows = [found.windows for found in self._passes]
        for index in range(max(map(len, windows), default=0)):
            here = [float(each[index]) for each in windows if len(each) > index]
            yield CurvePoint((index + 1) * STEP, float(np.mean(here)), len(here))
