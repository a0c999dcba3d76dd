"""Measure candidates in one loaded model: a view of the model for each, and the same rows for all."""

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
"""The raw figures of a model, by the name of the measurement."""


@dataclass(frozen=True)
class Trial:
    """A candidate, or a reference attention variant that no file can store.

    name: the name in the result.
    runner: the view of the model that computes it.
    reach: the longest length at which it is measured, in tokens.
    kept_as: the name of its rows in the journal.
    candidate: the candidate. None for a reference attention variant.
    """

    name: str
    runner: Runner
    reach: int
    kept_as: str
    candidate: Candidate | None = None


@dataclass(frozen=True)
class Field:
    """The measurements that all candidates share.

    setting: the suite, the texts and the lengths.
    by_reach: the measurements up to each length that is the longest one of a trial.
    """

    setting: Setting
    by_reach: Mapping[int, tuple[Measurement, ...]]

    @cached_property
    def last(self) -> LastSegment | None:
        """Return the last segments at all lengths, or None if losses are not measured.

        Trials with a shorter reach use a part.
        """
        return next((m for m in self.by_reach[max(self.by_reach)] if isinstance(m, LastSegment)), None)

    def of(self, trial: Trial) -> tuple[Measurement, ...]:
        """Return the measurements of a trial. A reference attention variant reads whole texts, without a cache."""
        measurements = self.by_reach[trial.reach]
        return measurements if trial.candidate is not None else tuple(for_variants(measurements))


def views(
    runner: TorchRunner, candidates: Sequence[Candidate], source: HfCheckpoint, source_rope: RopeSet, lengths: Sequence[int],
    *, everywhere: bool,
) -> tuple[list[Trial], list[Refused]]:  # fmt: skip
    """Return a view of the model for each candidate, and refusals of candidates that the model cannot compute.

    source_rope: the tables of the source.
    everywhere: measure each at all lengths, even beyond its own context.
    Raises: ConfigError if no candidate is left.
    """

    def viewed(each: Candidate) -> Trial:
        reach = max(length for length in lengths if everywhere or length <= each.target_length)
        view = RotatedRunner(runner, each.rope, own=source_rope, nested=source.family.nested)
        return Trial(each.name, view, reach, each.digest, each)

    return _required(*sorted_out(candidates, viewed))


def checked(trials: Sequence[Trial]) -> tuple[list[Trial], list[Refused]]:
    """Return the trials that the model can compute, and refusals of the others. Loads the model. Raises: as `views`."""

    def able(trial: Trial) -> Trial:
        if isinstance(trial.runner, RotatedRunner):
            trial.runner.check()
        return trial

    return _required(*sorted_out(trials, able))


def sorted_out(
    subjects: Sequence[Any], make: Callable[[Any], Trial]
) -> tuple[list[Trial], list[Refused], list[ConfigError]]:
    """Return the trials that can be made, the refusals of the others, and the errors behind the refusals.

    subjects: have a `name` each. make: returns the trial of a subject, or raises ConfigError.
    """
    trials, refused, errors = [], [], []
    for each in subjects:
        try:
            trials.append(make(each))
        except ConfigError as error:
            refused.append(Refused(each.name, error.message))
            errors.append(error)
    return trials, refused, errors


def _required(
    trials: list[Trial], refused: list[Refused], errors: Sequence[ConfigError]
) -> tuple[list[Trial], list[Refused]]:
    if not trials:
        raise errors[0]
    return trials, refused


def prepare(setting: Setting, reaches: set[int]) -> Field:
    """Return the rows for all trials. Shorter reaches get segments of the longest reach.

    Raises: ConfigError if the texts are too short for the longest length.
    """
    by_reach: dict[int, tuple[Measurement, ...]] = {}
    whole: LastSegment | None = None
    for reach in sorted(reaches, reverse=True):
        measurements = prepared(replace(setting, lengths=[length for length in setting.lengths if length <= reach]))
        whole = whole or next((m for m in measurements if isinstance(m, LastSegment)), None)
        by_reach[reach] = tuple(up_to(whole, reach) if whole and m.name == whole.name else m for m in measurements)
    return Field(setting, by_reach)


def up_to(measurement: LastSegment, reach: int) -> LastSegment:
    """Return a measurement at its lengths up to `reach`, with the same segments."""
    lengths = tuple(length for length in measurement.asked if length <= reach)
    needed = {*lengths, *(min(length, measurement.trained_length) for length in lengths)}
    return replace(measurement, asked=lengths, chosen={length: measurement.chosen[length] for length in sorted(needed)})


def whole_work(field: Field, trials: Sequence[Trial]) -> Counter[int]:
    """Return the number of rows of each length, for the trials and their baseline."""
    return work_of(field.by_reach[max(field.by_reach)], (BASELINE,)) + _work(field, trials)


def foretell(
    pace: Callable[[], estimate.Pace], field: Field, trials: Sequence[Trial], say: Callable[[str], None]
) -> None:
    """Report how long the measurements will take, if that is long. This runs the model briefly."""
    work = whole_work(field, trials)
    duration = pace()(work) if work else 0.0
    if duration > LONG_RUN:
        total = estimate.tokens(work)
        say(f"about {estimate.in_words(duration)} for {total} tokens, {len(trials)} candidates and their baseline")


def measure(
    runner: Runner, trials: Sequence[Trial], field: Field, wrap: Wrap, tell: Progress
) -> tuple[dict[str, Raw], dict[int, Raw]]:
    """Return the raw figures of each trial by its name, and of the unchanged source by reach.

    wrap: stores rows by table, so that rows that two measurements or candidates share are computed only once.
    """
    work = _work(field, trials) + sum(
        (work_of(of_reach, (BASELINE,)) for of_reach in field.by_reach.values()), Counter[int]()
    )
    total, finished = estimate.tokens(work), 0

    def run(view: Runner, kept_as: str, role: str, measurements: Sequence[Measurement], title: str) -> Raw:
        kept, figures = wrap(view, kept_as), {}
        for measurement in measurements:

            def done(tokens: int, stage: str = f"{title}: {measurement.name}") -> None:
                nonlocal finished
                finished += tokens
                tell(stage, finished, total)

            figures[measurement.name] = measurement.run(kept, role, done)
        return figures

    own = {
        reach: run(runner, BASELINE, BASELINE, of_reach, "the unchanged source")
        for reach, of_reach in field.by_reach.items()
    }
    raw = {}
    for index, trial in enumerate(trials, 1):
        title_of_trial = f"{trial.name} ({index} of {len(trials)})"
        raw[trial.name] = run(trial.runner, trial.kept_as, TARGET, field.of(trial), title_of_trial)
    return raw, own


def _work(field: Field, trials: Sequence[Trial]) -> Counter[int]:
    return sum((work_of(field.of(trial), (TARGET,)) for trial in trials), Counter[int]())
