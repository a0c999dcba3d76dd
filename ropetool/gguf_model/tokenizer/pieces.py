"""SentencePiece vocabularies, from tokenizer.json or tokenizer.model: pieces, scores, and what is done to spaces.

llama.cpp knows two kinds: "llama", which joins the pair of the best score, and "t5", the most likely pieces (Unigram).
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropetool.errors import CorruptFile, LossyExport
from ropetool.files.hf.jsontext import ABSENT, is_text, shown
from ropetool.files.hf.typed import LIST, TEXT, taken
from ropetool.gguf_model.tokenizer import model_file
from ropetool.gguf_model.tokenizer.byte_level import check_bpe
from ropetool.gguf_model.tokenizer.merges import pair_scores, pairs_without_merge
from ropetool.gguf_model.tokenizer.pretokenizer import steps_of
from ropetool.gguf_model.tokenizer.vocabulary import BYTE, NORMAL, SPACE, UNKNOWN, Entry, check_lengths, numbered
from ropetool.rope.tables import is_number

SENTENCEPIECE_MODEL = "tokenizer.model"
LLAMA, T5 = "llama", "t5"  # llama.cpp's names of the two kinds, tokenizer.ggml.model
NORMALISES = "replaces characters or joins spaces before it splits text; llama.cpp does not"
CHARSMAP_NOTE = (
    "the tokenizer replaces characters by cluster, llama.cpp one by one like SentencePiece: letters with several marks "
    "get different tokens"
)
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class Pieces:
    """A vocabulary without its added tokens. charsmap: what characters are replaced by before, for t5 alone."""

    kind: str
    entries: Mapping[str, Entry]
    add_space_prefix: bool
    remove_extra_whitespaces: bool = False
    charsmap: bytes = b""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Spaces:
    """What a tokenizer.json does to spaces, and to characters, before its model sees them."""

    prefix: bool = False
    squeezed: bool = False  # several spaces become one
    stripped: bool = False  # those at the end are dropped
    words: bool = False  # text is split at all spaces, which are dropped
    charsmap: bytes = b""
    notes: tuple[str, ...] = ()


def pieces_of_model_file(path: Path) -> Pieces:
    """Return the vocabulary of a tokenizer.model. Raises: CorruptFile; LossyExport for what llama.cpp does not do."""
    made, where = model_file.read_model_file(path), str(path)
    kinds = {model_file.UNIGRAM: T5, model_file.BPE: LLAMA}
    if made.model_type not in kinds or made.treat_whitespace_as_suffix:
        raise LossyExport("must be BPE or Unigram, with spaces at the start of words", where=where)
    kind = kinds[made.model_type]
    entries = {piece.text: Entry(number, piece.score, piece.type) for number, piece in enumerate(made.pieces)}
    if len(entries) < len(made.pieces):
        raise CorruptFile("contains two pieces with the same text", where=where)
    if kind == LLAMA and (made.charsmap or made.remove_extra_whitespaces):
        raise LossyExport(NORMALISES, where=where)
    _check_bytes(kind, any(entry.type == BYTE for entry in entries.values()), where)
    return Pieces(kind, entries, made.add_dummy_prefix, made.remove_extra_whitespaces, made.charsmap)


def pieces_of_json(path: Path, tokenizer: Mapping[str, Any], where: str) -> Pieces:
    """Return the vocabulary of a tokenizer.json whose model is a Unigram, or a BPE with byte fallback.

    The scores are those of a tokenizer.model beside it if it has the same pieces; else they are made of the merges.
    """
    model = tokenizer["model"]
    if model.get("type") == "Unigram":
        return _unigram(tokenizer, where)
    check_bpe(model, where)
    if model.get("ignore_merges") is True:
        raise LossyExport("sets ignore_merges; llama.cpp always merges words of SentencePiece tokenizers", where=where)
    entries = {
        text: entry._replace(type=BYTE if _BYTE_TOKEN.fullmatch(text) else NORMAL)
        for text, entry in numbered(model["vocab"], where).items()
    }
    _check_all_bytes(entries, where)
    spaces = _spaces(tokenizer, entries, where)
    if spaces.charsmap or spaces.squeezed or spaces.stripped or spaces.words:
        raise LossyExport(NORMALISES, where=where)
    entries, notes = _scored(entries, model, path)
    notes += _spelled_out(tokenizer)
    unknown = taken(model, "unk_token", TEXT, where, "")
    if unknown in entries:
        entries[unknown] = entries[unknown]._replace(type=UNKNOWN)
    return Pieces(LLAMA, entries, spaces.prefix, notes=(*spaces.notes, *notes))


def _check_bytes(kind: str, has_bytes: bool, where: str) -> None:
    if kind == T5 and has_bytes:
        raise LossyExport("is a Unigram with byte_fallback, which llama.cpp does not support", where=where)


def _check_all_bytes(entries: Mapping[str, Entry], where: str) -> None:
    if sum(entry.type == BYTE for entry in entries.values()) < 256:
        raise LossyExport("lacks tokens for some bytes; llama.cpp aborts the process at such a byte", where=where)


# --- scores


def _scored(entries: Mapping[str, Entry], model: Mapping[str, Any], path: Path) -> tuple[dict[str, Entry], list[str]]:
    """Return the entries with scores by which llama.cpp joins the pairs that the merges join, and notes."""
    joined = [text for text, entry in entries.items() if entry.type == NORMAL]
    missing = list(itertools.islice(pairs_without_merge(joined, model), 1))
    notes = [
        f"llama.cpp joins {left!r} and {right!r}, and maybe other pairs that the merges do not join"
        for left, right in missing
    ]
    stated = _stated_scores(entries, path)
    scores = stated if stated is not None else pair_scores(model)
    return {text: entry._replace(score=scores.get(text, 0.0)) for text, entry in entries.items()}, notes


def _stated_scores(entries: Mapping[str, Entry], path: Path) -> dict[str, float] | None:
    file = path / SENTENCEPIECE_MODEL
    if not file.is_file():
        return None
    pieces = model_file.read_model_file(file).pieces
    same = all(piece.text in entries and entries[piece.text].number == at for at, piece in enumerate(pieces))
    return {piece.text: piece.score for piece in pieces} if same else None


def _spelled_out(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return notes on added tokens that are looked for in the text with its spaces spelled out, one more in front."""
    prepends = any(step["type"] == "Prepend" for step in steps_of(tokenizer.get("normalizer"), "normalizers", ""))
    added = [token for token in taken(tokenizer, "added_tokens", LIST, "", []) if isinstance(token, Mapping)]
    late = [token.get("content") for token in added if token.get("normalized") is True]
    return [
        f"the tokenizer matches token {text!r} only after a space (normalized), llama.cpp anywhere"
        for text in late
        if prepends
    ]


