"""The tokenizer of a checkpoint as the keys of a GGUF file: tokens and their types, merges or scores, special tokens.

Refuses what llama.cpp would tokenise otherwise; which names and scores stand for what is for the modules beside it.
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
from ropetool.files.hf.typed import LIST, OBJECT, taken
from ropetool.gguf_model.metadata import collected
from ropetool.gguf_model.tokenizer.byte_level import check_bpe, check_byte_level
from ropetool.gguf_model.tokenizer.pieces import (
    SENTENCEPIECE_MODEL,
    T5,
    Pieces,
    pieces_of_json,
    pieces_of_model_file,
)
from ropetool.gguf_model.tokenizer.pretokenizer import recognise
from ropetool.gguf_model.tokenizer.special import Special, chat_templates, special_tokens
from ropetool.gguf_model.tokenizer.vocabulary import Tokens, laid_out, numbered

ADDED_TOKENS_JSON = "added_tokens.json"
# Gemma's has 34 MB and 2.0 million values, a list and two texts for each of its 580,000 merges among them.
LIMITS = JsonLimits(64 << 20, 4_000_000)
LISTED_TEMPLATES, TEMPLATE = "tokenizer.chat_templates", "tokenizer.chat_template."
NO_PRE_TOKENIZER = "default"  # what the stock converter writes where llama.cpp does not look


def tokenizer_values(path: Path, config: Mapping[str, Any], rows: int) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the tokenizer.* keys for a model with this many rows in its embedding, and notes.

    A tokenizer.json is what transformers goes by; without one the tokenizer.model is, with what is added beside it.
    Raises: MissingFile without either; LossyExport for one that llama.cpp would not follow; CorruptFile.
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
    if "type" not in model and "merges" in model:  # the tokenizers library of before wrote none, for BPE alone
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
    """Return the tokens that files beside tokenizer.model add, each as tokenizer.json would have it."""
    listed = read_optional_object(path / ADDED_TOKENS_JSON)
    found: dict[Any, Any] = {} if listed is None else {n: {"id": n, "content": text} for text, n in listed[1].items()}
    stated = read_optional_object(path / names.TOKENIZER_CONFIG_JSON)
    decoder = (stated[1] if stated is not None else {}).get("added_tokens_decoder")
    if isinstance(decoder, Mapping):
        for number, token in decoder.items():
            if not isinstance(token, Mapping) or not (number.isdecimal() and len(number) < 10):
                raise CorruptFile(f"the added token {number!r} must be a number and an object", where=str(path))
            found[int(number)] = {**token, "id": int(number)}
    return list(found.values())


# --- keys


def _bpe_values(pre: str, tokens: Tokens, model: Mapping[str, Any]) -> dict[str, Value]:
    import gguf

    keys = gguf.Keys.Tokenizer
    return {
        keys.MODEL: Value.of(ValueType.STR, "gpt2"),  # llama.cpp's name for all byte-level BPE
        keys.PRE: Value.of(ValueType.STR, pre),
        keys.LIST: Value.array(ValueType.STR, tokens.texts),
        keys.TOKEN_TYPE: Value.array(ValueType.I32, tokens.types),
        # As text or as a list of two; either was checked to be a pair.
        keys.MERGES: Value.array(ValueType.STR, [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]),
    }


def _piece_values(pieces: Pieces, tokens: Tokens) -> dict[str, Value]:
    import gguf

    keys = gguf.Keys.Tokenizer
    values = {
        keys.MODEL: Value.of(ValueType.STR, pieces.kind),
        keys.PRE: Value.of(ValueType.STR, NO_PRE_TOKENIZER),
        keys.LIST: Value.array(ValueType.STR, tokens.texts),
        keys.SCORES: Value.array(ValueType.F32, tokens.scores),
        keys.TOKEN_TYPE: Value.array(ValueType.I32, tokens.types),
        keys.ADD_PREFIX: Value.of(ValueType.BOOL, pieces.add_space_prefix),
    }
    if pieces.kind == T5:
        values[keys.REMOVE_EXTRA_WS] = Value.of(ValueType.BOOL, pieces.remove_extra_whitespaces)
    if pieces.charsmap:
        values[keys.PRECOMPILED_CHARSMAP] = Value.array(ValueType.U8, pieces.charsmap)
    return values


def _special_values(special: Special) -> dict[str, Value]:
    import gguf

    keys = gguf.Keys.Tokenizer
    named = {
        "bos": keys.BOS_ID, "eos": keys.EOS_ID, "unk": keys.UNK_ID, "sep": keys.SEP_ID, "pad": keys.PAD_ID,
        "mask": keys.MASK_ID, "eot": keys.EOT_ID, "eom": keys.EOM_ID,
    }  # fmt: skip
    return {
        **{named[kind]: Value.of(ValueType.U32, number) for kind, number in special.ids.items()},
        # Always stated: where they are absent llama.cpp decides by the name of the pre-tokenizer.
        keys.ADD_BOS: Value.of(ValueType.BOOL, special.add_bos),
        keys.ADD_EOS: Value.of(ValueType.BOOL, special.add_eos),
    }


def _template_values(path: Path) -> dict[str, Value]:
    templates = chat_templates(path)
    if not templates:
        return {}
    _check_names(templates, path)
    found = collected("", lambda writer: writer.add_chat_template(templates))
    found = {key: value for key, value in found.items() if key.startswith("tokenizer.")}
    more = sorted(key.removeprefix(TEMPLATE) for key in found if key.startswith(TEMPLATE))
    # The package has the names in a set, whose order differs from run to run.
    return {**found, LISTED_TEMPLATES: Value.array(ValueType.STR, more)} if more else found


def _check_names(templates: Sequence[Mapping[str, str]], path: Path) -> None:
    """Return if no two templates get one key: all but letters and digits of a name become _ in it.

    Raises: LossyExport.
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
