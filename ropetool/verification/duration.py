"""The time limit of a run: refuse a run that takes longer, and propose a smaller one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ropetool.errors import ConfigError
from ropetool.verification import estimate, suites
from ropetool.verification.measure import Suite
from ropetool.verification.measures.segments import MIN_SEGMENTS

LONGEST = 60.0  # minutes that a run may take without a budget
# The share of the allowed minutes that a proposed smaller run uses, because the next estimate may be twice as long.
FITTING = 1 / 3
SPARE = 2.0  # the proposed budget, as a multiple of the estimate, for the same reason
SMALL = 16_384  # tokens; a run without more is not estimated, because the estimate would take a good part of its time
NO_BUDGET = math.inf  # allows any duration
FEWEST_TRIALS = 5
STEP = 64  # tokens; the lengths of a smaller run are multiples, where they are longer
RESEARCH = "research"  # the grade that needs only losses


@dataclass(frozen=True)
class RunSize:
    """The settings that determine the number of rows of a run.

    suite: the measures, and their amounts.
    lengths: tokens, increasing.
    grade: the name of the grade. A higher grade adds measures to the suite.
    """

    suite: Suite
    lengths: tuple[int, ...]
    grade: str

    def options(self, other: RunSize) -> dict[str, str | None]:
        """Return the command line options that turn this run into the other one. None removes an option."""
        changed: dict[str, str | None] = {}
        if other.suite.measures != self.suite.measures or other.suite.name != self.suite.name:
            custom = other.suite.name == suites.CUSTOM
            changed |= {"--suite": None if custom else other.suite.name}
            changed |= {"--measure": ",".join(other.suite.measures) if custom else None}
        if other.grade != self.grade:
            changed["--grade"] = other.grade
        usual = suites.SUITES.get(other.suite.name, self.suite)
        for option, amount, own, default in (
            ("--segments", other.suite.segments, self.suite.segments, usual.segments),
            ("--trials", other.suite.trials, self.suite.trials, usual.trials),
        ):
            if amount != default:
                changed[option] = str(amount)
            elif amount != own:
                changed[option] = None
        if other.lengths != self.lengths:
            changed["--lengths"] = ",".join(map(str, other.lengths))
        return changed


Rows = Callable[[RunSize], Mapping[int, int]]
"""Returns the number of rows of each length that a run computes. Raises: ConfigError if the texts are too short."""


class TooLong(ConfigError):
    """A run exceeds its time limit. changes: the changed options of a smaller run; empty if no run fits."""

    def __init__(self, message: str, changes: Mapping[str, str | None], notes: tuple[str, ...], try_: str) -> None:
        super().__init__(message, where="--budget", try_=try_)
        self.changes, self.notes = changes, notes


def allowed(budget: float | None) -> float:
    """Return the time limit of a run in minutes. budget: the user's limit in minutes, or None."""
    return LONGEST if budget is None else budget


def check_duration(
    run: RunSize, rows: Rows, pace: Callable[[], estimate.Pace], budget: float | None, trained: int, *, free_grade: bool
) -> None:
    """Refuse a run that exceeds its budget, or an hour without one.

    pace: estimates the speed on first use.
    trained: tokens.
    free_grade: the user did not choose a grade, so a smaller run may lower it.
    Raises: TooLong.
    """
    work = rows(run)
    if budget == NO_BUDGET or estimate.tokens(work) <= SMALL:
        return
    minutes = pace()(work) / 60
    if minutes <= allowed(budget):
        return
    fitting = smaller(run, lambda each: fits(each, rows, pace(), FITTING * allowed(budget)), trained, free_grade)
    message = f"the run takes about {estimate.in_words(60 * minutes)} on this machine; the limit is {allowed(budget):g} minutes"
    whole = f"--budget {math.ceil(SPARE * minutes)}"
    notes = [f"pass `{whole}` for the whole run, or `--budget none` for no limit"]
    if fitting is None:
        raise TooLong(message, {}, tuple(notes), whole)
    duration = estimate.in_words(pace()(rows(fitting)))
    reached = f"measures up to {fitting.lengths[-1]} of {run.lengths[-1]} tokens and takes about {duration}"
    raise TooLong(message, run.options(fitting), (f"the smaller run {reached}", *notes), whole)


def fits(run: RunSize, rows: Rows, pace: estimate.Pace, minutes: float) -> bool:
    """Return whether a run ends within these minutes. False if the texts are too short for it."""
    try:
        return pace(rows(run)) <= 60 * minutes
    except ConfigError:
        return False


def smaller(run: RunSize, fitting: Callable[[RunSize], bool], trained: int, free_grade: bool) -> RunSize | None:
    """Return the largest smaller run that fits, or None. If possible, it keeps the lengths and measures less at each.

    The smallest run is tried first at the same lengths, because its rows are quick to choose.
    """
    longest = run.lengths[-1]
    ends = tuple(length for length in run.lengths if length in (trained, longest))
    *_, least = _less(run, free_grade)
    for lengths in dict.fromkeys([run.lengths, ends, (longest,)]):
        if fitting(replace(least, lengths=lengths)):
            return next(less for less in _less(replace(run, lengths=lengths), free_grade) if fitting(less))
    shorter = (replace(least, lengths=(length,)) for length in _shorter(longest))
    return next((each for each in shorter if fitting(each)), None)


def _less(run: RunSize, free_grade: bool) -> Iterator[RunSize]:
    """Yield runs that measure less at each length: fewer trials, then the quick suite, then only losses."""
    suite = run.suite
    few = replace(suite, segments=MIN_SEGMENTS, trials=min(suite.trials, FEWEST_TRIALS))
    yield run
    yield replace(run, suite=few)
    if suite.name == suites.CUSTOM:
        return
    quick = replace(suites.named("quick"), most_scored=suite.most_scored)
    yield replace(run, suite=quick)
    yield replace(run, suite=replace(quick, segments=MIN_SEGMENTS))
    if free_grade:
        yield replace(run, suite=quick, grade=RESEARCH)
        yield replace(run, suite=replace(quick, segments=MIN_SEGMENTS), grade=RESEARCH)
    else:
        losses = replace(few, name=suites.CUSTOM, measures=(suites.LAST_SEGMENT,), trials=suite.trials)
        yield replace(run, suite=losses)


def _shorter(longest: int) -> Iterator[int]:
    """Yield shorter and shorter lengths, each about seven eighths of the previous one."""
    length = longest
    while length > 2 * MIN_SEGMENTS:
        length = length * 7 // 8
        yield length // STEP * STEP if length >= STEP else length
