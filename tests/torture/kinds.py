"""All kinds of trials, and who is next: each has a share of the time, and numbers that say what happens in it."""

from __future__ import annotations

import random
import re
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ropetool.errors import RopetoolError
from torture import disturbing, in_place, inputs, tracing
from torture.disturbing import Bench
from torture.findings import Bad, Report, Skipped
from torture.in_place import InPlaceBench
from torture.readers import Reader, readers
from torture.scenes import Stage
from torture.tracing import Step

KILLS, FAULTS, MUTATIONS, IN_PLACE = "kills", "faults", "mutations", "in place"
GROUPS = (KILLS, FAULTS, MUTATIONS, IN_PLACE)
_NAMES = re.compile(r"\S*[./]\S*|\d+")  # what differs between findings of one cause
TURN = 1.0  # seconds that a reader gets at a time


class Kind(ABC):
    """A kind of trial. share: how much of its worker's time it gets; spent: seconds so far; done: nothing is left to try."""

    share = 1.0

    def __init__(self, name: str, group: str, share: float) -> None:
        self.name, self.group, self.share = name, group, share
        self.spent, self.done = 0.0, False

    @abstractmethod
    def turn(self, most: int) -> Report:
        """Hold the next trials, at most so many, and report."""

    @abstractmethod
    def repeat(self, number: int) -> str:
        """Hold one trial, and return what is wrong with it."""


class OfScene(Kind):
    """Trials of the scenes in turn; a worker takes every so manieth. `hold` gets the scene at its beginning, and chance."""

    def __init__(
        self,
        name: str,
        group: str,
        share: float,
        bench: Bench,
        hold: Callable[[Stage, random.Random, int], str],
        start: int,
        stride: int,
    ) -> None:
        super().__init__(name, group, share)
        self._bench, self._hold, self._next, self._stride = bench, hold, start, stride

    def turn(self, most: int) -> Report:
        report = Report(self.name)
        scenes = self._bench.scenes
        for _ in range(min(most, len(scenes))):
            number, self._next = self._next, self._next + self._stride
            begun = time.monotonic()
            try:
                problem = self.repeat(number)
            except Exhausted:
                continue
            except Skipped as reason:
                self.done, report.skipped = True, str(reason)
                break
            report.runs += 1
            if problem:
                report.bad.append(
                    Bad(self.name, number, f"{scenes[number % len(scenes)].name}: {problem}", _NAMES.sub("", problem))
                )
            if time.monotonic() - begun > TURN:
                break
        else:
            self.done = report.runs == 0 and most >= len(scenes)
        return report

    def repeat(self, number: int) -> str:
        rng = random.Random(f"{self._bench.seed}/{self.name}/{number}")
        turn, scene = divmod(number, len(self._bench.scenes))
        return self._hold(self._bench.stage(self._bench.scenes[scene]), rng, turn)


class Exhausted(Exception):
    """All steps of a scene have been tried."""


class AtSteps:
    """Takes what can be done at each step of each scene in an order of chance, all of it once."""

    def __init__(
        self,
        bench: Bench,
        options: Callable[[Step], Sequence[Any]],
        hold: Callable[[Stage, int, Any], str],
    ) -> None:
        self._bench, self._options, self._hold = bench, options, hold
        self._orders: dict[str, list[tuple[int, Any]]] = {}

    def __call__(self, stage: Stage, rng: random.Random, number: int) -> str:
        order = self._order(stage)
        if number >= len(order):
            raise Exhausted
        at, option = order[number]
        return self._hold(stage, at, option)

    def _order(self, stage: Stage) -> list[tuple[int, Any]]:
        reason = tracing.available()
        if reason:
            raise Skipped(reason)
        name = stage.scene.name
        if name not in self._orders:
            found = [
                (at, option) for at, step in enumerate(self._bench.steps(stage), 1) for option in self._options(step)
            ]
            random.Random(f"{self._bench.seed}/{name}").shuffle(found)
            self._orders[name] = found
            stage.reset()
        return self._orders[name]


