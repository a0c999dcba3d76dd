"""The protocol of all servers, and the checks of their answers. Each program's interface is a separate module."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ropetool.errors import ServerError
from ropetool.files.json_types import LIST, OBJECT, JsonType, checked, whole
from ropetool.rope.tables import is_number
from ropetool.servers.http import Http

MOST_SHOWN = 20  # tokens of an answer: what vLLM, SGLang and Ollama give unless they are started otherwise
TOKENIZE = "/tokenize"
MOST_TOKENS = 1 << 31
LEAST = -1e5  # nats: no float32 softmax is below it; vLLM writes -9999 for a token that it leaves out
SAME = 0.1  # nats by which two answers to one prompt may differ: batches round differently, and some engines quantise
MASS = 1e-3  # by which the sum of shown probabilities may exceed 1, because servers compute in 16 bits
NO_LOG_PROBABILITIES = "the answer contains no log probabilities"
TOKEN = whole(0, MOST_TOKENS - 1)
TOKENS = JsonType("a list of token ids", lambda value: isinstance(value, list) and all(map(TOKEN.holds, value)))
_LOG_PROBABILITY = JsonType(
    f"a number of nats from {LEAST:g} to {MASS:g}", lambda value: is_number(value) and LEAST <= value <= MASS
)


@dataclass(frozen=True)
class Answer:
    """The log probabilities of some next tokens, in nats.

    shown: by token id, the likeliest tokens and the requested ones.
    likeliest: the number of tokens in `shown` that are the likeliest of the whole vocabulary.
    unnamed: log probabilities of likely tokens whose ids the answer does not contain.
    """

    shown: Mapping[int, float]
    likeliest: int
    unnamed: tuple[float, ...] = ()

    @property
    def top(self) -> int:
        """The likeliest token, or -1 if it is unknown."""
        best = max(self.shown, key=lambda token: (self.shown[token], -token), default=-1)
        return -1 if best < 0 or any(one > self.shown[best] for one in self.unnamed) else best

    @property
    def missing(self) -> float:
        """The total probability of all tokens outside `shown`."""
        return max(0.0, 1.0 - math.fsum(math.exp(one) for one in self.shown.values()))

    def at_most(self) -> float:
        """Return the largest log probability that a token outside `shown` can have, in nats.

        Such a token is at most as likely as the least of the likeliest tokens, and as the probability that is left. But
        it may be one of `unnamed`. If the answer contains no token at all, the bound is 0.
        """
        likeliest = sorted(self.shown.values(), reverse=True)[: self.likeliest]
        rest = self.missing - math.fsum(math.exp(one) for one in self.unnamed)
        least = min([*likeliest, *self.unnamed], default=0.0)
        return max([min(least, math.log(max(rest, 1e-9))), *self.unnamed]) if likeliest or self.unnamed else 0.0


NOTHING = Answer({}, 0)  # for a prompt that cannot be sent


@dataclass(frozen=True)
class ServerLimits:
    """The limits of a server.

    context: the tokens of a prompt and its answer together; None if the server does not report it.
    shown: the largest number of tokens in an answer.
    exact: whether the server returns the probability of any requested token.
    at_once: the number of simultaneous requests.
    room: the tokens of the context that a prompt must leave free.
    scored: the largest number of prompt tokens with scores in an answer; None if all tokens have scores.
    """

    context: int | None
    shown: int
    exact: bool
    at_once: int = 4
    room: int = 1
    scored: int | None = None

    @property
    def prompt(self) -> int | None:
        """The tokens of the longest prompt; None if the server does not report its context."""
        return None if self.context is None else max(1, self.context - self.room)


class Server(Protocol):
    """A model behind an interface.

    program: the name and version of the server.
    model: the server's name for the model.
    limits: the limits of requests.
    """

    @property
    def program(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def limits(self) -> ServerLimits: ...

    def next(self, ids: Sequence[int], requested: int | None = None, /) -> Answer:
        """Return the log probabilities of the tokens after a prompt. Raises: ServerError.

        requested: the id of a token to include; without effect if the interface cannot include it.
        """

    def tokens_of(self, text: str) -> list[int] | None:
        """Return the ids of a text by the server's tokenizer, or None without such an interface."""

    def scores(self, ids: Sequence[int], last: int) -> list[Score] | None:
        """Return the scores of the last tokens of a prompt, or None without such an interface.

        The first token has no score.
        """


Score = tuple[float, bool]
"""A log probability, and whether the token is the likeliest of all."""


