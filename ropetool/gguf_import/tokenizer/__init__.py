"""The tokenizer of a GGUF file as files that transformers loads: tokenizer.json, its config and chat templates.

They give the ids that llama.cpp gives, by the same table of pre-tokenizers as an export; what cannot be said in a
tokenizer.json is refused, and what a GGUF file does not hold is made up and said in notes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ropetool import names
from ropetool.errors import CorruptFile, LossyExport
from ropetool.files.gguf import Value
from ropetool.files.hf.jsontext import shown, uncollected
from ropetool.gguf_import.tokenizer.byte_level import ORIGINAL, byte_level, read_pre_tokenizer
from ropetool.gguf_import.tokenizer.core import Core, Part, sequence
from ropetool.gguf_import.tokenizer.pieces import joined_by_score, likeliest
from ropetool.gguf_import.tokenizer.vocabulary import (
    AGAIN,
    MODEL,
    Special,
    Vocabulary,
    read_special,
    read_text,
    read_vocabulary,
)
from ropetool.gguf_model.tokenizer import TEMPLATE
from ropetool.gguf_model.tokenizer.special import CHAT_TEMPLATE_JINJA, MAX_TEMPLATE, MORE_TEMPLATES

__all__ = ["tokenizer_files"]

BYTE_LEVEL, SCORED, UNIGRAM = "gpt2", "llama", "t5"  # llama.cpp's names of the kinds, tokenizer.ggml.model
# What llama.cpp goes by where the file says nothing: ids, and whether bos and eos are added. Source: llama-vocab.cpp, load;
# its ids of a byte-level BPE are Falcon's, and nobody else's.
_DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {
    BYTE_LEVEL: {},
    SCORED: {"bos": 1, "eos": 2, "unk": 0},
    UNIGRAM: {"eos": 1, "unk": 2},
}
_DEFAULT_ADDS = {SCORED: (True, False), UNIGRAM: (False, True)}
# Models of these names have added tokens that take the spaces behind them, but for some. Source: the end of load.
_STRIPPING, _NOT_STRIPPING = ("phi-3", "phi3"), frozenset({"<unk>", "<s>", "<|endoftext|>"})
_TEMPLATE_KEY = TEMPLATE.removesuffix(".")
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


def tokenizer_files(values: Mapping[str, Value], model_type: str, where: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the texts of the tokenizer's files by their names, and notes on what was made up or differs.

    Raises: LossyExport for a tokenizer that tokenizer.json cannot say; CorruptFile for keys that are none.
    """
    kind = read_text(values, MODEL, where)
    if kind is None:
        raise CorruptFile(f"does not set {MODEL}, so ropetool cannot write a tokenizer", where=where, try_=ORIGINAL)
    if kind not in _DEFAULT_IDS:
        raise LossyExport(
            f"{MODEL} is {shown(kind)}; ropetool writes a tokenizer.json only for {', '.join(_DEFAULT_IDS)}",
            where=where, try_=ORIGINAL,
        )  # fmt: skip
    with uncollected():
        vocabulary = read_vocabulary(values, where)
        special = read_special(values, vocabulary, _DEFAULT_IDS[kind], _adds(kind, values, where), where)
        core = _core(kind, values, vocabulary, model_type, special, where)
        stripping = _strips(values, where)
        files = {
            names.TOKENIZER_JSON: _tokenizer_json(vocabulary, special, core, stripping),
            names.TOKENIZER_CONFIG_JSON: json.dumps(_config(vocabulary, special), ensure_ascii=False, indent=2) + "\n",
        }
    files |= dict(_templates(values, where))
    return files, (*core.notes, *special.notes, *_notes(vocabulary, special, stripping))


def _adds(kind: str, values: Mapping[str, Value], where: str) -> tuple[bool, bool]:
    if kind == BYTE_LEVEL:
        return read_pre_tokenizer(values, where)[1].add_bos, False
    return _DEFAULT_ADDS[kind]


def _core(
    kind: str, values: Mapping[str, Value], vocabulary: Vocabulary, model_type: str, special: Special, where: str
) -> Core:
    if kind == BYTE_LEVEL:
        return byte_level(values, vocabulary, model_type, where)
    make = joined_by_score if kind == SCORED else likeliest
    return make(values, vocabulary, special.ids.get("unk"), where)


