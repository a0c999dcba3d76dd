"""The text of a search and of its evaluation: the documents are split first, then rows are built from each part."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ropetool.errors import ConfigError
from ropetool.lab.tuning.figures import Documents, PointLosses
from ropetool.rope.tables import Array
from ropetool.verification.measures.contexts import Context
from ropetool.verification.measures.fillers import passage_length, passages
from ropetool.verification.measures.loss import LastSegment, prepare_last_segment, row
from ropetool.verification.measures.retrieval import prepare_retrieval
from ropetool.verification.measures.segments import MIN_DOCUMENTS
from ropetool.verification.scoring import Corpus, Done, Runner

FEWEST_SEARCHED = 2  # documents, because the text before a passage is from a different document
MARGIN = 0.0  # of the loss measurement, whose verdicts are not used


@dataclass(frozen=True)
class Amounts:
    """The amount of text in a part.

    segments: scored segments at each length.
    passages: passages that are repeated.
    trials: trials at each of five depths.
    """

    segments: int
    passages: int
    trials: int


SEARCHED, UNSEEN = Amounts(24, 12, 4), Amounts(32, 24, 8)


@dataclass(frozen=True)
class TuningRows:
    """The rows that points are measured on, in the order in which stages read them.

    corpus: the documents.
    last: the segments of text at each length.
    lengths: the lengths beyond the trained one, in tokens.
    copies: rows with a passage, text of other documents, and the passage again.
    copied: the number of the document of each passage.
    scored_copies: the scored tokens of each repeated passage.
    contexts: rows with a question.
    """

    corpus: Corpus
    last: LastSegment
    lengths: tuple[int, ...]
    copies: tuple[tuple[int, ...], ...]
    copied: tuple[int, ...]
    scored_copies: int
    contexts: tuple[Context, ...]

    @property
    def segments(self) -> int:
        """Return the number of segments that every length has."""
        return min(len(self.last.chosen[length]) for length in (self.last.trained_length, *self.lengths))

    def rows(self, share: float = 1.0) -> Counter[int]:
        """Return the number of rows of each length that a point needs."""
        segments = _part(self.segments, share)
        counts = Counter(dict.fromkeys((self.last.trained_length, *self.lengths), segments))
        for rows in (self.copies, [context.row for context in self.contexts]):
            counts.update(map(len, rows[: _part(len(rows), share)]))
        return counts

    def figures(self, runner: Runner, share: float, done: Done) -> PointLosses:
        """Return the losses of a runner on a share of the rows."""
        copies = self.copies[: _part(len(self.copies), share)]
        contexts = self.contexts[: _part(len(self.contexts), share)]
        losses, correct = np.zeros(0), np.zeros(0, dtype=np.bool_)
        if contexts:
            log_probs = runner.predict([c.row for c in contexts], [c.candidates for c in contexts], done).log_probs
            answers = np.array([c.answer for c in contexts])
            losses, correct = -log_probs[np.arange(len(contexts)), answers], log_probs.argmax(axis=1) == answers
        return PointLosses(
            self.within(runner, share, done), {length: self._text(runner, length, share, done) for length in self.lengths},
            runner.score(copies, self.scored_copies, done).losses if copies else np.zeros((0, 1)), losses, correct,
        )  # fmt: skip

    def within(self, runner: Runner, share: float, done: Done) -> Array:
        """Return the losses of the segments at the trained length. Shapes: (segments, scored)."""
        return self._text(runner, self.last.trained_length, share, done)

    @property
    def documents(self) -> Documents:
        """Return the documents of all rows."""
        segments = [segment.document for segment in self.last.chosen[max(self.lengths)]][: self.segments]
        within = [segment.document for segment in self.last.chosen[self.last.trained_length]][: self.segments]
        # Documents are as long as the target, so the filler around an answer is nearly all from one document.
        answers = [-1 if context.document is None else context.document for context in self.contexts]
        return Documents(segments, within, self.copied, answers)

    def _text(self, runner: Runner, length: int, share: float, done: Done) -> Array:
        segments = self.last.chosen[length][: _part(self.segments, share)]
        rows = [row(self.corpus, segment, length) for segment in segments]
        return runner.score(rows, self.last.scored, done).losses


def _part(count: int, share: float) -> int:
    return max(1, round(count * share)) if count else 0


def lengths_between(trained: int, target: int) -> tuple[int, ...]:
    """Return the measured lengths beyond the trained one: its doublings below the target, and the target."""
    doublings, length = [], 2 * trained
    while length < target:
        doublings.append(length)
        length *= 2
    return (*doublings, target)


def split(corpus: Corpus, longest: int, seed: int) -> tuple[Corpus, Corpus]:
    """Return the documents for the search, and the documents for the evaluation.

    Documents below the target are in neither.
    The types of text are spread evenly over both. Raises: ConfigError for fewer than 6 documents of that length.
    """
    needed = longest - len(corpus.prefix)
    fitting = [index for index, tokens in enumerate(corpus.tokens) if len(tokens) >= needed]
    fewest = FEWEST_SEARCHED + MIN_DOCUMENTS
    if len(fitting) < fewest:
        raise ConfigError(
            f"tune needs {fewest} texts of at least {needed} tokens, {FEWEST_SEARCHED} for the search and {MIN_DOCUMENTS} for the "
            f"evaluation, but finds {len(fitting)}; the longest has {max(map(len, corpus.tokens), default=0)} tokens",
            where="--text", try_="longer texts, more of them, or a shorter --target-length",
        )  # fmt: skip
    random.Random(f"{seed} split").shuffle(fitting)
    fitting.sort(key=lambda index: corpus.kinds[index] if corpus.kinds else "")
    turns = [fitting[1::2], fitting[::2]]  # the evaluation gets the larger half
    while len(turns[1]) < MIN_DOCUMENTS:
        turns[1].append(turns[0].pop())
    first, second = (_only(corpus, sorted(indices)) for indices in turns)
    return first, second


def _only(corpus: Corpus, indices: Sequence[int]) -> Corpus:
    return Corpus(
        tuple(corpus.names[i] for i in indices), tuple(corpus.tokens[i] for i in indices),
        tuple(corpus.byte_lengths[i] for i in indices), corpus.prefix,
        tuple(corpus.kinds[i] for i in indices) if corpus.kinds else (),
    )  # fmt: skip


def prepare(
    corpus: Corpus,
    tokenize: Callable[[str], list[int]],
    trained: int,
    target: int,
    amounts: Amounts,
    seed: int,
    question_seed: int,
) -> TuningRows:
    """Return the rows on some documents.

    question_seed: the seed of keys and values. They are from a list, so both parts of the text need different seeds.
    Raises: ConfigError if the documents are too short for the target.
    """
    lengths = lengths_between(trained, target)
    last = prepare_last_segment(
        corpus, (trained, *lengths), trained, context_length=target, margin=MARGIN, segments=amounts.segments, seed=seed
    )
    room = target - len(corpus.prefix)
    size = passage_length(trained, room)
    chosen = passages(corpus, size, room - 2 * size, amounts.passages, seed)
    retrieval = prepare_retrieval(
        "keys", corpus, tokenize, [target], trained, trials=amounts.trials, seed=question_seed
    )
    return TuningRows(
        corpus, last, lengths, tuple((*corpus.prefix, *p.tokens, *p.filler, *p.tokens) for p in chosen),
        tuple(p.document for p in chosen), size // 2, _by_trial(retrieval.contexts, target, amounts.trials),
    )  # fmt: skip


def _by_trial(contexts: Mapping[int, Sequence[Context]], length: int, trials: int) -> tuple[Context, ...]:
    """Return the contexts of a length, sorted by trial and then by depth. Empty if the length has no contexts."""
    of_length = contexts.get(length, ())
    return tuple(of_length[index] for trial in range(trials) for index in range(trial, len(of_length), trials))
