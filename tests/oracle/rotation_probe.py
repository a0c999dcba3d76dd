"""Every rotation that the real libllama computes: tiny random models of any architecture, without a file of weights.

llama.cpp makes a model from keys alone (`llama_model_init_from_user`) and asks for each tensor's numbers; its callback
for evaluated nodes then shows each GGML_OP_ROPE of the running graph with what goes in and what comes out. The keys are
those of its own test of all architectures (tests/test-llama-archs.cpp). As a program:

    rotation_probe.py FOLDER    reads FOLDER/*@FIRST@COUNT.gguf, keys without tensors, and decodes COUNT tokens from
                                position FIRST on; writes an .npz for each that ran, else a .txt that says why not;
                                nothing for one that ends its process, a fork
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FIRST, COUNT, VOCABULARY = 700, 4, 128  # the position of the first token of a text, and how many follow each other
CONTEXT, BATCH = 1024, 256  # what is allocated, and what is decoded at once
DEVIATION = 0.1
VECTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


# --- ggml's structures, as ggml/include/ggml.h has them


class Tensor(ctypes.Structure):
    """struct ggml_tensor."""


Tensor._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(Tensor) * 10), ("view_src", ctypes.POINTER(Tensor)), ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64), ("extra", ctypes.c_void_p), ("padding", ctypes.c_char * 8),
]  # fmt: skip
TensorPointer = ctypes.POINTER(Tensor)


class InitParams(ctypes.Structure):
    """struct gguf_init_params."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


SET_DATA = ctypes.CFUNCTYPE(None, TensorPointer, ctypes.c_void_p)
EVALUATED = ctypes.CFUNCTYPE(ctypes.c_bool, TensorPointer, ctypes.c_bool, ctypes.c_void_p)
F32, I32 = 0, 26


def divisors(name: str, pairs: int) -> np.ndarray:
    """Return the numbers of a frequency vector; each name has its own."""
    return np.geomspace(1, 3 + (VECTORS.index(name) if name in VECTORS else 0), pairs).astype(np.float32)


@cache
def _drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the random numbers of a tensor, which is the same in many models: most of the time of a run was this."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    numbers = rng.normal(1 if "norm" in name else 0, DEVIATION, shape).astype(np.float32)
    return -np.abs(numbers) if "ssm_a" in name else numbers


# --- keys


