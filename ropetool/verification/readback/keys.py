"""What two checkpoints of one format say besides positions and weights: judged where a model or a tokenizer computes
with it, told where it is dress.

Knows which keys and files have which meaning; nothing of claims or plans.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.gguf_keys import PREFIX
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.identity import is_of_positions, settings_of_config
from ropetool.errors import MissingDependency
from ropetool.files.gguf import Value, ValueType
from ropetool.files.gguf.codec import shown as quoted
from ropetool.files.hf import ABSENT, read_object
from ropetool.files.hf.jsontext import LARGE, shown
from ropetool.files.regular import same_content
from ropetool.verification.runners.torch_library import library, quiet

_SPECIAL_TOKENS = "special_tokens_map.json"
TOKENIZER_FILES = (
    names.TOKENIZER_JSON, "tokenizer.model", "tokenizer.model.v3", "tekken.json", "spiece.model", "vocab.json",
    "vocab.txt", "merges.txt", "added_tokens.json", _SPECIAL_TOKENS,
)  # fmt: skip
# What a program may read when it is there, by the end of its name, and what it does not.
READ = (".json", ".jinja", ".py", ".model", ".safetensors")
IGNORED = ("readme", "license", "licence", "notice")
# Sections of tokenizer.json that say how batches are filled up, and its own version.
_BATCHES = ("padding", "truncation", "version")
# Keys of a tokenizer's files that no id of a text depends on; those of the class say which program reads them.
_DRESS = (
    "chat_template", "name_or_path", "padding_side", "truncation_side", "pad_token", "clean_up_tokenization_spaces",
    "model_input_names",
)  # fmt: skip
_CLASS_KEYS = (
    "tokenizer_class", "processor_class", "auto_map", "special_tokens_map_file", "tokenizer_file", "is_local", "backend",
    "local_files_only", "max_length", "stride", "truncation_strategy", "pad_to_multiple_of", "pad_token_type_id",
    names.MODEL_MAX_LENGTH,
)  # fmt: skip
# By which programs change or choose weights and code on loading, and whether numbers follow from it.
_ON_LOADING = {"quantization_config": True, "auto_map": False}
_LOADED = "adapter_config.json"  # transformers loads what it names by itself, where peft is installed
_JUDGED = ("bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id")
# How a file is cut and rounded, which its tensors say themselves, and what we wrote of it.
_GGUF_ASIDE = ("split.", "quantize.", "general.file_type", "general.quantization_version", PREFIX)
_GGUF_DRESS = (
    "general.", "tokenizer.chat_template", "tokenizer.chat_templates",
    "tokenizer.ggml.padding_token_id", "tokenizer.ggml.unused",
)  # fmt: skip
_GGUF_JUDGED = ("general.architecture",)


@dataclass(frozen=True)
class Said:
    """What two checkpoints say otherwise: `wrong` changes what is computed, `dress` does not; count: what was compared."""

    count: int
    wrong: tuple[str, ...]
    dress: tuple[str, ...]


def of_directories(target: HfCheckpoint, expected: HfCheckpoint) -> Said:
    """Return how config.json, the tokenizer's files and all others that a program reads differ from what is expected.

    Raises: CheckpointError for a file that cannot be read.
    """
    ours, theirs = (_files(each.path) for each in (target, expected))
    others = sorted({*ours, *theirs} - {names.CONFIG_JSON})
    unread = [path.name for path in target.path.glob("*.safetensors") if path not in target.directory.weights]
    unread = sorted([*unread, *pickled_weights(target.path) - pickled_weights(expected.path)])
    wrong: list[str] = []
    dress: list[str] = []
    found = chain(
        _config(target, expected),
        ((f"{name} is additional, and some programs would load its weights", True) for name in unread),
        *(_file(name, ours.get(name), theirs.get(name), theirs.get(names.TOKENIZER_CONFIG_JSON)) for name in others),
    )
    for text, matters in found:
        (wrong if matters else dress).append(text)
    return Said(len(others) + 1, tuple(wrong), tuple(dress))


def of_models(target: GgufCheckpoint, expected: GgufCheckpoint) -> Said:
    """Return how the keys of two GGUF models differ; those of positions are left to the decoded tables."""
    ours, theirs = target.values, expected.values
    found = [
        key for key in dict.fromkeys([*theirs, *ours]) if not is_of_positions(key) and not key.startswith(_GGUF_ASIDE)
    ]
    wrong: list[str] = []
    dress: list[str] = []
    for key in found:
        if (key in ours) != (key in theirs) and _follows(key, target if key in ours else expected):
            continue
        text = difference(plain(theirs.get(key)), plain(ours.get(key)), quoted(key))
        if text:
            is_dress = key.startswith(_GGUF_DRESS) and key not in _GGUF_JUDGED
            (dress if is_dress else wrong).append(text)
    return Said(len(found), tuple(wrong), tuple(dress))


def _follows(key: str, model: GgufCheckpoint) -> bool:
    """Return whether a key states what llama.cpp works out where it is left out."""
    of_model, value = key.removeprefix(f"{model.name}."), plain(model.values[key])

    def stated(name: str) -> Any:
        return plain(model.values.get(f"{model.name}.{name}"))

    if of_model == "vocab_size":
        tokens = model.values.get("tokenizer.ggml.tokens")
        return tokens is not None and tokens.count == value
    if of_model in ("attention.key_length", "attention.value_length"):
        width, heads = stated("embedding_length"), stated("attention.head_count")
        return type(width) is int and type(heads) is int and heads > 0 and width // heads == value
    return False


def plain(value: Value | None) -> Any:
    """Return a metadata value as JSON has it; of a float32 the fewest digits that tell it from its neighbours."""
    if value is None:
        return ABSENT
    found: Any = value.decode()
    if value.type is ValueType.F32:
        return float(str(np.float32(found)))
    return found.tolist() if hasattr(found, "tolist") else found


# --- config.json


def _config(target: HfCheckpoint, expected: HfCheckpoint) -> Iterator[tuple[str, bool]]:
    """Yield where the configs differ beside positions, and whether the model or the end of a text depends on it.

    A key that only one of them states changes nothing where the class of transformers fills in the same, or has no such key.
    """
    kinds = [each.config.get(names.MODEL_TYPE) for each in (target, expected)]
    if kinds[0] != kinds[1]:  # another class, which may leave out whole tensors without a word
        yield f"{names.CONFIG_JSON}: {names.MODEL_TYPE} is {shown(kinds[0])} instead of {shown(kinds[1])}", True
    for key, matters in _ON_LOADING.items():  # where the target leaves it out, its weights are judged as they are
        wanted, found = (each.config.get(key, ABSENT) for each in (expected, target))
        if found not in (ABSENT, None) and found != wanted:
            yield f"{names.CONFIG_JSON}: {key} is {shown(found)} instead of {shown(wanted)}", matters
    ours, theirs = (_settings(each.config) for each in (target, expected))
    for key in dict.fromkeys([*theirs, *ours]):
        one, other = theirs.get(key), ours.get(key)
        if one == other and type(one) is type(other):
            continue
        text = (
            f"{names.CONFIG_JSON}: {key} is {shown(ours.get(key, ABSENT))} instead of {shown(theirs.get(key, ABSENT))}"
        )
        if one is not None and other is not None:
            yield text, True
            continue
        fills = class_defaults(str(target.config.get(names.MODEL_TYPE)))
        if fills is None:
            yield f"{text}; without transformers, the default of the class is unknown", False
        elif key in _JUDGED or (key in fills and fills[key] != (other if one is None else one)):
            filled = (
                f"; the default of {target.config.get(names.MODEL_TYPE)} is {shown(fills[key])}" if key in fills else ""
            )
            yield text + filled, True


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    ids = {key: config[key] for key in _JUDGED if key in config}
    return {**settings_of_config(config), **ids}


@cache
def class_defaults(model_type: str) -> Mapping[str, Any] | None:
    """Return what the installed transformers fills in for keys that a config of this type leaves out, None without it."""
    try:
        transformers = library("transformers")
    except MissingDependency:
        return None
    with quiet(transformers):
        known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
        if model_type not in known:
            return None
        made = known[model_type]()
        found: dict[str, Any] = json.loads(made.get_text_config().to_json_string(use_diff=False))
    return found


# --- the other files of a directory


def _files(folder: Path) -> dict[str, Path]:
    """Return the files at the top of a directory that programs read beside its weights."""
    found = {path.name: path for path in folder.iterdir() if path.is_file()}
    return {name: path for name, path in found.items() if is_read(name) and not _is_weights(name)}


def is_read(name: str) -> bool:
    """Return whether a program may read a file of this name when it stands in a checkpoint."""
    name = name.rpartition("/")[2].lower()
    return (
        (name.endswith(READ) or name in TOKENIZER_FILES)
        and not name.startswith(IGNORED)
        and name != names.PROVENANCE_JSON
    )


def pickled_weights(folder: Path) -> set[str]:
    """Return the names of pickles at the top of a directory that hold a model's weights."""
    return {path.name for path in folder.glob("pytorch_model*.bin") if path.is_file()}


