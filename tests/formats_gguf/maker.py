"""Makes GGUF files for the tests, and reads them back, without any code of ropetool.

Whole files come from the gguf package's writer; hostile ones are packed here byte by byte.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType, GGUFWriter
from gguf_reading import GGUFReader

ARCH = "llama"
SCALARS = {
    GGUFValueType.UINT8: [0, 255],
    GGUFValueType.INT8: [-128, 127],
    GGUFValueType.UINT16: [0, 65535],
    GGUFValueType.INT16: [-32768, 32767],
    GGUFValueType.UINT32: [0, 2**32 - 1],
    GGUFValueType.INT32: [-(2**31), 2**31 - 1],
    GGUFValueType.FLOAT32: [-0.0, 1.5, float("inf")],
    GGUFValueType.BOOL: [False, True],
    GGUFValueType.STRING: ["", "x", "Ġ é 漢字 \U0001f600\n"],
    GGUFValueType.UINT64: [0, 2**64 - 1],
    GGUFValueType.INT64: [-(2**63), 2**63 - 1],
    GGUFValueType.FLOAT64: [1e300, -2.5],
}
TENSOR_TYPES = [Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.MXFP4]


def save(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_every_value(writer: GGUFWriter) -> None:
    """Add keys of all types: every scalar, arrays of every type, empty arrays of each."""
    for type_, values in SCALARS.items():
        for index, value in enumerate(values):
            writer.add_key_value(f"test.{type_.name.lower()}.{index}", value, type_)
        writer.add_key_value(f"test.{type_.name.lower()}.list", values, GGUFValueType.ARRAY, sub_type=type_)
    for name in ("add_bos", "add_eos"):
        writer.add_bool(f"tokenizer.{name}", True)


def vectors(seed: int = 0) -> dict[str, tuple[np.ndarray, Q | None]]:
    """Return named tensors of several types whose sizes need padding."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, tuple[np.ndarray, Q | None]] = {
        "token_embd.weight": (rng.standard_normal((3, 7), np.float32), None),
        "rope_freqs.weight": (1 + rng.random(5, np.float32), None),
        "scalar_like": (rng.standard_normal((1, 1, 1, 3), np.float32).astype(np.float16), None),
        "integers": (rng.integers(-5, 5, (2, 3), np.int32), None),
    }
    for kind in TENSOR_TYPES:
        values = rng.standard_normal((3, 64), np.float32)
        tensors[f"blk.0.{kind.name}.weight"] = (gguf.quants.quantize(values, kind), kind)
    return tensors


def model(
    path: Path, *, alignment: int | None = None, tensors: bool = True, values: bool = True, **shards: Any
) -> Path:
    """Write a small model file, or a file of metadata alone; `shards` are GGUFWriter's options for splitting."""
    writer = GGUFWriter(path, ARCH, **shards)
    writer.add_context_length(2048)
    writer.add_rope_freq_base(10000.0)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    if values:
        add_every_value(writer)
    for name, (data, kind) in vectors().items() if tensors else ():
        writer.add_tensor(name, data, raw_dtype=kind)
    save(writer)
    return path


def vocabulary(path: Path, tokens: int = 2000) -> Path:
    """Write a small likeness of a vocabulary file: no tensors, long arrays of strings and numbers, no padding."""
    writer = GGUFWriter(path, ARCH)
    writer.add_context_length(8192)
    writer.add_rope_freq_base(500000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"tok{'é' * (i % 5)}{i}" for i in range(tokens)])
    writer.add_token_types([1] * tokens)
    writer.add_token_scores([-0.5 * i for i in range(tokens)])
    writer.add_token_merges([f"a{i} b{i}" for i in range(tokens)])
    writer.add_chat_template("{% for m in messages %}{{ m }}{% endfor %}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


# --- what a file says, by the gguf package's reader


def contents(path: Path) -> dict[str, Any]:
    """Return keys with types and values in order, tensors with their bytes in order, and the version.

    Checks what the reader does not: that each offset is the sum of the padded sizes before it, as llama.cpp demands.
    """
    reader = GGUFReader(path)
    values = {
        key: ([int(type_) for type_ in field.types], field.contents())
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }
    tensors = {
        tensor.name: (tensor.tensor_type.name, tensor.shape.tolist(), tensor.data.tobytes())
        for tensor in reader.tensors
    }
    alignment, end = int(reader.alignment), int(reader.data_offset)
    for tensor in reader.tensors:
        assert tensor.data_offset == end, tensor.name
        end += -(-tensor.n_bytes // alignment) * alignment
    version = reader.fields["GGUF.version"].contents()
    return {"version": version, "alignment": alignment, "values": values, "tensors": tensors}


# --- files packed by hand

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)


def string(text: bytes | str) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def kv(key: bytes | str, type_: int, payload: bytes) -> bytes:
    return string(key) + struct.pack("<i", type_) + payload


def u32(key: str, value: int) -> bytes:
    return kv(key, U32, struct.pack("<I", value))


def array(key: str, element: int, count: int, body: bytes = b"") -> bytes:
    return kv(key, ARR, struct.pack("<iQ", element, count) + body)


def tensor(name: bytes | str, shape: list[int], type_: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    dims = struct.pack(f"<{len(shape)}q", *shape)
    return (
        string(name)
        + struct.pack("<I", len(shape) if n_dims is None else n_dims)
        + dims
        + struct.pack("<iQ", type_, offset)
    )


def packed(
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a file from its parts; the counts are true unless given."""
    keys, tensors = keys or [], tensors or []
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    head = magic + struct.pack("<Iqq", version, *counts) + b"".join(keys) + b"".join(tensors)
    return head + (bytes(-len(head) % alignment) + data if tensors else data)
