"""Tiny GGUF models for the tests of commands, written by the gguf package, and what a file holds by its reader.

The models are those of oracle/gguf_models.py, with a vector of divisors where asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from formats_gguf.maker import contents
from gguf_models import HEAD_DIM, TRAINED, Tiny

FREQS = "rope_freqs.weight"
BASES = {"qwen2": 1e6, "qwen3": 1e6}


def model(
    path: Path, arch: str = "llama", keys: Mapping[str, Any] | None = None, *, divisors: Any = None, shards: int = 1
) -> Path:
    """Write a model of 512 trained tokens, with rope keys as Tiny spells them; return the path of its first file."""
    vectors = {} if divisors is None else {FREQS: np.asarray(divisors)}
    stated = {"context_length": TRAINED, "rope.freq_base": BASES.get(arch, 10000.0), **(keys or {})}
    split: Mapping[str, Any] = {} if shards == 1 else {"split_max_tensors": 8}
    Tiny(arch, stated, vectors).write(path, **split)
    return path if shards == 1 else path.with_name(f"{path.stem}-00001-of-{shards:05d}.gguf")


def llama3_divisors() -> np.ndarray:
    """Return divisors like Llama 3.1's: 1 for fast pairs, 8 for slow ones."""
    return np.clip(np.linspace(-3, 12, HEAD_DIM // 2), 1, 8).astype(np.float32)


def values(path: Path) -> dict[str, tuple[str, Any]]:
    """Return every key of a file with its type's name and value, by the gguf package."""
    return {key: (gguf.GGUFValueType(types[0]).name, value) for key, (types, value) in contents(path)["values"].items()}


def tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Return every tensor of a file: type, shape, bytes."""
    found: dict[str, tuple[str, list[int], bytes]] = contents(path)["tensors"]
    return found


def vector(path: Path, name: str = FREQS) -> np.ndarray:
    """Return a float32 tensor of the file."""
    return np.frombuffer(tensors(path)[name][2], np.float32)
