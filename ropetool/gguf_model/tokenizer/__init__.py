"""The tokenizer of a checkpoint as the keys of a GGUF file: tokens and their types, merges or scores, special tokens.

It raises LossyExport for a tokenizer that llama.cpp would follow differently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.errors import CorruptFile, LossyExport, MissingFile
from ropetool.escaping import word
from ropetool.files.gguf import Value, ValueType
from ropetool.files.hf import read_object, read_optional_object
from ropetool.files.hf.jsontext import JsonLimits, shown, uncollected
from ropetool.files.json_types import LIST, OBJECT, taken
from ropetool.gguf_model.metadata import collected
from ropetool.gguf_model.tokenizer.byte_level import check_bpe, check_byte_level
from ropetool.gguf_model.tokenizer.pieces import SENTENCEPIECE_MODEL, T5, Pieces, pieces_of_json, pieces_of_model_file
from ropetool.gguf_model.tokenizer.pretokenizer import recognise
from ropetool.gguf_model.tokenizer.special import TOKEN_ID, SpecialTokens, chat_templates, special_tokens
from ropetool.gguf_model.tokenizer.vocabulary import Tokens, laid_out, numbered

ADDED_TOKENS_JSON = "added_tokens.json"
# Gemma's has 34 MB and 2.0 million values; each of its 580,000 merges is a list and two texts.
LIMITS = JsonLimits(64 << 20, 4_000_000)
LISTED_TEMPLATES, TEMPLATE = "tokenizer.chat_templates", "tokenizer.chat_template."
NO_PRE_TOKENIZER = "default"  # llama.cpp ignores this key for SentencePiece; its converter writes the same value


def tokenizer_values(path: Path, config: Mapping[str, Any], rows: int) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the tokenizer.* keys for a model with this many rows in its embedding, and notes.

    Reads tokenizer.json, as transformers does. Without this file, reads tokenizer.model and the added tokens of other
    files.
    Raises: MissingFile if neither file exists; LossyExport for a tokenizer that llama.cpp would follow differently;
    CorruptFile.
    """
    file = path / names.TOKENIZER_JSON
    with uncollected():
        if file.exists():
            values, notes = _from_json(path, config, read_object(file, LIMITS)[1], rows)
        elif (path / SENTENCEPIECE_MODEL).exists():
            values, notes = _from_model_file(path, config, rows)
        else:
            raise MissingFile(
                f"is missing, and so is {SENTENCEPIECE_MODEL}; a GGUF file needs a tokenizer", where=str(file),
                try_=f"copy {names.TOKENIZER_JSON} and {names.TOKENIZER_CONFIG_JSON} of the original model "
                f"into {word(path)}",
            )  # fmt: skip
    return values | _template_values(path), notes


def _from_json(
    path: Path, config: Mapping[str, Any], tokenizer: Mapping[str, Any], rows: int
) -> tuple[dict[str, Value], tuple[str, ...]]:
    where = str(path / names.TOKENIZER_JSON)
    model = taken(tokenizer, "model", OBJECT, where)
    if "type" not in model and "merges" in model:  # old releases of tokenizers wrote no type, and only for BPE
        model = {**model, "type": "BPE"}
        tokenizer = {**tokenizer, "model": model}
    added = taken(tokenizer, "added_tokens", LIST, where, [])
    if model.get("type") == "Unigram" or (model.get("type") == "BPE" and model.get("byte_fallback") is True):
        pieces = pieces_of_json(path, tokenizer, where)
        tokens = laid_out(pieces.entries, added, rows, where, pieces=True)
        special = special_tokens(path, config, tokenizer, tokens.ids, where)
        return _piece_values(pieces, tokens) | _special_values(special), (*pieces.notes, *tokens.notes, *special.notes)
    if model.get("type") != "BPE":
        raise LossyExport(f"has the tokenizer type {shown(model.get('type'))}; supported: BPE and Unigram", where=where)
    check_bpe(model, where)
    check_byte_level(tokenizer, where)
    pre, notes = recognise(tokenizer, where)
    tokens = laid_out(numbered(model["vocab"], where), added, rows, where, pieces=False)
    special = special_tokens(path, config, tokenizer, tokens.ids, where)
    return _bpe_values(pre, tokens, model) | _special_values(special), (*notes, *tokens.notes, *special.notes)


def _from_model_file(path: Path, config: Mapping[str, Any], rows: int) -> tuple[dict[str, Value], tuple[str, ...]]:
    where = str(path / SENTENCEPIECE_MODEL)
    pieces = pieces_of_model_file(path / SENTENCEPIECE_MODEL)
    tokens = laid_out(pieces.entries, _added_beside(path), rows, where, pieces=True)
    special = special_tokens(path, config, None, tokens.ids, where)
    return _piece_values(pieces, tokens) | _special_values(special), (*pieces.notes, *tokens.notes, *special.notes)


