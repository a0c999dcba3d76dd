"""Needle answers as key tokens, for runs without a judge: the loss of an answer after the whole context, and after its end.

The sentence with the answer is farther away than the trained length, so a context that is cut to this length lacks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ropetool.rope.tables import Array
from ropetool.sections import NONE, Section, Table, change, row, with_interval
from ropetool.verification.measure import Measure, Setting
from ropetool.verification.measures.contexts import Context
from ropetool.verification.measures.long_pass import (
    FEWEST,
    LONG,
    SHORT,
    KeyTokenResult,
    key_tokens_check,
    token_evidence,
)
from ropetool.verification.measures.retrieval import Retrieval
from ropetool.verification.scoring import TARGET, Done, Measurement, Runner
from ropetool.verification.statistics import clustered, paired_difference
from ropetool.verification.suites import KEY_TOKENS

NAME = "needle-answers"


@dataclass(frozen=True)
class NeedleAnswers:
    """The contexts of the longest length whose sentence is farther away than the trained length.

    tasks: the contexts of each task.
    prefix: the ids in front of every row.
    length, trained_length: tokens.
    """

    tasks: tuple[tuple[Context, ...], ...]
    prefix: tuple[int, ...]
    length: int
    trained_length: int
    name: str = NAME

    def rows(self, role: str) -> Mapping[int, int]:
        count = sum(map(len, self.tasks))
        return {self.trained_length: count, **({self.length: count} if role == TARGET else {})} if count else {}

    def run(self, runner: Runner, role: str, done: Done) -> Mapping[str, Array]:
        """Return the loss of each answer after the text cut to the trained length, and for the target also after all text.

        Units: nats.
        """
        figures = {}
        for extent in (LONG, SHORT) if role == TARGET else (SHORT,):
            losses = [self._losses(runner, contexts, extent, done) for contexts in self.tasks]
            figures[extent] = np.concatenate(losses) if losses else np.empty(0)
        return figures

    def result(self, target: Mapping[str, Array], baseline: Mapping[str, Array] | None) -> KeyTokenResult:
        """Return the gain of the whole context over the cut context, paired by trial."""
        long, short = target[LONG], (target if baseline is None else baseline)[SHORT]
        count, trials = len(long), range(len(long))
        note = (
            ""
            if count >= FEWEST
            else f"only {count} needle answers beyond {self.trained_length} tokens; {FEWEST} are needed"
        )
        if count < 2:
            return KeyTokenResult(self.length, count, count, count, count, None, None, None, note)
        return KeyTokenResult(
            self.length, count, count, count, count, clustered(long, trials), clustered(short, trials),
            paired_difference(short, long, trials), note,
        )  # fmt: skip

    def _losses(self, runner: Runner, contexts: Sequence[Context], extent: str, done: Done) -> Array:
        cut = self.trained_length - len(self.prefix)
        rows = [c.row if extent == LONG else (*self.prefix, *c.row[-cut:]) for c in contexts]
        log_probs = runner.predict(rows, [c.candidates for c in contexts], done).log_probs
        losses: Array = -log_probs[np.arange(len(contexts)), [c.answer for c in contexts]]
        return losses


def needle_answers(tasks: Sequence[Retrieval], prefix: tuple[int, ...], trained_length: int) -> NeedleAnswers:
    """Return the measurement with the trials of these tasks."""
    length = max((n for task in tasks for n in task.contexts), default=trained_length)
    cut = trained_length - len(prefix)
    chosen = [
        tuple(c for c in task.contexts.get(length, ()) if c.candidates[c.answer] not in c.row[-cut:]) for task in tasks
    ]
    return NeedleAnswers(
        tuple(some for some in chosen if some) if length > trained_length else (), prefix, length, trained_length
    )


def _needle_answers(result: KeyTokenResult, trained: int) -> Section:
    cells = [NONE if value is None else with_interval(value) for value in (result.truncated, result.loss)]
    legend = (
        ("answers", f"retrieval trials whose sentence is more than {trained} tokens before the question"),
        ("truncated", f"nats per answer after the last {trained} tokens; long: after {result.length} tokens"),
        ("gain", "truncated minus long, paired by trial, ± 95 % interval; above 0, the model uses distant text"),
    )
    notes = (result.note,) if result.note else ()
    head = ("answers", "truncated", "long", "gain")
    rows = (row(str(result.tokens), *cells, change(result.gain)),)
    return Section("needle-answers", "Needle answers: key tokens without a judge", Table(head, rows), legend, notes)


def _prepare(setting: Setting, prepared: Sequence[Measurement]) -> NeedleAnswers | None:
    tasks = [m for m in prepared if isinstance(m, Retrieval)]
    if setting.judged or not tasks:
        return None
    return needle_answers(tasks, setting.corpus.prefix, setting.trained_length)


JSON_PLACES = ({"key": "needle_answers", "after": "lm_eval", "order": 65},)
MEASURES = (
    Measure(
        NAME, "needle_answers", 900, _prepare, part_of=KEY_TOKENS, evidence=token_evidence("needle answers"),
        checks=lambda answers, _: [key_tokens_check(answers, "needle answers")], checked=12,
        sections=lambda answers, result: [_needle_answers(answers, result.trained_length)], shown=65,
    ),
)  # fmt: skip
