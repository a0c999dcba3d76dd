"""Tiny checkpoints with random weights and a hand-made byte-level tokenizer, written without any code of ropetool or torch.

Reads GGUF files back with the gguf package.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import GGUFReader

from ropetool.checkpoint.opening import Checkpoint
from ropetool.comparison import exported
from ropetool.gguf_export import Exported, export_checkpoint
from ropetool.verification.readback.weights import compare_weights

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
ROWS = 300
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I8": "i1", "F8_E4M3": "u1"}

SIZES: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": ROWS, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 257,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "head_dim": 8, **SIZES},
    "mistral": {"model_type": "mistral", "sliding_window": None, **SIZES},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2, **SIZES},
    "qwen2": {"model_type": "qwen2", **SIZES},
    "qwen3": {"model_type": "qwen3", "head_dim": 8, **SIZES},
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a checkpoint, as transformers saves them."""
    hidden, wide, rows = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    kind = config["model_type"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (rows, hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings"):
        found["lm_head.weight"] = (rows, hidden)
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        found |= {p + "input_layernorm.weight": (hidden,), p + "post_attention_layernorm.weight": (hidden,)}
        for name, size in (("q", queries), ("k", keys), ("v", keys)):
            found[f"{p}self_attn.{name}_proj.weight"] = (size, hidden)
            if kind == "qwen2" or config.get("attention_bias"):
                found[f"{p}self_attn.{name}_proj.bias"] = (size,)
        found[p + "self_attn.o_proj.weight"] = (hidden, queries)
        if config.get("attention_bias"):
            found[p + "self_attn.o_proj.bias"] = (hidden,)
        if kind == "qwen3":
            found |= {p + "self_attn.q_norm.weight": (head,), p + "self_attn.k_norm.weight": (head,)}
        if kind == "mixtral":
            found[p + "block_sparse_moe.gate.weight"] = (config["num_local_experts"], hidden)
            for expert in range(config["num_local_experts"]):
                e = f"{p}block_sparse_moe.experts.{expert}."
                found |= {
                    e + "w1.weight": (wide, hidden),
                    e + "w2.weight": (hidden, wide),
                    e + "w3.weight": (wide, hidden),
                }
            continue
        for name, shape in (("gate", (wide, hidden)), ("up", (wide, hidden)), ("down", (hidden, wide))):
            found[f"{p}mlp.{name}_proj.weight"] = shape
            if config.get("mlp_bias"):
                found[f"{p}mlp.{name}_proj.bias"] = shape[:1]
    return found


def weights(config: dict[str, Any], dtype: str = "F32", seed: int = 0) -> dict[str, tuple[str, np.ndarray]]:
    """Return random tensors with their types, BF16 as the bits of float32 numbers cut off."""
    rng = np.random.default_rng(seed)
    return {name: (dtype, stored(rng.standard_normal(shape), dtype)) for name, shape in shapes(config).items()}


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    return values.astype(DTYPES[dtype])


def write_safetensors(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    entries, data = {}, b""
    for name, (dtype, values) in tensors.items():
        raw = values.tobytes()
        offsets = [len(data), len(data) + len(raw)]
        entries[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    head = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def byte_letters() -> list[str]:
    """Return the letters that stand for the bytes, in the order of the bytes: GPT-2's table."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(hidden)) for byte in range(256)]


def byte_level() -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(expression: str, behavior: str = "Isolated", *, invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": invert}


def added(number: int, text: str, **more: Any) -> dict[str, Any]:
    habits = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": text, **habits, **more}


def template(*pieces: str, ids: dict[str, list[int]] | None = None) -> dict[str, Any]:
    """Return a post-processor that puts special tokens around A."""
    ids = ids or {"<|bos|>": [256], "<|eos|>": [257]}
    single = [{"Sequence" if piece == "A" else "SpecialToken": {"id": piece, "type_id": 0}} for piece in pieces]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": numbers, "tokens": [text]} for text, numbers in ids.items()},
    }


def tokenizer() -> dict[str, Any]:
    """Return a tokenizer of 256 bytes, three merges and three added tokens."""
    vocabulary = {letter: at for at, letter in enumerate(byte_letters())}
    # With the added tokens, as published ones have it: where the vocabulary lacks them, tokenizers numbers them anew.
    vocabulary |= {"<|bos|>": 256, "<|eos|>": 257, "he": 258, "Ġt": 259, "Ġthe": 260, "word": 261}
    return {
        "version": "1.0",
        "added_tokens": [added(256, "<|bos|>"), added(257, "<|eos|>"), added(261, "word", special=False)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(LLAMA3), byte_level()]},
        "post_processor": template("<|bos|>", "A"),
        "decoder": byte_level(),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False, "ignore_merges": True,
            "vocab": vocabulary, "merges": [["h", "e"], ["Ġ", "t"], ["Ġt", "he"]],
        },
    }  # fmt: skip


TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>"},
    "chat_template": "{{ messages }}",
}  # fmt: skip


def checkpoint(path: Path, family: str = "llama", dtype: str = "F32", **changes: Any) -> Path:
    """Write a checkpoint; the changes go into its config, None removes a key."""
    config = {**CONFIGS[family], **changes}
    config = {key: value for key, value in config.items() if value is not None or key == "sliding_window"}
    path.mkdir(parents=True)
    save(path / "config.json", config)
    write_safetensors(path / "model.safetensors", weights(config, dtype))
    save(path / "tokenizer.json", tokenizer())
    save(path / "tokenizer_config.json", TOKENIZER_CONFIG)
    return path


def save(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")


def keys(file: Path | GGUFReader) -> dict[str, Any]:
    """Return all keys with their decoded values."""
    reader = GGUFReader(file) if isinstance(file, Path) else file
    return {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}


def tensors(file: Path | GGUFReader) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return all tensors: type, shape with the contiguous length first, bytes."""
    reader = GGUFReader(file) if isinstance(file, Path) else file
    return {t.name: (t.tensor_type.name, tuple(map(int, t.shape)), t.data.tobytes()) for t in reader.tensors}


def export(source: Path, output: Path | None = None, **options: Any) -> Exported:
    """Export without the comparison that ends an export: random numbers are no model, and tests look for themselves."""
    return export_checkpoint(source, output, check=False, **options)


def apart_by_themselves(target: Checkpoint, source: Checkpoint) -> tuple[str, ...]:
    """Return which tensors of a file are not a directory's where nobody knows what an export makes of them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exported, "as_exported", lambda found, *_: found)
        return compare_weights(target, source, None).differences