def _strips(values: Mapping[str, Value], where: str) -> bool:
    name = (read_text(values, "general.name", where) or "").lower()
    return any(part in name for part in _STRIPPING)


# --- the files


def _tokenizer_json(vocabulary: Vocabulary, special: Special, core: Core, stripping: bool) -> str:
    texts = {number: text for text, number in vocabulary.ids.items()}
    named = {texts[number] for number in special.ids.values()}
    added = [
        {
            "id": number, "content": text, "single_word": False, "lstrip": False,
            "rstrip": stripping and text not in _NOT_STRIPPING, "normalized": False,
            "special": text in named or vocabulary.found[text],
        }
        for text, number in vocabulary.ids.items()
        if text in named or text in vocabulary.found
    ]  # fmt: skip
    around = [part for part in (core.post_processor, _template_part(special, texts)) if part is not None]
    data = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": core.normalizer,
        "pre_tokenizer": core.pre_tokenizer, "post_processor": sequence("processors", around), "decoder": core.decoder,
        "model": core.model,
    }  # fmt: skip
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def _template_part(special: Special, texts: Mapping[int, str]) -> Part | None:
    bos = [special.ids["bos"]] if special.add_bos else []
    eos = [special.ids["eos"]] if special.add_eos else []
    if not bos and not eos:
        return None

    def around(name: str, type_id: int) -> list[Any]:
        def token(number: int) -> Part:
            return {"SpecialToken": {"id": texts[number], "type_id": type_id}}

        return [*map(token, bos), {"Sequence": {"id": name, "type_id": type_id}}, *map(token, eos)]

    known = {texts[n]: {"id": texts[n], "ids": [n], "tokens": [texts[n]]} for n in (*bos, *eos)}
    single = around("A", 0)
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, *around("B", 1)], "special_tokens": known}


def _config(vocabulary: Vocabulary, special: Special) -> dict[str, Any]:
    texts = {number: text for text, number in vocabulary.ids.items()}
    return {
        "add_bos_token": special.add_bos,
        "add_eos_token": special.add_eos,
        **{f"{kind}_token": texts[number] for kind, number in special.ids.items()},
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",  # the one that takes tokenizer.json as it is
    }


def _templates(values: Mapping[str, Value], where: str) -> Iterator[tuple[str, str]]:
    for key in values:
        name = key.removeprefix(TEMPLATE)
        if key != _TEMPLATE_KEY and name == key:
            continue
        if key != _TEMPLATE_KEY and _NAME.fullmatch(name) is None:
            raise CorruptFile(
                f"{shown(key)} is not a valid name of a chat template; names have 1 to 64 letters, digits and _",
                where=where, try_=AGAIN,
            )  # fmt: skip
        text = read_text(values, key, where) or ""
        if len(text.encode()) > MAX_TEMPLATE:
            raise CorruptFile(
                f"{key} has more than {MAX_TEMPLATE:,} bytes, the maximum for a chat template", where=where
            )
        yield (CHAT_TEMPLATE_JINJA if key == _TEMPLATE_KEY else f"{MORE_TEMPLATES}/{name}.jinja"), text


# --- notes


def _notes(vocabulary: Vocabulary, special: Special, stripping: bool) -> Iterator[str]:
    texts = {number: text for text, number in vocabulary.ids.items()}
    before = f"{texts[special.ids['bos']]!r} before each text" if special.add_bos else ""
    behind = f"{texts[special.ids['eos']]!r} after it" if special.add_eos else ""
    added = " and ".join(filter(None, (before, behind))) or "nothing around a text"
    yield f"a GGUF file has no post-processor; the new one adds {added} (add_bos_token, add_eos_token)"
    if vocabulary.found:
        flags = "rstrip, like llama.cpp for models with this name" if stripping else "none of these flags"
        yield f"a GGUF file does not store lstrip, rstrip and single_word of added tokens; ropetool sets {flags}"
    for kind, number in special.ids.items():
        if texts[number] not in vocabulary.found:
            yield f"{kind}_token {texts[number]!r} is a normal token: transformers matches it in text, llama.cpp does not"
    if vocabulary.unused:
        first = vocabulary.unused[0]
        yield f"the tokenizer leaves out {len(vocabulary.unused)} rows without a token, the first {first}"
