"""A SentencePiece tokenizer.model read: its pieces, and the settings that decide how text is split.

Reads the few fields of the protobuf that matter and passes over all others; knows nothing of GGUF.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ropetool.errors import CorruptFile
from ropetool.formats.regular import read_regular

UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType in sentencepiece_model.proto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf
MAX_FILE = 64 << 20  # bytes; the largest known have five
MAX_PIECES = 1 << 21

# Numbers of fields. Source: github.com/google/sentencepiece, src/sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _SUFFIX = 3, 24
_CHARSMAP, _DUMMY_PREFIX, _EXTRA_SPACES = 2, 3, 4

Field = tuple[int, int | bytes]


@dataclass(frozen=True)
class Piece:
    """One piece; its type is numbered as llama.cpp's token types are: 1 normal, 2 unknown, 3 control and so on."""

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class ModelFile:
    """The pieces by id. charsmap: what characters are replaced by before, in SentencePiece's own form."""

    pieces: tuple[Piece, ...]
    model_type: int
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    treat_whitespace_as_suffix: bool
    charsmap: bytes


def read_model_file(path: Path) -> ModelFile:
    """Return what a tokenizer.model holds. Raises: CorruptFile if it is none; CheckpointError if it cannot be read."""
    try:
        return _parsed(read_regular(path, MAX_FILE))
    except (ValueError, struct.error) as error:  # UnicodeDecodeError is a ValueError
        raise CorruptFile(f"is no SentencePiece model: {error}", where=str(path)) from None


def _parsed(raw: bytes) -> ModelFile:
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(raw):
        if number == _PIECES:
            pieces.append(_piece(_message(value)))
        elif number == _TRAINER:
            trainer = dict(_fields(_message(value)))
        elif number == _NORMALIZER:
            normalizer = dict(_fields(_message(value)))
    if not pieces or len(pieces) > MAX_PIECES:
        raise ValueError(f"it has {len(pieces):,} pieces")
    # The defaults are those of the .proto.
    return ModelFile(
        tuple(pieces), _number(trainer.get(_MODEL_TYPE, UNIGRAM)), _number(normalizer.get(_DUMMY_PREFIX, 1)) != 0,
        _number(normalizer.get(_EXTRA_SPACES, 1)) != 0, _number(trainer.get(_SUFFIX, 0)) != 0,
        _message(normalizer.get(_CHARSMAP, b"")),
    )  # fmt: skip


def _piece(raw: bytes) -> Piece:
    fields = dict(_fields(raw))
    (score,) = struct.unpack("<f", _message(fields.get(_SCORE, b"\0\0\0\0")))
    return Piece(_message(fields.get(_PIECE, b"")).decode(), score, _number(fields.get(_TYPE, 1)))


# --- protobuf


def _fields(raw: bytes) -> Iterator[Field]:
    """Yield the fields of a message: its number with an integer, or with the bytes of anything else."""
    at = 0
    while at < len(raw):
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
            raise ValueError(f"byte {at} has the wire type {wire}")
        if size > len(raw) - at:
            raise ValueError(f"it ends within the field at byte {at}")
        yield number, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
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
        raise ValueError("it has a number where text or a message belongs")
    return value


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("it has text where a number belongs")
    return value