def _is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".safetensors.index.json", names.PICKLE_INDEX_JSON))


def _file(name: str, ours: Path | None, theirs: Path | None, beside: Path | None) -> Iterator[tuple[str, bool]]:
    """Yield where a file differs, and whether a token depends on it. beside: the source's tokenizer_config.json."""
    judged = name in TOKENIZER_FILES or name == _LOADED
    if ours is not None and theirs is not None and same_content(ours, theirs):
        return
    if not name.endswith(".json") or name not in (*TOKENIZER_FILES, names.TOKENIZER_CONFIG_JSON):
        state = "additional" if theirs is None else "missing" if ours is None else "another"
        yield f"{name} is {state}", judged
        return
    wanted = _object(theirs, name)
    if theirs is None and name == _SPECIAL_TOKENS:  # which a program writes beside the same words in the other file
        wanted = _object(beside, names.TOKENIZER_CONFIG_JSON)
        wanted = {key: value for key, value in wanted.items() if key in _object(ours, name)}
    yield from _tokens(name, _object(ours, name), wanted)


def _object(path: Path | None, name: str) -> Mapping[str, Any]:
    return {} if path is None else read_object(path, LARGE)[1]


def _tokens(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the keys of one of the tokenizer's files that differ, and whether a token depends on them."""
    for key in dict.fromkeys([*theirs, *ours]):
        if key in (*_BATCHES, *_CLASS_KEYS):
            continue
        one, other = (_text_of_token(_pairs(each.get(key))) for each in (theirs, ours))
        found = difference(one, other, f"{name}: {key}")
        if found:
            yield found, key not in _DRESS


def _text_of_token(value: Any) -> Any:
    """Return a special token's text, which files give alone or with its flags."""
    return value["content"] if isinstance(value, Mapping) and "content" in value else value


def _pairs(value: Any) -> Any:
    """Return merges in their one form: releases of tokenizers write a pair as a text or as a list."""
    if not isinstance(value, Mapping) or not isinstance(value.get("merges"), list):
        return value
    merges = [" ".join(each) if isinstance(each, list) else each for each in value["merges"]]
    return {**value, "merges": merges}


def difference(wanted: Any, found: Any, name: str) -> str:
    """Return the first place where two parsed values differ, with both, empty where they are equal.

    name: of the value, put in front of the place; empty for a whole file.
    """
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        front = f"{name}." if name else ""
        pairs = ((f"{front}{key}", wanted.get(key, ABSENT), found.get(key, ABSENT)) for key in {**wanted, **found})
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = ((f"{name}[{index}]", *each) for index, each in enumerate(zip(wanted, found, strict=True)))
    elif isinstance(wanted, list) and isinstance(found, list):
        return f"{name} has {len(found)} entries instead of {len(wanted)}"
    elif type(wanted) is type(found) and wanted == found:
        return ""
    else:
        return f"{name} is {shown(found)} instead of {shown(wanted)}"
    return next((text for text in (difference(a, b, place) for place, a, b in pairs) if text), "")
