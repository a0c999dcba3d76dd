"""One tuning: source, space, texts, search and judgement put together.

Knows nothing of options, or of how results are shown.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ropetool.checkpoint import fingerprints
from ropetool.checkpoint.certificate import USABLE
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_source
from ropetool.choosing.source import SourceModel
from ropetool.errors import ConfigError
from ropetool.escaping import command
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.lab.tuning import spaces
from ropetool.lab.tuning.figures import Bounds, Figures
from ropetool.lab.tuning.judging import Judgement, judge
from ropetool.lab.tuning.looks import error_of
from ropetool.lab.tuning.material import SEARCHED, UNSEEN, Amounts, Material, prepare, split
from ropetool.lab.tuning.planning import DEFAULT, Planner, identity
from ropetool.lab.tuning.points import Ground
from ropetool.lab.tuning.results import TuneResult
from ropetool.lab.tuning.searching import DRAWS, STAGES, Score, Searched, Vector, search, work
from ropetool.lab.tuning.spaces import Space
from ropetool.plans.plan import Plan
from ropetool.verification import estimate
from ropetool.verification.conditions import SOURCE, conditions, run_key
from ropetool.verification.corpus import read_corpus
from ropetool.verification.gate import GRADES
from ropetool.verification.journal import Journal, JournaledRunner, kept_journal
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import TARGET, Done, Progress, Runner
from ropetool.verification.session import documents_of
from ropetool.verification.texts import fingerprint

MINUTES = 10.0  # of a budget that nobody stated
MOST_GENERATIONS = 40  # later ones hardly move
SPARE = 2.0  # times what a budget has to be, where one is named: the next probe may find the machine half as fast
SCHEDULE = hashlib.sha256(b"the generations of this search").digest()  # its key in the journal


def tune(
    source: str | Path | Checkpoint,
    target_length: int,
    *,
    space: str = DEFAULT,
    budget: float | None = None,
    max_regression: float | None = None,
    reading: str | None = None,
    for_runtimes: Sequence[str] = (),
    texts: Sequence[str | Path] = (),
    generations: int | None = None,
    amounts: tuple[Amounts, Amounts] = (SEARCHED, UNSEEN),
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> TuneResult:
    """Return the best point of a space for one model and target length, judged once on text that the search never saw.

    budget: minutes, which decide how many generations there are; `generations` does so too, for what is to be the same
    anywhere. max_regression: the ratio of perplexities within the trained length, against the source, that is allowed; by
    default that of grade usable, or what YaRN's own table costs where that is more. reading: original or current, of a source
    that is scaled already. amounts: how much text the search reads, and the judgement.

    Raises: ConfigError for a target within the trained length, texts that are too short or too few, a budget too small; LossyExport
    for a space that no file holds for these runtimes; UnknownName, CheckpointError, and what `make_plan` raises.
    """
    chosen = spaces.get(space)
    _check(budget, max_regression, generations)
    checkpoint = open_source(source)
    if not isinstance(checkpoint, HfCheckpoint):
        raise ConfigError(
            "is a GGUF file, and llama.cpp has no way to turn a loaded model by another table", where=str(checkpoint.path),
            try_=f"{command('ropetool', 'import', checkpoint.path, '-o', 'DIR')}, and tune DIR",
        )  # fmt: skip
    model = SourceModel.of(checkpoint)
    model.check_beyond(target_length, reading, "tune")
    planner = Planner(checkpoint, model.rope, target_length, reading, tuple(for_runtimes))
    trained = planner.default.trained_length
    ground = planner.opened(chosen)
    notes: list[str] = []
    documents = documents_of(texts, target_length, notes)
    tell = progress or nobody
    with closing(model.load(device, dtype, notes.append)) as runner:
        tell("reading the texts", 0, 0)
        corpora = split(read_corpus(documents, {TARGET: runner}, {TARGET: checkpoint.path}), target_length, seed)
        search_on, judge_on = (
            prepare(corpus, runner.tokenize, trained, target_length, amount, seed, asked)
            for corpus, amount, asked in zip(corpora, amounts, (seed, -1 - seed), strict=True)
        )
        limit = GRADES[USABLE].max_ratio if max_regression is None else max_regression
        bounds = Bounds(math.log(limit), max_regression is not None, GRADES[USABLE].max_lost)
        ways = (
            "tune", space, target_length, seed, device, dtype, amounts,
            max_regression, reading, for_runtimes, generations, budget,
        )  # fmt: skip
        key = run_key({SOURCE: checkpoint}, documents, [*map(str, ways)])
        known = fingerprints.of(checkpoint)
        decides = conditions({SOURCE: checkpoint}, documents, {SOURCE: known}, device)
        with kept_journal(key, decides, resume, notes) as journal:
            count = generations or _generations(journal, runner, search_on, judge_on, budget or MINUTES)
            run = _Run(planner, chosen, ground, bounds, runner, checkpoint.family.nested, journal, tell, count)
            if say is not None:
                say(f"{count * DRAWS} points of space {space}, {DRAWS} a generation, and the judgement")
            winner = run.search(search_on, seed)
            tuned = None if winner.best is None else planner.plan(chosen, ground, winner.best)
            judgement = None
            if tuned is not None:
                unseen = [tokens.tobytes() for tokens in judge_on.corpus.tokens]
                judged = f"{identity(tuned)} {target_length} {seed} {amounts[1]}"
                judgement = run.judged(judge_on, tuned, error_of(known, unseen, judged, notes))
    words = "" if winner.best is None else chosen.point(ground, winner.best).words
    if tuned is not None:
        tuned = replace(tuned, suffix=f"tuned-{target_length}", notes=(*tuned.notes, f"found by a search: {words}"))
    return TuneResult(
        source=hub.name_of(checkpoint.path), space=space, trained_length=trained, target_length=target_length,
        lengths=search_on.lengths, runtimes=planner.default.runtimes, seed=seed, minutes=budget or MINUTES,
        points=winner.points, steps=winner.steps, searched=corpora[0].names, unseen=corpora[1].names,
        segments=(search_on.segments, judge_on.segments),
        winner=words, judgement=judgement,
        default=planner.default, tuned=tuned, inv_freq=ground.inv_freq, max_regression=max_regression,
        text_fingerprint=fingerprint(documents), runtime=runner.description, notes=tuple(notes),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Run:
    """The loaded model that is asked, and all that decides what it is asked as."""

    planner: Planner
    space: Space
    ground: Ground
    bounds: Bounds
    runner: TorchRunner
    nested: bool
    journal: Journal
    tell: Progress
    generations: int

    def search(self, material: Material, seed: int) -> Searched:
        """Return what the search finds on its part of the text."""
        space, ground = self.space, self.ground
        total = int(self.generations * work() * estimate.tokens(material.rows()))
        finished, generation = 0, 0

        def done(tokens: int) -> None:
            nonlocal finished
            finished += tokens
            self.tell(f"generation {generation + 1} of {self.generations}", min(finished, total), total)

        def told(number: int, _: Searched) -> None:
            nonlocal generation
            generation = number + 1

        def evaluate(vectors: Sequence[Vector], stage: int) -> list[Score]:
            share, whole = STAGES[stage], stage == len(STAGES) - 1
            source = material.within(self._journaled(self.runner, "source"), share, done)
            default = self._figures(material, self.planner.default, share, done)
            each = [
                self._figures(material, self.planner.plan(space, ground, vector), share, done) for vector in vectors
            ]
            return [self.bounds.score(figures, default, source, whole=whole) for figures in each]

        return search(
            space.size(ground), space.starts(ground), space.smooth, evaluate, self.generations, seed,
            partial(self.planner.possible, space, ground), told,
        )  # fmt: skip

    def judged(self, material: Material, tuned: Plan, error: float) -> Judgement:
        """Judge a plan on text that the search did not use. error: the chance to report a gain that does not exist."""
        total = 2 * estimate.tokens(material.rows()) + material.segments * material.last.trained_length
        finished = 0

        def done(tokens: int) -> None:
            nonlocal finished
            finished += tokens
            self.tell("the judgement", finished, total)

        source = material.within(self._journaled(self.runner, "source"), 1.0, done)
        default, best = (self._figures(material, plan, 1.0, done) for plan in (self.planner.default, tuned))
        return judge(default, best, source, material.documents, self.bounds, error)

    def _figures(self, material: Material, plan: Plan, share: float, done: Done) -> Figures:
        view = self.planner.view(self.runner, plan, self.nested)
        return material.figures(self._journaled(view, identity(plan)), share, done)

    def _journaled(self, runner: Runner, role: str) -> JournaledRunner:
        return JournaledRunner(runner, self.journal, role)


def _check(budget: float | None, max_regression: float | None, generations: int | None) -> None:
    if budget is not None and not (math.isfinite(budget) and budget > 0):
        raise ConfigError(f"{budget} is not a number of minutes above 0", where="--budget")
    if max_regression is not None and not (math.isfinite(max_regression) and max_regression >= 1):
        raise ConfigError(
            f"{max_regression} is not a ratio of perplexities of at least 1",
            where="--max-regression",
            try_="--max-regression 1.1",
        )
    if generations is not None and generations < 1:
        raise ConfigError(f"{generations} is not a number of generations above 0", where="generations")


def _generations(journal: Journal, runner: TorchRunner, search_on: Material, judge_on: Material, minutes: float) -> int:
    """Return how many generations the budget pays for, beside the judgement; those of before where a run goes on.

    Raises: ConfigError for a budget that pays for none, with one that does.
    """
    kept = journal.get(SCHEDULE)
    if kept is not None:
        return int(kept[0])
    whole, unseen = search_on.rows(), judge_on.rows()
    pace = estimate.pace(runner, search_on.corpus, [*whole, *unseen])
    within = Counter({search_on.last.trained_length: search_on.segments + judge_on.segments})
    fixed = pace(within) + pace(whole) + 2 * pace(unseen)
    one = pace(whole) * work()
    count = min(MOST_GENERATIONS, int((60 * minutes - fixed) / one))
    if count < 1:
        needed = estimate.in_words(fixed + one)
        raise ConfigError(
            f"{minutes:g} minutes do not pay for one generation of {DRAWS} points and the judgement, which take about {needed} here",
            where="--budget", try_=f"--budget {math.ceil(SPARE * (fixed + one) / 60)}",
        )  # fmt: skip
    journal.put([SCHEDULE], np.array([[float(count)]]))
    return count