@dataclass(frozen=True)
class Model:
    """A model to make: its architecture, and keys that replace or add to those of every model.

    Keys have no architecture in front; an int is a u32, a float an f32, a list an array. None takes a key away.
    """

    arch: str
    keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def span(self) -> tuple[int, int]:
        """The position of the first token that is decoded, and how many are."""
        return SPANS.get(self.arch, (FIRST, COUNT))

    @property
    def heads(self) -> int:
        return int(SIZES.get(self.arch, {}).get("heads", 2))

    @property
    def stated(self) -> dict[str, Any]:
        """All keys of the model."""
        return {key: value for key, value in (self._plain() | dict(self.keys)).items() if value is not None}

    def write(self, path: Path, vectors: Mapping[str, int] | None = None) -> Path:
        """Write the keys, and the frequency vectors that llama.cpp made, by their lengths."""
        from gguf_files import write  # not on the path of the program

        return write(
            path, self.arch, self.whole, {name: divisors(name, pairs) for name, pairs in (vectors or {}).items()}
        )

    @property
    def whole(self) -> dict[str, Any]:
        """All keys of a file, with those that have no architecture in front."""
        own = {f"xielu.{key}": [1.0] * 2 for key in ("alpha_n", "alpha_p", "beta", "eps")}
        more = own if self.arch == "apertus" else {}
        return {"tokenizer.ggml.model": "no_vocab", **self.stated, **more, "tokenizer.ggml.token_type_count": 2}

    def _plain(self) -> dict[str, Any]:
        """Return the keys of test-llama-archs.cpp, for 256 channels in 2 heads unless the architecture wants others."""
        size = SIZES.get(self.arch, {})
        width, heads, layers = size.get("width", 256), self.heads, size.get("layers", 2)
        head, inner = width // heads, width * 3 // 2
        keys: dict[str, Any] = {
            "vocab_size": size.get("vocabulary", VOCABULARY), "context_length": 256, "embedding_length": width,
            "features_length": width, "block_count": layers, "leading_dense_block_count": 1,
            "feed_forward_length": inner, "use_parallel_residual": False, "logit_scale": 1.0,
            "full_attention_interval": 2, "attention.head_count": heads, "attention.head_count_kv": heads,
            "attention.clamp_kqv": 1.0, "attention.layer_norm_epsilon": 1e-5,
            "attention.layer_norm_rms_epsilon": 1e-5, "attention.group_norm_epsilon": 1e-5,
            "attention.group_norm_groups": 8, "attention.q_lora_rank": 512, "attention.kv_lora_rank": 512,
            "attention.sliding_window": 32, "attention.sliding_window_pattern": 2, "rope.freq_base": 10000.0,
            "attention.indexer.head_count": 64, "attention.indexer.key_length": 128, "attention.indexer.top_k": 131072,
            "attention.indexer.block_size": 4, "attention.indexer.local_blocks": 1,
            "rope.dimension_sections": [head // 4] * 4, "residual_scale": 3.5, "ssm.inner_size": 2 * width,
            "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.time_step_rank": heads, "ssm.group_count": 2,
            "shortconv.l_cache": 3, "kda.head_dim": 128,
            "kda.gate_lower_bound": -5.0, "wkv.head_size": head,
        }  # fmt: skip
        if self.arch in EXPERTS:
            keys |= {
                "expert_feed_forward_length": inner, "expert_shared_feed_forward_length": inner // 2,
                "interleave_moe_layer_step": 2, "expert_count": 2, "expert_used_count": 2, "expert_shared_count": 1,
                "expert_gating_func": 2, "expert_group_scale": 1.0, "experts_per_group": 1,
                "expert_weights_scale": 1.0, "expert_weights_norm": True,
            }  # fmt: skip
        if self.arch in LATENT:
            keys |= {
                "attention.key_length": 576, "attention.value_length": 512, "rope.dimension_count": 64,
                "attention.key_length_mla": 192, "attention.value_length_mla": 128,
            }  # fmt: skip
        if self.arch in STATELY:
            keys |= dict.fromkeys(("attention.head_count", "attention.head_count_kv"), [heads, 0][:layers])
        if self.arch in LISTED:
            keys["attention.sliding_window_pattern"] = [layer % 2 for layer in range(layers)]
        return keys | OWN.get(self.arch, {})


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


EXPERTS = _words(
    """afmoe arctic bailingmoe bailingmoe2 bailingmoe3 cohere2moe dbrx deepseek deepseek2 deepseek2-ocr deepseek32
    deepseek4 dots1 dots3note ernie4_5-moe exaone-moe glm-dsa glm4moe gpt-oss grok grovemoe hunyuan-moe hy_v3 hy_v4
    laguna lfm2moe llada-moe llama4 maple mellum mimo2 minimax-01 minimax-m2 minimax-m3 mistral4 olmoe paddleocr phimoe
    qwen2moe qwen35moe qwen3moe qwen3next qwen3vlmoe qwen4exp rnd1 smallthinker step35 granitemoe"""
)
LATENT = _words("deepseek2 deepseek32 glm-dsa dots3note bailingmoe3 mistral4 hy_v4")
STATELY = _words("plamo2 granitehybrid lfm2 lfm2moe bailingmoe3")
LISTED = _words("cohere2moe mimo2 step35 spark2_5 muse-glimmer granite_swa dots3note maple")
SIZES = {
    **{name: {"width": 128, "heads": 1} for name in LATENT},
    "llama4": {"layers": 4},
    "baichuan": {"layers": 32},
    "gemma4": {"width": 128, "layers": 5},
    "gemma3n": {"width": 64, "heads": 1, "layers": 22},
    "deepseek4": {"width": 512, "heads": 8, "layers": 4},
    **{name: {"width": 160} for name in ("step35", "laguna")},
    "chameleon": {"vocabulary": 10240},
    "qwen3tts": {"vocabulary": 3072},
    "hrm_text": {"layers": 6},
    **{name: {"layers": 4} for name in ("afmoe", "smollm3", "cohere2", "exaone-moe", "muse-glimmer", "cohere2moe")},
    "smallthinker": {"layers": 5},
}
# Temperature begins at position 8192; a sparse indexer takes positions for places in the cache; blocks of 4 and of 128
# tokens are compressed to a key each.
SPANS = {"llama4": (9000, COUNT), "qwen4exp": (0, 64), "deepseek4": (640, 132)}
OWN: dict[str, dict[str, Any]] = {
    "bailingmoe3": {"rope.dimension_sections": [8, 12, 12, 0], "swiglu_clamp_exp": [0.0, 4.0],
                    "swiglu_clamp_shexp": [0.0, 5.0]},
    "deepseek4": {
        "attention.head_count_kv": 1, "attention.key_length": 64, "attention.value_length": 64,
        "rope.dimension_count": 32, "attention.q_lora_rank": 64, "attention.output_group_count": 8,
        "attention.output_lora_rank": 32, "attention.compress_ratios": [0, 0, 4, 128],
        "attention.compress_rope_freq_base": 160000.0, "hyper_connection.count": 4,
        "hyper_connection.sinkhorn_iterations": 2, "hyper_connection.epsilon": 1e-6, "hash_layer_count": 0,
        "swiglu_clamp_exp": 10.0, "expert_gating_func": 4,
    },
    "dots3note": {
        "attention.kv_lora_rank_swa": 512, "attention.key_length_swa": 576, "attention.value_length_swa": 512,
        "attention.key_length_mla_swa": 192, "attention.value_length_mla_swa": 128, "rope.freq_base_swa": 500.0,
        "attention.indexer.types": [1, 0],
    },
    "gemma4": {
        "embedding_length_per_layer_input": 64, "attention.shared_kv_layers": 0, "attention.key_length_swa": 64,
        "attention.value_length_swa": 64, "attention.sliding_window_pattern": [1, 1, 1, 1, 0],
    },
    "hrm_text": {"hrm.layers_per_stack": 1, "hrm.h_cycles": 2, "hrm.l_cycles": 2},
    "hunyuan_vl": {"rope.dimension_sections": [16, 16, 16, 16]},
    "hy_v4": {
        "hyper_connection.count": 4, "hyper_connection.epsilon": 1e-6, "hyper_connection.magnitude": 2.0,
        "swiglu_clamp_exp": 10.0, "attention.indexer.types": [1, 0],
    },
    "graniteswitch": {
        "adapters.count": 1, "adapters.lora_rank": 4, "adapters.token_ids_activate": [1],
        "adapters.token_ids_substitute": [2],
    },
    "laguna": {"attention.sliding_window_pattern": [1, 0], "rope.dimension_count_swa": 40},
    "maple": {"swiglu_clamp_exp": 7.0},
    "minimax-m3": {"rope.dimension_count": 64, "attention.indexer.head_count": 2},
    "plamo2": {"ssm.group_count": 0},
    **{name: {"ssm.inner_size": 256} for name in ("qwen3next", "qwen35", "qwen35moe")},
    "qwen4exp": {
        "ssm.inner_size": 256, "hyper_connection.count": 4, "hyper_connection.sinkhorn_iterations": 2,
        "hyper_connection.epsilon": 1e-6, "hyper_connection.low_rank": 8, "attention.compress_ratios": [4, 4],
        "attention.indexer.key_length": 128,
    },
}  # fmt: skip


# --- the program


class Watch:
    """What was seen of one run."""

    def __init__(self, base: Any) -> None:
        self.base, self.vectors, self.layer = base, dict[str, int](), -1
        self.nodes: list[dict[str, Any]] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.scales: list[tuple[int, float]] = []
        self.temperatures: list[tuple[int, list[float]]] = []
        self._rotated: dict[int, int] = {}
        self._made_by: list[str] = []

    def fill(self, pointer: Any, user_data: Any) -> None:
        """Give a tensor its numbers: those of a vector of divisors, or random ones by its name."""
        tensor = pointer.contents
        name, shape = tensor.name.decode(), tuple(tensor.ne)
        if name in VECTORS:
            self.vectors[name] = shape[0]
        numbers = self.numbers(name, shape)
        data = np.ascontiguousarray(numbers, np.int32 if tensor.type == I32 else np.float32)
        if tensor.type not in (F32, I32):
            data = data.astype(np.float16)
        self.base.ggml_backend_tensor_set(pointer, data.ctypes.data_as(ctypes.c_void_p), 0, data.nbytes)

    def numbers(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return the numbers of a tensor, those of the first axis next to each other."""
        return divisors(name, shape[0]) if name in VECTORS else _drawn(name, shape)

    def see(self, pointer: Any, ask: bool, user_data: Any) -> bool:
        """Keep what goes into a rotation and what comes out, and each score's multiplier."""
        tensor = pointer.contents
        name, op = tensor.name.decode(errors="replace"), self.base.ggml_op_name(tensor.op).decode()
        if not ask and (number := name.rpartition("-")[2].partition(" ")[0]).isdigit():
            self.layer = int(number)
        if op == "ROPE":
            self._rotation(tensor, ask, name)
        elif not ask and op == "SOFT_MAX" and tensor.src[1]:
            self.scales.append((self.layer, float(np.array(tensor.op_params[:1], np.int32).view(np.float32)[0])))
        elif not ask and op in ("RMS_NORM", "NORM", "L2_NORM"):
            found = self._rotated.get(_origin(tensor.src[0]))
            if found is not None:
                self.nodes[found]["normed"] = True
        elif not ask and op == "MUL" and tensor.src[1].contents.name == b"inp_attn_scale":
            self.temperatures.append((self.layer, _numbers(tensor.src[1].contents).ravel().tolist()))
        return True

    def _rotation(self, tensor: Any, ask: bool, name: str) -> None:
        key = str(len(self.nodes))
        if ask:
            self.arrays[f"x{key}"] = _numbers(tensor.src[0].contents)
            self.arrays[f"p{key}"] = _numbers(tensor.src[1].contents).ravel()
            self._made_by = _weights_behind(tensor.src[0].contents)
            return
        self.arrays[f"y{key}"] = _numbers(tensor)
        params = tensor.op_params
        self._rotated[ctypes.addressof(tensor)] = len(self.nodes)
        self.nodes.append({
            "layer": self.layer, "name": name, "dims": params[1], "mode": params[2], "offset": params[15],
            "normed": False, "made_by": self._made_by,
        })  # fmt: skip


def _weights_behind(tensor: Any) -> list[str]:
    """Return the weights that a node was made with, the last one first, back to a projection; without layer and part."""
    found: list[str] = []
    for _ in range(40):
        sources = [source.contents for source in tensor.src if source]
        named = {source.name.decode(errors="replace"): source for source in sources}
        for name in (name for name in named if name.endswith((".weight", ".bias", ".scale"))):
            found += [name.split(".", 2)[2].rpartition(".")[0]]
        inner = [source for name, source in named.items() if not name.endswith((".weight", ".bias", ".scale"))]
        if not inner or _library()[1].ggml_op_name(tensor.op) == b"MUL_MAT":
            break
        tensor = inner[0]
    return list(dict.fromkeys(found))


VIEWS = ("RESHAPE", "VIEW", "PERMUTE", "CONT", "TRANSPOSE")


def _origin(pointer: Any) -> int:
    """Return the address of the tensor that this one is a view of, through any views and copies."""
    base = _library()[1]
    while base.ggml_op_name(pointer.contents.op).decode() in VIEWS:
        pointer = pointer.contents.src[0]
    return ctypes.addressof(pointer.contents)


def _numbers(tensor: Any) -> np.ndarray:
    """Return the tensor's numbers, slowest axis first. Shapes: -> ne reversed."""
    dtype = np.dtype(np.int32 if tensor.type == I32 else np.float32)
    shape, strides = tuple(tensor.ne)[::-1], tuple(tensor.nb)[::-1]
    span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + dtype.itemsize
    raw = np.ctypeslib.as_array(ctypes.cast(tensor.data, ctypes.POINTER(ctypes.c_uint8)), (span,))
    return np.lib.stride_tricks.as_strided(raw.view(dtype) if span % 4 == 0 else raw, shape, strides).copy()


_LOADED: list[Any] = []


def _library() -> tuple[Any, Any]:
    """Return llama_cpp and ggml's own library, with the functions that are called declared."""
    if not _LOADED:
        import llama_cpp

        base = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
        base.ggml_op_name.restype, base.ggml_op_name.argtypes = ctypes.c_char_p, [ctypes.c_int]
        base.ggml_backend_tensor_set.argtypes = [TensorPointer, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        base.gguf_init_from_file.restype = ctypes.c_void_p
        base.gguf_init_from_file.argtypes = [ctypes.c_char_p, InitParams]
        made = llama_cpp.llama_cpp._lib.llama_model_init_from_user
        made.restype = ctypes.c_void_p
        made.argtypes = [ctypes.c_void_p, SET_DATA, ctypes.c_void_p, llama_cpp.llama_model_params]
        llama_cpp.llama_backend_init()
        _LOADED.extend((llama_cpp, base, made))
    return _LOADED[0], _LOADED[1]


def run(path: Path, first: int, count: int) -> Watch:
    """Make the model of these keys and decode a few tokens. Raises: ValueError where llama.cpp does not."""
    lib, base = _library()
    watch = Watch(base)
    fill, see = SET_DATA(watch.fill), EVALUATED(watch.see)
    keys = base.gguf_init_from_file(str(path).encode(), InitParams(True, None))
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    model = _LOADED[2](keys, fill, None, params)
    if not model:
        raise ValueError("llama.cpp does not make it")
    settings = lib.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_seq_max = CONTEXT, BATCH, BATCH, 1
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = lib.GGML_TYPE_F32
    settings.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.cb_eval = ctypes.cast(see, type(settings.cb_eval))
    opened = lib.llama_init_from_model(model, settings)
    if not opened:
        lib.llama_model_free(model)
        raise ValueError("llama.cpp opens no context")
    batch = lib.llama_batch_init(count, 0, 1)
    batch.n_tokens = count
    for at in range(count):
        batch.token[at], batch.pos[at], batch.n_seq_id[at] = (3 + 5 * at) % VOCABULARY, first + at, 1
        batch.seq_id[at][0], batch.logits[at] = 0, 1
    code = lib.llama_decode(opened, batch)
    lib.llama_batch_free(batch)
    lib.llama_free(opened)
    lib.llama_model_free(model)
    if code != 0:
        raise ValueError(f"llama_decode returns {code}")
    return watch


def main(folder: Path) -> None:
    """Run every model of a folder in a fork. If a model ends the fork, another one runs the models behind it."""
    _library()
    left = sorted(folder.glob("*.gguf"))
    while left:
        child = os.fork()
        if not child:
            try:
                for path in left:
                    _run_file(path)
            except BaseException:  # noqa: BLE001 - the fork must not go on as its parent
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answered = sum(path.with_suffix(".npz").exists() or path.with_suffix(".txt").exists() for path in left)
        if code > 0:  # below 0 llama.cpp ended it
            raise SystemExit(f"{left[answered].name}: an error of this program")
        left = left[answered + 1 :]


def _run_file(path: Path) -> None:
    first, count = map(int, path.stem.split("@")[-2:])
    try:
        watch = run(path, first, count)
    except ValueError as error:
        path.with_suffix(".txt").write_text(str(error), encoding="utf-8")
    else:
        seen = {"vectors": watch.vectors, "nodes": watch.nodes, "scales": watch.scales,
                "temperatures": watch.temperatures}  # fmt: skip
        np.savez(path.with_suffix(".npz"), seen=np.array(json.dumps(seen)), **watch.arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
