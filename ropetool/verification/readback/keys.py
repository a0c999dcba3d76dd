"""Comparison of the settings and files of two checkpoints of one format, except for positions and weights.

A difference either affects the results of the model or the tokenizer, or is cosmetic.
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
# Suffixes of the files that a program may read, and prefixes of files that no program reads.
READ = (".json", ".jinja", ".py", ".model", ".safetensors")
IGNORED = ("readme", "license", "licence", "notice")
# Sections of tokenizer.json about the padding of batches, and its version.
_BATCHES = ("padding", "truncation", "version")
# Keys of a tokenizer's files that do not affect token ids. Those in _CLASS_KEYS only select the class that reads the files.
_DRESS = (
    "chat_template", "name_or_path", "padding_side", "truncation_side", "pad_token", "clean_up_tokenization_spaces",
    "model_input_names",
)  # fmt: skip
_CLASS_KEYS = (
    "tokenizer_class", "processor_class", "auto_map", "special_tokens_map_file", "tokenizer_file", "is_local", "backend",
    "local_files_only", "max_length", "stride", "truncation_strategy", "pad_to_multiple_of", "pad_token_type_id",
    names.MODEL_MAX_LENGTH,
)  # fmt: skip
# Keys that change the loaded weights or code, and whether they affect the results.
_ON_LOADING = {names.QUANTIZATION_CONFIG: True, "auto_map": False}
_LOADED = "adapter_config.json"  # if peft is installed, transformers loads the adapter in this file without being asked
_JUDGED = ("bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id")
# Keys about the split and the types of a file, which its tensors show too, and ropetool's own keys.
_GGUF_ASIDE = ("split.", "quantize.", "general.file_type", "general.quantization_version", PREFIX)
_GGUF_DRESS = (
    "general.", "tokenizer.chat_template", "tokenizer.chat_templates",
    "tokenizer.ggml.padding_token_id", "tokenizer.ggml.unused",
)  # fmt: skip
_GGUF_JUDGED = ("general.architecture",)


@dataclass(frozen=True)
class Differing:
    """The differences of two checkpoints.

    count: the number of compared files or keys.
    wrong: differences that affect the results.
    dress: cosmetic differences.
    """

    count: int
    wrong: tuple[str, ...]
    dress: tuple[str, ...]


def of_directories(target: HfCheckpoint, expected: HfCheckpoint) -> Differing:
    """Return the differences in config.json, the tokenizer's files and all other files that a program reads.

    Raises: CheckpointError for a file that cannot be read.
    """
    ours, theirs = (_files(each.path) for each in (target, expected))
    others = sorted({*ours, *theirs} - {names.CONFIG_JSON})
    unread = [path.name for path in target.path.glob("*.safetensors") if path not in target.directory.weights]
    unread = sorted([*unread, *pickled_weights(target.path) - pickled_weights(expected.path)])
    wrong: list[str] = []
    dress: list[str] = []
    differences = chain(
        _config(target, expected),
        ((f"{name} is additional, and some programs would load its weights", True) for name in unread),
        *(_file(name, ours.get(name), theirs.get(name), theirs.get(names.TOKENIZER_CONFIG_JSON)) for name in others),
    )
    for text, matters in differences:
        (wrong if matters else dress).append(text)
    return Differing(len(others) + 1, tuple(wrong), tuple(dress))


def of_models(target: GgufCheckpoint, expected: GgufCheckpoint) -> Differing:
    """Return the differences in the keys of two GGUF models. The check of the decoded tables covers the rope keys."""
    ours, theirs = target.values, expected.values
    keys = [
        key for key in dict.fromkeys([*theirs, *ours]) if not is_of_positions(key) and not key.startswith(_GGUF_ASIDE)
    ]
    wrong: list[str] = []
    dress: list[str] = []
    for key in keys:
        if (key in ours) != (key in theirs) and _is_default(key, target if key in ours else expected):
            continue
        text = difference(plain(theirs.get(key)), plain(ours.get(key)), quoted(key))
        if text:
            is_dress = key.startswith(_GGUF_DRESS) and key not in _GGUF_JUDGED
            (dress if is_dress else wrong).append(text)
    return Differing(len(keys), tuple(wrong), tuple(dress))


def _is_default(key: str, model: GgufCheckpoint) -> bool:
    """Return whether a key has the value that llama.cpp calculates without this key."""
    of_model, value = key.removeprefix(f"{model.name}."), plain(model.values[key])

    def configured(name: str) -> Any:
        return plain(model.values.get(f"{model.name}.{name}"))

    if of_model == "vocab_size":
        tokens = model.values.get("tokenizer.ggml.tokens")
        return tokens is not None and tokens.count == value
    if of_model in ("attention.key_length", "attention.value_length"):
        width, heads = configured("embedding_length"), configured("attention.head_count")
        return type(width) is int and type(heads) is int and heads > 0 and width // heads == value
    return False


def plain(value: Value | None) -> Any:
    """Return a metadata value in JSON's types. A float32 gets the fewest digits that distinguish it from its neighbours."""
    if value is None:
        return ABSENT
    decoded: Any = value.decode()
    if value.type is ValueType.F32:
        return float(str(np.float32(decoded)))
    return decoded.tolist() if hasattr(decoded, "tolist") else decoded


# --- config.json