def _added_beside(path: Path) -> list[Any]:
    """Return the tokens that other files add to tokenizer.model, each in the form of tokenizer.json."""
    place = path / ADDED_TOKENS_JSON
    listed = (read_optional_object(place) or ("", {}))[1]
    ids = {text: taken(listed, text, TOKEN_ID, str(place)) for text in listed}
    added: dict[int, Any] = {number: {"id": number, "content": text} for text, number in ids.items()}
    tokenizer_config = read_optional_object(path / names.TOKENIZER_CONFIG_JSON)
    decoder = (tokenizer_config[1] if tokenizer_config is not None else {}).get("added_tokens_decoder")
    if isinstance(decoder, Mapping):
        for number, token in decoder.items():
            if not isinstance(token, Mapping) or not (number.isdecimal() and len(number) < 10):
                raise CorruptFile(f"the added token {number!r} must be a number and an object", where=str(path))
            added[int(number)] = {**token, "id": int(number)}
    return list(added.values())


# --- keys


def _bpe_values(pre: str, tokens: Tokens, model: Mapping[str, Any]) -> dict[str, Value]:
    import gguf

    keys = gguf.Keys.Tokenizer
    return {
        keys.MODEL: Value.of(ValueType.STR, "gpt2"),  # llama.cpp's name for all byte-level BPE
        keys.PRE: Value.of(ValueType.STR, pre),
        keys.LIST: Value.array(ValueType.STR, tokens.texts),
        keys.TOKEN_TYPE: Value.array(ValueType.I32, tokens.types),
        # A merge is a text or a list of two. check_bpe made sure that it is a pair.
        keys.MERGES: Value.array(ValueType.STR, [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]),
    }


def _piece_values(pieces: Pieces, tokens: Tokens) -> dict[str, Value]:
    import gguf

    keys = gguf.Keys.Tokenizer
    values = {
        keys.MODEL: Value.of(ValueType.STR, pieces.model),
        keys.PRE: Value.of(ValueType.STR, NO_PRE_TOKENIZER),
        keys.LIST: Value.array(ValueType.STR, tokens.texts),
        keys.SCORES: Value.array(ValueType.F32, tokens.scores),
        keys.TOKEN_TYPE: Value.array(ValueType.I32, tokens.types),
        keys.ADD_PREFIX: Value.of(ValueType.BOOL, pieces.add_space_prefix),
    }
    if pieces.model == T5:
        values[keys.REMOVE_EXTRA_WS] = Value.of(ValueType.BOOL, pieces.remove_extra_whitespaces)
    if pieces.charsmap:
        values[keys.PRECOMPILED_CHARSMAP] = Value.array(ValueType.U8, pieces.charsmap)
    return values


def _special_values(special: SpecialTokens) -> dict[str, Value]:
    import gguf

    keys = gguf.Keys.Tokenizer
    named = {
        "bos": keys.BOS_ID, "eos": keys.EOS_ID, "unk": keys.UNK_ID, "sep": keys.SEP_ID, "pad": keys.PAD_ID,
        "mask": keys.MASK_ID, "eot": keys.EOT_ID, "eom": keys.EOM_ID,
    }  # fmt: skip
    return {
        **{named[role]: Value.of(ValueType.U32, number) for role, number in special.ids.items()},
        # Always written, because llama.cpp otherwise decides by the name of the pre-tokenizer.
        keys.ADD_BOS: Value.of(ValueType.BOOL, special.add_bos),
        keys.ADD_EOS: Value.of(ValueType.BOOL, special.add_eos),
    }


def _template_values(path: Path) -> dict[str, Value]:
    templates = chat_templates(path)
    if not templates:
        return {}
    _check_names(templates, path)
    values = collected("", lambda writer: writer.add_chat_template(templates))
    values = {key: value for key, value in values.items() if key.startswith("tokenizer.")}
    more = sorted(key.removeprefix(TEMPLATE) for key in values if key.startswith(TEMPLATE))
    # The package keeps the names in a set, whose order differs from run to run.
    return {**values, LISTED_TEMPLATES: Value.array(ValueType.STR, more)} if more else values


def _check_names(templates: Sequence[Mapping[str, str]], path: Path) -> None:
    """Raise LossyExport if two templates would have the same key.

    The key has _ for all but letters and digits of the name.
    """
    first: dict[str, Mapping[str, str]] = {}
    for one in templates:
        key = re.sub("[^A-Za-z0-9]", "_", one["name"])
        other = first.setdefault(key, one)
        if other["template"] != one["template"]:
            raise LossyExport(
                f"its chat templates {other['name']!r} and {one['name']!r} differ, but both would become {TEMPLATE}{key}",
                where=str(path), try_="rename or remove one of them in the tokenizer files",
            )  # fmt: skip
