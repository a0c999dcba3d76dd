"""A sentence for each key of a vocabulary that llama.cpp cannot load, or silently ignores.

Source: src/llama-vocab.cpp of llama.cpp within llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ropetool.checkpoint.gguf import ARCHITECTURE, GgufCheckpoint
from ropetool.errors import did_you_mean
from ropetool.files.gguf import ValueType
from ropetool.files.gguf.codec import shown
from ropetool.runtimes.llama_cpp import key_types

MODEL = "tokenizer.ggml.model"
PRE = "tokenizer.ggml.pre"
TOKENS = "tokenizer.ggml.tokens"
MERGES = "tokenizer.ggml.merges"
BESIDE = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")  # an entry for each token
EMBEDDING = "token_embd.weight"
SIZE = "vocab_size"  # it has an effect only without a vocabulary
WITHOUT = ("none", "no_vocab")
BYTE_PAIRS = ("gpt2", "hybriddna", "whitespace")
WITHOUT_MERGES = "kimi-k2"  # a pre-tokenizer whose files may have none
TOKENIZER = "tokenizer.ggml."
ALWAYS_READ = (MODEL, PRE, "tokenizer.ggml.token_type_count")  # also in a file without a vocabulary
_TOKEN_ID = "_token_id"


def is_without(view: GgufCheckpoint) -> bool:
    """Return whether the keys of a model declare that it has no vocabulary."""
    return _text(view, MODEL) in WITHOUT


def broken(view: GgufCheckpoint, changed: Collection[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the rules that the vocabulary breaks, each with a sentence.

    changed: the changed keys, or None for all. Tokens are compared only if they are among them.
    """
    model, pre = _text(view, MODEL), _text(view, PRE)
    names, pretokenizers = key_types.facts()["tokenizers"], key_types.facts()["pretokenizers"]
    if not model:
        yield "tokenizer", f"{MODEL} is missing, and llama.cpp loads no model without it"
        return
    if model not in names:
        yield "tokenizer", f"{MODEL} is {shown(model)}{did_you_mean(model, names)}, which llama.cpp does not know"
    if model in WITHOUT:
        key = f"{_text(view, ARCHITECTURE)}.{SIZE}"
        yield from _rows(view, key, _number(view, key) or 0)
        return
    if model in BYTE_PAIRS and pre and pre not in pretokenizers:
        yield (
            "pre-tokenizer",
            f"{PRE} is {shown(pre)}{did_you_mean(pre, pretokenizers)}, which llama.cpp does not know",
        )
    if model in BYTE_PAIRS and MERGES not in view.values and pre != WITHOUT_MERGES:
        yield "merges", f"{MERGES} is missing, and llama.cpp loads no {model} vocabulary without them"
    yield from _tokens(view, changed)


def _tokens(view: GgufCheckpoint, changed: Collection[str] | None) -> Iterator[tuple[str, str]]:
    tokens = view.values.get(TOKENS)
    if tokens is None:
        yield "tokens", f"{TOKENS} is missing, and llama.cpp loads no vocabulary without them"
        return
    for key in BESIDE:
        value = view.values.get(key)
        if value is not None and value.element is not None and value.count < tokens.count:
            yield (
                f"beside {key}",
                f"{key} has {value.count:,} entries for {tokens.count:,} tokens: llama.cpp requires one for each",
            )
    yield from _rows(view, TOKENS, tokens.count)
    if tokens.element is ValueType.STR and (changed is None or TOKENS in changed):
        listed = tokens.decode()
        assert isinstance(listed, list)
        twice = _first_double(listed)
        if twice is not None:
            yield "doubles", f"{TOKENS} has {shown(twice)} twice: llama.cpp aborts the whole process"


def lost(view: GgufCheckpoint) -> Iterator[tuple[str, str]]:
    """Yield token ids that llama.cpp leaves out without a warning."""
    tokens = view.values.get(TOKENS)
    for key in view.values if tokens is not None else ():
        if key.startswith(TOKENIZER) and key.endswith(_TOKEN_ID):
            number = _number(view, key)
            if tokens is not None and number is not None and number >= tokens.count:
                yield (
                    f"token {key}",
                    f"{key} is {number:,}, but there are {tokens.count:,} tokens: llama.cpp ignores the key",
                )


def _rows(view: GgufCheckpoint, key: str, count: int) -> Iterator[tuple[str, str]]:
    embedding = view.tensors.get(EMBEDDING)
    if embedding is not None and len(embedding.shape) == 2 and embedding.shape[1] != count:
        what = f"{key} counts {count:,} tokens, but {EMBEDDING} has {embedding.shape[1]:,} rows"
        yield "vocabulary", f"{what}: llama.cpp does not load it"


def _first_double(tokens: list[str]) -> str | None:
    """Return a token that occurs twice. Empty tokens do not count, because llama.cpp gives each a separate name."""
    seen: set[str] = set()
    for token in tokens:
        if token and token in seen:
            return token
        seen.add(token)
    return None


def _text(view: GgufCheckpoint, key: str) -> str:
    value = view.values.get(key)
    return str(value.decode()) if value is not None and value.type is ValueType.STR else ""


def _number(view: GgufCheckpoint, key: str) -> int | None:
    value = view.values.get(key)
    number = value.decode() if value is not None and value.type is ValueType.U32 else None
    return number if isinstance(number, int) else None
