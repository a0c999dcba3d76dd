"""Defects planted into GGUF files: what each changes. Keys and tensors are named as llama.cpp names them.

Keys are changed by a patch of the file, tensors where they lie in it; the files hold float16 unless a name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched

Plant = Callable[[Path], None]
Numbers = npt.NDArray[np.float32]
FACTOR = 4
F32, U32, STR, BOOL = ValueType.F32, ValueType.U32, ValueType.STR, ValueType.BOOL
CONTROL = 3  # llama.cpp's type of a token that stands for no text


def _architecture(path: Path) -> str:
    return str(read_header(path).values["general.architecture"].decode())


def _patched(path: Path, patch: Patch) -> None:
    changed = path.with_name(f"changed-{path.name}")
    write_patched(read_header(path), patch, changed)
    changed.replace(path)


def keys(**changes: tuple[ValueType, Any]) -> Plant:
    """Return what sets keys, with `__` for dots, to a value or by a function of the old one.

    Those that begin with `rope`, `attention`, `context_length` or another of the model's stand behind its architecture.
    """

    def plant(path: Path) -> None:
        header = read_header(path)
        values = {}
        for name, (kind, change) in changes.items():
            key = name.replace("__", ".")
            if not key.startswith(("general.", "tokenizer.")):
                key = f"{_architecture(path)}.{key}"
            if callable(change):
                change = change(header.values[key].decode())
            values[key] = Value.of(kind, change)
        _patched(path, Patch(set=values))

    return plant


def without(word: str) -> Plant:
    """Return what removes every key whose name holds a word."""

    def plant(path: Path) -> None:
        _patched(path, Patch(remove=frozenset(key for key in read_header(path).values if word in key)))

    return plant


def listed(key: str, change: Callable[[list[Any]], Any]) -> Plant:
    """Return what changes the list that a key holds."""

    def plant(path: Path) -> None:
        value = read_header(path).values[key]
        decoded = value.decode()
        entries = decoded.tolist() if hasattr(decoded, "tolist") else list(decoded)
        change(entries)
        assert value.element is not None
        _patched(path, Patch(set={key: Value.array(value.element, entries)}))

    return plant


def tensor(name: str, change: Callable[[Numbers], Any]) -> Plant:
    """Return what changes the numbers of a float16 or float32 tensor in place; rows come first."""

    def plant(path: Path) -> None:
        header = read_header(path)
        found = next(each for each in header.tensors if each.name == name)
        dtype = {"F16": "<f2", "F32": "<f4"}[found.type_name]
        data = np.memmap(path, dtype=np.uint8, mode="r+")
        start = header.data_start + found.offset
        stored = data[start : start + found.nbytes].view(dtype)
        numbers = stored.astype(np.float32).reshape(found.shape)
        change(numbers)
        stored[:] = numbers.reshape(-1).astype(dtype)
        data.flush()

    return plant


def shuffled_bytes(name: str) -> Plant:
    """Return what shuffles the bytes of the first half of a tensor of any type."""

    def plant(path: Path) -> None:
        header = read_header(path)
        found = next(each for each in header.tensors if each.name == name)
        data = np.memmap(path, dtype=np.uint8, mode="r+")
        start = header.data_start + found.offset
        half = slice(start, start + found.nbytes // 2)
        data[half] = np.random.default_rng(0).permutation(data[half])
        data.flush()

    return plant


def scaled(name: str, factor: float) -> Plant:
    """Return what multiplies a tensor."""
    return tensor(name, lambda numbers: np.multiply(numbers, factor, out=numbers))


def last_rows(count: int, change: Callable[[Numbers], Numbers]) -> Plant:
    """Return what changes the last rows of the embedding, those of the rarest tokens."""

    def inner(numbers: Numbers) -> None:
        numbers[-count:] = change(numbers[-count:].copy())

    return tensor("token_embd.weight", inner)


def at_five_bits(numbers: Numbers) -> None:
    """Round to 5 bits with one scale."""
    step = np.abs(numbers).max() / 15
    numbers[:] = np.round(numbers / step) * step


def exchange(first: int, second: int) -> Callable[[list[Any]], None]:
    """Return what exchanges two entries of a list."""

    def change(entries: list[Any]) -> None:
        entries[first], entries[second] = entries[second], entries[first]

    return change


def cut_off(path: Path) -> None:
    """Leave out the last 4 KiB."""
    path.write_bytes(path.read_bytes()[:-4096])


def factors_beside(path: Path) -> None:
    """Add a tensor of frequency factors, which llama.cpp applies to every layer."""
    pairs = int(read_header(path).values[f"{_architecture(path)}.attention.key_length"].decode()) // 2
    _patched(path, Patch(tensors={"rope_freqs.weight": np.linspace(1, 2, pairs, dtype=np.float32)}))


A = 0.1 * math.log(FACTOR) + 1
ORIGINAL, SCALE, ATTENTION = (
    "rope__scaling__original_context_length",
    "rope__scaling__factor",
    "rope__scaling__attn_factor",
)

# Of any type of tensors.
OF_KEYS: dict[str, Plant] = {
    "stated context eight times as long": keys(context_length=(U32, lambda n: n * 8)),
    "original length doubled": keys(**{ORIGINAL: (U32, lambda n: n * 2)}),
    "original length halved": keys(**{ORIGINAL: (U32, lambda n: n // 2)}),
    "factor 5 % larger": keys(**{SCALE: (F32, lambda f: f * 1.05)}),
    "factor 25 % larger": keys(**{SCALE: (F32, lambda f: f * 1.25)}),
    "rope_theta 1 % larger": keys(rope__freq_base=(F32, lambda b: b * 1.01)),
    "rope_theta 10 % larger": keys(rope__freq_base=(F32, lambda b: b * 1.1)),
    "attention factor 2 % larger": keys(**{ATTENTION: (F32, 1.02)}),
    "attention factor 10 % larger": keys(**{ATTENTION: (F32, 1.1)}),
    "attention factor dropped": keys(**{ATTENTION: (F32, 1 / A)}),
    "scaling lost": without("rope.scaling."),
    "half of every head rotates": keys(rope__dimension_count=(U32, lambda n: n // 2)),
    "frequency factors beside": factors_beside,
    "epsilon of the norms ten times as large": keys(attention__layer_norm_rms_epsilon=(F32, lambda e: e * 10)),
    "last layer left out": keys(block_count=(U32, lambda n: n - 1)),
    "another id ends a text": keys(tokenizer__ggml__eos_token_id=(U32, 77)),
    "another id begins a text": keys(tokenizer__ggml__bos_token_id=(U32, 77)),
    "no token begins a text": keys(tokenizer__ggml__add_bos_token=(BOOL, False)),
    "chat template added": keys(tokenizer__chat_template=(STR, "{{ messages }}")),
    "two merges exchanged": listed("tokenizer.ggml.merges", exchange(500, 501)),
    "two tokens exchanged": listed("tokenizer.ggml.tokens", exchange(1500, 1501)),
    "a token made one of control": listed(
        "tokenizer.ggml.token_type", lambda entries: entries.__setitem__(1500, CONTROL)
    ),
    "another pre-tokenizer": keys(tokenizer__ggml__pre=(STR, "gpt-2")),
    "the last 4 KiB missing": cut_off,
}
DRESS = {"chat template added"}  # which --strict judges

OF_NUMBERS: dict[str, Plant] = {
    "k of a layer 2 % larger": scaled("blk.1.attn_k.weight", 1.02),
    "k of a layer 10 % larger": scaled("blk.1.attn_k.weight", 1.1),
    "last norm 2 % larger": scaled("output_norm.weight", 1.02),
    "ten rows of the embedding zero": last_rows(10, np.zeros_like),
    "60 rows of the embedding permuted": last_rows(60, lambda rows: np.roll(rows, 7, axis=0)),
    "ten rows of the embedding permuted": last_rows(10, lambda rows: np.roll(rows, 3, axis=0)),
    "ffn_down of a layer at 5 bits": tensor("blk.2.ffn_down.weight", at_five_bits),
    "ffn_up of a layer zero": scaled("blk.3.ffn_up.weight", 0),
}

OF_FILE: dict[str, Plant] = {**OF_KEYS, **OF_NUMBERS}
# Of files whose matrices are quantised.
_OF_ANY_TYPE = (
    "stated context eight times as long", "original length doubled", "factor 5 % larger", "rope_theta 1 % larger",
    "attention factor dropped", "another id ends a text",
)  # fmt: skip
OF_QUANTISED: dict[str, Plant] = {
    **{name: OF_KEYS[name] for name in _OF_ANY_TYPE},
    "bytes of a tensor wrong": shuffled_bytes("blk.1.ffn_up.weight"),
    "last norm 2 % larger": OF_NUMBERS["last norm 2 % larger"],
}
# What may break a model within its trained length or beyond it, so that losses can tell.
SEEN_BY_LOSSES = (
    "scaling lost", "half of every head rotates", "frequency factors beside", "last layer left out",
    "60 rows of the embedding permuted", "ffn_up of a layer zero",
)  # fmt: skip
