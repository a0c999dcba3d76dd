"""The answers of a default verification, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextAnswer:
    """The gaps of one text: the loss of the target minus that of the source on the same tokens, in nats per token.

    start: the first character of the text in its document.
    length: the tokens that the target read.
    short: the gap on a short prompt, or None without a source.
    long: the gap at the end of the text, or None if it was not read to its end.
    short_error, long_error: their standard errors, from blocks of tokens.
    cut: the pass ended early, because the target had lost the text.
    broken: a gap is above the limit by two standard errors.
    """

    document: str
    kind: str
    start: int
    length: int
    short: float | None
    short_error: float | None
    long: float | None
    long_error: float | None
    cut: bool
    broken: bool


@dataclass(frozen=True)
class Question:
    """The cost of texts of one length.

    ratio: of perplexities, target over source.
    lower, upper: bounds of the true ratio, with 95 % confidence each over all looks. None before the first look.
    texts: the number of texts.
    """

    length: int
    ratio: float
    lower: float | None
    upper: float | None
    texts: int


@dataclass(frozen=True)
class CurvePoint:
    """The target's mean loss around a position, in nats a token, over `texts` texts."""

    position: int
    loss: float
    texts: int


@dataclass(frozen=True)
class Answers:
    """The answers of a default verification.

    verdict: keep, works, costs, broken, or right as far as measured.
    target_length: the configured context length of the target in tokens.
    length: the tokens to which the texts were read.
    short, long: the two questions, or None if they could not be asked.
    curve: the loss of the target by position.
    looks: the number of texts at the last look.
    own: the target was compared with itself.
    minutes: of the whole command.
    more_texts, more_minutes: the price of a decision, or None if nothing is open or 64 texts would not decide.
    ended: the reason for the end: decided, time, texts or file.
    lost: what the target surely lost in its use of far text, in words. It makes works of keep.
    """

    verdict: str
    trained_length: int
    target_length: int
    length: int
    short: Question | None
    long: Question | None
    texts: tuple[TextAnswer, ...]
    curve: tuple[CurvePoint, ...]
    looks: int
    own: bool
    minutes: float
    more_texts: int | None
    more_minutes: float | None
    ended: str
    lost: tuple[str, ...] = ()
