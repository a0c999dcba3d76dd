"""The answers of a default verification, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextAnswer:
    """The gaps of one text: the target's loss minus the source's loss on the same tokens, in nats per token.

    document, kind: the name of the document, and its kind of text.
    start: the first character of the text in its document.
    length: the number of tokens that the target read.
    short: the gap on a short prompt, or None without a source.
    long: the gap at the end of the text, or None if it was not read to its end.
    short_error, long_error: the standard errors of the gaps, from blocks of tokens.
    cut: the pass ended early, because the target had lost this text, or an earlier text at this position.
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

    length: tokens.
    ratio: the target's perplexity divided by the source's perplexity.
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
    """The target's mean loss over the last 64 tokens before a position, in nats per token.

    position: tokens from the start. texts: the number of texts.
    """

    position: int
    loss: float
    texts: int


@dataclass(frozen=True)
class Answers:
    """The answers of a default verification.

    verdict: keep, works, costs, broken, or right as far as measured.
    trained_length, target_length: the trained and the configured context length of the target in tokens.
    length: the largest number of tokens that was read of a text. If texts were read to the target's length, only these
      count.
    short, long: the two questions about short texts and the full length, or None if they could not be measured.
    texts: the gaps of each text.
    curve: the loss of the target by position.
    looks: the number of texts at the last look.
    own: the target was compared with itself.
    minutes: the duration of the whole command.
    more_texts, more_minutes: the additional work for a decision, or None if nothing is open or 64 texts would not
      decide.
    ended: the reason for the end: decided, time, texts or file.
    lost: significant losses in the use of long-range context, in words. They change the verdict keep to works.
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
