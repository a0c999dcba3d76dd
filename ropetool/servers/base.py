"""What any server is asked, and its answers, checked: nothing that comes from outside is believed without a look.

Knows no interface; those are modules of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ropetool.errors import ServerError

MOST_SHOWN = 20  # tokens of an answer: what vLLM, SGLang and Ollama give unless they are started otherwise
MASS = 1e-3  # by which the probabilities that are shown may exceed 1: servers compute in 16 bits
_WRONG = "its answer has {}"


@dataclass(frozen=True)
class Answer:
    """How likely a server finds some of the tokens that may come next, in nats.

    shown: the likeliest, and those that were asked for. likeliest: how many of them are the likeliest of all.
    """

    shown: Mapping[int, float]
    likeliest: int

    @property
    def top(self) -> int:
        """The likeliest token."""
        return max(self.shown, key=lambda token: (self.shown[token], -token))

    @property
    def missing(self) -> float:
        """The probability of all tokens that are not shown."""
        return max(0.0, 1.0 - math.fsum(math.exp(one) for one in self.shown.values()))

    def at_most(self) -> float:
        """Return the largest log probability that a token which is not shown can have.

        It is none of the likeliest, so that the least of these bounds it, as does what is left of the whole.
        """
        least = sorted(self.shown.values(), reverse=True)[self.likeliest - 1]
        return min(least, math.log(max(self.missing, 1e-9)))


@dataclass(frozen=True)
class Limits:
    """What a server takes. context: tokens of a prompt and its answer, None where it does not say. shown: the most tokens
    of an answer. exact: whether it tells the probability of any token that is asked for.
    """

    context: int | None
    shown: int
    exact: bool


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

    def scores(self, ids: Sequence[int]) -> list[float] | None:
        """Return the log probability of each token of a prompt but the first; None where the interface has none for it."""


def answer_of(pairs: Sequence[tuple[Any, Any]], likeliest: int, where: str) -> Answer:
    """Return the answer that pairs of a token and its log probability are.

    Raises: ServerError for what is no token or no log probability, for none, or for more than there is to share.
    """
    found: dict[int, float] = {}
    for token, number in pairs:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise ServerError(_WRONG.format(f"a token that is none: {token!r}"), where=where)
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not number <= MASS:
            raise ServerError(_WRONG.format(f"a log probability that is none: {number!r}"), where=where)
        found[token] = min(0.0, float(number))
    if not found:
        raise ServerError("its answer has no log probabilities", where=where)
    if math.fsum(math.exp(one) for one in found.values()) > 1 + MASS:
        raise ServerError(_WRONG.format("probabilities that sum to more than 1"), where=where)
    return Answer(found, min(likeliest, len(found)))


def within(found: Any, *path: str | int, where: str) -> Any:
    """Return a part of an answer. Raises: ServerError where the answer has no such part."""
    for step in path:
        try:
            found = found[step]
        except (KeyError, IndexError, TypeError):
            told = ".".join(map(str, path))
            raise ServerError(f"its answer has no {told}", where=where) from None
    return found


def whole(value: Any) -> int | None:
    """Return a positive whole number, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
