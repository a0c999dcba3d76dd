"""SentencePiece vocabularies from tokenizer.json or tokenizer.model: pieces, scores and the treatment of spaces.

llama.cpp has two tokenizers for them: "llama" joins the pair with the best score, and "t5" finds the most likely pieces
  (Unigram).
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
from ropetool.files.json_types import LIST, TEXT, taken
from ropetool.gguf_model.tokenizer import model_file
from ropetool.gguf_model.tokenizer.byte_level import check_bpe
from ropetool.gguf_model.tokenizer.merges import pair_scores, pairs_without_merge
from ropetool.gguf_model.tokenizer.pretokenizer import steps_of
from ropetool.gguf_model.tokenizer.vocabulary import BYTE, NORMAL, SPACE, UNKNOWN, Entry, check_lengths, numbered
from ropetool.rope.tables import is_number

SENTENCEPIECE_MODEL = "tokenizer.model"
LLAMA, T5 = "llama", "t5"  # llama.cpp's names of the two tokenizers, tokenizer.ggml.model
NORMALISES = "replaces characters or joins spaces before it splits text; llama.cpp does not"
CHARSMAP_NOTE = (
    "the tokenizer replaces characters by cluster, llama.cpp one by one like SentencePiece: letters with several marks "
    "get different tokens"
)
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class Pieces:
    """A vocabulary without its added tokens.

    model: LLAMA or T5.
    entries: the tokens by text.
    add_space_prefix: whether a text gets a space in front.
    remove_extra_whitespaces: whether runs of spaces become one and trailing spaces are dropped; only for T5.
    charsmap: the replacements of characters before the split, in SentencePiece's binary format; only for T5.
    """

    model: str
    entries: Mapping[str, Entry]
    add_space_prefix: bool
    remove_extra_whitespaces: bool = False
    charsmap: bytes = b""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Spaces:
    """The changes that a tokenizer.json makes to spaces and characters before its model."""

    prefix: bool = False
    squeezed: bool = False  # runs of spaces become one space
    stripped: bool = False  # trailing spaces are dropped
    words: bool = False  # text is split at all spaces, and the spaces are dropped
    charsmap: bytes = b""
    notes: tuple[str, ...] = ()


def pieces_of_model_file(path: Path) -> Pieces:
    """Return the vocabulary of a tokenizer.model.

    Raises: CorruptFile; LossyExport for settings that llama.cpp does not support.
    """
    file, where = model_file.read_model_file(path), str(path)
    models = {model_file.UNIGRAM: T5, model_file.BPE: LLAMA}
    if file.model_type not in models or file.treat_whitespace_as_suffix:
        raise LossyExport("must be BPE or Unigram, with spaces at the start of words", where=where)
    model = models[file.model_type]
    entries = {piece.text: Entry(number, piece.score, piece.type) for number, piece in enumerate(file.pieces)}
    if len(entries) < len(file.pieces):
        raise CorruptFile("contains two pieces with the same text", where=where)
    if model == LLAMA and (file.charsmap or file.remove_extra_whitespaces):
        raise LossyExport(NORMALISES, where=where)
    _check_bytes(model, any(entry.type == BYTE for entry in entries.values()), where)
    return Pieces(model, entries, file.add_dummy_prefix, file.remove_extra_whitespaces, file.charsmap)


def pieces_of_json(path: Path, tokenizer: Mapping[str, Any], where: str) -> Pieces:
    """Return the vocabulary of a tokenizer.json whose model is a Unigram, or a BPE with byte fallback.

    The scores come from a tokenizer.model in the same folder if it has the same pieces, else from the order of the
    merges.
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


def _check_bytes(model: str, has_bytes: bool, where: str) -> None:
    if model == T5 and has_bytes:
        raise LossyExport("is a Unigram with byte_fallback, which llama.cpp does not support", where=where)


def _check_all_bytes(entries: Mapping[str, Entry], where: str) -> None:
    if sum(entry.type == BYTE for entry in entries.values()) < 256:
        raise LossyExport("lacks tokens for some bytes; llama.cpp aborts the process at such a byte", where=where)


