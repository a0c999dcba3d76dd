"""A verification run: it reads texts until the bounds decide, the time is up, or no text is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ropetool.rope.tables import Array
from ropetool.verification.gate import SUSPICIOUS_BITS
from ropetool.verification.scoring import NoMemory
from ropetool.verification.verdict import bounds
from ropetool.verification.verdict.answers import Answers, CurvePoint, Question, TextAnswer
from ropetool.verification.verdict.pacing import Clock, Schedule
from ropetool.verification.verdict.places import Place
from ropetool.verification.verdict.reading import FRESH, STEP, OutOfTime, Pass, Shape, Timed

USUAL = 0.05  # nats: by how much texts differ, where nothing tells it yet
DECIDED, TIME, TEXTS, FILE = "decided", "time", "texts", "file"

Stage = Callable[[str, int], None]
"""A callback with the name of the next stage and its number of tokens."""


@dataclass
class Run:
    """A verification that goes on text by text.

    target: the model to verify.
    source: the model before the extension. None compares the target with itself within its trained length.
    shape: the lengths to read.
    stated: the target's context length in tokens. It is longer than the shape if texts or memory do not reach it.
    clock: the time limit.
    stage: receives each stage.
    notes: sentences for the result.
    answers, places: each text that was read, and its place.
    short_only: only short prompts still fit into the time.
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

    def __post_init__(self) -> None:
        self.schedule = Schedule(
            self.clock,
            self.target.pace,
            self._reference.pace,
            self.source is not None,
            self.shape.short,
        )

    def decide(self, places: Iterable[Place]) -> str:
        """Read texts until the run ends. Return the reason: DECIDED, TIME or TEXTS."""
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
        """Return whether there is time for another text, or for a short prompt if the short question is still open."""
        if not self.answers and not self.short_only:
            return True  # it is read as far as time allows
        self.short_only = self.short_only or not self._fits()
        return not self.short_only or (self._fits() and not self._short_is_settled)

    def _plan(self, last: TextAnswer) -> None:
        """Set the length of the next text."""
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
        verdict = bounds.verdict(asked, [answer.broken for answer in self.answers])
        whole = self.shape.target >= self.stated and bool(self._whole)
        return verdict if verdict == bounds.BROKEN or whole else bounds.MEASURED

    def result(self, ended: str) -> Answers:
        """Return the answers of a run that has ended."""
        whole = self._whole or self.answers
        length = max((answer.length for answer in whole), default=0)
        verdict = self.verdict
        more = None if bounds.is_final(verdict) else self._needed()
        return Answers(
            verdict=verdict,
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
            more_minutes=None if more is None else more * self._text_seconds / 60,
            ended=ended,
        )

    # --- one text

    def _read(self, place: Place) -> None:
        goal = self._goal
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
        target_pass = Pass(row, self.shape, watched=not self.reach)
        gaps: Array | None = None
        try:
            self._go(target_pass, place)
            if self.source is None and self._recites(place, target_pass.short):
                return
            gaps = self._long(target_pass, place)
        finally:  # a text that the clock cuts still tells what short texts pay
            if gaps is not None or (short is not None and target_pass.end >= self.shape.short):
                own = None if short is None else self._short(target_pass, head, half) - short
                self._add(place, target_pass, own, gaps)

    def _short(self, target_pass: Pass, head: Sequence[int], half: int) -> Array:
        return self.target.last(head, half) if self.shape.moving else target_pass.short

    def _go(self, target_pass: Pass, place: Place) -> None:
        """Let the target read a row until the row ends, the time is up, or the target has lost the text."""
        if self.reach:
            target_pass.scored = FRESH
        kept = self.target.kept(target_pass.row, "pass")
        if kept is not None:
            target_pass.restore(kept)
            self.reach = target_pass.goal if target_pass.cut else self.reach
            return
        fits = partial(self.schedule.rest_fits, compared=self._compared)
        if self.short_only or not (fits(0, target_pass.goal) or fits(0, target_pass.soonest)):
            if self.source is None or not self.schedule.head_fits():
                raise OutOfTime
            target_pass.only_short()
        for piece in self.target.read(target_pass.row, target_pass.wanted):
            looked_closer = target_pass.take(piece)
            if target_pass.end >= target_pass.goal:
                break
            if looked_closer and self._is_lost(target_pass, place):
                target_pass.cut_here()
                self.reach = target_pass.goal
                break
            if target_pass.is_lost():
                target_pass.look_closer()
            if not fits(target_pass.end, target_pass.goal) and not self._may_go_on(target_pass):
                target_pass.end_soon()
                if target_pass.end >= target_pass.goal:
                    break
        if not target_pass.scored:
            raise OutOfTime
        if target_pass.goal == len(target_pass.row) or target_pass.cut:
            self.target.keep(target_pass.row, "pass", target_pass.to_keep())

    def _may_go_on(self, target_pass: Pass) -> bool:
        """Return whether a pass that is too long for the time left can read another piece, and still end in time."""
        return target_pass.can_end_later and self.schedule.rest_fits(
            target_pass.end, target_pass.soonest + target_pass.step, self._compared
        )

    def _is_lost(self, target_pass: Pass, place: Place) -> bool:
        """Return whether the reference predicts the last tokens much better from only a short prompt."""
        own = self._reference.last(place.row(target_pass.end, self.shape.short), FRESH)
        gaps = target_pass.losses[target_pass.end - FRESH : target_pass.end] - own
        return bounds.is_broken(float(gaps.mean()), bounds.own_error(gaps))

    def _long(self, target_pass: Pass, place: Place) -> Array:
        """Return how much more each token at the end of a pass costs than in the reference, in nats."""
        source = self._reference
        length = self.shape.short if target_pass.cut else self._compared
        self.stage(f"text {len(self.answers) + 1}: the source reads the same tokens", length)
        own = source.last(place.row(target_pass.goal, min(length, target_pass.goal)), target_pass.scored)
        return target_pass.losses[target_pass.goal - target_pass.scored : target_pass.goal] - own

    def _add(self, place: Place, target_pass: Pass, short: Array | None, long: Array | None) -> None:
        gaps = [None if each is None else float(each.mean()) for each in (short, long)]
        errors = [None if each is None else bounds.own_error(each) for each in (short, long)]
        broken = any(
            bounds.is_broken(gap, error)
            for gap, error in zip(gaps, errors, strict=True)
            if gap is not None and error is not None
        )
        cut = target_pass.cut or bool(self.reach)
        self.answers.append(
            TextAnswer(
                place.name,
                place.kind,
                place.start,
                min(target_pass.end, target_pass.goal),
                gaps[0],
                errors[0],
                gaps[1],
                errors[1],
                cut,
                broken,
            )
        )
        self.places.append(place)
        self._passes.append(target_pass)

    def _recites(self, place: Place, losses: Array) -> bool:
        """Return whether the model knows a text by heart, and add a note. Such a text hides what an extension costs."""
        bits = float(losses.mean()) / math.log(2) / place.size
        if bits >= SUSPICIOUS_BITS:
            return False
        self.notes.append(f"{place.name} is left out, because the model has memorised it ({bits:.2f} bits per byte)")
        return True

    # --- time

    def _fits(self) -> bool:
        return self.schedule.short_text_fits() if self.short_only else self._text_seconds <= self.clock.left

    @property
    def _text_seconds(self) -> float:
        """The expected seconds of the next text."""
        return self.schedule.text_seconds(self._goal, self._compared)

    @property
    def _goal(self) -> int:
        """The tokens of the next pass."""
        return self.reach or self.shape.target

    @property
    def _compared(self) -> int:
        """The tokens that the source reads after the next pass: where the target has lost a text, only a short prompt."""
        return self.shape.short if self.reach else self.shape.trained

    @property
    def _short_is_settled(self) -> bool:
        """Whether the short question has an answer, or no source to ask."""
        interval = self._bounds("short")
        if self.source is None:
            return True
        return interval is not None and (
            interval.upper <= math.log(bounds.KEPT) or interval.lower > math.log(bounds.KEPT)
        )

    def _needed(self) -> int | None:
        """Return the number of further texts that are likely to decide. None if 64 texts are unlikely to."""
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

    # --- the texts so far

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
        interval, (gaps, _) = self._bounds(name), self._gaps(name)
        if interval is None:
            return None
        known = math.isfinite(interval.upper)
        return Question(
            length,
            math.exp(interval.mean),
            math.exp(interval.lower) if known else None,
            math.exp(interval.upper) if known else None,
            len(gaps),
        )

    def _curve(self) -> Iterator[CurvePoint]:
        windows = [each.windows for each in self._passes]
        for index in range(max(map(len, windows), default=0)):
            here = [float(each[index]) for each in windows if len(each) > index]
            yield CurvePoint((index + 1) * STEP, float(np.mean(here)), len(here))
