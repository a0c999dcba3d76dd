"""Run a tuning: source, space, texts, search and evaluation."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from ropetool.checkpoint import fingerprints
from ropetool.checkpoint.certificate import USABLE
from ropetool.checkpoint.opening import Checkpoint
from ropetool.choosing.source import SourceModel
from ropetool.errors import ConfigError
from ropetool.escaping import read_length
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.lab.tuning import spaces
from ropetool.lab.tuning.figures import AllowedLoss, PointLosses
from ropetool.lab.tuning.judging import Judgement, judge
from ropetool.lab.tuning.looks import error_of
from ropetool.lab.tuning.material import TuningRows, prepare, split
from ropetool.lab.tuning.options import TuneArguments, TuneOptions
from ropetool.lab.tuning.planning import Planner, identity
from ropetool.lab.tuning.points import Ground
from ropetool.lab.tuning.results import TuneResult
from ropetool.lab.tuning.searching import DRAWS, STAGES, Score, SearchState, Vector, search, work
from ropetool.lab.tuning.spaces import Space
from ropetool.plans.basis import Unpack, listed
from ropetool.plans.plan import Plan
from ropetool.verification import estimate
from ropetool.verification.conditions import SOURCE, conditions, run_key
from ropetool.verification.corpus import read_corpus
from ropetool.verification.gate import GRADES
from ropetool.verification.journal import Journal, JournaledRunner, kept_journal
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import TARGET, Done, Progress, Runner
from ropetool.verification.session import documents_of
from ropetool.verification.texts import Document, fingerprint

MOST_GENERATIONS = 40  # later generations hardly change the best point
SPARE = 2.0  # a proposed budget is this multiple of the needed one, because the machine may be slower on the next try
SCHEDULE = hashlib.sha256(b"the generations of this search").digest()  # its key in the journal


def tune(
    source: str | Path | Checkpoint,
    target_length: int | str,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    **options: Unpack[TuneArguments],
) -> TuneResult:
    """Search a space for the best point for one model and target length, and evaluate the point once on unseen text.

    target_length: tokens beyond the trained length, as a number or as a text like "32k".
    options: the fields of `TuneOptions`, by name.
    progress: called with a stage, and the finished and total tokens.
    say: receives sentences about the work ahead.

    Raises: ConfigError for a target within the trained length, texts that are too short or too few, a budget too small;
    LossyExport if no file contains a point of the space for these runtimes; UnknownName, CheckpointError, and as
    `make_plan`.
    """
    length = read_length(target_length, "target_length")
    return tune_source(source, length, TuneOptions(**options), progress=progress, say=say)


def tune_source(
    source: str | Path | Checkpoint,
    target_length: int,
    options: TuneOptions,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> TuneResult:
    """Search and evaluate as `tune` does. Raises: as `tune`."""
    task, tell = _Tuning.of(source, target_length, options), progress or nobody
    with closing(task.source.load(options.device, options.dtype, task.notes.append)) as runner:
        tell("reading the texts", 0, 0)
        searched, unseen = task.read(runner)
        with task.journal() as journal:
            count = options.generations or _generations(journal, runner, searched, unseen, options.minutes)
            if say is not None:
                say(f"{count * DRAWS} points of space {options.space}, {DRAWS} per generation, then the evaluation")
            run = _Run(task, runner, journal, tell, count)
            winner = run.search(searched, options.seed)
            tuned = task.plan(winner)
            judgement = None if tuned is None else run.judged(unseen, tuned, task.error(unseen, tuned))
    return task.result(searched, unseen, winner, tuned, judgement, runner.description)


@dataclass(frozen=True, eq=False)
class _Tuning:
    """A tuning before the model is loaded.

    target_length, trained: lengths in tokens.
    ground: the start of the space.
    notes: sentences for the result.
    """

    source: SourceModel
    target_length: int
    trained: int
    options: TuneOptions
    space: Space
    planner: Planner
    ground: Ground
    documents: Sequence[Document]
    notes: list[str]

    @classmethod
    def of(cls, source: str | Path | Checkpoint, target_length: int, options: TuneOptions) -> _Tuning:
        """Open the source and the space, and read the documents. Raises: as `tune`."""
        space = spaces.get(options.space)
        model = SourceModel.of(source, "tune")
        model.check_beyond(target_length, options.reading, "tune")
        planner = Planner(
            model.checkpoint, model.rope, target_length, options.reading, tuple(listed(options.for_runtimes))
        )
        trained = planner.default.trained_length  # before `opened`, which would report a different error
        ground, notes = planner.opened(space), list[str]()
        documents = documents_of(options.texts, target_length, notes)
        return cls(model, target_length, trained, options, space, planner, ground, documents, notes)

    @property
    def bounds(self) -> AllowedLoss:
        """Return the limits of a point within the trained length."""
        limit, grade = self.options.max_regression, GRADES[USABLE]
        return AllowedLoss(math.log(grade.max_ratio if limit is None else limit), limit is not None, grade.max_lost)

    @cached_property
    def fingerprint(self) -> str:
        """Return the fingerprint of the source."""
        return fingerprints.of(self.source.checkpoint)

    def read(self, runner: TorchRunner) -> tuple[TuningRows, TuningRows]:
        """Return the rows of the search and the rows of the judgement.

        Raises: ConfigError if the texts are too short.
        """
        seed, length = self.options.seed, self.target_length
        whole = read_corpus(self.documents, {TARGET: runner}, {TARGET: self.source.checkpoint.path})
        searched, unseen = (
            prepare(corpus, runner.tokenize, self.trained, length, amount, seed, asked)
            for corpus, amount, asked in zip(
                split(whole, length, seed), self.options.amounts, (seed, -1 - seed), strict=True
            )
        )
        return searched, unseen

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        """Yield the journal of this search."""
        options, models = self.options, {SOURCE: self.source.checkpoint}
        ways = (
            "tune", options.space, self.target_length, options.seed, options.device, options.dtype, options.amounts,
            options.max_regression, options.reading, options.for_runtimes, options.generations, options.budget,
        )  # fmt: skip
        key = run_key(models, self.documents, [*map(str, ways)])
        decides = conditions(models, self.documents, {SOURCE: self.fingerprint}, options.device)
        with kept_journal(key, decides, options.resume, self.notes) as journal:
            yield journal

    def plan(self, winner: SearchState) -> Plan | None:
        """Return the plan of the best point, or None if the search did not improve on the default."""
        return None if winner.best is None else self.planner.plan(self.space, self.ground, winner.best)

    def error(self, unseen: TuningRows, tuned: Plan) -> float:
        """Return the error that the judgement of a plan may have, and record the judgement."""
        judged = f"{identity(tuned)} {self.target_length} {self.options.seed} {self.options.amounts[1]}"
        return error_of(self.fingerprint, [tokens.tobytes() for tokens in unseen.corpus.tokens], judged, self.notes)

    def result(
        self, searched: TuningRows, unseen: TuningRows, winner: SearchState, tuned: Plan | None, judgement: Judgement | None,
        runtime: str,
    ) -> TuneResult:  # fmt: skip
        """Return the result. tuned: the plan of the winner. runtime: the description of the runner."""
        words, options = "", self.options
        if winner.best is not None and tuned is not None:
            words = self.space.point(self.ground, winner.best).words
            notes = (*tuned.notes, f"found by a search: {words}")
            tuned = replace(tuned, suffix=f"tuned-{self.target_length}", notes=notes)
        return TuneResult(
            source=hub.name_of(self.source.checkpoint.path), space=options.space, trained_length=self.trained,
            target_length=self.target_length, lengths=searched.lengths, runtimes=self.planner.default.runtimes,
            seed=options.seed, minutes=options.minutes, points=winner.points, steps=winner.steps,
            searched=searched.corpus.names, unseen=unseen.corpus.names, segments=(searched.segments, unseen.segments),
            winner=words, judgement=judgement, default=self.planner.default, tuned=tuned, inv_freq=self.ground.inv_freq,
            max_regression=options.max_regression, text_fingerprint=fingerprint(self.documents), runtime=runtime,
            notes=tuple(self.notes),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Run:
    """A tuning in the loaded model. generations: the number of generations of the search."""

    task: _Tuning
    runner: TorchRunner
    journal: Journal
    tell: Progress
    generations: int

    def search(self, material: TuningRows, seed: int) -> SearchState:
        """Return the best point and the steps of the search on its part of the text."""
        space, ground, planner, bounds = self.task.space, self.task.ground, self.task.planner, self.task.bounds
        total = int(self.generations * work() * estimate.tokens(material.rows()))
        finished, generation = 0, 0

        def done(tokens: int) -> None:
            nonlocal finished
            finished += tokens
            self.tell(f"generation {generation + 1} of {self.generations}", min(finished, total), total)

        def progress(number: int, _: SearchState) -> None:
            nonlocal generation
            generation = number + 1

        def evaluate(vectors: Sequence[Vector], stage: int) -> list[Score]:
            share, whole = STAGES[stage], stage == len(STAGES) - 1
            source = material.within(self._journaled(self.runner, "source"), share, done)
            default = self._figures(material, planner.default, share, done)
            each = [self._figures(material, planner.plan(space, ground, vector), share, done) for vector in vectors]
            return [bounds.score(figures, default, source, whole=whole) for figures in each]

        return search(
            space.size(ground), space.starts(ground), space.smooth, evaluate, self.generations, seed,
            partial(planner.possible, space, ground), progress,
        )  # fmt: skip

    def judged(self, material: TuningRows, tuned: Plan, error: float) -> Judgement:
        """Judge a plan on text that the search did not use. error: the chance to report a gain that does not exist."""
        total = 2 * estimate.tokens(material.rows()) + material.segments * material.last.trained_length
        finished = 0

        def done(tokens: int) -> None:
            nonlocal finished
            finished += tokens
            self.tell("the evaluation", finished, total)

        source = material.within(self._journaled(self.runner, "source"), 1.0, done)
        default, best = (self._figures(material, plan, 1.0, done) for plan in (self.task.planner.default, tuned))
        return judge(default, best, source, material.documents, self.task.bounds, error)

    def _figures(self, material: TuningRows, plan: Plan, share: float, done: Done) -> PointLosses:
        view = self.task.planner.view(self.runner, plan, self.task.source.checkpoint.family.nested)
        return material.figures(self._journaled(view, identity(plan)), share, done)

    def _journaled(self, runner: Runner, role: str) -> JournaledRunner:
        return JournaledRunner(runner, self.journal, role)


def _generations(
    journal: Journal, runner: TorchRunner, search_on: TuningRows, judge_on: TuningRows, minutes: float
) -> int:
    """Return how many generations fit into the budget, besides the evaluation. A resumed run keeps its number.

    Raises: ConfigError for a budget without any generation. The message proposes a budget.
    """
    recorded = journal.get(SCHEDULE)
    if recorded is not None:
        return int(recorded[0])
    whole, unseen = search_on.rows(), judge_on.rows()
    pace = estimate.pace(runner, search_on.corpus, [*whole, *unseen])
    within = Counter({search_on.last.trained_length: search_on.segments + judge_on.segments})
    fixed = pace(within) + pace(whole) + 2 * pace(unseen)
    one = pace(whole) * work()
    count = min(MOST_GENERATIONS, int((60 * minutes - fixed) / one))
    if count < 1:
        needed = estimate.in_words(fixed + one)
        raise ConfigError(
            f"{minutes:g} minutes are too short for one generation of {DRAWS} points and the evaluation, which need about {needed} here",
            where="--budget", try_=f"--budget {math.ceil(SPARE * (fixed + one) / 60)}",
        )  # fmt: skip
    journal.put([SCHEDULE], np.array([[float(count)]]))
    return count
