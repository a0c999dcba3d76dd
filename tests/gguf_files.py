"""GGUF files: any file by the gguf package's writer, tiny models that llama.cpp runs, hostile files packed by hand.

Also reads files back by the gguf package. Nothing here uses ropetool.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType, GGUFWriter

SECTIONS = ("general.", "tokenizer.", "adapter.", "test.", "xielu.")  # of keys that do not belong to the architecture
TYPES = {
    bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING,
    list: GGUFValueType.ARRAY,
}  # fmt: skip
Tensors = Mapping[str, Any]


def write(
    path: Path | str, arch: str, keys: Mapping[str, Any] | None = None, tensors: Tensors | None = None, **shards: Any
) -> Path:
    """Write a file.

    keys: by name, without the architecture in front. A value may be a pair of a GGUF type and a value, or three of them
    with the type of a list's elements.
    tensors: arrays by name, or pairs of a GGUF type and an array with its rows as stored. None: the file ends after the
    keys, without padding.
    shards: GGUFWriter's options for splitting.
    """
    return _written(writer_of(path, arch, keys or {}, **shards), tensors)


def writer_of(path: Path | str | None, arch: str, keys: Mapping[str, Any], **shards: Any) -> GGUFWriter:
    """Return a writer that has these keys, as `write` takes them."""
    named = {key if key.startswith(SECTIONS) else f"{arch}.{key}": value for key, value in keys.items()}
    return _with_keys(GGUFWriter(path, arch, **shards), named)


def _with_keys(writer: GGUFWriter, keys: Mapping[str, Any]) -> GGUFWriter:
    writer.data_alignment = keys.get("general.alignment", writer.data_alignment)
    for key, value in keys.items():
        type_, value, *sub = value if isinstance(value, tuple) else (TYPES[type(value)], value)
        writer.add_key_value(key, value, type_, *sub)
    return writer


def _written(writer: GGUFWriter, tensors: Tensors | None) -> Path:
    for name, tensor in (tensors or {}).items():
        raw_dtype, data = tensor if isinstance(tensor, tuple) else (None, tensor)
        writer.add_tensor(name, data, raw_dtype=raw_dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    if tensors is not None:
        writer.write_tensors_to_file()
    writer.close()
    assert writer.path is not None
    return writer.path


def copy(
    source: Path | str, target: Path | str, keys: Mapping[str, Any] | None = None,
    tensor: Callable[[str, Any], Any] = lambda name, one: (one.tensor_type, one.data), more: Tensors | None = None,
) -> Path:  # fmt: skip
    """Copy a file with the gguf package, as a script of a third party does.

    keys: those that change, by their whole names; None leaves a key out.
    tensor: returns the array or pair that `write` takes for a tensor of the reader, or None to leave the tensor out.
    more: tensors to add.
    """
    reader = GGUFReader(source)
    fields = _fields(reader)
    arch = str(fields.pop("general.architecture").contents())
    values = {key: (one.types[0], one.contents(), *one.types[1:2]) for key, one in fields.items()}
    changed = {key: value for key, value in {**values, **(keys or {})}.items() if value is not None}
    held = {**{one.name: tensor(one.name, one) for one in reader.tensors}, **(more or {})}
    return _written(
        _with_keys(GGUFWriter(target, arch), changed), {name: data for name, data in held.items() if data is not None}
    )


# --- tiny models of one layer


ARCHITECTURES = ("llama", "qwen2", "qwen3")
# More that have the same parts, for what only they read.
WITH_QK_NORM = ("qwen3", "gemma3", "hunyuan-dense", "qwen3vl", "qwen35", "glm4moe")
POST_NORM = ("qwen35", "glm4moe")  # the name of the norm in front of the feed-forward
GATED = ("qwen35",)  # the projection of queries gives a gate beside each
NORM_BEHIND_ROTATION = ("hunyuan-dense",)
FUSED_GATE = ("phi3",)
GEMMA = ("gemma3",)
CENTRED = ("nemotron",)  # LayerNorm with a bias, and no gate: the square of what is above 0
HEAD_DIM, HEADS, KV_HEADS, HIDDEN, INNER, VOCABULARY = 64, 2, 1, 128, 48, 96
TRAINED, TARGET = 512, 2048
EPSILON = 1e-6
UINT32, FLOAT32, STRING, BOOL = (
    GGUFValueType.UINT32, GGUFValueType.FLOAT32, GGUFValueType.STRING, GGUFValueType.BOOL,
)  # fmt: skip
KEY_TYPES = {
    "context_length": UINT32, "rope.freq_base": FLOAT32, "rope.scaling.type": STRING, "rope.scaling.factor": FLOAT32,
    "rope.scale_linear": FLOAT32, "rope.scaling.attn_factor": FLOAT32, "rope.dimension_count": UINT32,
    "rope.scaling.original_context_length": UINT32, "rope.scaling.finetuned": BOOL, "rope.scaling.alpha": FLOAT32,
    "rope.scaling.yarn_beta_fast": FLOAT32, "rope.scaling.yarn_beta_slow": FLOAT32,
    "rope.scaling.yarn_ext_factor": FLOAT32, "rope.scaling.yarn_attn_factor": FLOAT32,
    "rope.scaling.yarn_log_multiplier": FLOAT32, "rope.freq_base_swa": FLOAT32, "attention.sliding_window": UINT32,
    "attention.temperature_scale": FLOAT32, "attention.temperature_length": UINT32, "attention.scale": FLOAT32,
    "rope.dimension_count_swa": UINT32, "attention.sliding_window_pattern": GGUFValueType.ARRAY,
}  # fmt: skip


FREQS = "rope_freqs.weight"
BASES = {"qwen2": 1e6, "qwen3": 1e6}


@cache
def weights(arch: str, vocabulary: int = VOCABULARY) -> dict[str, np.ndarray]:
    """Return random weights that see positions, drawn with deviation 0.12; embeddings wider, to be of attention's size.

    Attention alone would turn the last bit of a float32 angle at position 2047 into 3e-4 of the largest logit.
    """
    rng = np.random.default_rng(7)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "token_embd.weight": (vocabulary, HIDDEN), "output.weight": (vocabulary, HIDDEN),
        "blk.0.attn_q.weight": (q, HIDDEN), "blk.0.attn_k.weight": (kv, HIDDEN), "blk.0.attn_v.weight": (kv, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, q), "blk.0.ffn_gate.weight": (INNER, HIDDEN),
        "blk.0.ffn_up.weight": (INNER, HIDDEN), "blk.0.ffn_down.weight": (HIDDEN, INNER),
    }  # fmt: skip
    if arch in GATED:
        shapes["blk.0.attn_q.weight"] = (2 * q, HIDDEN)
    if arch in FUSED_GATE:
        del shapes["blk.0.ffn_gate.weight"]
        shapes["blk.0.ffn_up.weight"] = (2 * INNER, HIDDEN)
    if arch in CENTRED:
        del shapes["blk.0.ffn_gate.weight"]
    if arch == "qwen2":
        shapes |= {"blk.0.attn_q.bias": (q,), "blk.0.attn_k.bias": (kv,), "blk.0.attn_v.bias": (kv,)}
    wide = {"token_embd.weight": 2.0}
    tensors = {name: rng.normal(0, wide.get(name, 0.12), shape).astype(np.float32) for name, shape in shapes.items()}
    before = "post_attention_norm" if arch in POST_NORM else "ffn_norm"
    norms = {"blk.0.attn_norm.weight": HIDDEN, f"blk.0.{before}.weight": HIDDEN, "output_norm.weight": HIDDEN}
    if arch in WITH_QK_NORM:
        norms |= {"blk.0.attn_q_norm.weight": HEAD_DIM, "blk.0.attn_k_norm.weight": HEAD_DIM}
    if arch in GEMMA:
        norms |= {"blk.0.post_attention_norm.weight": HIDDEN, "blk.0.post_ffw_norm.weight": HIDDEN}
    tensors |= {name: rng.normal(1, 0.1, size).astype(np.float32) for name, size in norms.items()}
    if arch in CENTRED:
        biases = {name.replace("weight", "bias"): size for name, size in norms.items()}
        tensors |= {name: rng.normal(0, 0.1, size).astype(np.float32) for name, size in biases.items()}
    return tensors


@dataclass(frozen=True)
class Tiny:
    """A model to write: rope keys without the architecture in front, frequency vectors by name, and its tokens.

    A key may be a pair of a GGUF type and a value. Without tokens the file has no vocabulary. in_front: the tensors of
    a layer before the one that attends, for architectures that cannot do without; it must add nothing. layers: how many
    times the one that attends stands in the file.
    """

    arch: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    vectors: Mapping[str, np.ndarray] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    merges: tuple[str, ...] = ()
    bos: int | None = None
    in_front: Mapping[str, np.ndarray] = field(default_factory=dict)
    layers: int = 1

    def write(self, path: Path, quantised: bool = False, **shards: Any) -> Path:
        """Write the file, its matrices as Q8_0 if asked; `shards` are GGUFWriter's options for splitting."""
        numbers = range(bool(self.in_front), self.layers + bool(self.in_front))
        keys: dict[str, Any] = {
            "embedding_length": HIDDEN, "feed_forward_length": INNER, "block_count": numbers.stop,
            "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.layer_norm_rms_epsilon": EPSILON,
        }  # fmt: skip
        if self.arch in CENTRED:
            keys["attention.layer_norm_epsilon"] = EPSILON
        keys |= self._vocabulary()
        for key, value in {"context_length": TARGET, **self.keys}.items():
            keys[key] = value if isinstance(value, tuple) else (KEY_TYPES[key], value)
        layer = weights(self.arch, len(self.tokens) or VOCABULARY)
        all_layers = {name.replace("blk.0.", f"blk.{n}."): tensor for n in numbers for name, tensor in layer.items()}
        tensors: dict[str, Any] = {**all_layers, **self.in_front, **self.vectors}
        for name, tensor in tensors.items():
            if quantised and tensor.ndim == 2 and tensor.shape[1] % 32 == 0:
                tensors[name] = (Q.Q8_0, gguf.quants.quantize(tensor, Q.Q8_0))
        return write(path, self.arch, keys, tensors, **shards)

    def _vocabulary(self) -> dict[str, Any]:
        if not self.tokens:
            return {"tokenizer.ggml.model": "no_vocab", "vocab_size": VOCABULARY}
        types = [3 if token.startswith("<") and len(token) > 1 else 1 for token in self.tokens]
        keys = {
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": [*self.tokens],
            "tokenizer.ggml.token_type": types, **({"tokenizer.ggml.merges": [*self.merges]} if self.merges else {}),
        }  # fmt: skip
        begin = (
            {} if self.bos is None else {"tokenizer.ggml.bos_token_id": self.bos, "tokenizer.ggml.add_bos_token": True}
        )
        return {**keys, **begin}


