"""What any server is asked, and its answers, checked: nothing that comes from outside is believed without a look.

Knows no interface; those are modules of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ropetool.errors import ServerError
from ropetool.servers.http import Http

MOST_SHOWN = 20  # tokens of an answer: what vLLM, SGLang and Ollama give unless they are started otherwise
TOKENIZE = "/tokenize"
MOST_TOKENS = 1 << 31
LEAST = -1e5  # nats: below it lies no float32 softmax; vLLM writes -9999 for what is left out
SAME = 0.1  # nats by which two answers to one prompt may differ: batches are rounded differently, and some engines quantise
MASS = 1e-3  # by which the probabilities that are shown may exceed 1: servers compute in 16 bits
NO_LOG_PROBABILITIES = "the answer contains no log probabilities"
_WRONG = "the answer contains {}"


@dataclass(frozen=True)
class Answer:
    """How likely a server finds some of the tokens that may come next, in nats.

    shown: the likeliest, and those that were asked for. likeliest: how many of them are the likeliest of all. unnamed: the
    log probabilities of likely tokens of which the answer does not say which they are.
    """

    shown: Mapping[int, float]
    likeliest: int
    unnamed: tuple[float, ...] = ()

    @property
    def top(self) -> int:
        """The likeliest token, -1 where it is not known."""
        best = max(self.shown, key=lambda token: (self.shown[token], -token), default=-1)
        return -1 if best < 0 or any(one > self.shown[best] for one in self.unnamed) else best

    @property
    def missing(self) -> float:
        """The probability of all tokens that are not shown."""
        return max(0.0, 1.0 - math.fsum(math.exp(one) for one in self.shown.values()))

    def at_most(self) -> float:
        """Return the largest log probability that a token which is not shown can have.

        It is none of the likeliest, so that the least of these bounds it, as does what is left of the whole; but it may be one
        that is not named. Where nothing is shown it may be certain.
        """
        likeliest = sorted(self.shown.values(), reverse=True)[: self.likeliest]
        rest = self.missing - math.fsum(math.exp(one) for one in self.unnamed)
        least = min([*likeliest, *self.unnamed], default=0.0)
        return max([min(least, math.log(max(rest, 1e-9))), *self.unnamed]) if likeliest or self.unnamed else 0.0


NOTHING = Answer({}, 0)  # of a prompt that cannot be asked


@dataclass(frozen=True)
class Limits:
    """What a server takes. context: tokens of a prompt and its answer, None where it does not say. shown: the most tokens
    of an answer. exact: whether it tells the probability of any token that is asked for. at_once: requests at a time. room:
    tokens of the context that a prompt has to leave. scored: of how many tokens of a prompt it can be asked the scores, None
    where it makes those of all.
    """

    context: int | None
    shown: int
    exact: bool
    at_once: int = 4
    room: int = 1
    scored: int | None = None

    @property
    def prompt(self) -> int | None:
        """Tokens of the longest prompt, None where it does not say."""
        return None if self.context is None else max(1, self.context - self.room)


class Server(Protocol):
    """A model behind an interface.

    program: its name and version. model: as the server calls it. limits: of what it takes.
    """

    @property
    def program(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    def next(self, ids: Sequence[int], wanted: int | None = None) -> Answer:
        """Return what may come after a prompt; of `wanted` too, where the interface tells. Raises: ServerError."""

    def tokens_of(self, text: str) -> list[int] | None:
        """Return the ids that the server's own tokenizer makes of a text, None where it has no interface for it."""

    def scores(self, ids: Sequence[int], last: int) -> list[Score] | None:
        """Return what the last tokens of a prompt are to the model, not its first; None where the interface has none for it."""


Score = tuple[float, bool]
"""A log probability, and whether the token is the likeliest of all."""


def answer_of(pairs: Sequence[Any], likeliest: int, where: str, unnamed: Sequence[Any] = ()) -> Answer:
    """Return the answer that pairs of a token and its log probability are, and log probabilities of what is not known.

    Raises: ServerError for what is no token or no log probability, for none, or for more than there is to share.
    """
    found: dict[int, float] = {}
    for token, number in pairs:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < MOST_TOKENS:
            raise ServerError(_WRONG.format(f"an invalid token: {_quoted(token)}"), where=where)
        found[token] = log_probability(number, where)
    others = tuple(log_probability(number, where) for number in unnamed)
    if not found and not others:
        raise ServerError(NO_LOG_PROBABILITIES, where=where)
    if math.fsum(math.exp(one) for one in (*found.values(), *others)) > 1 + MASS:
        raise ServerError(_WRONG.format("probabilities with a sum above 1"), where=where)
    return Answer(found, min(likeliest, len(found)), others)


def log_probability(number: Any, where: str) -> float:
    """Return a log probability in nats. Raises: ServerError for what is none."""
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not LEAST <= number <= MASS:
        raise ServerError(_WRONG.format(f"an invalid log probability: {_quoted(number)}"), where=where)
    return min(0.0, float(number))


def _quoted(value: Any) -> str:
    return repr(value)[:60] if not isinstance(value, int) or abs(value) < MOST_TOKENS else "a huge number"


def listed(found: Any, *path: str | int, where: str) -> list[Any]:
    """Return a list in an answer. Raises: ServerError where there is none."""
    part = within(found, *path, where=where)
    if not isinstance(part, list):
        raise ServerError(_WRONG.format(f"no list at {'.'.join(map(str, path))}"), where=where)
    return part


def named(found: Any, *path: str | int, where: str) -> dict[str, Any]:
    """Return an object in an answer. Raises: ServerError where there is none."""
    part = within(found, *path, where=where)
    if not isinstance(part, dict):
        raise ServerError(_WRONG.format(f"no object at {'.'.join(map(str, path))}"), where=where)
    return part


def tokenized(http: Http, body: Mapping[str, Any]) -> list[int] | None:
    """Return the ids that a server's tokenizer answers, None where it has no interface for it. Raises: ServerError."""
    found, where = http.post(TOKENIZE, body), f"{http.url}{TOKENIZE}"
    if found is None:
        return None
    ids = listed(found, "tokens", where=where)
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
        raise ServerError(_WRONG.format("invalid tokens"), where=where)
    return ids


def check_raw(server: Server, ids: Sequence[int]) -> None:
    """Return if a server that tells of wanted tokens tells what the model finds, and not what is left after it was told to.

    Asked for a token, it has to say the same of all others as without. Raises: ServerError.
    """
    if not server.limits.exact:
        return
    plain = server.next(ids)
    second = sorted(plain.shown, key=lambda token: -plain.shown[token])[min(1, len(plain.shown) - 1)]
    outside = next(token for token in range(len(plain.shown) + 1) if token not in plain.shown)
    for wanted in (second, outside):
        forced = server.next(ids, wanted)
        apart = max(
            (abs(forced.shown[one] - plain.shown[one]) for one in plain.shown if one in forced.shown), default=0.0
        )
        too_likely = wanted not in plain.shown and forced.shown[wanted] > plain.at_most() + SAME
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
    """Return the message for a token that the checkpoint does not have. size: of the checkpoint's vocabulary, in tokens."""
    return (
        f"the answer contains token {token}, but the checkpoint has {size} tokens, so the server runs a different model"
    )


def within(found: Any, *path: str | int, where: str) -> Any:
    """Return a part of an answer. Raises: ServerError where the answer has no such part."""
    for step in path:
        try:
            found = found[step]
        except (KeyError, IndexError, TypeError):
            raise ServerError(lacks(path), where=where) from None
    return found


def whole(value: Any) -> int | None:
    """Return a positive whole number, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