# --- Unigram


def _unigram(tokenizer: Mapping[str, Any], where: str) -> Pieces:
    model = tokenizer["model"]
    listed = taken(model, "vocab", LIST, where)
    wrong = next((one for one in listed if not _is_scored(one)), ABSENT)
    if wrong is not ABSENT:
        raise CorruptFile(f"vocab contains {shown(wrong)}; an entry must be a text and a finite number", where=where)
    check_lengths((text for text, _ in listed), where)
    _check_bytes(T5, model.get("byte_fallback") is True, where)
    unknown = model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(listed):
        raise LossyExport("has no unknown token, which llama.cpp requires for Unigram", where=where)
    entries = {text: Entry(number, float(score)) for number, (text, score) in enumerate(listed)}
    entries[listed[unknown][0]] = Entry(unknown, float(listed[unknown][1]), UNKNOWN)
    if len(entries) < len(listed):
        raise CorruptFile("contains two tokens with the same text", where=where)
    spaces = _spaces(tokenizer, entries, where)
    return Pieces(T5, entries, spaces.prefix, _merged(spaces, where), spaces.charsmap, spaces.notes)


def _merged(spaces: _Spaces, where: str) -> bool:
    """Return whether runs of spaces count as one and those at the end as none, which llama.cpp does together."""
    if (spaces.words or spaces.stripped) and not spaces.charsmap:
        raise LossyExport(
            "drops tabs and line ends like spaces, but has no charsmap that maps them to spaces", where=where
        )
    if spaces.squeezed != spaces.stripped and not spaces.words:
        raise LossyExport(
            "joins spaces or drops trailing spaces, but not both; llama.cpp does both or neither", where=where
        )
    return spaces.words or spaces.squeezed