def answer_of(
    pairs: Sequence[Any], likeliest: int, where: str, unnamed: Sequence[Any] = (), requested: int | None = None
) -> Answer:
    """Return the answer with these pairs of a token and its log probability.

    likeliest: the number of pairs that are the likeliest of all tokens.
    where: the address for errors.
    unnamed: log probabilities of tokens with unknown ids.
    requested: a token that the answer must contain; None for any answer.
    Raises: ServerError for an invalid token or log probability, for an answer that is empty or lacks the requested
      token, or if the probabilities exceed 1.
    """
    shown: dict[int, float] = {}
    for token, number in pairs:
        shown[checked(token, TOKEN, "a token", where, ServerError)] = log_probability(number, where)
    others = tuple(log_probability(number, where) for number in unnamed)
    if not shown and not others:
        raise ServerError(NO_LOG_PROBABILITIES, where=where)
    if math.fsum(math.exp(one) for one in (*shown.values(), *others)) > 1 + MASS:
        raise ServerError("the answer contains probabilities with a sum above 1", where=where)
    if requested is not None and requested not in shown:
        raise ServerError(left_out(requested), where=where)
    return Answer(shown, min(likeliest, len(shown)), others)


def log_probability(number: Any, where: str) -> float:
    """Return a log probability in nats. Raises: ServerError for any other value."""
    return min(0.0, float(checked(number, _LOG_PROBABILITY, "a log probability", where, ServerError)))


def listed(answer: Any, *path: str | int, where: str) -> list[Any]:
    """Return the list at a path of an answer. Raises: ServerError if there is no list."""
    items: list[Any] = _part(answer, path, LIST, where)
    return items


def named(answer: Any, *path: str | int, where: str) -> dict[str, Any]:
    """Return the object at a path of an answer. Raises: ServerError if there is no object."""
    members: dict[str, Any] = _part(answer, path, OBJECT, where)
    return members


def _part(answer: Any, path: Sequence[str | int], type_: JsonType, where: str) -> Any:
    name = ".".join(map(str, path)) or "a part of the answer"
    return checked(within(answer, *path, where=where), type_, name, where, ServerError)


def tokenized(http: Http, body: Mapping[str, Any]) -> list[int] | None:
    """Return the ids by a server's tokenizer, or None without such an interface. Raises: ServerError."""
    answer, where = http.post(TOKENIZE, body), f"{http.url}{TOKENIZE}"
    if answer is None:
        return None
    ids: list[int] = _part(answer, ["tokens"], TOKENS, where)
    return ids


def check_raw(server: Server, ids: Sequence[int]) -> None:
    """Check that a server with exact answers returns the model's probabilities, without a change of its logits.

    A request for a token must not change the probabilities of the others. Raises: ServerError.
    """
    if not server.limits.exact:
        return
    plain = server.next(ids)
    second = sorted(plain.shown, key=lambda token: -plain.shown[token])[min(1, len(plain.shown) - 1)]
    outside = next(token for token in range(len(plain.shown) + 1) if token not in plain.shown)
    for requested in (second, outside):
        forced = server.next(ids, requested)
        apart = max(
            (abs(forced.shown[one] - plain.shown[one]) for one in plain.shown if one in forced.shown), default=0.0
        )
        too_likely = requested not in plain.shown and forced.shown[requested] > plain.at_most() + SAME
        if apart > SAME or too_likely:
            raise ServerError(
                f"{server.program} gives different probabilities for the same prompt; sampling settings may change them, or "
                "several models answer",
                where=server.program, try_="for vLLM, --logprobs-mode raw_logprobs, its default",
            )  # fmt: skip


def lacks(path: Sequence[str | int]) -> str:
    """Return the message for an answer without a part. path: keys and indices of the part."""
    return f"the answer does not contain {'.'.join(map(str, path))}"


def left_out(token: int) -> str:
    """Return the message for an answer without a requested token."""
    return f"the answer does not contain the requested token {token}"


def not_one_score_each(count: int) -> str:
    """Return the message for an answer with too few or too many scores."""
    return f"the answer must contain one score for each of {count} tokens"


def not_in_vocabulary(token: int, size: int) -> str:
    """Return the message for a token outside the checkpoint's vocabulary. size: of the vocabulary, in tokens."""
    return (
        f"the answer contains token {token}, but the checkpoint has {size} tokens, so the server runs a different model"
    )


def within(answer: Any, *path: str | int, where: str) -> Any:
    """Return the part at a path of an answer. Raises: ServerError if the answer has no such part."""
    part = answer
    for step in path:
        try:
            part = part[step]
        except (KeyError, IndexError, TypeError):
            raise ServerError(lacks(path), where=where) from None
    return part


def positive(value: Any) -> int | None:
    """Return a positive integer, or None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
