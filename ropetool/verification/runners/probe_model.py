"""A tiny one-layer model with the rope keys and frequency vectors of a GGUF file: its weights, file and float64 logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.files.gguf import TensorInfo, Value, ValueType
from ropetool.files.gguf.entries import DEFAULT_ALIGNMENT, padded
from ropetool.files.gguf.kinds import F32
from ropetool.files.gguf.writer import encode_head, encode_info
from ropetool.rope import arithmetic
from ropetool.rope.tables import Array, LayerRope, Regime
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.verification.scoring import Tokens

ARCHITECTURES = ("llama", "qwen2", "qwen3")
HEADS, INNER, VOCABULARY, EPSILON = 2, 32, 96, 1e-6
BLOCK = 4  # tokens at adjacent positions; each block sees only itself, and the last block sees all


def weights(arch: str, head_dim: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return random weights that make the logits depend on positions. The feed-forward part returns 0.

    Queries and keys have a standard deviation of 1.4, so that a token attends to several others. The embeddings are as
    large as the output of the attention. With smaller embeddings, an error in the last bit of an angle at position 2047
    would change the logits by 3e-4 of the largest logit.
    """
    rng = np.random.default_rng(7)
    hidden = HEADS * head_dim
    matrices = {
        "token_embd": (VOCABULARY, hidden), "output": (VOCABULARY, hidden), "blk.0.attn_q": (hidden, hidden),
        "blk.0.attn_k": (head_dim, hidden), "blk.0.attn_v": (head_dim, hidden), "blk.0.attn_output": (hidden, hidden),
    }  # fmt: skip
    small = 1.4 / np.sqrt(hidden)
    tensors_by_name = {
        name: rng.normal(0, 2.0 if name == "token_embd" else small, shape) for name, shape in matrices.items()
    }
    tensors_by_name |= {name: np.ones(hidden) for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")}
    tensors_by_name |= {f"blk.0.ffn_{name}": np.zeros((INNER, hidden)) for name in ("gate", "up")}
    tensors_by_name["blk.0.ffn_down"] = np.zeros((hidden, INNER))
    if arch == "qwen3":
        tensors_by_name |= {f"blk.0.attn_{name}_norm": np.ones(head_dim) for name in "qk"}
    tensors = {f"{name}.weight": tensor for name, tensor in tensors_by_name.items()}
    if arch == "qwen2":
        tensors |= {f"blk.0.attn_{name}.bias": np.zeros(len(tensors_by_name[f"blk.0.attn_{name}"])) for name in "qkv"}
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def forward(arch: str, entry: LayerRope, regime: Regime, positions: Tokens) -> Array:
    """Return the logits of all tokens in float64, with the table of the regime.

    Shapes: positions (tokens,) -> (tokens, vocabulary).
    """
    w = {name: tensor.astype(np.float64) for name, tensor in weights(arch, entry.head_dim).items()}
    x = w["token_embd.weight"][tokens_of(positions)]
    h = _norm(x)
    q, k, v = (
        (h @ w[f"blk.0.attn_{name}.weight"].T).reshape(len(h), -1, entry.head_dim).transpose(1, 0, 2) for name in "qkv"
    )
    if arch == "qwen3":
        q, k = _norm(q), _norm(k)
    angles = positions.astype(np.float64)
    q, k = (arithmetic.rotate(a, angles, regime.inv_freq, regime.attention_factor, entry.layout) for a in (q, k))
    block = np.arange(len(positions)) // BLOCK
    near = (block[:, None] == block) | (block[:, None] == block.max())
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(entry.head_dim)
    scores = np.where(near & (positions <= positions[:, None]), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attended = (shares / shares.sum(axis=-1, keepdims=True)) @ v
    x = x + attended.transpose(1, 0, 2).reshape(len(x), -1) @ w["blk.0.attn_output.weight"].T
    logits: Array = _norm(x) @ w["output.weight"].T
    return logits


def tokens_of(positions: Tokens) -> Tokens:
    """Return a token for each position, always the same ones. Shapes: (tokens,) -> same."""
    return np.random.default_rng(5).integers(0, VOCABULARY, positions.size)


def _norm(x: Array) -> Array:
    normed: Array = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPSILON)
    return normed


# --- its file


def write_probe(view: GgufCheckpoint, arch: str, entry: LayerRope, path: Path) -> Path:
    """Write the model with the rope keys, the context and the frequency vectors of the target, and return its path."""
    copied = {key: value for key, value in view.values.items() if key.startswith(f"{arch}.rope.")}
    vectors = {name: view.vector(name) for name in archs.VECTORS if name in view.tensors}
    sizes = {
        archs.EMBEDDING_LENGTH: HEADS * entry.head_dim, "feed_forward_length": INNER, archs.BLOCK_COUNT: 1,
        archs.HEAD_COUNT: HEADS, archs.HEAD_COUNT_KV: 1, archs.KEY_LENGTH: entry.head_dim,
        "attention.value_length": entry.head_dim, "vocab_size": VOCABULARY,
    }  # fmt: skip
    values = {
        archs.ARCHITECTURE: Value.of(ValueType.STR, arch),
        "tokenizer.ggml.model": Value.of(ValueType.STR, "no_vocab"),
        **{f"{arch}.{key}": Value.of(ValueType.U32, size) for key, size in sizes.items()},
        f"{arch}.attention.layer_norm_rms_epsilon": Value.of(ValueType.F32, EPSILON),
        f"{arch}.{archs.CONTEXT_LENGTH}": view.values[f"{arch}.{archs.CONTEXT_LENGTH}"],
        **copied,
    }
    _write(path, values, {**weights(arch, entry.head_dim), **vectors})
    return path


def _write(path: Path, values: Mapping[str, Value], tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
    infos, end = list[TensorInfo](), 0
    for name, tensor in tensors.items():
        infos.append(TensorInfo(name, tensor.shape[::-1], F32, padded(end, DEFAULT_ALIGNMENT), tensor.nbytes))
        end = infos[-1].end
    head = b"".join([*encode_head(values, len(infos)), *map(encode_info, infos)])
    start = padded(len(head), DEFAULT_ALIGNMENT)
    content = bytearray(start + padded(end, DEFAULT_ALIGNMENT))
    content[: len(head)] = head
    for info, tensor in zip(infos, tensors.values(), strict=True):
        content[start + info.offset : start + info.end] = tensor.astype("<f4").tobytes()
    path.write_bytes(content)
