"""Effective length: the tasks of `ruler.py` at the trained length and beyond, scored by likelihood.

Each trial has the same question at the trained length, so scores are compared trial by trial.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from ropetool.lab.measures.ruler import TASKS, context_of, single_tokens
from ropetool.sections import NONE, Cell, Section, Table, number, row
from ropetool.verification.gate import NOTHING_BEYOND
from ropetool.verification.measure import TONES, Measure, Setting
from ropetool.verification.measures.contexts import MOST_OF_CONTEXT, Context
from ropetool.verification.results import NO_WORSE, NOT_ASKED, UNDECIDED, WORSE, Check
from ropetool.verification.scoring import TARGET, Corpus, Done, Measurement, Runner
from ropetool.verification.shares import PairedTrials, chance_of_so_low, paired_ratio, ratio_bounds
from ropetool.verification.statistics import rejected

NAME = "effective-length"
KEPT = 0.9  # the share of the score at the trained length that a longer length must keep
TRIALS = 2  # trials of each task, for each trial of retrieval at a depth
WEAK = 0.2  # the lowest score at the trained length that allows a verdict

Hits = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class EffectiveLengthTask:
    """The result of a task.

    name: the name of the task.
    chance: the share of right answers of a blind guess.
    own: the number of right answers at the trained length.
    hits: the number of right answers of the target, by length.
    """

    name: str
    chance: float
    own: int
    hits: Mapping[int, int]


@dataclass(frozen=True)
class EffectiveLengthStep:
    """The score at one length: the share of right answers over all tasks, scaled so that a blind guess has 0.

    length: the length in tokens.
    score: the score.
    ratio: the score divided by the score of the same trials at the trained length.
    lower, upper: bounds of the true ratio, with 95 % confidence each.
    verdict: `no worse` if the lower bound is at least the share to keep, `worse` if the ratio is significantly below it
      over all lengths together, else `undecided`.
    """

    length: int
    score: float
    ratio: float
    lower: float
    upper: float
    verdict: str


@dataclass(frozen=True)
class EffectiveLengthResult:
    """The longest length that, like all shorter ones, keeps the share `kept` of the score at the trained length.

    kept: the share to keep.
    tasks: the result of each task.
    trials: the number of trials per task.
    own: the score at the trained length, of the baseline if there is one.
    steps: the result of each length beyond the trained one, and of the trained one if there is a baseline.
    longest: the effective length by the ratios, in tokens.
    surely: the effective length by the lower bounds of the ratios.
    possibly: the last length before the first that is significantly worse.
    note: the reason why nothing is judged, or the tasks that are left out. Empty if there is neither.

    A length of 0 means that even the first length fails. All lengths are None if nothing is judged.
    """

    kept: float
    tasks: tuple[EffectiveLengthTask, ...]
    trials: int
    own: float | None
    steps: tuple[EffectiveLengthStep, ...]
    longest: int | None
    surely: int | None
    possibly: int | None
    note: str


@dataclass(frozen=True)
class EffectiveLength:
    """The contexts of each length and task.

    The right word is the last candidate. The baseline gets only the shortest ones.
    contexts: by length and by the name of a task.
    """

    contexts: Mapping[int, Mapping[str, tuple[Context, ...]]]
    trained_length: int
    note: str
    name: str = NAME

    def rows(self, role: str) -> Mapping[int, int]:
        return {length: sum(map(len, self.contexts[length].values())) for length in self._lengths(role)}

    def run(self, runner: Runner, role: str, done: Done) -> Mapping[int, Hits]:
        """Return whether the right word was the likeliest, by length. Shapes: (tasks, trials)."""
        return {
            length: np.array([_hits(runner, of_task, done) for of_task in self.contexts[length].values()])
            for length in self._lengths(role)
        }

    def result(self, target: Mapping[int, Hits], baseline: Mapping[int, Hits] | None) -> EffectiveLengthResult:
        """Return the score of each length next to the score of the trained length, and the effective lengths."""
        twins = (target if baseline is None else baseline).get(self.trained_length)
        if twins is None:
            return EffectiveLengthResult(KEPT, (), 0, None, (), None, None, None, self.note)
        of_tasks = self.contexts[self.trained_length]
        chances = [1 / len(contexts[0].candidates) for contexts in of_tasks.values()]
        tasks = tuple(
            EffectiveLengthTask(name, guess, int(own.sum()), {n: int(hits[i].sum()) for n, hits in target.items()})
            for i, (name, guess, own) in enumerate(zip(of_tasks, chances, twins, strict=True))
        )
        chance = float(np.mean(chances))
        score = (float(twins.mean()) - chance) / (1 - chance)
        pairs = {
            n: _paired(hits, twins) for n, hits in target.items() if baseline is not None or n > self.trained_length
        }
        note = self._weakness(score, pairs) or self.note
        steps = _steps(pairs, chance) if not self._weakness(score, pairs) else ()
        return EffectiveLengthResult(KEPT, tasks, twins.shape[1], score, steps, *_longest(steps), note)

    def _weakness(self, score: float, lengths: Collection[int]) -> str:
        """Return why there is no verdict, or an empty string if there is one."""
        if score < WEAK:
            return f"the score within {self.trained_length} tokens is {score:.2f}; a verdict needs at least {WEAK:g}"
        return "" if any(n > self.trained_length for n in lengths) else NOTHING_BEYOND

    def _lengths(self, role: str) -> list[int]:
        return [length for length in self.contexts if role == TARGET or length == self.trained_length]


def _hits(runner: Runner, contexts: Sequence[Context], done: Done) -> Hits:
    predictions = runner.predict([c.row for c in contexts], [c.candidates for c in contexts], done)
    hits: Hits = predictions.log_probs.argmax(axis=1) == np.array([c.answer for c in contexts])
    return hits


def _paired(hits: Hits, twins: Hits) -> PairedTrials:
    return PairedTrials(
        int((hits & twins).sum()), int((hits & ~twins).sum()), int((~hits & twins).sum()), int((~hits & ~twins).sum())
    )


def _steps(pairs_by_length: Mapping[int, PairedTrials], chance: float) -> tuple[EffectiveLengthStep, ...]:
    """Return each length with its ratio and a verdict. Holm's rule corrects for the number of lengths."""
    lengths = sorted(pairs_by_length)
    worse = rejected([chance_of_so_low(pairs_by_length[length], chance, KEPT) for length in lengths])
    steps = []
    for length, sure in zip(lengths, worse, strict=True):
        pairs, (lower, upper) = pairs_by_length[length], ratio_bounds(pairs_by_length[length], chance)
        score = ((pairs.both + pairs.gained) / pairs.trials - chance) / (1 - chance)
        verdict = WORSE if sure else NO_WORSE if lower >= KEPT else UNDECIDED
        steps.append(EffectiveLengthStep(length, score, paired_ratio(pairs, chance), lower, upper, verdict))
    return tuple(steps)


