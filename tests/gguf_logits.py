"""llama.cpp's logits of tiny GGUF models through its C interface, and the forward pass of one-layer models in numpy.

Few tokens at far positions: blocks of consecutive positions are decoded as sequences of their own, then joined into
the sequence of the last block, whose tokens look back over all of them. llama.cpp takes no gaps within a sequence.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import numpy as np
from gguf_files import (
    CENTRED,
    EPSILON,
    FUSED_GATE,
    GATED,
    GEMMA,
    HEADS,
    HIDDEN,
    KV_HEADS,
    NORM_BEHIND_ROTATION,
    POST_NORM,
    TARGET,
    VOCABULARY,
    WITH_QK_NORM,
)  # fmt: skip

from ropetool.rope import arithmetic
from ropetool.rope.tables import LayerRope, Regime

STARTS = (0, 126, 509, 1021, 1530, TARGET - 8, TARGET - 4)  # the last two touch, as llama.cpp demands
BLOCK, BATCH = 4, 64
POSITIONS = np.concatenate([np.arange(start, start + BLOCK) for start in STARTS])
TOKENS = np.random.default_rng(5).integers(0, VOCABULARY, POSITIONS.size)


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
def context(path: Path, n_ctx: int, batch: int = BATCH, **more: Any) -> Iterator[Any]:
    """Open a model with a float32 cache and no flash attention; nothing but `more` differs from the defaults."""
    lib = library()
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ValueError("llama.cpp does not load it")
    settings = lib.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = n_ctx, batch, batch
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = lib.GGML_TYPE_F32
    settings.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    for name, value in more.items():
        setattr(settings, name, value)
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
    lib, last, start = library(), len(STARTS) - 1, POSITIONS.size - BLOCK
    blocks = np.arange(POSITIONS.size) // BLOCK
    with context(path, n_ctx, n_seq_max=len(STARTS), kv_unified=True) as opened:
        first = _decode(opened, TOKENS[:start], POSITIONS[:start], blocks[:start])
        memory = lib.llama_get_memory(opened)
        for sequence in range(last):
            lib.llama_memory_seq_cp(memory, sequence, last, -1, -1)
        return np.concatenate([first, _decode(opened, TOKENS[start:], POSITIONS[start:], blocks[start:])])


def llama_row_logits(path: Path, row: Sequence[int], n_ctx: int = TARGET) -> np.ndarray:
    """Return the logits of a row of tokens from position 0 on, for memories that keep a state beside keys."""
    with context(path, n_ctx, n_seq_max=len(STARTS), kv_unified=True) as opened:
        return decode(opened, row)


def llama_kept_bytes(path: Path, row: Sequence[int]) -> int:
    """Return what the memory of a row of up to 64 tokens takes: keys and values in float32, and a note on each cell."""
    with context(path, TARGET, n_seq_max=len(STARTS), kv_unified=True) as opened:
        decode(opened, row)
        return int(library().llama_state_seq_get_size(opened, 0))


@contextmanager
def one_sequence(path: Path, n_ctx: int) -> Iterator[Any]:
    """Open a model for one row of tokens, every layer with a cache of the whole length."""
    with context(path, n_ctx, 256, swa_full=True) as opened:
        yield opened


def shifted_logits(path: Path, tokens: Sequence[int], by: int, n_ctx: int) -> np.ndarray:
    """Return the logits of the last token after all the others were moved by this number of positions."""
    with one_sequence(path, n_ctx) as opened:
        decode(opened, tokens[:-1])
        if by:
            lib = library()
            lib.llama_memory_seq_add(lib.llama_get_memory(opened), 0, -1, -1, by)
        return decode(opened, tokens[-1:], len(tokens) - 1 + by)


def decode(opened: Any, tokens: Sequence[int], start: int = 0) -> np.ndarray:
    """Return the logits of these tokens, at positions from `start` on. Shapes: -> (tokens, vocabulary)."""
    size = library().llama_n_batch(opened)
    pieces = [range(first, min(first + size, len(tokens))) for first in range(0, len(tokens), size)]
    rows = [
        _decode(opened, tokens[p.start : p.stop], range(start + p.start, start + p.stop), [0] * len(p)) for p in pieces
    ]
    return np.concatenate(rows)


def _decode(opened: Any, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[int]) -> np.ndarray:
    lib = library()
    batch = lib.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for row, (token, position, sequence) in enumerate(zip(tokens, positions, sequences, strict=True)):
        batch.token[row], batch.pos[row] = int(token), int(position)
        batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, int(sequence), 1
    code = lib.llama_decode(opened, batch)
    lib.llama_batch_free(batch)
    if code != 0:
        raise ValueError(f"llama_decode returns {code}")
    raw = lib.llama_get_logits(opened)
    return np.ctypeslib.as_array(raw, (len(tokens), VOCABULARY)).astype(np.float64)


@cache
def _quantize_chunk() -> Any:
    folder = Path(library().__file__).parent / "lib"
    function = ctypes.CDLL(str(next(folder.glob("*ggml-base.*")))).ggml_quantize_chunk
    function.restype, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (ctypes.c_int, pointer, pointer, number, number, number, pointer)
    return function


def quantised(values: np.ndarray, name: str, weights: np.ndarray | None = None) -> bytes:
    """Return what ggml_quantize_chunk makes of a float32 matrix."""
    type_ = gguf.GGMLQuantizationType[name]
    block, nbytes = gguf.GGML_QUANT_SIZES[type_]
    out = np.zeros(values.size // block * nbytes, np.uint8)
    at = None if weights is None else weights.ctypes.data
    assert _quantize_chunk()(type_, values.ctypes.data, out.ctypes.data, 0, *values.shape, at) == out.size
    return out.tobytes()


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
    w = {name: tensor.astype(np.float64) for name, tensor in gguf_files.weights(arch, vocabulary).items()}
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
    scores = np.where(visible, q @ k.transpose(0, 2, 1) / np.sqrt(gguf_files.HEAD_DIM), -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return (shares @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)


def _heads(h: np.ndarray, w: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Shapes: (tokens, hidden) -> (heads, tokens, head_dim)."""
    projected = h @ w[f"blk.0.attn_{name}.weight"].T + w.get(f"blk.0.attn_{name}.bias", 0.0)
    return projected.reshape(len(h), -1, gguf_files.HEAD_DIM).transpose(1, 0, 2)


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