def _config(target: HfCheckpoint, expected: HfCheckpoint) -> Iterator[tuple[str, bool]]:
    """Yield each difference of the configs except for positions. True marks an effect on the results or the end of a text.

    A key in only one config is equal if the class of transformers has the same default, or does not read the key.
    """
    types = [each.config.get(names.MODEL_TYPE) for each in (target, expected)]
    if types[0] != types[1]:  # a different class, which may ignore whole tensors without a warning
        yield f"{names.CONFIG_JSON}: {names.MODEL_TYPE} is {shown(types[0])} instead of {shown(types[1])}", True
    for key, matters in _ON_LOADING.items():  # without the key in the target, the comparison of weights is sufficient
        theirs_on_loading, ours_on_loading = (each.config.get(key, ABSENT) for each in (expected, target))
        if ours_on_loading not in (ABSENT, None) and ours_on_loading != theirs_on_loading:
            yield (
                f"{names.CONFIG_JSON}: {key} is {shown(ours_on_loading)} instead of {shown(theirs_on_loading)}",
                matters,
            )
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
    """Return the defaults of a config of this type in the installed transformers, or None if it lacks the type."""
    try:
        transformers = library("transformers")
    except MissingDependency:
        return None
    with quiet(transformers):
        known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
        if model_type not in known:
            return None
        config = known[model_type]()
        defaults: dict[str, Any] = json.loads(config.get_text_config().to_json_string(use_diff=False))
    return defaults


# --- the other files of a directory


def _files(folder: Path) -> dict[str, Path]:
    """Return the files at the top of a directory that programs read, except for weights, by name."""
    by_name = {path.name: path for path in folder.iterdir() if path.is_file()}
    return {name: path for name, path in by_name.items() if is_read(name) and not _is_weights(name)}


def is_read(name: str) -> bool:
    """Return whether a program may read a file with this name in a checkpoint."""
    name = name.rpartition("/")[2].lower()
    return (
        (name.endswith(READ) or name in TOKENIZER_FILES)
        and not name.startswith(IGNORED)
        and name != names.PROVENANCE_JSON
    )


def pickled_weights(folder: Path) -> set[str]:
    """Return the names of the pickles at the top of a directory that contain a model's weights."""
    return {path.name for path in folder.glob("pytorch_model*.bin") if path.is_file()}


def _is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".safetensors.index.json", names.PICKLE_INDEX_JSON))


def _file(
    name: str, ours: Path | None, theirs: Path | None, tokenizer_config: Path | None
) -> Iterator[tuple[str, bool]]:
    """Yield each difference of a file. True marks an effect on token ids. tokenizer_config: the file of the source."""
    matters = name in TOKENIZER_FILES or name == _LOADED
    if ours is not None and theirs is not None and same_content(ours, theirs):
        return
    if not name.endswith(".json") or name not in (*TOKENIZER_FILES, names.TOKENIZER_CONFIG_JSON):
        state = "additional" if theirs is None else "missing" if ours is None else "another"
        yield f"{name} is {state}", matters
        return
    expected = _object(theirs, name)
    if theirs is None and name == _SPECIAL_TOKENS:  # some programs write this file with a part of tokenizer_config.json
        expected = _object(tokenizer_config, names.TOKENIZER_CONFIG_JSON)
        expected = {key: value for key, value in expected.items() if key in _object(ours, name)}
    yield from _tokens(name, _object(ours, name), expected)


def _object(path: Path | None, name: str) -> Mapping[str, Any]:
    return {} if path is None else read_object(path, LARGE)[1]


def _tokens(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield each difference in a file of the tokenizer. True marks an effect on token ids."""
    for key in dict.fromkeys([*theirs, *ours]):
        if key in (*_BATCHES, *_CLASS_KEYS):
            continue
        one, other = (_text_of_token(_merges_as_text(each.get(key))) for each in (theirs, ours))
        text = difference(one, other, f"{name}: {key}")
        if text:
            yield text, key not in _DRESS


def _text_of_token(value: Any) -> Any:
    """Return the text of a special token. Files contain either the text, or the text with flags."""
    return value["content"] if isinstance(value, Mapping) and "content" in value else value


def _merges_as_text(value: Any) -> Any:
    """Return the value with each merge as text. Releases of tokenizers write a merge as text or as a list."""
    if not isinstance(value, Mapping) or not isinstance(value.get("merges"), list):
        return value
    merges = [" ".join(each) if isinstance(each, list) else each for each in value["merges"]]
    return {**value, "merges": merges}


def difference(expected: Any, actual: Any, name: str) -> str:
    """Return the first difference of two parsed values with its path and both values, or "" if they are equal.

    name: the name of the value, which begins the path; empty for a whole file.
    """
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        front = f"{name}." if name else ""
        pairs = (
            (f"{front}{key}", expected.get(key, ABSENT), actual.get(key, ABSENT)) for key in {**expected, **actual}
        )
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = ((f"{name}[{index}]", *each) for index, each in enumerate(zip(expected, actual, strict=True)))
    elif isinstance(expected, list) and isinstance(actual, list):
        return f"{name} has {len(actual)} entries instead of {len(expected)}"
    elif type(expected) is type(actual) and expected == actual:
        return ""
    else:
        return f"{name} is {shown(actual)} instead of {shown(expected)}"
    return next((text for text in (difference(a, b, place) for place, a, b in pairs) if text), "")
