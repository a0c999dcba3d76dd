"""A model behind a server: tokens in, what the asked places cost out, a request for each of them.

A prompt ends before the token that is asked about, and the server tells how likely it finds what comes next. Tokens and texts
are those of the checkpoint at hand. Knows nothing of documents, segments or verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ropetool.errors import ConfigError, ServerError
from ropetool.rope.tables import Array
from ropetool.servers.base import Answer, Limits, Score, Server, check_raw, not_in_vocabulary
from ropetool.servers.http import OPTION
from ropetool.verification.scoring import Done, Generated, Logits, Predictions, Scores, Tokenizes, ignore

Place = TypeVar("Place")
Found = TypeVar("Found")

PROBED = 24  # tokens of the prompt that shows what kind of probabilities a server tells
NO_LOGITS = "a server does not return all logits"
STABLE = 1e-3  # nats by which two scores of the same prompt may differ: batches are rounded differently
PROBE = (
    "The rotation of a pair of channels grows with the position.\n\n"
    "def f(x):\n    return x + 1  # 3.14159\n\nÄpfel, naïve café, 東京, Москва, 🙂 ..."
)


class TextTokenizer(Tokenizes, Protocol):
    """A tokenizer that gives the text of ids too."""

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""


@dataclass
class Unseen:
    """Tokens that the server did not show: how many of how many, the least that they cost together, in nats."""

    count: int = 0
    asked: int = 0
    least: float = 0.0
    missing: float = 0.0

    def add(self, answer: Answer, tokens: int, unseen: int) -> None:
        """Count the tokens of an answer."""
        self.asked += tokens
        self.count += unseen
        self.least += -unseen * answer.at_most() if unseen else 0.0
        self.missing = max(self.missing, answer.missing)


class ServerRunner:
    """What a server serves, its texts read by the tokenizer of a checkpoint whose weights are never loaded.

    score_prompts: take the scores of whole prompts, where the interface has them, one request at a time. where: the option
    that names the server, for what is said of it.
    Raises: ConfigError for a server whose tokenizer is another one, or without an interface for what was asked.
    """

    def __init__(
        self,
        server: Server,
        reader: TextTokenizer,
        *,
        vocabulary: int | None,
        score_prompts: bool = False,
        where: str = OPTION,
    ) -> None:
        self._server, self._reader, self._vocabulary, self._score_prompts = server, reader, vocabulary, score_prompts
        self._where = where
        self.prefix = reader.prefix
        self.unseen = Unseen()
        self.notes: tuple[str, ...] = ()
        self._was_stable = False
        self._check_tokenizer()
        check_raw(server, [*self.prefix, *reader.tokenize(PROBE)][:PROBED])

    @property
    def description(self) -> str:
        """The program that answers, for the record."""
        return self._server.program

    @property
    def arithmetic(self) -> str:
        """Return nothing: a server does not say what it rounds to."""
        return ""

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self._reader.tokenize(text)

    def byte_lengths(self, text: str) -> list[int]:
        """Return how many bytes of the text each of its tokens stands for."""
        return self._reader.byte_lengths(text)

    def close(self) -> None:
        """Leave the server as it is."""

    def _check_tokenizer(self) -> None:
        theirs = self._server.tokens_of(PROBE)
        ours = self._reader.tokenize(PROBE)
        if theirs is None:
            self.notes = (
                f"{self._server.program} does not offer its tokenizer, so ropetool cannot compare it with the checkpoint's tokenizer",
            )
        if theirs is not None and theirs != ours:
            at = next(
                (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
                min(len(ours), len(theirs)),
            )
            raise ConfigError(
                f"the tokenizer of {self._server.program} differs from the checkpoint: their tokens of a text differ from token {at} on",
                where=self._where, try_="the checkpoint that is served, or --tokenizer DIR",
            )  # fmt: skip

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return what the last `scored` tokens of every row cost; one that is not shown, the least that it can cost.

        Shapes: rows of one length -> (rows, scored). Units: nats. Raises: ServerError; ConfigError beyond the server's context.
        """
        self._check_length(len(rows[0]) - 1)  # the last token is told, and not read
        losses, hits = np.empty((len(rows), scored)), np.zeros((len(rows), scored), dtype=np.bool_)
        if self._score_prompts:
            for index, row in enumerate(rows):
                losses[index], hits[index] = self._prompt_scores(row, scored)
                done(len(row))
            return Scores(losses, hits)
        asked = [(index, place) for index in range(len(rows)) for place in range(scored)]

        def ask(where: tuple[int, int]) -> Answer:
            row, end = rows[where[0]], len(rows[where[0]]) - scored + where[1]
            return self._next(row[:end], int(row[end]))

        for (index, place), answer in zip(asked, self._asked(ask, asked), strict=True):
            token = int(rows[index][len(rows[index]) - scored + place])
            losses[index, place] = -self._log_probs(answer, [token])[0]
            hits[index, place] = answer.top == token
            if place == scored - 1:
                done(len(rows[index]))
        return Scores(losses, hits)

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return what comes after every row. Shapes: candidates (rows, candidates). Raises: as `score`."""
        self._check_length(len(rows[0]))
        found = []

        def ask(index: int) -> Answer:
            answer = self._next(rows[index])
            if not self._server.limits.exact:
                return answer
            others = [token for token in map(int, candidates[index]) if token not in answer.shown]
            more = {token: self._next(rows[index], token).shown[token] for token in others}
            return Answer({**answer.shown, **more}, answer.likeliest)

        for index, answer in enumerate(self._asked(ask, range(len(rows)))):
            tokens = [int(token) for token in candidates[index]]
            found.append([*self._log_probs(answer, tokens), float(answer.top)])
            done(len(rows[index]))
        figures = np.array(found, dtype=np.float64)
        return Predictions(figures[:, :-1], figures[:, -1].astype(np.int64))

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Raise ConfigError: no server gives all logits."""
        raise ConfigError(NO_LOGITS, where=self._where)

    def generated(self, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
        """Raise ConfigError: no server gives all logits."""
        raise ConfigError(NO_LOGITS, where=self._where)

    def _asked(self, ask: Callable[[Place], Found], places: Iterable[Place]) -> Iterator[Found]:
        """Yield what the server answers for each place, in their order, some asked at once."""
        pool = ThreadPoolExecutor(self._server.limits.at_once)
        try:
            yield from pool.map(ask, places)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # whoever interrupts does not wait for answers

    def _next(self, ids: Sequence[int], wanted: int | None = None) -> Answer:
        answer = self._server.next(ids, wanted if self._server.limits.exact else None)
        strange = max(answer.shown, default=0)
        if self._vocabulary is not None and strange >= self._vocabulary:
            raise ServerError(
                not_in_vocabulary(strange, self._vocabulary),
                where=self._where,
            )
        return answer

    def _log_probs(self, answer: Answer, tokens: Sequence[int]) -> list[float]:
        """Return the log probabilities of tokens; of one that is not shown, the largest that it can have."""
        unseen = sum(token not in answer.shown for token in tokens)
        self.unseen.add(answer, len(tokens), unseen)
        return [answer.shown[token] if token in answer.shown else answer.at_most() for token in tokens]

    def _prompt_scores(self, row: Sequence[int], scored: int) -> tuple[Array, Array]:
        """Return the losses of the last tokens of a row, and whether each is the likeliest.

        The last one is asked for on its own: a server needs room for an answer. The first prompt is scored twice, to see that
        it is stable.
        """
        found = self._scored(row[:-1], scored - 1)
        if not self._was_stable and found:
            again = self._scored(row[:-1], scored - 1)
            apart = max(abs(one[0] - other[0]) for one, other in zip(found, again, strict=True))
            if apart > STABLE:
                raise ServerError(
                    f"two scores of one prompt differ by {apart:.2g} nats; a cache may answer, or several models are served",
                    where=self._where, try_="without --score-prompts",
                )  # fmt: skip
            self._was_stable = True
        last = self._next(row[:-1], int(row[-1]))
        found = [*found, (self._log_probs(last, [int(row[-1])])[0], last.top == int(row[-1]))]
        return np.array([-number for number, _ in found]), np.array([hit for _, hit in found])

    def _scored(self, row: Sequence[int], count: int) -> list[Score]:
        """Return the scores of the last tokens of a row, as many at a time as the interface makes."""
        found: list[Score] = []
        for end, last in _chunks(len(row), count, self._server.limits.scored):
            scores = self._server.scores([int(token) for token in row[:end]], last)
            if scores is None:
                raise ConfigError(
                    f"{self._server.program} does not score prompts",
                    where="--score-prompts",
                    try_="without --score-prompts",
                )
            found += scores
        return found

    def _check_length(self, prompt: int) -> None:
        longest = self._server.limits.prompt
        if longest is not None and prompt > longest:
            raise ConfigError(
                f"a prompt has {prompt} tokens, and {self._server.program} accepts {longest}", where=self._where
            )


def _chunks(length: int, count: int, most: int | None) -> Iterator[tuple[int, int]]:
    """Yield the ends of prompts, and how many tokens before each are scored, that make the last `count` of a row."""
    begun = length - count
    step = most or max(count, 1)
    for start in range(begun, length, step):
        end = min(start + step, length)
        yield end, end - start


class Counting:
    """In the place of a server: about how many requests a run makes, and the tokens of their prompts.

    Not counted are the first prompts, which show what kind of server it is and its pace, and what is asked again; counted is
    each candidate, whether it will be shown or not. It has the figures of no model.
    """

    def __init__(self, limits: Limits, prefix: tuple[int, ...], *, score_prompts: bool) -> None:
        self._limits, self._score_prompts, self.prefix = limits, score_prompts, prefix
        self.requests = self.tokens = self.longest = 0

    def _count(self, prompts: Iterable[int]) -> None:
        for tokens in prompts:
            self.requests, self.tokens, self.longest = (
                self.requests + 1,
                self.tokens + tokens,
                max(self.longest, tokens),
            )

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Count what the scores of some rows ask for."""
        length = len(rows[0])
        prompts = list(range(length - scored, length))
        if self._score_prompts:
            whole = [end for end, _ in _chunks(length - 1, scored - 1, self._limits.scored)]
            self._count(whole if not self.requests else [])  # the first is scored twice
            prompts = [*whole, length - 1]
        self._count(prompts * len(rows))
        return Scores(np.zeros((len(rows), scored)), np.zeros((len(rows), scored), dtype=np.bool_))

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Count what predictions ask for: the likeliest, and each candidate."""
        for row, few in zip(rows, candidates, strict=True):
            self._count([len(row)] * (1 + len(few) * self._limits.exact))
        return Predictions(np.zeros(np.shape(candidates)), np.zeros(len(rows), dtype=np.int64))