def model(
    path: Path, arch: str = "llama", keys: Mapping[str, Any] | None = None, *, divisors: Any = None, shards: int = 1
) -> Path:
    """Write a model of 512 trained tokens, with rope keys as Tiny spells them; return the path of its first file."""
    vectors = {} if divisors is None else {FREQS: np.asarray(divisors)}
    given = {"context_length": TRAINED, "rope.freq_base": BASES.get(arch, 10000.0), **(keys or {})}
    split: Mapping[str, Any] = {} if shards == 1 else {"split_max_tensors": 8}
    Tiny(arch, given, vectors).write(path, **split)
    return path if shards == 1 else path.with_name(f"{path.stem}-00001-of-{shards:05d}.gguf")


def llama3_divisors() -> np.ndarray:
    """Return divisors like Llama 3.1's: 1 for fast pairs, 8 for slow ones."""
    return np.clip(np.linspace(-3, 12, HEAD_DIM // 2), 1, 8).astype(np.float32)


# --- files with keys and tensors of every type

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


def mixed_tensors(seed: int = 0) -> dict[str, tuple[np.ndarray, Q | None]]:
    """Return named tensors of several types whose sizes need padding."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, tuple[np.ndarray, Q | None]] = {
        "token_embd.weight": (rng.standard_normal((3, 7), np.float32), None),
        "rope_freqs.weight": (1 + rng.random(5, np.float32), None),
        "scalar_like": (rng.standard_normal((1, 1, 1, 3), np.float32).astype(np.float16), None),
        "integers": (rng.integers(-5, 5, (2, 3), np.int32), None),
    }
    for type_ in TENSOR_TYPES:
        values = rng.standard_normal((3, 64), np.float32)
        tensors[f"blk.0.{type_.name}.weight"] = (gguf.quants.quantize(values, type_), type_)
    return tensors


def mixed(
    path: Path, *, alignment: int | None = None, tensors: bool = True, values: bool = True, **shards: Any
) -> Path:
    """Write a file with keys and tensors of all types, or a file of metadata alone.

    Keys: every scalar, lists of every type.
    """
    keys: dict[str, Any] = {"context_length": 2048, "rope.freq_base": 10000.0}
    if alignment is not None:
        keys["general.alignment"] = alignment
    for type_, listed in SCALARS.items() if values else ():
        name = f"test.{type_.name.lower()}"
        keys |= {f"{name}.{index}": (type_, value) for index, value in enumerate(listed)}
        keys[f"{name}.list"] = (GGUFValueType.ARRAY, listed, type_)
    if values:
        keys |= {f"tokenizer.{name}": True for name in ("add_bos", "add_eos")}
    held = {name: (type_, data) for name, (data, type_) in mixed_tensors().items()} if tensors else {}
    return write(path, ARCH, keys, held, **shards)


def vocabulary(path: Path, tokens: int = 2000) -> Path:
    """Write a small likeness of a vocabulary file: no tensors, long arrays of strings and numbers, no padding."""
    lists = {
        "tokens": [f"tok{'é' * (i % 5)}{i}" for i in range(tokens)],
        "token_type": [1] * tokens,
        "scores": [-0.5 * i for i in range(tokens)],
        "merges": [f"a{i} b{i}" for i in range(tokens)],
    }
    keys = {"context_length": 8192, "rope.freq_base": 500000.0, "tokenizer.ggml.model": "gpt2"}
    keys |= {f"tokenizer.ggml.{name}": values for name, values in lists.items()}
    return write(path, ARCH, {**keys, "tokenizer.chat_template": "{% for m in messages %}{{ m }}{% endfor %}"})


# --- what a file holds, by the gguf package's reader


class GGUFReader(gguf.GGUFReader):
    """The reader in half of its time: it slices the file for every number, and a slice of a memmap costs twice as much."""

    @property
    def data(self) -> Any:
        return self._plain

    @data.setter
    def data(self, mapped: Any) -> None:
        self._plain = np.asarray(mapped)


def opened(file: Path | str | GGUFReader) -> GGUFReader:
    return file if isinstance(file, GGUFReader) else GGUFReader(file)


def contents(path: Path) -> dict[str, Any]:
    """Return keys with types and values in order, tensors with their bytes in order, and the version."""
    reader = GGUFReader(path)
    values = {key: ([int(type_) for type_ in one.types], one.contents()) for key, one in _fields(reader).items()}
    held = {name: (type_, [*shape], raw) for name, (type_, shape, raw) in tensors(reader).items()}
    version = reader.fields["GGUF.version"].contents()
    return {"version": version, "alignment": int(reader.alignment), "values": values, "tensors": held}


def keys(file: Path | str | GGUFReader) -> dict[str, Any]:
    """Return every key of a file with its value."""
    return {key: one.contents() for key, one in _fields(opened(file)).items()}


def values(file: Path | str | GGUFReader) -> dict[str, tuple[str, Any]]:
    """Return every key of a file with its type's name and value."""
    return {key: (one.types[0].name, one.contents()) for key, one in _fields(opened(file)).items()}


def _fields(reader: GGUFReader) -> dict[str, Any]:
    return {key: one for key, one in reader.fields.items() if not key.startswith("GGUF.")}


def tensors(file: Path | str | GGUFReader) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return every tensor of a file in order: type, shape with the contiguous length first, bytes.

    Checks what the reader does not: that each offset is the sum of the padded sizes before it, as llama.cpp demands.
    """
    reader = opened(file)
    alignment, end = int(reader.alignment), int(reader.data_offset)
    for tensor in reader.tensors:
        assert tensor.data_offset == end, tensor.name
        end += -(-tensor.n_bytes // alignment) * alignment
    return {t.name: (t.tensor_type.name, tuple(map(int, t.shape)), t.data.tobytes()) for t in reader.tensors}


def vector(path: Path, name: str = FREQS) -> np.ndarray:
    """Return a float32 tensor of the file."""
    return np.frombuffer(tensors(path)[name][2], np.float32)


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
