"""Tiny one-layer GGUF models, llama.cpp's logits of them through its C interface, and the same forward pass in numpy.

Few tokens at far positions: blocks of consecutive positions are decoded as sequences of their own, then joined into
the sequence of the last block, whose tokens look back over all of them. llama.cpp takes no gaps within a sequence.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

from ropetool.rope import arithmetic
from ropetool.rope.tables import LayerRope, Regime

ARCHITECTURES = ("llama", "qwen2", "qwen3")
# More that are made of the same parts, for what only they read.
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
STARTS = (0, 126, 509, 1021, 1530, TARGET - 8, TARGET - 4)  # the last two touch, as llama.cpp demands
BLOCK, BATCH = 4, 64
POSITIONS = np.concatenate([np.arange(start, start + BLOCK) for start in STARTS])
TOKENS = np.random.default_rng(5).integers(0, VOCABULARY, POSITIONS.size)

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
    found = {name: rng.normal(0, wide.get(name, 0.12), shape).astype(np.float32) for name, shape in shapes.items()}
    before = "post_attention_norm" if arch in POST_NORM else "ffn_norm"
    norms = {"blk.0.attn_norm.weight": HIDDEN, f"blk.0.{before}.weight": HIDDEN, "output_norm.weight": HIDDEN}
    if arch in WITH_QK_NORM:
        norms |= {"blk.0.attn_q_norm.weight": HEAD_DIM, "blk.0.attn_k_norm.weight": HEAD_DIM}
    if arch in GEMMA:
        norms |= {"blk.0.post_attention_norm.weight": HIDDEN, "blk.0.post_ffw_norm.weight": HIDDEN}
    found |= {name: rng.normal(1, 0.1, size).astype(np.float32) for name, size in norms.items()}
    if arch in CENTRED:
        biases = {name.replace("weight", "bias"): size for name, size in norms.items()}
        found |= {name: rng.normal(0, 0.1, size).astype(np.float32) for name, size in biases.items()}
    return found


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
        writer = gguf.GGUFWriter(path, self.arch, **shards)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(INNER)
        writer.add_block_count(self.layers + bool(self.in_front))
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(EPSILON)
        if self.arch in CENTRED:
            writer.add_layer_norm_eps(EPSILON)
        self._add_vocabulary(writer)
        for key, value in {"context_length": TARGET, **self.keys}.items():
            type_, given = value if isinstance(value, tuple) else (KEY_TYPES[key], value)
            writer.add_key_value(f"{self.arch}.{key}", given, type_)
        layer = weights(self.arch, len(self.tokens) or VOCABULARY)
        numbers = range(bool(self.in_front), self.layers + bool(self.in_front))
        all_layers = {name.replace("blk.0.", f"blk.{n}."): tensor for n in numbers for name, tensor in layer.items()}
        for name, tensor in {**all_layers, **self.in_front, **self.vectors}.items():
            narrow = quantised and tensor.ndim == 2 and tensor.shape[1] % 32 == 0
            data = gguf.quants.quantize(tensor, GGMLQuantizationType.Q8_0) if narrow else tensor
            writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType.Q8_0 if narrow else None)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add_vocabulary(self, writer: gguf.GGUFWriter) -> None:
        if not self.tokens:
            writer.add_tokenizer_model("no_vocab")
            writer.add_vocab_size(VOCABULARY)
            return
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(list(self.tokens))
        writer.add_token_types([3 if token.startswith("<") and len(token) > 1 else 1 for token in self.tokens])
        writer.add_token_merges(list(self.merges))
        if self.bos is not None:
            writer.add_bos_token_id(self.bos)
            writer.add_add_bos_token(True)


# --- llama.cpp


@cache
def library() -> Any:
    import llama_cpp

    @llama_cpp.llama_log_callback
    def silent(level: int, text: bytes, user_data: Any) -> None:
        pass

    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    library.silent = silent  # type: ignore[attr-defined]  # C keeps no reference
    llama_cpp.llama_backend_init()
    return llama_cpp


@contextmanager
def context(path: Path, n_ctx: int) -> Iterator[Any]:
    """Open a model with a float32 cache and no flash attention; nothing else differs from the defaults."""
    lib = library()
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ValueError("llama.cpp does not load it")
    settings = lib.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_seq_max = n_ctx, BATCH, BATCH, len(STARTS)
    settings.n_threads = settings.n_threads_batch = 1
    settings.kv_unified = True
    settings.type_k = settings.type_v = lib.GGML_TYPE_F32
    settings.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    opened = lib.llama_init_from_model(model, settings)
    try:
        yield opened
    finally:
        lib.llama_free(opened)
        lib.llama_model_free(model)


def llama_logits(path: Path, n_ctx: int = TARGET) -> np.ndarray:
    """Return the logits of all tokens: those of the last block see every block, the others only their own.

    Shapes: -> (tokens, vocabulary).
    """
    lib = library()
    last = len(STARTS) - 1
    with context(path, n_ctx) as opened:
        first = _decode(opened, range(POSITIONS.size - BLOCK))
        memory = lib.llama_get_memory(opened)
        for sequence in range(last):
            lib.llama_memory_seq_cp(memory, sequence, last, -1, -1)
        return np.concatenate([first, _decode(opened, range(POSITIONS.size - BLOCK, POSITIONS.size))])


def llama_row_logits(path: Path, row: Sequence[int], n_ctx: int = TARGET) -> np.ndarray:
    """Return the logits of a row of tokens from position 0 on, for memories that keep a state beside keys."""
    lib, found = library(), []
    with context(path, n_ctx) as opened:
        for start in range(0, len(row), BATCH):
            piece = row[start : start + BATCH]
            _decode_row(opened, piece, start)
            raw = lib.llama_get_logits(opened)
            found.append(np.ctypeslib.as_array(raw, (len(piece), VOCABULARY)).astype(np.float64))
    return np.concatenate(found)


def llama_kept_bytes(path: Path, row: Sequence[int]) -> int:
    """Return what the memory of a row of up to 64 tokens takes: keys and values in float32, and a note on each cell."""
    with context(path, TARGET) as opened:
        _decode_row(opened, row, 0)
        return int(library().llama_state_seq_get_size(opened, 0))


def _decode_row(opened: Any, piece: Sequence[int], start: int) -> None:
    lib = library()
    batch = lib.llama_batch_init(len(piece), 0, 1)
    batch.n_tokens = len(piece)
    for at, token in enumerate(piece):
        batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, start + at, 1
        batch.seq_id[at][0], batch.logits[at] = 0, 1
    code = lib.llama_decode(opened, batch)
    lib.llama_batch_free(batch)
    if code != 0:
        raise ValueError(f"llama_decode returns {code}")


def _decode(opened: Any, indices: range) -> np.ndarray:
    lib = library()
    batch = lib.llama_batch_init(len(indices), 0, 1)
    batch.n_tokens = len(indices)
    for row, index in enumerate(indices):
        batch.token[row], batch.pos[row] = int(TOKENS[index]), int(POSITIONS[index])
        batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, index // BLOCK, 1
    code = lib.llama_decode(opened, batch)
    lib.llama_batch_free(batch)
    if code != 0:
        raise ValueError(f"llama_decode returns {code}")
    raw = lib.llama_get_logits(opened)
    return np.ctypeslib.as_array(raw, (len(indices), VOCABULARY)).astype(np.float64)


# --- the same in float64


def numpy_logits(
    arch: str, entry: LayerRope, regime: Regime, row: Sequence[int] | None = None, vocabulary: int = VOCABULARY
) -> np.ndarray:
    """Return the logits of all tokens, rotated by the regime: of a row, or as `llama_logits` orders them.

    Shapes: -> (tokens, vocabulary).
    """
    tokens, positions, visible = TOKENS, POSITIONS, _visible()
    if row is not None:
        tokens, positions = np.array(row), np.arange(len(row))
        visible = positions[None, :] <= positions[:, None]
    w = {name: tensor.astype(np.float64) for name, tensor in weights(arch, vocabulary).items()}
    x = w["token_embd.weight"][tokens] * (np.sqrt(HIDDEN) if arch in GEMMA else 1.0)
    h = _norm(x, w["blk.0.attn_norm.weight"], w.get("blk.0.attn_norm.bias"))
    q, k, v = (_heads(h, w, name) for name in ("q", "k", "v"))
    gate = q[1::2] if arch in GATED else None  # each query head is followed by its gate
    q = q[::2] if arch in GATED else q
    if arch in WITH_QK_NORM and arch not in NORM_BEHIND_ROTATION:
        q, k = _norm(q, w["blk.0.attn_q_norm.weight"]), _norm(k, w["blk.0.attn_k_norm.weight"])
    q, k = (arithmetic.rotate(a, positions, regime.inv_freq, regime.attention_factor, entry.layout) for a in (q, k))
    if arch in NORM_BEHIND_ROTATION:
        q, k = _norm(q, w["blk.0.attn_q_norm.weight"]), _norm(k, w["blk.0.attn_k_norm.weight"])
    if entry.temperature is not None:
        q = q * (1 + entry.temperature.beta * np.log(1 + positions // entry.temperature.length))[:, None]
    mixed = _attention(q, k, v, visible)
    if gate is not None:
        mixed = mixed / (1 + np.exp(-gate.transpose(1, 0, 2).reshape(mixed.shape)))
    attended = mixed @ w["blk.0.attn_output.weight"].T
    x = x + (_norm(attended, w["blk.0.post_attention_norm.weight"]) if arch in GEMMA else attended)
    before = "post_attention_norm" if arch in POST_NORM else "ffn_norm"
    inner = _feed_forward(_norm(x, w[f"blk.0.{before}.weight"], w.get(f"blk.0.{before}.bias")), w, arch)
    x = x + (_norm(inner, w["blk.0.post_ffw_norm.weight"]) if arch in GEMMA else inner)
    return _norm(x, w["output_norm.weight"], w.get("output_norm.bias")) @ w["output.weight"].T


def _feed_forward(h: np.ndarray, w: Mapping[str, np.ndarray], arch: str) -> np.ndarray:
    if arch in CENTRED:
        return np.maximum(h @ w["blk.0.ffn_up.weight"].T, 0) ** 2 @ w["blk.0.ffn_down.weight"].T
    if arch in FUSED_GATE:
        gate, up = np.split(h @ w["blk.0.ffn_up.weight"].T, 2, axis=-1)
    else:
        gate, up = h @ w["blk.0.ffn_gate.weight"].T, h @ w["blk.0.ffn_up.weight"].T
    if arch in GEMMA:
        active = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    else:
        active = gate / (1 + np.exp(-gate))
    return active * up @ w["blk.0.ffn_down.weight"].T


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Shapes: (heads, tokens, head_dim) each -> (tokens, heads * head_dim)."""
    k, v = (np.repeat(a, HEADS // KV_HEADS, axis=0) for a in (k, v))
    scores = np.where(visible, q @ k.transpose(0, 2, 1) / np.sqrt(HEAD_DIM), -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return (shares @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)


def _heads(h: np.ndarray, w: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Shapes: (tokens, hidden) -> (heads, tokens, head_dim)."""
    projected = h @ w[f"blk.0.attn_{name}.weight"].T + w.get(f"blk.0.attn_{name}.bias", 0.0)
    return projected.reshape(len(h), -1, HEAD_DIM).transpose(1, 0, 2)


def _norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """Return RMSNorm, with a bias LayerNorm."""
    if bias is not None:
        return _norm(x - x.mean(axis=-1, keepdims=True), weight) + bias
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPSILON) * weight


def _visible() -> np.ndarray:
    """Return who sees whom: earlier tokens of the same block, and the last block all blocks."""
    block = np.arange(POSITIONS.size) // BLOCK
    near = block[:, None] == block[None, :]
    return (near | (block[:, None] == block.max())) & (POSITIONS[None, :] <= POSITIONS[:, None])
