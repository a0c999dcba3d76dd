"""The vocabulary of a GGUF file: tokens by id with their types and scores, and the special tokens.

Missing keys have llama.cpp's defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import CorruptFile, LossyExport
from ropetool.files.gguf import Value, ValueType
from ropetool.files.hf.jsontext import is_text, shown
from ropetool.gguf_model.tokenizer.special import KNOWN_ENDS, SpecialTokens
from ropetool.gguf_model.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, check_lengths

PREFIX = "tokenizer.ggml."
MODEL, PRE, TOKENS, TYPES, SCORES, MERGES = (
    f"{PREFIX}{name}" for name in ("model", "pre", "tokens", "token_type", "scores", "merges")
)
# The special tokens of tokenizer_config.json by role, with their GGUF keys. The files spell it seperator.
SPECIAL_KEYS = {
    "bos": f"{PREFIX}bos_token_id", "eos": f"{PREFIX}eos_token_id", "unk": f"{PREFIX}unknown_token_id",
    "sep": f"{PREFIX}seperator_token_id", "pad": f"{PREFIX}padding_token_id", "mask": f"{PREFIX}mask_token_id",
}  # fmt: skip
MAX_TOKENS, MAX_MERGES = 1 << 20, 1 << 22  # Gemma's vocabulary has 262,144 tokens and 580,000 merges
_INTEGERS = frozenset(ValueType) - {ValueType.BOOL, ValueType.F32, ValueType.F64, ValueType.STR, ValueType.ARR}
_UNUSED_IN_TEXT = ("sep", "pad", "mask")  # roles of tokens that are neither added to a text nor end it
_MATCHED_IN_TEXT = (UNKNOWN, CONTROL, USER_DEFINED)
AGAIN = "convert the original checkpoint again, with ropetool export or llama.cpp's converter"


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that have a text, in the order of their ids, and the type of each row.

    ids: the ids by text.
    types: llama.cpp's token type of each row.
    matched: tokens that are matched in the text before it is split, with whether they are special.
    unused: ids of rows that no text produces; the tokenizer leaves them out.
    """

    ids: Mapping[str, int]
    types: Sequence[int]
    matched: Mapping[str, bool]
    unused: Sequence[int]

    @property
    def rows(self) -> int:
        """The number of rows, including unused ones."""
        return len(self.types)

    def joinable(self) -> Iterator[tuple[str, int]]:
        """Yield the tokens that a split text consists of, with their ids.

        Tokens that are matched before the split are left out.
        """
        return ((text, number) for text, number in self.ids.items() if text not in self.matched)


def read_vocabulary(values: Mapping[str, Value], where: str) -> Vocabulary:
    """Return the tokens of a file. Raises: CorruptFile for missing, invalid or contradictory lists."""
    texts = read_texts(values, TOKENS, MAX_TOKENS, where)
    if texts is None:
        raise CorruptFile(f"does not set {TOKENS}, so ropetool cannot write a tokenizer", where=where, try_=AGAIN)
    check_lengths(texts, where)
    types = _types(values, len(texts), where)
    unused = [number for number, text in enumerate(texts) if not text or _is_filler(text, number, types[number])]
    left_out = frozenset(unused)
    ids: dict[str, int] = {}
    for number, text in enumerate(texts):
        if number not in left_out and ids.setdefault(text, number) != number:
            raise CorruptFile(f"{TOKENS} contains {shown(text)} twice, as {ids[text]} and {number}", where=where)
    matched = {
        text: types[number] != USER_DEFINED
        for text, number in ids.items()
        if types[number] in _MATCHED_IN_TEXT or text in KNOWN_ENDS  # llama.cpp makes these control tokens
    }
    return Vocabulary(ids, types, matched, unused)


def _is_filler(text: str, number: int, token_type: int) -> bool:
    """Return whether a converter wrote this row only to give the embedding a token for each row."""
    return text == f"[PAD{number}]" and token_type != NORMAL


def _types(values: Mapping[str, Value], rows: int, where: str) -> Sequence[int]:
    types = read_numbers(values, TYPES, {ValueType.I32}, rows, where)
    if types is None:
        return [NORMAL] * rows
    odd = np.flatnonzero((types < NORMAL) | (types > BYTE))
    if len(odd):
        raise CorruptFile(
            f"{TYPES}[{odd[0]}] is {types[odd[0]]}; types must be 1 to 6: normal, unknown, control, user-defined, "
            "unused and byte", where=where,
        )  # fmt: skip
    listed: list[int] = types.tolist()
    return listed


# --- special tokens


