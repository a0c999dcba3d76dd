"""A byte-level BPE tokenizer.json as the keys of a GGUF file: tokens and their types, merges, special tokens.

Refuses what llama.cpp would tokenise otherwise; the names of pre-tokenizers are for pretokenizer.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.errors import CorruptFile, LossyExport, MissingFile
from ropetool.exporting.metadata import collected
from ropetool.exporting.pretokenizer import recognise
from ropetool.exporting.special import Special, chat_templates, special_tokens
from ropetool.formats.gguf import Value, ValueType
from ropetool.formats.hf import read_object
from ropetool.formats.hf.jsontext import LARGE, shown

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama_token_type in llama.h
SENTENCEPIECE_MODEL = "tokenizer.model"
# Added tokens that are not marked special though models use them so; llama.cpp matches control tokens only where it is
# asked to, all others in any text. The stock converter takes the same ones for control tokens.
_SPECIAL_LOOKS = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))  # the second is DeepSeek's, full width
_SPECIAL_NAMES = frozenset({"<pad>", "<mask>", "<2mass>", "[@BOS@]"})


@dataclass(frozen=True)
class Tokens:
    """The vocabulary by id, one entry for each row of the embedding; `ids` has those that stand for text."""

    texts: tuple[str, ...]
    types: tuple[int, ...]
    ids: Mapping[str, int]
    notes: tuple[str, ...]


def tokenizer_values(path: Path, config: Mapping[str, Any], rows: int) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the tokenizer.* keys for a model with this many rows in its embedding, and notes.

    Raises: MissingFile without a tokenizer.json; LossyExport for one that llama.cpp would not follow; CorruptFile.
    """
    where = str(path / names.TOKENIZER_JSON)
    tokenizer = _read(path)
    model = _model(tokenizer, where)
    pre, notes = recognise(tokenizer, where)
    tokens = _tokens(model["vocab"], tokenizer.get("added_tokens") or [], rows, where)
    special = special_tokens(path, config, tokenizer, tokens.ids, where)
    values = _values(pre, tokens, _merges(model, where), special)
    return values | _template_values(path), (*notes, *tokens.notes, *special.notes)


def _read(path: Path) -> Mapping[str, Any]:
    file = path / names.TOKENIZER_JSON
    if not file.exists() and (path / SENTENCEPIECE_MODEL).exists():
        raise LossyExport(
            f"only byte-level BPE in {names.TOKENIZER_JSON} is exported yet, not SentencePiece",
            where=str(path / SENTENCEPIECE_MODEL), try_="convert_hf_to_gguf.py of llama.cpp",
        )  # fmt: skip
    if not file.exists():
        raise MissingFile("does not exist; a GGUF file holds the tokenizer", where=str(file))
    return read_object(file, LARGE)[1]


