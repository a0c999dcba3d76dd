"""Bakes of tiny GGUF models of any architecture, and llama.cpp's logits before and after. As a program:

    baking_probe.py ARCHITECTURE...    a line of JSON for each: how far the logits are apart with the factor baked into
                                       keys, queries and both, without it, and without its part in a sparse indexer

llama.cpp makes each model from keys alone (rotation_probe.py); the tensors that it asks for then make a whole file,
which is baked as any other.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import rotation_probe
from rotation_probe import I32, SET_DATA, VOCABULARY, InitParams, Model, Watch

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import folding
from ropetool.weights import bakes
from ropetool.weights.bakes import Bake
from ropetool.weights.gguf_bakeable import GgufBakeable
from ropetool.weights.weight_files import weight_files
from ropetool.weights.writing import write_weights

TOKENS = 48
FACTOR = {"rope.scaling.type": "linear", "rope.scaling.attn_factor": 1.6}
YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128,
    "rope.scaling.attn_factor": 1.3, "rope.scaling.yarn_log_multiplier": 0.05,
}  # fmt: skip
# Which embed a text instead of going on with it.
ENCODERS = frozenset(
    {"eurobert", "gemma-embedding", "jina-bert-v3", "llama-embed", "modern-bert", "neo-bert", "nomic-bert",
     "nomic-bert-moe"}
)  # fmt: skip
OWN: Mapping[str, Mapping[str, Any]] = {
    **{key: {"attention.clamp_kqv": 0.0} for key in folding.CLAMPED},
    **{key: {"attention.indexer.top_k": 8} for key in folding.INDEXERS},
    **{key: {"rope.dimension_count": 64} for key in ("minicpm3", "plm")},
    "qwen4exp": {"attention.indexer.top_k": 2, "rope.dimension_count": 64},
    "minimax-m3": {"attention.indexer.top_k": 2, "rope.dimension_count": 64},
    "llama4": {"expert_count": 128},
    "deci": {"block_count": 3, "attention.head_count": [2, 0, 2], "attention.head_count_kv": [2, 0, 1]},
    "openelm": {"attention.head_count_kv": [2, 1]},
    "gemma4": {"attention.shared_kv_layers": 2, "attention.sliding_window_pattern": [1, 1, 0, 1, 0]},
}
WIDE = ("attn_q.weight", "attn_k.weight", "attn_qkv.weight")  # drawn wider, so that attention is far from even
NARROW = ("attn_q_norm.weight",)  # and here narrower, so that it is no choice of one token
SMALL = ("ffn_down", "inp_gate", "proj.weight")  # ggml's GELU is a table of float16, whose steps are seen in the logits


class Making(Watch):
    """The tensors that llama.cpp asks for."""

    def __init__(self, base: Any) -> None:
        super().__init__(base)
        self.tensors: dict[str, np.ndarray] = {}

    def numbers(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        gain = 3.0 if name.endswith(WIDE) else 0.5 if name.endswith(NARROW) else 1.0
        gain *= 0.02 if any(part in name for part in SMALL) else 1.0
        return (super().numbers(name, shape) * gain).astype(np.float32)

    def fill(self, pointer: Any, user_data: Any) -> None:
        super().fill(pointer, user_data)
        tensor = pointer.contents
        name, shape = tensor.name.decode(), list(tensor.ne)
        while len(shape) > 1 and shape[-1] == 1:
            shape.pop()
        numbers = self.numbers(name, tuple(tensor.ne)).astype(np.int32 if tensor.type == I32 else np.float32)
        self.tensors[name] = np.ascontiguousarray(numbers).reshape(shape[::-1])


def model(arch: str) -> Model:
    scaling = YARN if arch in archs.MLA else FACTOR
    return Model(arch, {**scaling, **OWN.get(arch, {})})


def write(made: Model, path: Path) -> Path:
    """Write the keys of a model with every tensor that llama.cpp asks for."""
    keys = made.write(path.with_suffix(".keys"))
    lib, base = rotation_probe._library()
    seen = Making(base)
    fill = SET_DATA(seen.fill)
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    read = base.gguf_init_from_file(str(keys).encode(), InitParams(True, None))
    lib.llama_model_free(rotation_probe._LOADED[2](read, fill, None, params))
    return gguf_files.write(path, made.arch, made.whole, seen.tensors)


def outputs(path: Path, arch: str) -> np.ndarray:
    """Return the logits of a row of tokens, of an encoder its embeddings. Shapes: -> (tokens, channels)."""
    lib, _ = rotation_probe._library()
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    loaded = lib.llama_model_load_from_file(str(path).encode(), params)
    settings = lib.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_seq_max = 256, 64, 64, 1
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = lib.GGML_TYPE_F32
    flash = arch == "minimax-m3"  # its indexer is at work with it alone
    kind = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.flash_attn_type = kind
    if arch in ENCODERS:
        settings.embeddings, settings.pooling_type = True, lib.LLAMA_POOLING_TYPE_NONE
    opened = lib.llama_init_from_model(loaded, settings)
    batch = lib.llama_batch_init(TOKENS, 0, 1)
    batch.n_tokens = TOKENS
    for at in range(TOKENS):
        batch.token[at], batch.pos[at], batch.n_seq_id[at] = (3 + 5 * at * at) % VOCABULARY, at, 1
        batch.seq_id[at][0], batch.logits[at] = 0, 1
    assert lib.llama_decode(opened, batch) == 0
    if arch in ENCODERS:
        raw, width = lib.llama_get_embeddings(opened), lib.llama_model_n_embd(loaded)
    else:
        raw, width = lib.llama_get_logits(opened), lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(loaded))
    found = np.ctypeslib.as_array(raw, (TOKENS, width)).astype(np.float64)
    lib.llama_batch_free(batch)
    lib.llama_free(opened)
    lib.llama_model_free(loaded)
    return found


def compare(arch: str, folder: Path) -> dict[str, Any]:
    """Return how far the logits of each bake are from those of its source, of the largest one, and what it touched."""
    path = write(model(arch), folder / "m.gguf")
    source = GgufCheckpoint.open(path)
    wanted = outputs(path, arch)

    def off(bake: Bake) -> float:
        target = folder / "baked.gguf"
        target.unlink(missing_ok=True)
        write_weights(bake.tensors, weight_files(source, bake.edits), [target])
        found = outputs(target, arch)
        assert np.isfinite(found).all()
        return float(np.abs(found - wanted).max() / np.abs(wanted).max())

    baked = {side: bakes.attention_factor(GgufBakeable.of(source), side) for side in ("k", "q", "both")}
    found: dict[str, Any] = {side: off(bake) for side, bake in baked.items()}
    found["unbaked"] = off(Bake((), baked["k"].edits))
    rest = tuple(edit for edit in baked["k"].tensors if "indexer" not in edit.tensor)
    if rest != baked["k"].tensors:
        found["without indexer"] = off(Bake(rest, baked["k"].edits))
    found["touched"] = sorted({edit.tensor.split(".", 2)[2] for edit in baked["k"].tensors})
    return found


def main() -> None:
    lib, _ = rotation_probe._library()
    silent = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    for arch in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as name:
            print(json.dumps({"arch": arch, **compare(arch, Path(name))}), flush=True)


if __name__ == "__main__":
    main()
