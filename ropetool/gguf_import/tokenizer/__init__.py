"""The tokenizer of a GGUF file as files that transformers loads: tokenizer.json, its config and chat templates.

They produce the same ids as llama.cpp, by the same table of pre-tokenizers as in export. Import refuses a tokenizer
that tokenizer.json cannot express. Notes list the values that a GGUF file does not contain and that import sets.
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
from ropetool.gguf_import.tokenizer.core import Component, Core, sequence
from ropetool.gguf_import.tokenizer.pieces import joined_by_score, likeliest
from ropetool.gguf_import.tokenizer.vocabulary import AGAIN, MODEL, Vocabulary, read_special, read_text, read_vocabulary
from ropetool.gguf_model.tokenizer import TEMPLATE
from ropetool.gguf_model.tokenizer.special import CHAT_TEMPLATE_JINJA, MAX_TEMPLATE, MORE_TEMPLATES, SpecialTokens

__all__ = ["tokenizer_files"]

BYTE_LEVEL, SCORED, UNIGRAM = "gpt2", "llama", "t5"  # llama.cpp's names of the tokenizer models, tokenizer.ggml.model
# llama.cpp's defaults for missing keys: ids, and whether bos and eos are added. Source: llama-vocab.cpp, load.
# Its default ids of a byte-level BPE are Falcon's, so ropetool does not use them.
_DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {
    BYTE_LEVEL: {},
    SCORED: {"bos": 1, "eos": 2, "unk": 0},
    UNIGRAM: {"eos": 1, "unk": 2},
}
_DEFAULT_ADDS = {SCORED: (True, False), UNIGRAM: (False, True)}
# In models with these names, most added tokens include the spaces after them. Source: llama-vocab.cpp, end of load.
_STRIPPING, _NOT_STRIPPING = ("phi-3", "phi3"), frozenset({"<unk>", "<s>", "<|endoftext|>"})
_TEMPLATE_KEY = TEMPLATE.removesuffix(".")
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


def tokenizer_files(values: Mapping[str, Value], model_type: str, where: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the texts of the tokenizer's files by file name, and notes on values that import sets and on differences.

    Raises: LossyExport for a tokenizer that tokenizer.json cannot express; CorruptFile for invalid keys.
    """
    model = read_text(values, MODEL, where)
    if model is None:
        raise CorruptFile(f"does not set {MODEL}, so ropetool cannot write a tokenizer", where=where, try_=ORIGINAL)
    if model not in _DEFAULT_IDS:
        raise LossyExport(
            f"{MODEL} is {shown(model)}; ropetool writes a tokenizer.json only for {', '.join(_DEFAULT_IDS)}",
            where=where, try_=ORIGINAL,
        )  # fmt: skip
    with uncollected():
        vocabulary = read_vocabulary(values, where)
        special = read_special(values, vocabulary, _DEFAULT_IDS[model], _adds(model, values, where), where)
        core = _core(model, values, vocabulary, model_type, special, where)
        stripping = _strips(values, where)
        files = {
            names.TOKENIZER_JSON: _tokenizer_json(vocabulary, special, core, stripping),
            names.TOKENIZER_CONFIG_JSON: json.dumps(_config(vocabulary, special), ensure_ascii=False, indent=2) + "\n",
        }
    files |= dict(_templates(values, where))
    return files, (*core.notes, *special.notes, *_notes(vocabulary, special, stripping))


def _adds(model: str, values: Mapping[str, Value], where: str) -> tuple[bool, bool]:
    if model == BYTE_LEVEL:
        return read_pre_tokenizer(values, where)[1].add_bos, False
    return _DEFAULT_ADDS[model]


def _core(
    model: str, values: Mapping[str, Value], vocabulary: Vocabulary, model_type: str, special: SpecialTokens, where: str
) -> Core:
    if model == BYTE_LEVEL:
        return byte_level(values, vocabulary, model_type, where)
    make = joined_by_score if model == SCORED else likeliest
    return make(values, vocabulary, special.ids.get("unk"), where)


def _strips(values: Mapping[str, Value], where: str) -> bool:
    name = (read_text(values, "general.name", where) or "").lower()
    return any(part in name for part in _STRIPPING)


# --- the files


def _tokenizer_json(vocabulary: Vocabulary, special: SpecialTokens, core: Core, stripping: bool) -> str:
    texts = {number: text for text, number in vocabulary.ids.items()}
    named = {texts[number] for number in special.ids.values()}
    added = [
        {
            "id": number, "content": text, "single_word": False, "lstrip": False,
            "rstrip": stripping and text not in _NOT_STRIPPING, "normalized": False,
            "special": text in named or vocabulary.matched[text],
        }
        for text, number in vocabulary.ids.items()
        if text in named or text in vocabulary.matched
    ]  # fmt: skip
    around = [part for part in (core.post_processor, _template_part(special, texts)) if part is not None]
    data = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": core.normalizer,
        "pre_tokenizer": core.pre_tokenizer, "post_processor": sequence("processors", around), "decoder": core.decoder,
        "model": core.model,
    }  # fmt: skip
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def _template_part(special: SpecialTokens, texts: Mapping[int, str]) -> Component | None:
    bos = [special.ids["bos"]] if special.add_bos else []
    eos = [special.ids["eos"]] if special.add_eos else []
    if not bos and not eos:
        return None

    def around(name: str, type_id: int) -> list[Any]:
        def token(number: int) -> Component:
            return {"SpecialToken": {"id": texts[number], "type_id": type_id}}

        return [*map(token, bos), {"Sequence": {"id": name, "type_id": type_id}}, *map(token, eos)]

    known = {texts[n]: {"id": texts[n], "ids": [n], "tokens": [texts[n]]} for n in (*bos, *eos)}
    single = around("A", 0)
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, *around("B", 1)], "special_tokens": known}


def _config(vocabulary: Vocabulary, special: SpecialTokens) -> dict[str, Any]:
    texts = {number: text for text, number in vocabulary.ids.items()}
    return {
        "add_bos_token": special.add_bos,
        "add_eos_token": special.add_eos,
        **{f"{role}_token": texts[number] for role, number in special.ids.items()},
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",  # this class uses tokenizer.json unchanged
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


def _notes(vocabulary: Vocabulary, special: SpecialTokens, stripping: bool) -> Iterator[str]:
    texts = {number: text for text, number in vocabulary.ids.items()}
    before = f"{texts[special.ids['bos']]!r} before each text" if special.add_bos else ""
    behind = f"{texts[special.ids['eos']]!r} after it" if special.add_eos else ""
    added = " and ".join(filter(None, (before, behind))) or "nothing around a text"
    yield f"a GGUF file has no post-processor; the new one adds {added} (add_bos_token, add_eos_token)"
    if vocabulary.matched:
        flags = "rstrip, like llama.cpp for models with this name" if stripping else "none of these flags"
        yield f"a GGUF file does not store lstrip, rstrip and single_word of added tokens; ropetool sets {flags}"
    for role, number in special.ids.items():
        if texts[number] not in vocabulary.matched:
            yield f"{role}_token {texts[number]!r} is a normal token: transformers matches it in text, llama.cpp does not"
    if vocabulary.unused:
        first = vocabulary.unused[0]
        yield f"the tokenizer leaves out {len(vocabulary.unused)} rows without a token, the first {first}"