def _longest(steps: Sequence[EffectiveLengthStep]) -> tuple[int | None, int | None, int | None]:
    """Return three effective lengths: by the ratio, by its lower bound, and before the first significant loss.

    Each is the longest length at which this and all shorter lengths pass. It is 0 if the first fails. The second stops
    at the first length that fails, so its chance of being too long is the chance for one bound. This chance is often
    above 5 %, as counted by scripts/catalogue/intervals.py.
    """
    if not steps:
        return None, None, None
    rules: list[Callable[[EffectiveLengthStep], bool]] = [
        lambda step: step.ratio >= KEPT, lambda step: step.verdict == NO_WORSE, lambda step: step.verdict != WORSE,
    ]  # fmt: skip
    likely, surely, possibly = (max((s.length for s in takewhile(rule, steps)), default=0) for rule in rules)
    return likely, surely, possibly


def prepare_effective_length(
    corpus: Corpus,
    tokenize: Callable[[str], list[int]],
    lengths: Sequence[int],
    trained_length: int,
    *,
    trials: int,
    seed: int,
) -> EffectiveLength:
    """Return the contexts of all tasks, with `trials` of each at the trained length and at all longer lengths.

    A trial has the same words, sentences and question at every length. Each sentence follows the same share of the
    filler. A task is left out if it needs more words of a single token than the vocabulary has, or over half the
    trained length.

    Raises: ConfigError if there is no text.
    """
    words = single_tokens(tokenize)
    measured_lengths = [
        length for length in sorted({trained_length, *lengths}) if trained_length <= length <= max(lengths)
    ]
    contexts: dict[int, dict[str, tuple[Context, ...]]] = {length: {} for length in measured_lengths}
    left_out = []
    for task in TASKS:
        seeds = [f"{seed} {task.name} {trial}" for trial in range(trials)]
        drawn = (
            [task.drawn(list(words), random.Random(seed_of_trial)) for seed_of_trial in seeds]
            if len(words) >= task.words
            else []
        )
        sizes = [sum(len(tokenize(sentence)) for chain in trial.chains for sentence in chain) for trial in drawn]
        if not drawn or max(sizes) > trained_length * MOST_OF_CONTEXT:
            left_out.append(task.name)
            continue
        for length in measured_lengths:
            contexts[length][task.name] = tuple(
                context_of(trial, corpus, tokenize, words, length, random.Random(seed_of_trial))
                for trial, seed_of_trial in zip(drawn, seeds, strict=True)
            )
    note = f"left out, because room or words of one token are missing: {', '.join(left_out)}" if left_out else ""
    return EffectiveLength({length: tasks for length, tasks in contexts.items() if tasks}, trained_length, note)


