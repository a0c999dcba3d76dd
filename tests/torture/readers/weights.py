"""The readers of weight files: GGUF, safetensors, the index of shards, importance matrices."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np

from torture.mutating import bytes_of, json_of
from torture.readers.base import Reader, Slot, ignore
from torture.readers.printed import printed


def weights(folder: Path, sources: Path) -> Iterator[Reader]:
    from ropetool.comparison import compare
    from ropetool.doctor import examine
    from ropetool.files.gguf import read_shards
    from ropetool.files.hf import open_directory, read_header
    from ropetool.gguf_export.imatrix import read_imatrix
    from ropetool.plans.search import make_plan
    from ropetool.runtimes.inspection import inspect

    gguf = [_small_gguf(folder)]
    words = [b"llama.rope.scaling.type", b"general.alignment", b"split.count", b"rope_freqs.weight", b"GGUF", b"yarn"]
    slot = Slot(folder / "gguf" / "x.gguf")
    yield Reader("GGUF header", gguf, bytes_of, lambda data, rng: ignore(read_shards(slot(data))), words, 3)
    yield Reader("GGUF file, inspected", gguf, bytes_of, lambda data, rng: ignore(inspect(slot(data))), words)

    yield Reader("GGUF file, examined", gguf, bytes_of, lambda data, rng: ignore(examine([str(slot(data))])), words)

    methods = ("yarn", "linear", "ntk", "longrope", "llama3", "attention")

    def plan(data: bytes, rng: random.Random) -> None:
        reading = rng.choice((None, "original", "current"))
        make_plan(slot(data), rng.choice(methods), factor=rng.choice((2.0, 32.0)), reading=reading)

    yield printed("GGUF file, printed", gguf, bytes_of, slot, slot.path, words)
    yield Reader("GGUF file, planned for", gguf, bytes_of, plan, words)
    (slot.path.parent / "good.gguf").write_bytes(gguf[0])
    yield Reader(
        "GGUF file, compared", gguf, bytes_of,
        lambda data, rng: ignore(compare(slot.path.parent / "good.gguf", slot(data))), words, 0.5,
    )  # fmt: skip

    part = Slot(folder / "parts" / "p-00002-of-00003.gguf")
    for number in (1, 3):
        name = f"p-{number:05}-of-00003.gguf"
        (part.path.parent / name).write_bytes((sources / name).read_bytes())
    parts = [(sources / "p-00002-of-00003.gguf").read_bytes()]
    yield Reader("GGUF part", parts, bytes_of, lambda data, rng: ignore(read_shards(part(data))), [b"split.no"], 0.3)

    weights = Slot(folder / "safetensors" / "model.safetensors")
    full = (sources / "model" / "model-00001-of-00002.safetensors").read_bytes()
    zeros = {"a.weight": ("F32", np.zeros((2, 2), "<f4")), "b": ("BF16", np.zeros(3, "<u2"))}
    heads = [models.safetensors(zeros, format="pt"), full]
    yield Reader(
        "safetensors header", heads, _safetensors_of, lambda data, rng: ignore(read_header(weights(data))),
        [b"F8_E4M3", b"data_offsets", b"__metadata__", b"dtype"], 2,
    )  # fmt: skip

    model = folder / "index"
    index = Slot(model / "model.safetensors.index.json")
    _copy(
        sources / "model", model, "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    )
    listed = [b'{"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}']
    names = [b"model-00001-of-00002.safetensors", b"../index/config.json", b"/etc/passwd", b"weight_map", b"."]

    def read_index(data: bytes, rng: random.Random) -> None:
        index(data)
        open_directory(model)

    yield Reader("shard index", listed, json_of, read_index, names)

    matrix = Slot(folder / "imatrix" / "x.imatrix")
    yield Reader(
        "imatrix", [_imatrix(folder), _old_imatrix()], bytes_of, lambda data, rng: ignore(read_imatrix(matrix(data))),
        [b".in_sum2", b".counts"],
    )  # fmt: skip


def _small_gguf(folder: Path) -> bytes:
    """Return a file with a key of every kind and three tensors, by the gguf package."""
    from gguf import GGUFValueType
    from gguf_files import write

    keys: dict[str, Any] = {
        "context_length": 512, "embedding_length": 16, "block_count": 1, "feed_forward_length": 24,
        "attention.head_count": 2, "attention.head_count_kv": 1, "rope.dimension_count": 8, "rope.freq_base": 10000.0,
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "bc", "", "é"], "tokenizer.ggml.token_type": [1, 1, 3, 1],
        "tokenizer.ggml.merges": ["b c"],
    }  # fmt: skip
    for type_ in (GGUFValueType.INT64, GGUFValueType.FLOAT64, GGUFValueType.UINT8, GGUFValueType.INT16):
        keys[f"test.{type_.name}"] = (type_, 3)
    shapes = {"rope_freqs.weight": 4, "token_embd.weight": 32, "output_norm.weight": 5}
    tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    return write(folder / "small.gguf", "llama", {**keys, "test.numbers": [1, 2, 3]}, tensors).read_bytes()


def _safetensors_of(seed: bytes, rng: random.Random, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return a file with another header, whose length is mostly true."""
    if rng.random() < 0.4:
        return bytes_of(seed, rng, others, words)
    length = int.from_bytes(seed[:8], "little")
    head = json_of(seed[8 : 8 + length], rng, [], words)
    return struct.pack("<Q", len(head)) + head + seed[8 + length :]


def _imatrix(folder: Path) -> bytes:
    from gguf_files import write

    tensors = {"in_sum2": np.ones((1, 16), np.float32), "counts": np.ones((1, 1), np.float32)}
    named = {f"blk.0.attn_k.weight.{name}": tensor for name, tensor in tensors.items()}
    return write(folder / "small.imatrix", "imatrix", {"general.type": "imatrix"}, named).read_bytes()


def _old_imatrix() -> bytes:
    name = b"blk.0.attn_k.weight"
    return struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii4f", 2, 4, 1.0, 2.0, 3.0, 4.0)


def _copy(source: Path, target: Path, *names: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        (target / name).write_bytes((source / name).read_bytes())