def _is_scored(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 2 and is_text(one[0]) and is_number(one[1])


# --- spaces


def _spaces(tokenizer: Mapping[str, Any], entries: Mapping[str, Entry], where: str) -> _Spaces:
    found = _Spaces()
    for step in steps_of(tokenizer.get("normalizer"), "normalizers", where):
        found = _normalised(found, step, where)
    for step in steps_of(tokenizer.get("pre_tokenizer"), "pretokenizers", where):
        found = _split(found, step, entries, where)
    return found


def _normalised(found: _Spaces, step: Mapping[str, Any], where: str) -> _Spaces:
    kind, pattern = step["type"], step.get("pattern")
    if kind == "Prepend" and step.get("prepend") == SPACE:
        return replace(found, prefix=True)
    if kind == "Replace" and pattern == {"String": " "} and step.get("content") == SPACE:
        return found
    if kind == "Replace" and pattern == {"Regex": " {2,}"} and step.get("content") in (" ", SPACE):
        return replace(found, squeezed=True)
    if kind == "Strip" and step.get("strip_right") is True:
        return replace(found, stripped=True)
    if kind == "Precompiled":
        return replace(found, charsmap=_charsmap(step, where), notes=(*found.notes, CHARSMAP_NOTE))
    raise LossyExport(f"normalises text by {shown(dict(step))[:200]}, which llama.cpp does not do", where=where)


def _charsmap(step: Mapping[str, Any], where: str) -> bytes:
    text = taken(step, "precompiled_charsmap", TEXT, where, "")
    if len(text) > 2 * model_file.MAX_CHARSMAP:
        raise CorruptFile(
            f"precompiled_charsmap has {len(text):,} letters; the maximum is {2 * model_file.MAX_CHARSMAP:,}",
            where=where,
        )
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error is one
        raise CorruptFile("precompiled_charsmap is not base64", where=where) from None


def _split(found: _Spaces, step: Mapping[str, Any], entries: Mapping[str, Entry], where: str) -> _Spaces:
    kind = step["type"]
    if kind == "Split" and step.get("pattern") == {"String": " "}:  # Gemma's, and there are no spaces any more
        return found
    if kind == "WhitespaceSplit":
        return replace(found, words=True)
    if kind != "Metaspace" or step.get("replacement") != SPACE:
        raise LossyExport(f"splits text by {shown(dict(step))[:200]}, which llama.cpp does not support", where=where)
    if step.get("split", True) is True and any(_spans_words(text) for text in entries):
        raise LossyExport(
            "splits text into words, but has pieces of several words; llama.cpp does not split it", where=where
        )
    scheme = step.get("prepend_scheme", "always")
    if scheme == "never":
        return found
    dropped = found.squeezed or found.words  # then no text begins with a space any more
    notes = (
        []
        if dropped
        else ["llama.cpp also adds a space before a text that begins with a space; the tokenizer does not"]
    )
    if scheme == "first":
        notes.append("llama.cpp adds a space after every special token, the tokenizer only before the whole text")
    return replace(found, prefix=True, notes=(*found.notes, *notes))


def _spans_words(text: str) -> bool:
    return SPACE in text.lstrip(SPACE)
