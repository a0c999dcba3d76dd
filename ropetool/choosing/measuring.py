"""Candidates measured in one loaded model: a view of it for each, the same rows for all, and what is kept of them on disk.

Says nothing about which of them is better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.choosing.candidates import Candidate, Refused
from ropetool.errors import ConfigError
from ropetool.rope.tables import RopeSet
from ropetool.verification import estimate
from ropetool.verification.beside import for_variants
from ropetool.verification.measure import Setting
from ropetool.verification.measures.loss import LastSegment
from ropetool.verification.preparing import prepared, work_of
from ropetool.verification.run import LONG_RUN
from ropetool.verification.runners.rotated import RotatedRunner
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import BASELINE, TARGET, Measurement, Progress, Runner
from ropetool.verification.whole_suites import Wrap

Raw = Mapping[str, Any]
"""By measurement: what it found of one model, before results are made of it."""


@dataclass(frozen=True)
class Trial:
    """A candidate, or a yardstick that no file can hold, and the view of the model that computes it.

    reach: the longest of the lengths at which it is measured. kept_as: under what its rows are kept.
    """

    name: str
    runner: Runner
    reach: int
    kept_as: str
    candidate: Candidate | None = None


@dataclass(frozen=True)
class Field:
    """What all candidates are measured on. by_reach: the measurements up to each length that some candidate reaches."""

    setting: Setting
    by_reach: Mapping[int, tuple[Measurement, ...]]

    @cached_property
    def last(self) -> LastSegment | None:
        """The last segments at all lengths, of which shorter reaches have a part; None where losses are not measured."""
        return next((m for m in self.by_reach[max(self.by_reach)] if isinstance(m, LastSegment)), None)

    def of(self, trial: Trial) -> tuple[Measurement, ...]:
        """Return what is measured of a trial; a yardstick reads whole texts, without a cache."""
        made = self.by_reach[trial.reach]
        return made if trial.candidate is not None else tuple(for_variants(made))


def views(
    runner: TorchRunner, candidates: Sequence[Candidate], source: HfCheckpoint, meant: RopeSet, lengths: Sequence[int],
    *, everywhere: bool,
) -> tuple[list[Trial], list[Refused]]:  # fmt: skip
    """Return the view of each candidate, and the candidates that a loaded model cannot be turned to.

    everywhere: each is measured at all lengths, and not only up to its own context. meant: what the source computes.
    Raises: ConfigError where none is left.
    """

    def viewed(each: Candidate) -> Trial:
        reach = max(length for length in lengths if everywhere or length <= each.target_length)
        view = RotatedRunner(runner, each.rope, own=meant, nested=source.family.nested)
        return Trial(each.name, view, reach, each.digest, each)

    return _required(*sorted_out(candidates, viewed))


def checked(trials: Sequence[Trial]) -> tuple[list[Trial], list[Refused]]:
    """Return the trials that the model, which is loaded for it, can be turned to, and the others. Raises: as `views`."""

    def able(trial: Trial) -> Trial:
        if isinstance(trial.runner, RotatedRunner):
            trial.runner.check()
        return trial

    return _required(*sorted_out(trials, able))


def sorted_out(
    asked: Sequence[Any], make: Callable[[Any], Trial]
) -> tuple[list[Trial], list[Refused], list[ConfigError]]:
    """Return the trials that can be made, and of the others the refusals and their errors. asked: each has a name."""
    found, refused, errors = [], [], []
    for each in asked:
        try:
            found.append(make(each))
        except ConfigError as error:
            refused.append(Refused(each.name, error.message))
            errors.append(error)
    return found, refused, errors


def _required(
    found: list[Trial], refused: list[Refused], errors: Sequence[ConfigError]
) -> tuple[list[Trial], list[Refused]]:
    if not found:
        raise errors[0]
    return found, refused


def prepare(setting: Setting, reaches: set[int]) -> Field:
    """Return the rows, chosen for all; shorter reaches get the segments of the longest one.

    Raises: ConfigError if the texts are too short for the longest length.
    """
    by_reach: dict[int, tuple[Measurement, ...]] = {}
    whole: LastSegment | None = None
    for reach in sorted(reaches, reverse=True):
        made = prepared(replace(setting, lengths=[length for length in setting.lengths if length <= reach]))
        whole = whole or next((m for m in made if isinstance(m, LastSegment)), None)
        by_reach[reach] = tuple(up_to(whole, reach) if whole and m.name == whole.name else m for m in made)
    return Field(setting, by_reach)


def up_to(measurement: LastSegment, reach: int) -> LastSegment:
    """Return the measurement at its lengths up to one, of the same segments."""
    asked = tuple(length for length in measurement.asked if length <= reach)
    needed = {*asked, *(min(length, measurement.trained_length) for length in asked)}
    return replace(measurement, asked=asked, chosen={length: measurement.chosen[length] for length in sorted(needed)})


def whole_work(field: Field, trials: Sequence[Trial]) -> Counter[int]:
    """Return how many rows of each length the trials and their baseline take."""
    return work_of(field.by_reach[max(field.by_reach)], (BASELINE,)) + _work(field, trials)


def foretell(
    pace: Callable[[], estimate.Pace], field: Field, trials: Sequence[Trial], say: Callable[[str], None]
) -> None:
    """Say how long measuring will take, if that is long; the model is probed for it."""
    work = whole_work(field, trials)
    duration = pace()(work) if work else 0.0
    if duration > LONG_RUN:
        total = estimate.tokens(work)
        say(f"about {estimate.in_words(duration)} for {total} tokens, {len(trials)} candidates and their baseline")


def measure(
    runner: Runner, trials: Sequence[Trial], field: Field, wrap: Wrap, tell: Progress
) -> tuple[dict[str, Raw], dict[int, Raw]]:
    """Return what was measured of each candidate by its name, and of the source as it is for each reach.

    wrap: keeps rows by table, so that those that two measurements or two candidates have in common are computed once.
    """
    work = _work(field, trials) + sum((work_of(made, (BASELINE,)) for made in field.by_reach.values()), Counter[int]())
    total, finished = estimate.tokens(work), 0

    def run(asked: Runner, kept_as: str, role: str, measurements: Sequence[Measurement], said: str) -> Raw:
        kept, found = wrap(asked, kept_as), {}
        for measurement in measurements:

            def done(tokens: int, stage: str = f"{said}: {measurement.name}") -> None:
                nonlocal finished
                finished += tokens
                tell(stage, finished, total)

            found[measurement.name] = measurement.run(kept, role, done)
        return found

    own = {
        reach: run(runner, BASELINE, BASELINE, made, "the unchanged source") for reach, made in field.by_reach.items()
    }
    raw = {}
    for index, trial in enumerate(trials, 1):
        said = f"{trial.name} ({index} of {len(trials)})"
        raw[trial.name] = run(trial.runner, trial.kept_as, TARGET, field.of(trial), said)
    return raw, own


def _work(field: Field, trials: Sequence[Trial]) -> Counter[int]:
    return sum((work_of(field.of(trial), (TARGET,)) for trial in trials), Counter[int]())