def read_special(
    values: Mapping[str, Value],
    vocabulary: Vocabulary,
    defaults: Mapping[str, int],
    adds: tuple[bool, bool],
    where: str,
) -> SpecialTokens:
    """Return the special tokens.

    defaults: llama.cpp's default ids by role. A default counts only if its token is matched in text, because others are
      normal words.
    adds: llama.cpp's defaults for adding bos and eos.
    Raises: CorruptFile for ids that no row has; LossyExport if a token must be added but is not set.
    """
    texts = {number: text for text, number in vocabulary.ids.items()}
    ids: dict[str, int] = {}
    notes: list[str] = []
    for role, key in SPECIAL_KEYS.items():
        number = read_id(values, key, vocabulary.rows, where)
        if number is None:
            number = defaults.get(role)
            if number is None or texts.get(number) not in vocabulary.matched:
                continue
            notes.append(f"the file does not set {key}: the tokenizer uses {texts[number]!r}, as llama.cpp does")
        if role in _UNUSED_IN_TEXT and number in texts and texts[number] not in vocabulary.matched:
            notes.append(
                f"{key} is {texts[number]!r}, a normal token: left out, because transformers would match it in text"
            )
        elif number in texts:
            ids[role] = number
        else:
            notes.append(f"{key} is {number}, a row without a token: left out")
    added = []
    for role, default in zip(("bos", "eos"), adds, strict=True):
        key = f"{PREFIX}add_{role}_token"
        is_added = read_bool(values, key, default, where)
        if is_added and role not in ids:
            raise LossyExport(
                f"{key} is true, in the file or by llama.cpp's default, but {SPECIAL_KEYS[role]} does not set a token to add",
                where=where, try_=AGAIN,
            )  # fmt: skip
        added.append(is_added)
    return SpecialTokens(ids, added[0], added[1], tuple(notes))


def read_id(values: Mapping[str, Value], key: str, rows: int, where: str) -> int | None:
    """Return the token id of a key, or None if the key is missing. Raises: CorruptFile if no row has this id."""
    value = values.get(key)
    if value is None:
        return None
    number = value.decode() if value.type in _INTEGERS else None
    if not isinstance(number, int) or not 0 <= number < rows:
        raise CorruptFile(f"{key} is {_quoted(value)}; it must be a token's id, 0 to {rows - 1}", where=where)
    return number


# --- values by their type


def read_bool(values: Mapping[str, Value], key: str, default: bool, where: str) -> bool:
    """Return a boolean, or the default if the key is missing. Raises: CorruptFile for a value of a different type."""
    value = values.get(key)
    if value is None:
        return default
    if value.type is not ValueType.BOOL:
        raise CorruptFile(f"{key} is {_quoted(value)}; it must be true or false", where=where)
    return bool(value.decode())


def read_text(values: Mapping[str, Value], key: str, where: str) -> str | None:
    """Return a text, or None if the key is missing.

    Raises: CorruptFile for a value of a different type, or bytes that are not UTF-8.
    """
    value = values.get(key)
    if value is None:
        return None
    text = value.decode() if value.type is ValueType.STR else None
    if not is_text(text):
        raise CorruptFile(f"{key} is {_quoted(value)}; it must be text in UTF-8", where=where)
    assert isinstance(text, str)
    return text


def read_texts(values: Mapping[str, Value], key: str, most: int, where: str) -> list[str] | None:
    """Return a list of at most `most` texts, or None if the key is missing. Raises: CorruptFile for any other value."""
    value = values.get(key)
    if value is None:
        return None
    if value.element is not ValueType.STR or value.count > most:
        raise CorruptFile(f"{key} is {_quoted(value)}; it must be a list of at most {most:,} texts", where=where)
    texts = value.decode()
    assert isinstance(texts, list)
    return texts


def read_numbers(
    values: Mapping[str, Value], key: str, elements: Collection[ValueType], rows: int, where: str
) -> npt.NDArray[Any] | None:
    """Return a list with a number for each row, or None if the key is missing.

    Raises: CorruptFile for any other value.
    """
    value = values.get(key)
    if value is None:
        return None
    if value.element not in elements or value.count != rows:
        labels = " or ".join(sorted(element.label for element in elements))
        raise CorruptFile(
            f"{key} is {_quoted(value)}; it must be {rows:,} of {labels}, one for each token", where=where
        )
    numbers = value.decode()
    assert isinstance(numbers, np.ndarray)
    return numbers


def _quoted(value: Value) -> str:
    if value.type is ValueType.ARR:
        return f"a list of {value.count:,} {value.element.label if value.element else ''}"
    decoded = value.decode()
    return shown(decoded) if is_text(decoded) or not isinstance(decoded, str) else "text that is not UTF-8"