def _model(tokenizer: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the model of a byte-level BPE; any other is refused."""
    model = tokenizer.get("model")
    if not isinstance(model, Mapping):
        raise CorruptFile("has no model", where=where)
    if model.get("type") != "BPE" or model.get("byte_fallback") is True:
        kind = "SentencePiece BPE" if model.get("byte_fallback") is True else model.get("type")
        raise LossyExport(f"is a {kind} tokenizer; only byte-level BPE is exported yet", where=where)
    if not isinstance(model.get("vocab"), Mapping) or not isinstance(model.get("merges"), list):
        raise CorruptFile("has no vocab, or no merges", where=where)
    decoder = tokenizer.get("decoder")
    if not isinstance(decoder, Mapping) or decoder.get("type") != "ByteLevel":
        raise LossyExport(f"is not byte-level: its decoder is {shown(decoder)}", where=where)
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            raise LossyExport(f"has {key} {shown(model[key])}, which llama.cpp does not have", where=where)
    if model.get("unk_token") and not _byte_letters() <= model["vocab"].keys():
        raise LossyExport("has unk_token for bytes without a token; llama.cpp leaves such bytes out", where=where)
    return model


def _byte_letters() -> set[str]:
    """Return the letters that byte-level BPE spells the 256 bytes by: themselves, or beyond 255 what cannot be seen."""
    seen = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return {chr(byte) for byte in seen} | {chr(256 + at) for at in range(256 - len(seen))}


def _merges(model: Mapping[str, Any], where: str) -> list[str]:
    """Return the merges as llama.cpp spells them, with one space between the parts; files have this form or pairs."""
    found = []
    for merge in model["merges"]:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(p, str) and p for p in parts):
            raise CorruptFile(f"has the merge {shown(merge)}, which is no pair of tokens", where=where)
        if " " in parts[0] or " " in parts[1]:
            raise CorruptFile(f"has the merge {shown(merge)}; bytes are spelled without spaces", where=where)
        found.append(" ".join(parts))
    return found


# --- tokens


def _tokens(vocabulary: Mapping[str, Any], added: Any, rows: int, where: str) -> Tokens:
    ids = _numbered(vocabulary, where)
    types = dict.fromkeys(ids.values(), NORMAL)
    notes = []
    for token in added:
        text, number, special = _added(token, where)
        if ids.setdefault(text, number) != number:
            raise CorruptFile(f"gives {text!r} the ids {ids[text]} and {number}", where=where)
        types[number] = CONTROL if special or _looks_special(text) else USER_DEFINED
        habits = [key for key in ("lstrip", "rstrip", "single_word") if token.get(key) is True]
        if habits:
            notes.append(f"token {text!r} has {' and '.join(habits)}, which llama.cpp does not follow")
    texts = _by_id(ids, rows, where)
    types_by_id = tuple(types.get(number, UNUSED) for number in range(rows))
    return Tokens(texts, types_by_id, ids, tuple(notes))


def _numbered(vocabulary: Mapping[str, Any], where: str) -> dict[str, int]:
    for text, number in vocabulary.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise CorruptFile(f"gives {text!r} the id {shown(number)}; ids are whole numbers from 0", where=where)
    return dict(vocabulary)


def _added(token: Any, where: str) -> tuple[str, int, bool]:
    text = token.get("content") if isinstance(token, Mapping) else None
    number = token.get("id") if isinstance(token, Mapping) else None
    if not isinstance(text, str) or not text or not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise CorruptFile(f"has the added token {shown(token)}, which is none", where=where)
    return text, number, token.get("special") is True


def _looks_special(text: str) -> bool:
    return text in _SPECIAL_NAMES or any(text.startswith(a) and text.endswith(b) for a, b in _SPECIAL_LOOKS)


def _by_id(ids: Mapping[str, int], rows: int, where: str) -> tuple[str, ...]:
    """Return the texts by id, one for each row; rows without a token get a name that no text spells.

    Raises: LossyExport if there are more ids than rows; CorruptFile if two tokens share an id or a text.
    """
    by_id: dict[int, str] = {}
    for text, number in ids.items():
        if number >= rows:
            raise LossyExport(
                f"has token {text!r} with id {number}, and the embedding has {rows} rows: vocab_size is too small",
                where=where, try_="resize the model's embedding to the tokenizer",
            )  # fmt: skip
        if by_id.setdefault(number, text) != text:
            raise CorruptFile(f"gives {by_id[number]!r} and {text!r} the same id {number}", where=where)
    texts = tuple(by_id.get(number, f"[PAD{number}]") for number in range(rows))
    if len(set(texts)) < rows:  # llama.cpp aborts the process over two tokens of one text
        raise CorruptFile("has a token with the text [PADn], the name of an unused row", where=where)
    return texts


# --- keys


def _values(pre: str, tokens: Tokens, merges: Iterable[str], special: Special) -> dict[str, Value]:
    import gguf

    keys = gguf.Keys.Tokenizer
    named = {
        "bos": keys.BOS_ID, "eos": keys.EOS_ID, "unk": keys.UNK_ID, "sep": keys.SEP_ID, "pad": keys.PAD_ID,
        "mask": keys.MASK_ID,
    }  # fmt: skip
    return {
        keys.MODEL: Value.of(ValueType.STR, "gpt2"),  # llama.cpp's name for all byte-level BPE
        keys.PRE: Value.of(ValueType.STR, pre),
        keys.LIST: Value.array(ValueType.STR, tokens.texts),
        keys.TOKEN_TYPE: Value.array(ValueType.I32, tokens.types),
        keys.MERGES: Value.array(ValueType.STR, merges),
        **{named[kind]: Value.of(ValueType.U32, number) for kind, number in special.ids.items()},
        # Always stated: where they are absent llama.cpp decides by the name of the pre-tokenizer.
        keys.ADD_BOS: Value.of(ValueType.BOOL, special.add_bos),
        keys.ADD_EOS: Value.of(ValueType.BOOL, special.add_eos),
    }


def _template_values(path: Path) -> dict[str, Value]:
    templates = chat_templates(path)
    if not templates:
        return {}
    found = collected("", lambda writer: writer.add_chat_template(templates))
    return {key: value for key, value in found.items() if key.startswith("tokenizer.")}