# --- scores


def _scored(entries: Mapping[str, Entry], model: Mapping[str, Any], path: Path) -> tuple[dict[str, Entry], list[str]]:
    """Return the entries with scores that let llama.cpp join the same pairs as the merges, and notes."""
    joined = [text for text, entry in entries.items() if entry.type == NORMAL]
    missing = list(itertools.islice(pairs_without_merge(joined, model), 1))
    notes = [
        f"llama.cpp joins {left!r} and {right!r}, and maybe other pairs that the merges do not join"
        for left, right in missing
    ]
    scores = _filed_scores(entries, path)
    if scores is None:
        scores = pair_scores(model)
    return {text: entry._replace(score=scores.get(text, 0.0)) for text, entry in entries.items()}, notes


def _filed_scores(entries: Mapping[str, Entry], path: Path) -> dict[str, float] | None:
    file = path / SENTENCEPIECE_MODEL
    if not file.is_file():
        return None
    pieces = model_file.read_model_file(file).pieces
    same = all(piece.text in entries and entries[piece.text].number == at for at, piece in enumerate(pieces))
    return {piece.text: piece.score for piece in pieces} if same else None


def _spelled_out(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return notes on added tokens that match only after a space.

    The tokenizer prepends a space and then searches.
    """
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
    """Return whether runs of spaces count as one and trailing spaces as none. llama.cpp does both or neither."""
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
    spaces = _Spaces()
    for step in steps_of(tokenizer.get("normalizer"), "normalizers", where):
        spaces = _normalised(spaces, step, where)
    for step in steps_of(tokenizer.get("pre_tokenizer"), "pretokenizers", where):
        spaces = _split(spaces, step, entries, where)
    return spaces


def _normalised(spaces: _Spaces, step: Mapping[str, Any], where: str) -> _Spaces:
    step_type, pattern = step["type"], step.get("pattern")
    if step_type == "Prepend" and step.get("prepend") == SPACE:
        return replace(spaces, prefix=True)
    if step_type == "Replace" and pattern == {"String": " "} and step.get("content") == SPACE:
        return spaces
    if step_type == "Replace" and pattern == {"Regex": " {2,}"} and step.get("content") in (" ", SPACE):
        return replace(spaces, squeezed=True)
    if step_type == "Strip" and step.get("strip_right") is True:
        return replace(spaces, stripped=True)
    if step_type == "Precompiled":
        return replace(spaces, charsmap=_charsmap(step, where), notes=(*spaces.notes, CHARSMAP_NOTE))
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


def _split(spaces: _Spaces, step: Mapping[str, Any], entries: Mapping[str, Entry], where: str) -> _Spaces:
    step_type = step["type"]
    if step_type == "Split" and step.get("pattern") == {
        "String": " "
    }:  # Gemma's; its normaliser has replaced all spaces
        return spaces
    if step_type == "WhitespaceSplit":
        return replace(spaces, words=True)
    if step_type != "Metaspace" or step.get("replacement") != SPACE:
        raise LossyExport(f"splits text by {shown(dict(step))[:200]}, which llama.cpp does not support", where=where)
    if step.get("split", True) is True and any(_spans_words(text) for text in entries):
        raise LossyExport(
            "splits text into words, but has pieces of several words; llama.cpp does not split it", where=where
        )
    scheme = step.get("prepend_scheme", "always")
    if scheme == "never":
        return spaces
    dropped = spaces.squeezed or spaces.words  # then no text begins with a space
    notes = (
        []
        if dropped
        else ["llama.cpp also adds a space before a text that begins with a space; the tokenizer does not"]
    )
    if scheme == "first":
        notes.append("llama.cpp adds a space after every special token, the tokenizer only before the whole text")
    return replace(spaces, prefix=True, notes=(*spaces.notes, *notes))


def _spans_words(text: str) -> bool:
    return SPACE in text.lstrip(SPACE)
