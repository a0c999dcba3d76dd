"""The checkpoints of the kit: weights that follow from a seed and the tensor's name, a tokenizer of bytes, a GGUF file.

transformers says which tensors a config has; their numbers come from SHAKE-256 and are representable in bfloat16, so that
every engine computes with the same ones whatever type it holds them in.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizer_making as making

import ropetool
from conformance_kit.cases import BEGIN, END, SEED, VOCABULARY, Case, config

Numbers = npt.NDArray[np.float64]
ADDED_ONE = ("gemma3_text", "qwen3_5_text")  # whose norms multiply by 1 + weight
# What the norms of queries and keys are multiplied by: Gemma 4 does not divide scores by the width of the heads, and Qwen3.5
# rotates a quarter of its wide heads.
OF_HEADS = {"gemma4_text": 0.6, "qwen3_5_text": 1.7}
# Patterns of names that transformers writes for DeepSeek V4, and what published checkpoints have instead.
V4_NAMES = {
    r"^model\.": "", r"^embed_tokens\.": "embed.", r"^hc_head\.hc_": "hc_head_", r"\.attn\.norm\.": ".attn.kv_norm.",
}  # fmt: skip


def write(folder: Path, case: Case) -> Path:
    """Write a checkpoint into a new folder."""
    folder.mkdir(parents=True)
    keys = config(case)
    shapes, architecture = tensors(keys)
    exact = {name: drawn(name, shape, keys["model_type"]) for name, shape in shapes.items()}
    if case.quantised:
        exact = {name: on_grid(values) if values.ndim == 2 else values for name, values in exact.items()}
    numbers = {name: bfloat16(values) for name, values in exact.items()}
    (folder / "model.safetensors").write_bytes(safetensors(numbers))
    full = {"architectures": [architecture], "torch_dtype": "bfloat16", **keys}
    _save(folder / "config.json", full)
    _save(folder / "tokenizer.json", tokenizer())
    _save(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    return folder


def write_gguf(folder: Path, target: Path, outtype: str = "f32") -> None:
    """Write a checkpoint as a GGUF file. The scores show what llama.cpp computes from it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    ropetool.export(folder, target, outtype=outtype, sidecars=False, allow_unverified=True, check=False)
    target.with_name(f"{target.name}.ropetool.json").unlink()  # the manifest says where it comes from


def tensors(keys: Mapping[str, Any]) -> tuple[dict[str, tuple[int, ...]], str]:
    """Return the shapes that transformers stores for a config, by name, and the name of the class."""
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**json.loads(json.dumps(keys))))
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        with safe_open(f"{scratch}/model.safetensors", "np") as stored:
            shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118 - no mapping
    return {published(name, keys["model_type"]): shapes[name] for name in sorted(shapes)}, type(model).__name__


def published(name: str, model_type: str) -> str:
    """Return the name of a tensor in published checkpoints. transformers reads those of DeepSeek V4, but writes others."""
    if model_type == "deepseek_v4":
        for pattern, other in V4_NAMES.items():
            name = re.sub(pattern, other, name)
    return name


def drawn(name: str, shape: tuple[int, ...], model_type: str) -> Numbers:
    """Return the numbers of a tensor: attention that is neither flat nor sharp, so that every position counts."""
    count = math.prod(shape)
    raw = hashlib.shake_256(f"{SEED}/{model_type}/{name}/{shape}".encode()).digest(2 * count)
    unit = (np.frombuffer(raw, "<u2").reshape(shape) + 0.5) / 32768.0 - 1.0  # even in (-1, 1)
    even = math.sqrt(3) * unit  # of deviation 1
    if "norm" in name and name.endswith("weight"):
        share = OF_HEADS.get(model_type, 1.0) if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
        added = 1.0 if model_type in ADDED_ONE and "linear_attn" not in name else 0.0
        weights = share * (0.3 * even) + (share - added)
        # In steps by which 1 + weight is a bfloat16 number too, because mlx-lm adds the 1 in the type of the file.
        return np.round(64 * weights) / 64 if model_type == "qwen3_5_text" else weights
    if name.endswith("bias") or "sinks" in name:
        return 0.3 * even
    if "embed" in name:
        return even
    return max(0.12, 1.4 / math.sqrt(shape[-1])) * even


def on_grid(values: Numbers) -> Numbers:
    """Return numbers near these that q8_0 stores exactly: in blocks of 32, whole multiples of a power of two up to 127 of it.

    The largest of a block is 127 times the power, so that every quantiser takes it for the step.
    """
    blocks = values.reshape(-1, 32)
    step = 2.0 ** np.ceil(np.log2(np.abs(blocks).max(-1, keepdims=True) / 127))
    whole = np.round(blocks / step)
    row, largest = np.arange(len(blocks)), np.abs(blocks).argmax(-1)
    whole[row, largest] = 127 * np.sign(blocks[row, largest])
    on: Numbers = (whole * step).reshape(values.shape)
    return on


def bfloat16(values: Numbers) -> npt.NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16 numbers, ties to even."""
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def safetensors(numbers: Mapping[str, npt.NDArray[np.uint16]]) -> bytes:
    """Return a file of bfloat16 tensors, in the order of their names."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, values in sorted(numbers.items()):
        entries[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(numbers[name].tobytes() for name in sorted(numbers))


# --- a tokenizer in which the text of the prompt is its token ids, byte for byte

BEGIN_TEXT, END_TEXT = "<|begin|>", "<|end|>"
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN_TEXT, "eos_token": END_TEXT, "add_bos_token": False,
}  # fmt: skip


def tokenizer() -> dict[str, Any]:
    """Return a byte-level tokenizer: token i is byte i."""
    split = making.split(
        making.CL100K
    )  # as Llama 3: llama.cpp knows it by name, and any splitting gives the same tokens
    special = {BEGIN_TEXT: BEGIN, END_TEXT: END}
    unused = {f"<|unused{at}|>": at for at in range(END + 2, VOCABULARY)}  # every row of the embeddings has a token
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [making.added(at, text) for text, at in {**special, **unused}.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, making.BYTES]},
        "post_processor": making.BYTES,
        "decoder": making.BYTES,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
            "vocab": {**{letter: at for at, letter in enumerate(making.byte_letters())}, **special, "ÿÿ": END + 1, **unused},
            "merges": [["ÿ", "ÿ"]],  # bytes that no text has: llama.cpp wants one merge at least
        },
    }  # fmt: skip


def prompt(length: int) -> list[int]:
    """Return token ids of the seed: printable ASCII."""
    raw = hashlib.shake_256(f"{SEED}/prompt".encode()).digest(2 * length)
    return [33 + int(value) % 94 for value in np.frombuffer(raw, "<u2")]


def _save(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
