"""Retrieval: the share of correct answers to the questions of `contexts.py`, by length and depth."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ropetool import charts
from ropetool.sections import Cell, Section, Table, number, row
from ropetool.verification.gate import NOTHING_BEYOND, Grade
from ropetool.verification.measure import Measure, Setting, VerdictSentence
from ropetool.verification.measures.contexts import KEYS, TASKS, Context, ContextMaker, RetrievalTask, single_tokens
from ropetool.verification.results import FAIL, NOT_ASKED, NOT_RUN, PASS, UNDECIDED, Check, VerifyResult
from ropetool.verification.scoring import TARGET, Corpus, Done, Measurement, Runner
from ropetool.verification.shares import chance_of_so_few, paired_bounds
from ropetool.verification.statistics import rejected, wilson
from ropetool.verification.suites import FAR, RETRIEVAL

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
FEWEST = 3  # candidates; with fewer, a guess is correct too often


def name_of(task: str) -> str:
    """Return the name of the measure of a task."""
    return RETRIEVAL if task == KEYS else task


@dataclass(frozen=True)
class RetrievalCell:
    """The answers at one length and depth.

    depth: the place of the key, 0 for the start and 1 for the end.
    hits: the number of trials in which the correct value was the likeliest candidate.
    generated: the number of trials in which it was the likeliest of all tokens, which greedy generation writes.
    trials: the number of contexts.
    low, high: Wilson's 95 % interval of the share of hits.
    """

    length: int
    depth: float
    hits: int
    generated: int
    trials: int
    low: float
    high: float


@dataclass(frozen=True)
class RetrievalPair:
    """The trials of one length, paired with trials of the same keys and values within the trained length.

    depth: None for all depths together.
    generated: whether these are the answers of greedy generation.
    trials: the number of pairs.
    hits, own: the number of correct answers at this length, and within the trained length.
    gained, lost: the number of pairs that are correct only at this length, and only within the trained length.
    difference: the difference of the shares of correct answers.
    lower, upper: bounds of the true difference, with 95 % confidence each.
    """

    length: int
    depth: float | None
    generated: bool
    trials: int
    hits: int
    own: int
    gained: int
    lost: int
    difference: float
    lower: float
    upper: float


@dataclass(frozen=True)
class RetrievalResult:
    """The results of one task.

    task: `keys` (the default), `many-keys`, `variables` or `needles`.
    keys: the number of keys in a context.
    chance: the share of correct answers by guessing.
    cells, baseline: the answers of the target, and of the baseline within the trained length.
    note: the reason for missing lengths, or "".
    pairs: compared with the baseline's answers, or without a baseline with the target's own.
    """

    task: str
    keys: int
    chance: float
    cells: tuple[RetrievalCell, ...]
    baseline: tuple[RetrievalCell, ...]
    note: str
    pairs: tuple[RetrievalPair, ...] = ()


@dataclass(frozen=True)
class Retrieval:
    """The contexts of a task by length. The baseline gets only contexts within the trained length, in tokens.

    note: the reason for missing lengths, or "".
    """

    task: RetrievalTask
    contexts: Mapping[int, tuple[Context, ...]]
    trained_length: int
    note: str

    @property
    def name(self) -> str:
        return name_of(self.task.name)

    def rows(self, role: str) -> Mapping[int, int]:
        return {length: len(self.contexts[length]) for length in self._lengths(role)}

    def run(self, runner: Runner, role: str, done: Done) -> Mapping[int, npt.NDArray[np.bool_]]:
        """Return for each length whether each answer was the likeliest candidate, and the likeliest token.

        Shapes: (rows, 2).
        """
        figures = {}
        for length in self._lengths(role):
            contexts = self.contexts[length]
            predictions = runner.predict([c.row for c in contexts], [c.candidates for c in contexts], done)
            answers = np.array([c.answer for c in contexts])
            tokens = np.array([c.candidates[c.answer] for c in contexts])
            figures[length] = np.stack(
                [predictions.log_probs.argmax(axis=1) == answers, predictions.top == tokens], axis=1
            )
        return figures

    def result(
        self, target: Mapping[int, npt.NDArray[np.bool_]], baseline: Mapping[int, npt.NDArray[np.bool_]] | None
    ) -> RetrievalResult:
        """Return the answers of target and baseline. Without one, the target within the trained length is the baseline."""
        own = target if baseline is None else baseline
        within = {length: answers for length, answers in own.items() if length <= self.trained_length}
        candidates = min((len(c.candidates) for of in self.contexts.values() for c in of), default=self.task.keys)
        return RetrievalResult(
            self.task.name, candidates, 1 / candidates, self._cells(target), self._cells(within), self.note,
            self._pairs(target, baseline),
        )  # fmt: skip

    def _lengths(self, role: str) -> list[int]:
        return [length for length in self.contexts if role == TARGET or length <= self.trained_length]

    def _pairs(
        self, target: Mapping[int, npt.NDArray[np.bool_]], baseline: Mapping[int, npt.NDArray[np.bool_]] | None
    ) -> tuple[RetrievalPair, ...]:
        """Return each length paired with the trained length, for all depths together and for each depth.

        There is a pair for the chosen candidates, and one for the answers of greedy generation.
        """
        twins = (target if baseline is None else baseline).get(self.trained_length)
        if twins is None:
            return ()
        depths = np.array([context.depth for context in self.contexts[self.trained_length]])
        pairs = []
        for length, rows in target.items():
            for depth in (None, *DEPTHS) if baseline is not None or length > self.trained_length else ():
                here = depths >= 0 if depth is None else depths == depth
                pairs += [_pair(length, depth, bool(i), rows[here, i], twins[here, i]) for i in (0, 1)]
        return tuple(pairs)

    def _cells(self, answers: Mapping[int, npt.NDArray[np.bool_]]) -> tuple[RetrievalCell, ...]:
        cells = []
        for length, rows in answers.items():
            for depth in DEPTHS:
                here = rows[[context.depth == depth for context in self.contexts[length]]]
                hits, generated = (int(count) for count in here.sum(axis=0))
                cells.append(RetrievalCell(length, depth, hits, generated, len(here), *wilson(hits, len(here))))
        return tuple(cells)


def prepare_retrieval(
    task: str,
    corpus: Corpus,
    tokenize: Callable[[str], list[int]],
    lengths: Sequence[int],
    trained_length: int,
    *,
    trials: int,
    seed: int,
) -> Retrieval:
    """Return the contexts of a task, `trials` for each depth, at the trained length and at all longer lengths.

    A trial has the same keys and values at every length. The share of filler before the asked key is the same too. Keys
    and values are words of one token. A length is left out if the sentences would be more than half of it. All lengths
    are left out, with a note, if the vocabulary has too few such words.

    Raises: ConfigError if there is no text.
    """
    chosen = TASKS[task]
    words = single_tokens(chosen, tokenize)
    measured = [length for length in sorted({trained_length, *lengths}) if trained_length <= length <= max(lengths)]
    makers = {length: ContextMaker(chosen, corpus, tokenize, words, length) for length in measured}
    left_out = [str(length) for length, maker in makers.items() if maker.keys < FEWEST]
    makers = {length: maker for length, maker in makers.items() if maker.keys >= FEWEST}
    keys = min((maker.keys for maker in makers.values()), default=0)
    contexts = {
        length: tuple(
            maker.make(keys, depth, random.Random(f"{seed} {task} {depth} {trial}"))
            for depth in DEPTHS
            for trial in range(trials)
        )
        for length, maker in makers.items()
    }
    return Retrieval(chosen, contexts, trained_length, _note(chosen, len(words), left_out))


def _pair(
    length: int, depth: float | None, generated: bool, here: npt.NDArray[np.bool_], twins: npt.NDArray[np.bool_]
) -> RetrievalPair:
    hits, own, trials = int(here.sum()), int(twins.sum()), len(here)
    gained, lost = int((here & ~twins).sum()), int((twins & ~here).sum())
    bounds = paired_bounds(gained, lost, trials)
    return RetrievalPair(length, depth, generated, trials, hits, own, gained, lost, (hits - own) / trials, *bounds)


def _note(task: RetrievalTask, words: int, left_out: Sequence[str]) -> str:
    """Return why lengths are missing, or "" if none is."""
    if left_out and words < FEWEST * task.words:
        return f"the vocabulary has only {words} common words as single tokens, and {FEWEST * task.words} are needed"
    return f"the sentences do not fit into {', '.join(left_out)} tokens" if left_out else ""


def retrieval_checks(grid: RetrievalResult, grade: Grade, trained_length: int, copies: bool) -> list[Check]:
    """Return the check of the answers chosen among the candidates, and of the answers that greedy generation writes.

    copies: whether the check `copies` ran. It replaces this check if the model cannot answer within the trained length.
    """
    return [_answers(grid, grade, trained_length, copies, generated) for generated in (False, True)]


def _answers(grid: RetrievalResult, grade: Grade, trained_length: int, copies: bool, generated: bool) -> Check:
    """Return the check that answers at the longest length are as often correct as within the trained length.

    The check fails if a length or a depth is significantly worse, by Holm's rule over all of them, so that other depths
    cannot hide a lost depth. It passes if all depths together exclude a loss, and each depth is better than guessing.
    It does not run if the answers within the trained length are hardly better than guessing.
    """
    name = f"retrieval, {grid.task}{', written' if generated else ''}"
    pairs = [pair for pair in grid.pairs if pair.generated == generated]
    beyond = [pair for pair in pairs if pair.length > trained_length and pair.depth is None]
    stand_in = (NOT_ASKED, "; the check `copies` replaces this one") if copies else (NOT_RUN, "")
    if not beyond and grid.note:
        return Check(name, None, None, stand_in[0], f"{grid.note}{stand_in[1]}")
    if not beyond:
        return Check(name, None, None, NOT_RUN, NOTHING_BEYOND)
    last = max(beyond, key=lambda pair: pair.length)
    own = last.own / last.trials
    if own < max(2 * grid.chance, grid.chance + 2 * grade.max_lost):
        detail = f"only {last.own} of {last.trials} answers are right within {trained_length} tokens; guessing gives {grid.chance:.2f}"
        return Check(name, None, None, stand_in[0], f"{detail}{stand_in[1]}")
    limit = own - grade.max_lost
    lost = rejected([chance_of_so_few(pair.gained, pair.lost, pair.trials, -grade.max_lost) for pair in pairs])
    worse = [pair for pair, sure in zip(pairs, lost, strict=True) if sure]
    if worse:
        first = min(worse, key=lambda pair: (pair.depth is not None, pair.upper))
        limit = first.own / first.trials - grade.max_lost
        return Check(
            name, first.hits / first.trials, limit, FAIL, f"{_beside(first, trained_length)}; significantly worse"
        )
    if not grade.reads_far:
        return Check(
            name, last.hits / last.trials, limit, PASS, f"{_beside(last, trained_length)}; not significantly worse"
        )
    detail = _beside(last, trained_length)
    guessing = [
        f"{p.depth:.2f}" for p in pairs if p.length == last.length and p.depth is not None and _may_guess(p, grid)
    ]
    if last.lower >= -grade.max_lost and not guessing:
        return Check(name, last.hits / last.trials, limit, PASS, detail)
    at_depths = f"; not better than guessing at depth {', '.join(guessing)}" if guessing else ""
    detail = f"{detail}{at_depths}; more --trials can decide"
    return Check(name, last.hits / last.trials, limit, UNDECIDED, detail)


def _may_guess(pair: RetrievalPair, grid: RetrievalResult) -> bool:
    """Return whether the answers at a depth may be guesses, although those within the trained length are not."""
    own = pair.own / pair.trials
    return own > grid.chance and pair.lower <= grid.chance - own


def _beside(pair: RetrievalPair, trained_length: int) -> str:
    depth = "" if pair.depth is None else f", depth {pair.depth:.2f}"
    return (
        f"{pair.hits} of {pair.trials} right at {pair.length} tokens{depth}, {pair.own} at {trained_length}: "
        f"difference {pair.difference:+.2f}, 95 % bounds {pair.lower:+.2f} and {pair.upper:+.2f}"
    )


EXPLAINED = (
    ("depth", "position of the key, from 0.00 at the start to 1.00 at the end; columns: context in tokens"),
    ("cells", "trials in which the right value was the likeliest candidate / all trials"),
    ("written", "trials in which it was the likeliest of all tokens, so that greedy generation writes it; all depths"),
)


def retrieval_section(grid: RetrievalResult, trained_length: int, *, explained: bool = True) -> Section:
    """Return the report's table: depth by length, sums over the depths, and the baseline. explained: add the legend."""
    lengths = sorted({cell.length for cell in grid.cells})
    place = {(cell.depth, cell.length): cell for cell in grid.cells}
    depths = sorted({cell.depth for cell in grid.cells})
    rows = [
        row(f"{depth:.2f}", *(share([place[depth, n]] if (depth, n) in place else []) for n in lengths))
        for depth in depths
    ]
    rows.append(row("all", *(share(_at(grid.cells, n)) for n in lengths)))
    rows.append(row("written", *(share(_at(grid.cells, n), written=True) for n in lengths)))
    differences = {pair.length: pair for pair in grid.pairs if pair.depth is None and not pair.generated}
    if differences:
        rows.append(row("difference", *(_difference(differences.get(n)) for n in lengths)))
    if grid.baseline:
        rows.append(row("baseline", *(share(_at(grid.baseline, n)) for n in lengths)))
    legend = [*(EXPLAINED if explained else ()), *([("95 %", _wilson(grid))] if grid.cells else [])]
    if grid.baseline:
        within = [cell for cell in grid.baseline if cell.length <= trained_length]
        legend.append(("baseline", f"all depths; {share(within)} within its trained length of {trained_length} tokens"))
    legend += [
        ("difference", "share of right answers minus the share for the same keys and values within the trained length, "
         "and 95 % bounds of the true difference"),
    ] if grid.pairs else []  # fmt: skip
    legend.append(("chance", f"share of right answers by guessing: {number(grid.chance)}"))
    title = f"Retrieval, {grid.task}: {grid.keys} keys in the context, one in the question"
    table = Table(("depth", *map(str, lengths)), tuple(rows))
    notes = (grid.note,) if grid.note else ()
    return Section(f"retrieval-{grid.task}", title, table, tuple(legend), notes, (_every_cell(grid),))


