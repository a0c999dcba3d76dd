"""A reader of SentencePiece's tokenizer.model: the pieces, and the settings that affect how text is split.

It reads the few protobuf fields that matter and skips all others.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ropetool.errors import CorruptFile
from ropetool.files.hf.jsontext import uncollected
from ropetool.files.regular import read_regular

UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType in sentencepiece_model.proto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf
MAX_FILE = 64 << 20  # bytes; the largest known files have 5 MB
MAX_PIECES = 1 << 19  # Gemma's 262,144 are the most known; each piece costs 3 us and 200 bytes
MAX_FIELDS = 1 << 20  # of all messages together; a trainer's own symbols are fields too
MAX_CHARSMAP = 4 << 20  # bytes; the largest known has a tenth of this

# Numbers of fields. Source: github.com/google/sentencepiece, src/sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _SUFFIX = 3, 24
_CHARSMAP, _DUMMY_PREFIX, _EXTRA_SPACES = 2, 3, 4

# The usual form of a piece: text, score and perhaps type. The expression takes a third of the time of the field reader.
_PLAIN = re.compile(rb"\x0a([\0-\x7f])(.*)\x15(.{4})(?:\x18([\0-\x7f]))?", re.DOTALL)
_FLOAT = struct.Struct("<f")

Field = tuple[int, int | bytes]


class SentencePiece(NamedTuple):
    """A piece of the vocabulary.

    type: the number of llama.cpp's token type: 1 normal, 2 unknown, 3 control and so on.
    """

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class ModelFile:
    """The contents of a tokenizer.model.

    pieces: the pieces by id.
    model_type: UNIGRAM, BPE or another number of TrainerSpec.ModelType.
    charsmap: the replacements of characters before the split, in SentencePiece's binary format.
    """

    pieces: tuple[SentencePiece, ...]
    model_type: int
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    treat_whitespace_as_suffix: bool
    charsmap: bytes


def read_model_file(path: Path) -> ModelFile:
    """Return the contents of a tokenizer.model.

    Raises: CorruptFile if it is not a SentencePiece model; CheckpointError if it cannot be read.
    """
    try:
        with uncollected():
            return _Reader(read_regular(path, MAX_FILE)).model()
    except (ValueError, struct.error) as error:  # UnicodeDecodeError is a ValueError
        raise CorruptFile(f"is not a SentencePiece model: {error}", where=str(path)) from None


class _Reader:
    """A reader of one file.

    It counts fields and pieces, so that a hostile file cannot create more objects than a real model.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._fields_left = MAX_FIELDS

    def model(self) -> ModelFile:
        pieces: list[SentencePiece] = []
        trainer: dict[int, int | bytes] = {}
        normalizer: dict[int, int | bytes] = {}
        for number, value in self._fields(self._raw):
            if number == _PIECES:
                if len(pieces) == MAX_PIECES:
                    raise ValueError(f"it has more than {MAX_PIECES:,} pieces")
                pieces.append(self._piece(_message(value)))
            elif number == _TRAINER:
                trainer = dict(self._fields(_message(value)))
            elif number == _NORMALIZER:
                normalizer = dict(self._fields(_message(value)))
        if not pieces:
            raise ValueError("it has no pieces")
        charsmap = _message(normalizer.get(_CHARSMAP, b""))
        if len(charsmap) > MAX_CHARSMAP:
            raise ValueError(f"its charsmap has {len(charsmap):,} bytes; the maximum is {MAX_CHARSMAP:,}")
        # The defaults are those of the .proto.
        return ModelFile(
            tuple(pieces), _number(trainer.get(_MODEL_TYPE, UNIGRAM)), _number(normalizer.get(_DUMMY_PREFIX, 1)) != 0,
            _number(normalizer.get(_EXTRA_SPACES, 1)) != 0, _number(trainer.get(_SUFFIX, 0)) != 0, charsmap,
        )  # fmt: skip

    def _piece(self, raw: bytes) -> SentencePiece:
        plain = _PLAIN.fullmatch(raw)
        if plain is not None and len(plain[2]) == plain[1][0]:
            piece_type = plain[4]
            return SentencePiece(plain[2].decode(), _FLOAT.unpack(plain[3])[0], piece_type[0] if piece_type else 1)
        fields = dict(self._fields(raw))
        (score,) = _FLOAT.unpack(_message(fields.get(_SCORE, b"\0\0\0\0")))
        return SentencePiece(_message(fields.get(_PIECE, b"")).decode(), score, _number(fields.get(_TYPE, 1)))

    def _fields(self, raw: bytes) -> Iterator[Field]:
        """Yield the number and the value of each field of a message: an integer, or bytes for all other wire types."""
        at = 0
        while at < len(raw):
            self._fields_left -= 1
            if self._fields_left < 0:
                raise ValueError(f"it has more than {MAX_FIELDS:,} fields")
            tag, at = _varint(raw, at)
            number, wire = tag >> 3, tag & 7
            if wire == _VARINT:
                value, at = _varint(raw, at)
                yield number, value
                continue
            if wire == _BYTES:
                size, at = _varint(raw, at)
            elif wire in (_FIXED32, _FIXED64):
                size = 4 if wire == _FIXED32 else 8
            else:
                raise ValueError(f"byte {at} has the unknown wire type {wire}")
            if size > len(raw) - at:
                raise ValueError(f"it ends within the field at byte {at}")
            yield number, raw[at : at + size]
            at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    if at < len(raw) and raw[at] < 0x80:  # nearly all
        return raw[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            break
        value |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return value, at
    raise ValueError(f"it ends within a number at byte {at}")


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("it has a number instead of text or a message")
    return value


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("it has text instead of a number")
    return value
