"""Many-shot learning in context: words have arbitrary labels, and the question at the end is the label of one word.

A shorter row is the end of a longer row, so a longer one only has more examples.
Source: Agarwal et al., Many-shot in-context learning, arXiv 2404.11018.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ropetool.lab.measures.ruler import ASKED, PAIR, single_tokens
from ropetool.rope.tables import Array
from ropetool.sections import NONE, Cell, Section, Table, change, row, with_interval
from ropetool.verification.gate import NOTHING_BEYOND
from ropetool.verification.measure import TONES, Measure, Setting
from ropetool.verification.measures.fillers import text_of_others
from ropetool.verification.results import BETTER, NOT_ASKED, UNDECIDED, WORSE, Check, Estimate
from ropetool.verification.scoring import TARGET, Corpus, Done, Measurement, Runner
from ropetool.verification.statistics import (
    chance_of_less,
    chance_of_more,
    clustered,
    lower_bound,
    paired_difference,
    rejected,
    wilson,
)

NAME = "many-shot"
LABELS = 4
TRIALS = 4  # trials here for each trial of retrieval at a depth
MOST_WORDS = 128  # with a label
FEWEST_WORDS = 12
SEEN = 2  # words per shot within the trained length, so that more shots show more words
TEXT = 1.0  # the smallest amount of other text between shots, as a multiple of a shot


@dataclass(frozen=True)
class Lesson:
    """One row of the longest length, without the prefix.

    labels: the tokens of the labels, the right one last.
    seen: the places where the word's examples begin.
    """

    row: tuple[int, ...]
    labels: tuple[int, ...]
    seen: tuple[int, ...]


@dataclass(frozen=True)
class ManyShotLength:
    """The loss of the label at one length, in nats among four labels.

    length: the length in tokens.
    shots: the number of examples.
    seen: the share of trials whose word is among the examples.
    hits: how often the right label was the most likely.
    loss: the loss.
    gain: the loss with the examples of the trained length minus the loss here, paired. The first is the baseline's if
      there is one. None if nothing is judged.
    verdict: `better` or `worse` if this is sure over all lengths together, else `undecided`.
    """

    length: int
    shots: int
    seen: float
    hits: int
    loss: Estimate
    gain: Estimate | None
    verdict: str


@dataclass(frozen=True)
class ManyShotResult:
    """The result of many-shot learning in context.

    trials: the number of trials.
    own: the loss with the examples that fit into the trained length. None if it was not measured.
    lengths: the result of each length.
    note: why there is no verdict. Empty if there is one.
    """

    trials: int
    own: Estimate | None
    lengths: tuple[ManyShotLength, ...]
    note: str


@dataclass(frozen=True)
class ManyShot:
    """The lessons. The row of a length is the end of each lesson. The baseline gets the rows of the trained length.

    step: tokens from one shot to the next.
    """

    lessons: tuple[Lesson, ...]
    lengths: tuple[int, ...]
    prefix: tuple[int, ...]
    trained_length: int
    step: int
    note: str
    name: str = NAME

    def rows(self, role: str) -> Mapping[int, int]:
        return {length: len(self.lessons) for length in self._lengths(role)}

    def run(self, runner: Runner, role: str, done: Done) -> Mapping[int, Array]:
        """Return by length the loss of the right label among the labels in nats, and a 1 if it was the likeliest label.

        Shapes: (2, lessons).
        """
        labels = [lesson.labels for lesson in self.lessons]
        by_length = {}
        for length in self._lengths(role):
            rows = [(*self.prefix, *lesson.row[-self._room(length) :]) for lesson in self.lessons]
            logits = runner.predict(rows, labels, done).log_probs
            top = logits.max(axis=1)
            losses = top + np.log(np.exp(logits - top[:, None]).sum(axis=1)) - logits[:, -1]
            by_length[length] = np.stack([losses, logits.argmax(axis=1) == LABELS - 1])
        return by_length

    def result(self, target: Mapping[int, Array], baseline: Mapping[int, Array] | None) -> ManyShotResult:
        """Return the loss of the label at each length, and the gain over the shots within the trained length."""
        own = (target if baseline is None else baseline).get(self.trained_length)
        if own is None:
            return ManyShotResult(0, None, (), self.note)
        trials = range(len(self.lessons))
        seen = self._seen(self.trained_length)
        hits = int(own[1, seen].sum())
        compared = [length for length in self.lengths if baseline is not None or length > self.trained_length]
        note = ""
        if wilson(hits, int(seen.sum()))[0] <= 1 / LABELS:
            note = (
                f"only {hits} of {int(seen.sum())} labels of shown words are right within {self.trained_length} tokens"
            )
        elif not any(length > self.trained_length for length in compared):
            note = NOTHING_BEYOND
        gains = {} if note else {n: paired_difference(own[0], target[n][0], trials) for n in compared}
        better = rejected([chance_of_less(gain, 0.0) for gain in gains.values()])
        worse = rejected([chance_of_more(gain, 0.0) for gain in gains.values()])
        words = [BETTER if up else WORSE if down else UNDECIDED for up, down in zip(better, worse, strict=True)]
        verdicts = dict(zip(gains, words, strict=True))
        lengths = tuple(
            ManyShotLength(
                n, self._room(n) // self.step, float(self._seen(n).mean()), int(target[n][1].sum()),
                clustered(target[n][0], trials), gains.get(n), verdicts.get(n, ""),
            )
            for n in self.lengths
        )  # fmt: skip
        return ManyShotResult(len(trials), clustered(own[0], trials), lengths, note)

    def _lengths(self, role: str) -> list[int]:
        return [length for length in self.lengths if role == TARGET or length == self.trained_length]

    def _room(self, length: int) -> int:
        return length - len(self.prefix)

    def _seen(self, length: int) -> Array:
        """Return for each lesson whether a row of this length contains an example of the requested word."""
        return np.array(
            [any(at >= len(lesson.row) - self._room(length) for at in lesson.seen) for lesson in self.lessons]
        )


def prepare_many_shot(
    corpus: Corpus,
    tokenize: Callable[[str], list[int]],
    lengths: Sequence[int],
    trained_length: int,
    *,
    trials: int,
    seed: int,
) -> ManyShot:
    """Return the lessons.

    Words are drawn with replacement from a set with two words for each shot of the trained length.
    Raises: ConfigError if there is no text.
    """
    tokens = single_tokens(tokenize)
    measured = tuple(n for n in sorted({trained_length, *lengths}) if trained_length <= n <= max(lengths))
    size = len(tokenize(PAIR.format("it", "it")))
    shots = int(min(MOST_WORDS / SEEN, trained_length / (size * (1 + TEXT)), (len(tokens) - LABELS) / SEEN))
    if shots * SEEN < FEWEST_WORDS or not measured:
        few = f"only {SEEN * max(0, shots)} words of one token fit, and {FEWEST_WORDS} are needed"
        return ManyShot((), (), corpus.prefix, trained_length, 1, few)
    step = trained_length // shots
    lessons = tuple(
        _lesson(corpus, tokenize, tokens, measured[-1] - len(corpus.prefix), shots * SEEN, step, random.Random(f"{seed} {NAME} {trial}"))
        for trial in range(trials)
    )  # fmt: skip
    return ManyShot(lessons, measured, corpus.prefix, trained_length, step, "")


def _lesson(
    corpus: Corpus,
    tokenize: Callable[[str], list[int]],
    tokens: Mapping[str, int],
    room: int,
    count: int,
    step: int,
    rng: random.Random,
) -> Lesson:
    """Return a row of `room` tokens: shots of `count` words with one of four labels, and other text between them."""
    chosen = rng.sample(list(tokens), count + LABELS)
    words, labels = chosen[:count], chosen[count:]
    tested = rng.choice(words)
    of_words = dict(zip(words, labels * count, strict=False))
    question = tokenize(ASKED.format(tested))
    filler = text_of_others(corpus, None, room, rng, {tokens[word] for word in chosen})
    row, seen = question, []
    while len(row) < room:
        word = rng.choice(words)
        shot = tokenize(PAIR.format(word, of_words[word]))
        if word == tested:
            seen.append(room - len(row) - len(shot))
        between = max(0, step - len(shot))
        row = [*filler[len(row) : len(row) + between], *shot, *row]
    right = of_words[tested]
    ordered = (*(tokens[label] for label in labels if label != right), tokens[right])
    return Lesson(tuple(row[-room:]), ordered, tuple(at for at in seen if at >= 0))


def many_shot_check(result: ManyShotResult) -> Check:
    """Return the check on the gain from the shots of the longest length. It only informs."""
    name = "many-shot"
    last = result.lengths[-1] if result.lengths else None
    if last is None or last.gain is None:
        return Check(name, None, None, NOT_ASKED, result.note)
    sentence = (
        f"95 % lower bound of the gain from {last.shots} shots over the shots of the trained length, nats per label; "
        f"the mean is {last.gain.mean:.2f}"
    )
    return Check(name, lower_bound(last.gain), 0.0, NOT_ASKED, sentence)


def many_shot_section(result: ManyShotResult, trained_length: int) -> Section:
    """Return the report section with the loss of the label at each length."""
    rows = tuple(
        row(
            str(entry.length), str(entry.shots), f"{entry.seen:.2f}", f"{entry.hits}/{result.trials}",
            with_interval(entry.loss), change(entry.gain), Cell(entry.verdict or NONE, TONES[entry.verdict]),
        )
        for entry in result.lengths
    )  # fmt: skip
    legend = [
        (
            "shots",
            "words with one of four arbitrary labels, with text between them; the question is the label of the last word",
        ),
        ("shown", "share of trials whose word is among the shots, so that the label can be known"),
        ("right", "trials in which the right label was the likeliest of the four"),
        ("loss", "loss of the right label among the four, in nats (95 % interval over trials); guessing costs 1.386"),
        (
            "gain",
            f"loss with the shots of the trained length ({trained_length} tokens) minus loss, paired, ± 95 % interval",
        ),
    ]
    if result.own is not None:
        legend.append(
            ("own", f"{with_interval(result.own)} after the shots of the trained length, of the baseline if present")
        )
    notes = (result.note,) if result.note else ()
    head = ("length", "shots", "shown", "right", "loss", "gain", "verdict")
    title = "Many-shot learning: do more examples help?"
    return Section("many-shot", title, Table(head, rows), tuple(legend), notes)


def _prepare(setting: Setting, measurements: Sequence[Measurement]) -> ManyShot:
    return prepare_many_shot(
        setting.corpus, setting.target.tokenize, setting.lengths, setting.trained_length,
        trials=TRIALS * setting.suite.trials, seed=setting.seed,
    )  # fmt: skip


JSON_PLACES = ({"key": "many_shot", "after": "judge", "order": 80},)
MEASURES = (
    Measure(
        NAME, "many_shot", 80, _prepare, checks=lambda learned, _: [many_shot_check(learned)],
        sections=lambda learned, result: [many_shot_section(learned, result.trained_length)],
    ),
)  # fmt: skip