def _at(cells: Sequence[RetrievalCell], length: int) -> list[RetrievalCell]:
    return [cell for cell in cells if cell.length == length]


def share(cells: Sequence[RetrievalCell], written: bool = False) -> str:
    """Return the number of correct answers and of all trials, as text. written: the answers of greedy generation."""
    hits = sum(cell.generated if written else cell.hits for cell in cells)
    return f"{hits}/{sum(cell.trials for cell in cells)}" if cells else "-"


def _difference(pair: RetrievalPair | None) -> str:
    return "-" if pair is None else f"{pair.difference:+.2f} ({pair.lower:+.2f}..{pair.upper:+.2f})"


def _wilson(grid: RetrievalResult) -> str:
    """Return the intervals of the lowest, a middle and the highest cell."""
    cells = sorted(grid.cells, key=lambda cell: (cell.low, cell.high))
    shown = dict.fromkeys(
        f"{c.hits}/{c.trials} is {c.low:.2f}-{c.high:.2f}" for c in (cells[0], cells[len(cells) // 2], cells[-1])
    )
    return f"Wilson interval of {', of '.join(shown)}"


def _every_cell(grid: RetrievalResult) -> Table:
    rows = [
        row(
            Cell(model),
            str(cell.length),
            f"{cell.depth:.2f}",
            f"{cell.hits}/{cell.trials}",
            f"{cell.low:.3f}-{cell.high:.3f}",
            f"{cell.generated}/{cell.trials}",
        )
        for model, cells in (("target", grid.cells), ("baseline", grid.baseline))
        for cell in cells
    ]
    head = ("model", "length", "depth", "hits", "Wilson 95 %", "written")
    return Table(head, tuple(rows), words=(0,), title="Every cell with its interval")


def _sections(grids: Sequence[RetrievalResult], result: VerifyResult) -> Iterator[Section]:
    for index, grid in enumerate(grids):
        yield retrieval_section(grid, result.trained_length, explained=index == 0)


def _charts(grids: Sequence[RetrievalResult], result: VerifyResult) -> Iterator[charts.Chart]:
    """Yield a map of the shares of right answers by depth and length for each task, with counts."""
    for grid in grids:
        if grid.cells:
            yield _chart(grid, result.trained_length)


def _chart(grid: RetrievalResult, trained_length: int) -> charts.Chart:
    lengths = sorted({cell.length for cell in grid.cells})
    depths = sorted({cell.depth for cell in grid.cells})
    by_place = {(cell.depth, cell.length): cell for cell in grid.cells}
    rows = [[by_place.get((depth, length)) for length in lengths] for depth in depths]
    of_trials = len(lengths) <= 8  # if there is room
    marks: list[charts.Cells | charts.Guide] = [
        charts.Cells(
            "share of right answers",
            tuple(tuple(cell.hits / cell.trials if cell else math.nan for cell in cells) for cells in rows),
            tuple(
                tuple((f"{cell.hits}/{cell.trials}" if of_trials else str(cell.hits)) if cell else "" for cell in cells)
                for cells in rows
            ),
        )
    ]
    border = ""
    within = sum(length <= trained_length for length in lengths)
    if 0 < within < len(lengths):
        marks.append(charts.Guide("", charts.Look("border", width=2.5), within - 0.5))
        border = f" Left of the orange line: within the trained length of {trained_length} tokens."
    caption = (
        f"{grid.keys} keys in the context, one in the question; depth 0 is the start. A trial counts if the right value has "
        f"the highest log-probability of all candidates. Guessing gives a share of {grid.chance:.3g}.{border}"
    )
    shown_depths = charts.Axis("depth of the key", charts.NAMES, names=tuple(f"{depth:.2f}" for depth in depths))
    panel = charts.Panel(charts.Axis("context", charts.EVEN_TOKENS, tokens=tuple(lengths)), shown_depths, tuple(marks))
    name = f"retrieval-{grid.task}"
    return charts.Chart(name, name, f"Retrieval, {grid.task}", caption, (panel,), 1.3 + 0.42 * len(depths))


def _prepare(task: str) -> Callable[[Setting, Sequence[Measurement]], Retrieval]:
    """Return the function that prepares the measurement of a task."""

    def prepared(setting: Setting, others: Sequence[Measurement]) -> Retrieval:
        suite = setting.suite
        lengths = setting.lengths[-1:] if suite.ends else setting.lengths
        return prepare_retrieval(
            task, setting.corpus, setting.target.tokenize, lengths, setting.trained_length, trials=suite.trials,
            seed=setting.seed,
        )  # fmt: skip

    return prepared


SENTENCES = {
    "retrieval": {
        FAIL: VerdictSentence(
            "it answers significantly fewer questions about long texts than about texts of {trained} tokens", "{milder}"
        ),
        UNDECIDED: VerdictSentence(
            "these trials are too few to show that it answers as well from long texts as from {trained} tokens",
            "--trials {trials}",
        ),
        NOT_RUN: VerdictSentence("its answers from long texts were not measured ({detail})"),
    },
}


JSON_PLACES = ({"key": "retrieval", "after": "lengths", "order": 40, "several": True},)
MEASURES = tuple(
    Measure(
        name_of(task), "retrieval", 40 + index, _prepare(task), suites=("standard", "full") if task == KEYS else ("full",),
        several=True, by_tokens=True, words=SENTENCES, sections=_sections, charts=_charts,
        checks=lambda grid, g: retrieval_checks(grid, g.limits.asked, g.trained_length, FAR in g.results),
    )
    for index, task in enumerate(TASKS)
)  # fmt: skip
