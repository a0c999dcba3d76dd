"""The tokens of a vocabulary by id: texts, types and scores, one for each row of the embedding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ropetool.errors import CorruptFile, LossyExport
from ropetool.files.hf.jsontext import is_text, shown

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # llama_token_type in llama.h
SPACE = "\u2581"  # SentencePiece's spelling of a space
MAX_TOKEN, MAX_LETTERS = 1 << 10, 1 << 22  # the longest known have 256 letters; Gemma's 262,144 tokens 1.8 million
ADDED_SCORE, PADDING_SCORE = -1000.0, -10000.0  # the values of llama.cpp's converter; they do not affect any split
# Added tokens that models use as special ones, but that are not marked as special. llama.cpp matches control tokens
# only on request, and all others in any text. llama.cpp's converter treats the same tokens as control tokens.
_SPECIAL_LOOKS = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))  # the second is DeepSeek's, full width
_SPECIAL_NAMES = frozenset({"<pad>", "<mask>", "<2mass>", "[@BOS@]"})


class Entry(NamedTuple):
    """A token of the model, without added tokens: its id, score and llama.cpp's token type."""

    number: int
    score: float = 0.0
    type: int = NORMAL


@dataclass(frozen=True)
class Tokens:
    """The vocabulary by id, with one entry for each row of the embedding.

    ids: the ids by text, without rows that have no token.
    """

    texts: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...]
    ids: Mapping[str, int]
    notes: tuple[str, ...] = field(default=())


def numbered(vocabulary: Mapping[str, Any], where: str) -> dict[str, Entry]:
    """Return the tokens of a vocabulary that maps texts to ids. Raises: CorruptFile for an invalid id."""
    check_lengths(vocabulary, where)
    numbers = vocabulary.values()
    if {*map(type, numbers)} - {int} or min(numbers, default=0) < 0:
        for text, number in vocabulary.items():
            if type(number) is not int or number < 0:
                raise CorruptFile(f"{text!r} has the id {shown(number)}; ids must be whole numbers from 0", where=where)
    return dict(zip(vocabulary, map(Entry, numbers), strict=True))


def check_lengths(texts: Iterable[str], where: str) -> None:
    """Raise CorruptFile for tokens that are too long, because later steps take time by the square of the length."""
    texts = list(texts)
    lengths = [*map(len, texts)]
    if max(lengths, default=0) <= MAX_TOKEN and sum(lengths) <= MAX_LETTERS and is_text("".join(texts)):
        return  # fast for hundreds of thousands of tokens; the loop below only finds the wrong one
    letters = 0
    for text in texts:
        letters += len(text)
        if len(text) > MAX_TOKEN or letters > MAX_LETTERS:
            raise CorruptFile(
                f"has a token of {len(text):,} letters and tokens of {letters:,} letters in all; the maximum is "
                f"{MAX_TOKEN:,} and {MAX_LETTERS:,}", where=where,
            )  # fmt: skip
        if not is_text(text):
            raise CorruptFile(
                f"the token {shown(text)} contains half of a surrogate pair, which is not text", where=where
            )


def laid_out(entries: Mapping[str, Entry], added: Iterable[Any], rows: int, where: str, *, pieces: bool) -> Tokens:
    """Return the tokens by id, including added tokens.

    Rows without a token get the name [PADn], which no text contains.
    Added tokens without a row are left out, because the model cannot use them either. For example, Gemma 3's text
    models have the token <image_soft_token> of the larger models.

    pieces: whether the texts are SentencePiece's, with SPACE instead of spaces.
    Raises: LossyExport if the ids of the model's own tokens exceed the rows; CorruptFile if two tokens share an id or a
    text.
    """
    tokens = dict(entries)
    habits: dict[str, list[str]] = {}
    beyond: list[str] = []
    for token in added:
        text, number, special = _added(token, where)
        known = tokens.get(text)
        if known is not None and known.number != number:
            raise CorruptFile(f"{text!r} has two ids, {known.number} and {number}", where=where)
        if known is None and number >= rows:
            beyond.append(text)
            continue
        token_type = CONTROL if special or _looks_special(text) else USER_DEFINED
        tokens[text] = Entry(number, ADDED_SCORE, token_type)
        habits.setdefault(_habits(token), []).append(text)
    by_id = _by_id(tokens, rows, where)
    texts = tuple(_written(by_id.get(number), number, tokens, pieces) for number in range(rows))
    if len(set(texts)) < rows:  # llama.cpp aborts the process if two tokens have the same text
        raise CorruptFile(
            "contains two tokens with the same text, or a token [PADn], the name of unused rows", where=where
        )
    filled = [tokens[by_id[n]] if n in by_id else Entry(n, PADDING_SCORE, UNUSED) for n in range(rows)]
    return Tokens(
        texts, tuple(entry.type for entry in filled), tuple(entry.score for entry in filled),
        {text: entry.number for text, entry in tokens.items()}, (*_habit_notes(habits), *_beyond_notes(beyond, rows)),
    )  # fmt: skip


def _written(text: str | None, number: int, tokens: Mapping[str, Entry], pieces: bool) -> str:
    """Return a token's text for the file. llama.cpp searches user-defined tokens before it replaces spaces."""
    if text is None:
        return f"[PAD{number}]"
    return text.replace(SPACE, " ") if pieces and tokens[text].type == USER_DEFINED else text


def _added(token: Any, where: str) -> tuple[str, int, bool]:
    text = token.get("content") if isinstance(token, Mapping) else None
    number = token.get("id") if isinstance(token, Mapping) else None
    if not is_text(text) or not text or not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise CorruptFile(f"the added token {shown(token)} must have a content and an id", where=where)
    return text, number, token.get("special") is True


def _habits(token: Mapping[str, Any]) -> str:
    return " and ".join(key for key in ("lstrip", "rstrip", "single_word") if token.get(key) is True)


def _habit_notes(texts_by_habits: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for habits, texts in texts_by_habits.items():
        if habits:
            who = f"token {texts[0]!r} has" if len(texts) == 1 else f"{len(texts)} tokens, the first {texts[0]!r}, have"
            yield f"{who} {habits}, which llama.cpp ignores"


def _beyond_notes(texts: Sequence[str], rows: int) -> Iterator[str]:
    if texts:
        which = f"token {texts[0]!r} is" if len(texts) == 1 else f"{len(texts)} tokens, the first {texts[0]!r}, are"
        yield f"{which} left out: the embedding has only {rows} rows"


def _looks_special(text: str) -> bool:
    return text in _SPECIAL_NAMES or any(text.startswith(a) and text.endswith(b) for a, b in _SPECIAL_LOOKS)


def _by_id(tokens: Mapping[str, Entry], rows: int, where: str) -> dict[int, str]:
    by_id: dict[int, str] = {}
    for text, entry in tokens.items():
        number = entry.number
        if number >= rows:
            raise LossyExport(
                f"token {text!r} has id {number}, but the embedding has {rows} rows: vocab_size is too small",
                where=where, try_="resize the model's embedding to the tokenizer",
            )  # fmt: skip
        if by_id.setdefault(number, text) != text:
            raise CorruptFile(f"{by_id[number]!r} and {text!r} have the same id {number}", where=where)
    return by_id