def effective_length_check(result: EffectiveLengthResult, context_length: int) -> Check:
    """Return the check that shows the effective length next to the configured context length. It only informs."""
    name = "effective length"
    if result.longest is None or result.own is None:
        return Check(name, None, None, NOT_ASKED, result.note)
    reached = result.steps[-1].length
    longest, surely, possibly = (
        _at_most(n, result.steps[0].length) for n in (result.longest, result.surely, result.possibly)
    )
    more = " or more" if result.possibly == reached else ""
    detail = f"tokens up to which the score stays above {result.kept:g} x {result.own:.2f}: {longest}; bounds {surely} to {possibly}{more}"
    return Check(name, float(result.longest), float(context_length), NOT_ASKED, detail)


def _at_most(length: int | None, first: int) -> str:
    return str(length) if length else f"less than {first}"


TOO_LONG = 'for a true ratio at the limit, 4 to 8 % of simulated runs give "no worse", with one task up to 13 %'


def effective_length_section(result: EffectiveLengthResult, trained_length: int) -> Section:
    """Return the report section: right answers by task and length, the score, and its ratio to the trained length."""
    lengths = sorted({length for task in result.tasks for length in task.hits})
    steps = {step.length: step for step in result.steps}
    compared = [steps.get(length) for length in lengths]
    rows = [
        row(task.name, f"{task.chance:.2f}", str(task.own), *(str(task.hits[length]) for length in lengths))
        for task in result.tasks
    ]
    if result.steps:
        score = number(result.own or 0.0)
        rows += [
            row("score", NONE, score, *(NONE if s is None else number(s.score) for s in compared)),
            row("ratio", NONE, NONE, *(NONE if s is None else number(s.ratio) for s in compared)),
            row("95 % bounds", NONE, NONE, *(NONE if s is None else f"{s.lower:.2f}..{s.upper:.2f}" for s in compared)),
            row("verdict", NONE, NONE, *(NONE if s is None else Cell(s.verdict, TONES[s.verdict]) for s in compared)),
        ]
    legend = (
        ("task", f"right answers in {result.trials} trials, by length in tokens; the same trials at every length"),
        ("chance", "share of right answers by guessing"),
        ("own", f"right answers at the trained length of {trained_length} tokens, of the baseline if present"),
        ("score", "share of right answers over all tasks, scaled so that guessing gives 0"),
        (
            "ratio",
            f"score / score at the trained length; no worse: lower bound of at least {result.kept:g}; worse: significantly less",
        ),
        ("bounds", TOO_LONG),
    )
    notes = (result.note,) if result.note else ()
    head = ("task", "chance", "own", *map(str, lengths))
    title = f"Effective length: {_title(result)}"
    return Section("effective-length", title, Table(head, tuple(rows), words=(0,)), legend, notes)


def _title(result: EffectiveLengthResult) -> str:
    if result.longest is None:
        return "not judged"
    first = result.steps[0].length
    likely, surely, possibly = (
        str(n) if n else f"less than {first}" for n in (result.longest, result.surely, result.possibly)
    )
    more = " or more" if result.possibly == result.steps[-1].length else ""
    return f"{likely} tokens (bounds: {surely} to {possibly}{more})"


def _prepare(setting: Setting, measurements: Sequence[Measurement]) -> EffectiveLength:
    return prepare_effective_length(
        setting.corpus, setting.target.tokenize, setting.lengths, setting.trained_length,
        trials=TRIALS * setting.suite.trials, seed=setting.seed,
    )  # fmt: skip


JSON_PLACES = ({"key": "effective_length", "after": "judge", "order": 70},)
MEASURES = (
    Measure(
        NAME, "effective_length", 70, _prepare,
        checks=lambda lengths, grading: [effective_length_check(lengths, grading.context_length)],
        sections=lambda lengths, result: [effective_length_section(lengths, result.trained_length)],
    ),
)  # fmt: skip