class Inputs(Kind):
    """Mutated input for one reader."""

    def __init__(self, reader: Reader, share: float, seed: int, start: int, stride: int) -> None:
        super().__init__(f"{MUTATIONS}: {reader.name}", MUTATIONS, share)
        self._reader, self._seed, self._next, self._stride = reader, seed, start, stride

    def turn(self, most: int) -> Report:
        if self._reader.skipped:
            self.done = True
            return Report(self.name, skipped=self._reader.skipped)
        report = inputs.feed(
            self._reader, self._next, self._stride, self._seed, most=most, seconds=TURN if most > 1000 else 1e9
        )
        self._next += self._stride * report.runs
        report.kind = self.name
        report.bad = [Bad(self.name, one.number, one.problem, one.place, one.data) for one in report.bad]
        return report

    def repeat(self, number: int) -> str:
        data, rng = inputs.made(self._reader, number, self._seed)
        try:
            self._reader.read(data, rng)
        except RopetoolError as error:
            traceback.print_exc()
            return inputs.unclear(error)
        return ""


def kinds(folder: Path, seed: int, groups: Sequence[str], start: int, stride: int) -> list[Kind]:
    """Return the kinds of these groups, for a worker that takes every `stride`-th number from `start`, in its own folder."""
    found: list[Kind] = []
    if KILLS in groups or FAULTS in groups:
        bench = Bench(folder / "scenes", seed)
        for name, group, share, hold in _of_scenes(bench):
            if group in groups:
                found.append(OfScene(f"{group}: {name}", group, share, bench, hold, start, stride))
    if IN_PLACE in groups:
        edits = InPlaceBench(folder / "in-place", seed)
        for name, share, hold in _of_edits(edits):
            found.append(OfScene(f"{IN_PLACE}: {name}", IN_PLACE, share, edits, hold, start, stride))
    if MUTATIONS in groups:
        known = readers(folder / "readers")
        whole = sum(reader.share for reader in known.values())
        found += [Inputs(reader, 10 * reader.share / whole, seed, start, stride) for reader in known.values()]
    return found


def _of_scenes(bench: Bench) -> Iterator[tuple[str, str, float, Callable[[Stage, random.Random, int], str]]]:
    numbers, errors = tuple(disturbing.CODES), disturbing.ERRORS
    each = AtSteps(bench, lambda step: (None,), lambda stage, at, _: disturbing.kill_at(stage, at))
    yield "SIGKILL at each step", KILLS, 6, each
    yield "SIGKILL at random times", KILLS, 3, lambda stage, rng, _: disturbing.kill_later(stage, rng)
    yield "other signals at each step", KILLS, 1.5, AtSteps(bench, lambda step: numbers, disturbing.signal_at)
    yield (
        "other signals at random times",
        KILLS,
        0.5,
        lambda stage, rng, _: disturbing.signal_later(stage, rng.choice(numbers), rng),
    )
    yield "two at a time", KILLS, 1, lambda stage, rng, _: disturbing.race(stage, rng)
    refused = AtSteps(bench, lambda step: errors if step.name in tracing.REFUSABLE else (), disturbing.refuse_at)
    yield "ENOSPC and EIO at each step", FAULTS, 2, refused
    yield "files of limited size", FAULTS, 0.5, lambda stage, rng, _: disturbing.limited(stage, rng)
    yield "small disks", FAULTS, 0.5, lambda stage, rng, _: disturbing.small_disk(stage, rng)


def _of_edits(bench: InPlaceBench) -> Iterator[tuple[str, float, Callable[[Stage, random.Random, int], str]]]:
    numbers, errors = tuple(disturbing.CODES), disturbing.ERRORS
    yield "SIGKILL at each step", 2, AtSteps(bench, lambda step: (None,), in_place.kill_at)
    yield "SIGKILL at random times", 2, lambda stage, rng, _: in_place.kill_later(stage, rng)
    yield "other signals at each step", 1, AtSteps(bench, lambda step: numbers, in_place.signal_at)
    yield "two at a time", 0.5, lambda stage, rng, _: in_place.race(stage, rng)
    refused = AtSteps(bench, lambda step: errors if step.name in tracing.REFUSABLE else (), in_place.refuse_at)
    yield "ENOSPC and EIO at each step", 1, refused
