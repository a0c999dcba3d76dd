"""A runner for a model behind a server, with a request for each scored token.

A prompt ends before the scored token, and the server returns the probabilities of the next token. The tokenizer of the
local checkpoint makes the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ropetool.errors import ConfigError, ServerError
from ropetool.rope.tables import Array
from ropetool.servers.base import Answer, Score, Server, ServerLimits, check_raw, not_in_vocabulary
from ropetool.servers.http import OPTION
from ropetool.verification.scoring import Done, Generated, Logits, Predictions, Scores, Tokenizes, ignore

Place = TypeVar("Place")
T = TypeVar("T")

PROBED = 24  # tokens of the prompt that tests which probabilities a server returns
NO_LOGITS = "a server does not return all logits"
STABLE = 1e-3  # nats by which two scores of the same prompt may differ, because batches round differently
PROBE = (
    "The rotation of a pair of channels grows with the position.\n\n"
    "def f(x):\n    return x + 1  # 3.14159\n\nÄpfel, naïve café, 東京, Москва, 🙂 ..."
)


class TextTokenizer(Tokenizes, Protocol):
    """A tokenizer that also converts ids to text."""

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""


@dataclass
class Unseen:
    """The tokens whose probability the server did not return.

    count: the number of these tokens. asked: the number of all requested tokens.
    least: the smallest possible sum of their losses, in nats.
    missing: the largest probability that one answer left out, between 0 and 1.
    """

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
    """A served model with the tokenizer of a local checkpoint, whose weights are never loaded.

    vocabulary: the number of tokens in the vocabulary, or None if it is unknown.
    score_prompts: use the server's scores of whole prompts, one request at a time.
    where: the command line option that names the server, for error messages.
    Raises: ConfigError if the server has a different tokenizer; ServerError if its probabilities are not the model's
    own.
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
        """The server program, for the record."""
        return self._server.program

    @property
    def arithmetic(self) -> str:
        """Always empty, because a server does not report its number types."""
        return ""

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self._reader.tokenize(text)

    def byte_lengths(self, text: str) -> list[int]:
        """Return the number of bytes of each token of the text."""
        return self._reader.byte_lengths(text)

    def close(self) -> None:
        """Do nothing, because the server keeps running."""

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
        """Return the losses of the last `scored` tokens of every row. A token that is not shown gets its smallest possible loss.

        Shapes: rows of one length -> (rows, scored). Units: nats. Raises: ServerError; ConfigError beyond the server's
        context.
        """
        self._check_length(len(rows[0]) - 1)  # the last token is scored, but is not part of a prompt
        losses, hits = np.empty((len(rows), scored)), np.zeros((len(rows), scored), dtype=np.bool_)
        if self._score_prompts:
            for index, row in enumerate(rows):
                losses[index], hits[index] = self._prompt_scores(row, scored)
                done(len(row))
            return Scores(losses, hits)
        places = [(index, place) for index in range(len(rows)) for place in range(scored)]

        def ask(place: tuple[int, int]) -> Answer:
            row, end = rows[place[0]], len(rows[place[0]]) - scored + place[1]
            return self._next(row[:end], int(row[end]))

        for (index, place), answer in zip(places, self._answers(ask, places), strict=True):
            token = int(rows[index][len(rows[index]) - scored + place])
            losses[index, place] = -self._log_probs(answer, [token])[0]
            hits[index, place] = answer.top == token
            if place == scored - 1:
                done(len(rows[index]))
        return Scores(losses, hits)

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return the predictions after every row. Shapes: candidates (rows, candidates). Raises: as `score`."""
        self._check_length(len(rows[0]))
        predictions = []

        def ask(index: int) -> Answer:
            answer = self._next(rows[index])
            if not self._server.limits.exact:
                return answer
            others = [token for token in map(int, candidates[index]) if token not in answer.shown]
            more = {token: self._next(rows[index], token).shown[token] for token in others}
            return Answer({**answer.shown, **more}, answer.likeliest)

        for index, answer in enumerate(self._answers(ask, range(len(rows)))):
            tokens = [int(token) for token in candidates[index]]
            predictions.append([*self._log_probs(answer, tokens), float(answer.top)])
            done(len(rows[index]))
        figures = np.array(predictions, dtype=np.float64)
        return Predictions(figures[:, :-1], figures[:, -1].astype(np.int64))

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Raise ConfigError, because no server returns all logits."""
        raise ConfigError(NO_LOGITS, where=self._where)

    def generated(self, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
        """Raise ConfigError, because no server returns all logits."""
        raise ConfigError(NO_LOGITS, where=self._where)

    def _answers(self, ask: Callable[[Place], T], places: Iterable[Place]) -> Iterator[T]:
        """Yield the server's answer for each place, in their order. Several requests run at the same time."""
        pool = ThreadPoolExecutor(self._server.limits.at_once)
        try:
            yield from pool.map(ask, places)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # an interruption must not wait for answers

    def _next(self, ids: Sequence[int], token: int | None = None) -> Answer:
        """Return the answer to a prompt. token: its probability must be in the answer, if the server can select tokens."""
        answer = self._server.next(ids, token if self._server.limits.exact else None)
        largest = max(answer.shown, default=0)
        if self._vocabulary is not None and largest >= self._vocabulary:
            raise ServerError(not_in_vocabulary(largest, self._vocabulary), where=self._where)
        return answer

    def _log_probs(self, answer: Answer, tokens: Sequence[int]) -> list[float]:
        """Return the log-probability of each token, or the largest possible one for a token that is not shown."""
        unseen = sum(token not in answer.shown for token in tokens)
        self.unseen.add(answer, len(tokens), unseen)
        return [answer.shown[token] if token in answer.shown else answer.at_most() for token in tokens]

    def _prompt_scores(self, row: Sequence[int], scored: int) -> tuple[Array, Array]:
        """Return the losses of the last tokens of a row. True marks the likeliest token.

        The last token has a separate request, because a server needs room for an answer. The first prompt is scored
        twice, to test that the scores are stable.
        """
        scores = self._scored(row[:-1], scored - 1)
        if not self._was_stable and scores:
            again = self._scored(row[:-1], scored - 1)
            difference = max(abs(one[0] - other[0]) for one, other in zip(scores, again, strict=True))
            if difference > STABLE:
                raise ServerError(
                    f"two scores of one prompt differ by {difference:.2g} nats; a cache may answer, or several models are served",
                    where=self._where, try_="without --score-prompts",
                )  # fmt: skip
            self._was_stable = True
        last = self._next(row[:-1], int(row[-1]))
        scores = [*scores, (self._log_probs(last, [int(row[-1])])[0], last.top == int(row[-1]))]
        return np.array([-number for number, _ in scores]), np.array([hit for _, hit in scores])

    def _scored(self, row: Sequence[int], count: int) -> list[Score]:
        """Return the scores of the last `count` tokens of a row, with as many tokens per request as the server allows."""
        scores: list[Score] = []
        for end, last in _chunks(len(row), count, self._server.limits.scored):
            part = self._server.scores([int(token) for token in row[:end]], last)
            if part is None:
                raise ConfigError(
                    f"{self._server.program} does not score prompts",
                    where="--score-prompts",
                    try_="without --score-prompts",
                )
            scores += part
        return scores

    def _check_length(self, prompt: int) -> None:
        longest = self._server.limits.prompt
        if longest is not None and prompt > longest:
            raise ConfigError(
                f"a prompt has {prompt} tokens, and {self._server.program} accepts {longest}", where=self._where
            )


def _chunks(length: int, count: int, most: int | None) -> Iterator[tuple[int, int]]:
    """Yield the end of each prompt and its number of scored tokens, which together are the last `count` of a row.

    most: the largest number of scored tokens in a prompt; None for no limit.
    """
    step = most or max(count, 1)
    for start in range(length - count, length, step):
        end = min(start + step, length)
        yield end, end - start


class Counting:
    """Replaces the runner of a server, and counts the requests of a run.

    It does not count the first prompts, which test the server and its speed, or repeated requests. It counts a request
    for each candidate, even if an earlier answer may show it. All returned figures are 0.

    requests: the number of requests. tokens: the tokens of all prompts. longest: the tokens of the longest prompt.
    """

    def __init__(self, limits: ServerLimits, prefix: tuple[int, ...], *, score_prompts: bool) -> None:
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
        """Count the requests for the scores of these rows."""
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
        """Count the requests for predictions: one for the likeliest token, and one for each candidate."""
        for row, few in zip(rows, candidates, strict=True):
            self._count([len(row)] * (1 + len(few) * self._limits.exact))
        return Predictions(np.zeros(np.shape(candidates)), np.zeros(len(rows), dtype=np.int64))
