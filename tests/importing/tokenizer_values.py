"""Tokenizers as the keys of a GGUF file, made on the spot, and the ids that the files written of them give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropetool.files.gguf import Value, ValueType

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
Scored = Sequence[tuple[str, float, int]]
SPECIAL = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BYTES = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]


def keyed(kind: str, tokens: Scored, /, **more: Any) -> dict[str, Value]:
    """Return the keys of a vocabulary; `more` by their names without the prefix: flags, ids, text and lists of text."""
    values = {
        "model": Value.of(ValueType.STR, kind),
        "tokens": Value.array(ValueType.STR, [text for text, _, _ in tokens]),
        "scores": Value.array(ValueType.F32, [score for _, score, _ in tokens]),
        "token_type": Value.array(ValueType.I32, [kind for _, _, kind in tokens]),
        **{name: value_of(value) for name, value in more.items()},
    }
    return {f"{PREFIX}{name}": value for name, value in values.items()}


def value_of(value: Any) -> Value:
    if isinstance(value, list):
        return Value.array(ValueType.STR, value)
    kinds = {bool: ValueType.BOOL, int: ValueType.U32, str: ValueType.STR}
    return value if isinstance(value, Value) else Value.of(kinds[type(value)], value)


def bpe(letters: str = "abc ", merges: Iterable[str] = ("a b", "ab c"), **more: Any) -> dict[str, Value]:
    """Return the keys of a small byte-level BPE: letters, what merges make, and one control token."""
    listed = list(merges)
    texts = [*letters.replace(" ", "\u0120"), *(merge.replace(" ", "") for merge in listed), "<|end|>"]
    tokens = [(text, 0.0, CONTROL if text == "<|end|>" else NORMAL) for text in texts]
    return keyed("gpt2", tokens, **{"pre": "gpt-2", "merges": listed, "eos_token_id": len(texts) - 1, **more})


def scored(
    pieces: Scored = (("a", -1.0, NORMAL), ("b", -2.0, NORMAL), ("ab", 0.0, NORMAL)), **more: Any
) -> dict[str, Value]:
    """Return the keys of a SentencePiece BPE: special tokens, bytes, and these pieces."""
    return keyed("llama", [*SPECIAL, *BYTES, *pieces], **more)


def written(files: Mapping[str, str], folder: Path) -> Path:
    """Write the files into the folder, and return it."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder
