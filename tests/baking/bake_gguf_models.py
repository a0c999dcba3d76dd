"""Tiny GGUF models of the architectures that can be baked, and llama.cpp's logits of them.

Plain consecutive tokens up to four times the trained length, a float32 cache, no flash attention.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import family_making
import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType
from gguf_models import library

from ropetool import families
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.files.gguf import read_shards
from ropetool.weights import bakes
from ropetool.weights.bakes import Bake
from ropetool.weights.gguf_bakeable import GgufBakeable
from ropetool.weights.weight_files import weight_files
from ropetool.weights.writing import Baked, write_weights

TRAINED, FACTOR = 512, 4.0
LENGTH = int(TRAINED * FACTOR)
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCABULARY = 256, 4, 2, 64, 256, 96
RANK_Q, RANK_KV, ROTARY, PLAIN, VALUE = 32, 64, 32, 32, 32  # MLA's
TOKENS = [int(i) for i in np.random.default_rng(5).integers(3, VOCABULARY, LENGTH)]
PLACES = (5, 300, 511, 512, 700, 1023, 1500, 2046, 2047)
YARN: dict[str, Any] = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": FACTOR, "rope.scaling.original_context_length": TRAINED,
    "rope.scaling.attn_factor": 1.5,
}  # fmt: skip
U32, F32, STR, ARRAY = GGUFValueType.UINT32, GGUFValueType.FLOAT32, GGUFValueType.STRING, GGUFValueType.ARRAY
MLA_YARN = {**YARN, "rope.scaling.attn_factor": 1.2, "rope.scaling.yarn_log_multiplier": 0.05}
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Arch:
    """An architecture: keys of its own, and the attention's tensors of a layer, rows first."""

    keys: Mapping[str, Any] = field(default_factory=dict)
    attention: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    scaling: Mapping[str, Any] = field(default_factory=lambda: YARN)
    more: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    beside: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    layers: int = 2


Q_ROWS, K_ROWS = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
PLAIN_QKV: Shapes = {
    "attn_q.weight": (Q_ROWS, HIDDEN), "attn_k.weight": (K_ROWS, HIDDEN), "attn_v.weight": (K_ROWS, HIDDEN),
    "attn_output.weight": (HIDDEN, Q_ROWS),
}  # fmt: skip
BIASES: Shapes = {"attn_q.bias": (Q_ROWS,), "attn_k.bias": (K_ROWS,), "attn_v.bias": (K_ROWS,)}
NORMS: Shapes = {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
GEMMA: Shapes = {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
EXPERTS: Shapes = {
    "ffn_gate_inp.weight": (2, HIDDEN), "ffn_gate_exps.weight": (2, INNER, HIDDEN),
    "ffn_up_exps.weight": (2, INNER, HIDDEN), "ffn_down_exps.weight": (2, HIDDEN, INNER),
}  # fmt: skip
FFN = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
FUSED: Shapes = {"attn_qkv.weight": (Q_ROWS + 2 * K_ROWS, HIDDEN), "attn_output.weight": (HIDDEN, Q_ROWS)}
BEFORE = ("attn_norm.weight", "ffn_norm.weight")  # norms that some have behind attention and feed-forward alone
WIDE = {"attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM}
MLA: Shapes = {
    "attn_q_a.weight": (RANK_Q, HIDDEN), "attn_q_a_norm.weight": (RANK_Q,),
    "attn_q_b.weight": (HEADS * (PLAIN + ROTARY), RANK_Q), "attn_kv_a_mqa.weight": (RANK_KV + ROTARY, HIDDEN),
    "attn_kv_a_norm.weight": (RANK_KV,), "attn_k_b.weight": (HEADS, RANK_KV, PLAIN),
    "attn_v_b.weight": (HEADS, VALUE, RANK_KV), "attn_output.weight": (HIDDEN, HEADS * VALUE),
}  # fmt: skip
MLA_KEYS = {
    "attention.head_count_kv": 1, "attention.q_lora_rank": RANK_Q, "attention.kv_lora_rank": RANK_KV,
    "attention.key_length": RANK_KV + ROTARY, "attention.value_length": RANK_KV,
    "attention.key_length_mla": PLAIN + ROTARY, "attention.value_length_mla": VALUE, "rope.dimension_count": ROTARY,
    "leading_dense_block_count": 2, "expert_count": 2, "expert_used_count": 1, "expert_shared_count": 1,
    "expert_feed_forward_length": INNER,
}  # fmt: skip
MOE_KEYS = {"expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": INNER}
SHARED_EXPERT: Shapes = {
    "ffn_gate_inp_shexp.weight": (HIDDEN,), "ffn_gate_shexp.weight": (INNER, HIDDEN),
    "ffn_up_shexp.weight": (INNER, HIDDEN), "ffn_down_shexp.weight": (HIDDEN, INNER),
}  # fmt: skip
ARCHITECTURES: dict[str, Arch] = {
    "llama": Arch({}, {**PLAIN_QKV, **BIASES}),
    "qwen2": Arch({}, {**PLAIN_QKV, **BIASES}),
    "qwen3": Arch(WIDE, {**PLAIN_QKV, **NORMS}),
    "qwen2moe": Arch(
        {**MOE_KEYS, "expert_shared_feed_forward_length": INNER}, {**PLAIN_QKV, **BIASES}, more={**EXPERTS, **SHARED_EXPERT},
        without=FFN,
    ),
    "qwen3moe": Arch({**WIDE, **MOE_KEYS}, {**PLAIN_QKV, **NORMS}, more=EXPERTS, without=FFN),
    "phi3": Arch(
        {"rope.dimension_count": 48}, FUSED, more={"ffn_up.weight": (2 * INNER, HIDDEN)}, without=("ffn_gate.weight",)
    ),
    "gemma2": Arch(
        {**WIDE, "attention.sliding_window": 128}, PLAIN_QKV, more=GEMMA, without=("output.weight",),
    ),
    "gemma3": Arch({**WIDE, "attention.sliding_window": 128}, {**PLAIN_QKV, **NORMS}, more=GEMMA, layers=6),
    "granite": Arch({"attention.scale": 0.25, "logit_scale": 1.0}, PLAIN_QKV),
    "smollm3": Arch({}, PLAIN_QKV, layers=4),
    "starcoder2": Arch(
        {"attention.layer_norm_epsilon": 1e-6}, {**PLAIN_QKV, **BIASES, "attn_output.bias": (HIDDEN,)},
        more={
            "attn_norm.bias": (HIDDEN,), "ffn_norm.bias": (HIDDEN,), "ffn_up.bias": (INNER,),
            "ffn_down.bias": (HIDDEN,),
        },
        without=("ffn_gate.weight",), beside={"output_norm.bias": (HIDDEN,)},
    ),
    "gpt-oss": Arch(
        {**WIDE, "attention.sliding_window": 128, "expert_count": 2, "expert_used_count": 1,
         "expert_feed_forward_length": INNER},
        {**PLAIN_QKV, **BIASES, "attn_output.bias": (HIDDEN,), "attn_sinks.weight": (HEADS,)},
        more={
            **EXPERTS, "ffn_gate_inp.bias": (2,), "ffn_gate_exps.bias": (2, INNER), "ffn_up_exps.bias": (2, INNER),
            "ffn_down_exps.bias": (2, HIDDEN), "post_attention_norm.weight": (HIDDEN,),
        },
        without=(*FFN, "ffn_norm.weight"),
    ),
    "command-r": Arch(
        {"attention.layer_norm_epsilon": 1e-5, "logit_scale": 0.0625}, PLAIN_QKV, without=("ffn_norm.weight", "output.weight"),
    ),
    "deepseek2": Arch(MLA_KEYS, MLA, MLA_YARN),
    "olmo2": Arch(
        {}, {**PLAIN_QKV, "attn_q_norm.weight": (Q_ROWS,), "attn_k_norm.weight": (K_ROWS,)}, more=GEMMA, without=BEFORE,
    ),
    "exaone4": Arch(WIDE, {**PLAIN_QKV, **NORMS}, more=GEMMA, without=BEFORE),
    "glm4": Arch(
        {**WIDE, "rope.dimension_count": 32}, {**PLAIN_QKV, **BIASES},
        more={**GEMMA, "ffn_up.weight": (2 * INNER, HIDDEN)}, without=("ffn_gate.weight",),
    ),
    "stablelm": Arch(
        {"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": 32}, {**PLAIN_QKV, **BIASES},
        more={"attn_norm.bias": (HIDDEN,), "ffn_norm.bias": (HIDDEN,)}, beside={"output_norm.bias": (HIDDEN,)},
    ),
}  # fmt: skip


def _made(name: str) -> Arch:
    """Return the architecture of a plain family as its own file has it."""
    counts = family_making.common(
        name,
        layers=2,
        hidden=HIDDEN,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        inner=INNER,
        vocabulary=VOCABULARY,
    )
    layer, outer = family_making.gguf_shapes(name, counts)
    beside = {key: shape for key, shape in outer.items() if key not in ("token_embd.weight", "output.weight")}
    own = (*FFN, *BEFORE, *(() if "output.weight" in outer else ("output.weight",)))
    without = tuple(key for key in own if key not in layer)
    return Arch(family_making.gguf_keys(name, counts), layer, without=without, beside=beside)


for _arch, _family in families.by_gguf_architecture().items():
    if _arch not in ARCHITECTURES and family_making.is_plain(_family):
        ARCHITECTURES[_arch] = _made(_family.model_type)


def weights(arch: str, layers: int = 0) -> dict[str, np.ndarray]:
    """Return random weights by which every logit depends on every position."""
    rng, made = np.random.default_rng(7), ARCHITECTURES[arch]
    shapes: Shapes = {"token_embd.weight": (VOCABULARY, HIDDEN), "output.weight": (VOCABULARY, HIDDEN)}
    for layer in range(layers or made.layers):
        block: Shapes = {
            **made.attention, "ffn_gate.weight": (INNER, HIDDEN), "ffn_up.weight": (INNER, HIDDEN),
            "ffn_down.weight": (HIDDEN, INNER), "attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,),
        }  # fmt: skip
        block = {name: shape for name, shape in block.items() if name not in made.without} | dict(made.more)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    shapes |= {"output_norm.weight": (HIDDEN,), **made.beside}
    shapes = {name: shape for name, shape in shapes.items() if name not in made.without}
    return {name: _drawn(rng, name, shape).astype(np.float32) for name, shape in shapes.items()}


def _drawn(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if "norm" in name:
        return rng.normal(1, 0.2, shape)
    if name.endswith("bias"):
        return rng.normal(0, 0.5, shape)
    return rng.normal(0, 2.0 if name.startswith("token") else 0.12, shape)


def write(
    path: Path, arch: str, keys: Mapping[str, Any] | None = None, *, dtype: str = "F32", layers: int = 0,
    raw: Mapping[str, tuple[str, np.ndarray]] | None = None, tensors: Mapping[str, np.ndarray] | None = None,
    shards: int = 1, leave_out: tuple[str, ...] = (),
) -> Path:  # fmt: skip
    """Write a model, its matrices in one type, and some tensors as raw rows of another; return its first file."""
    writer = gguf.GGUFWriter(path, arch, **({} if shards == 1 else {"split_max_tensors": 10}))
    for key, value in stated(arch, layers or ARCHITECTURES[arch].layers, keys).items():
        writer.add_key_value(f"{arch}.{key}", value, _type(key, value))
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(VOCABULARY)
    for name, tensor in {**weights(arch, layers), **(tensors or {})}.items():
        if name.split(".", 2)[-1].startswith(leave_out):
            continue
        kind, data = _stored(name, tensor, dtype)
        if raw and name in raw:
            kind, data = Kind[raw[name][0]], raw[name][1]
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if shards == 1 else path.with_name(f"{path.stem}-00001-of-{shards:05d}.gguf")


def _stored(name: str, tensor: np.ndarray, dtype: str) -> tuple[Kind, np.ndarray]:
    if dtype == "F32" or tensor.ndim == 1 or "ffn_gate_inp" in name or "bias" in name:
        return Kind.F32, tensor
    return Kind[dtype], gguf.quants.quantize(tensor, Kind[dtype])


def with_narrow_heads(path: Path, arch: str, dtype: str) -> Path:
    """Write a model of one layer, whose query and key projections alone are of another type.

    llama.cpp rounds activations to suit narrow rows; here they are the layer's input, the same before and after a bake.
    """
    every = write(path.with_suffix(".f32"), arch, layers=1)
    if dtype.endswith("_K"):
        every = quantised(every, path.with_suffix(".all"), dtype)
        found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(every).tensors}
    else:
        found = {name: _stored(name, tensor, dtype)[1] for name, tensor in weights(arch, 1).items()}
    names = ("blk.0.attn_q.weight", "blk.0.attn_k.weight")
    return write(path, arch, layers=1, raw={name: (dtype, np.array(found[name])) for name in names})


def stated(arch: str, layers: int, keys: Mapping[str, Any] | None) -> dict[str, Any]:
    made = ARCHITECTURES[arch]
    common = {
        "context_length": LENGTH, "embedding_length": HIDDEN, "feed_forward_length": INNER, "block_count": layers,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
    }  # fmt: skip
    return {**common, **made.keys, **(made.scaling if keys is None else keys)}


def _type(key: str, value: Any) -> GGUFValueType:
    if isinstance(value, str):
        return STR
    if isinstance(value, bool):
        return GGUFValueType.BOOL
    return F32 if isinstance(value, float) else ARRAY if isinstance(value, list) else U32


def quantised(source: Path, target: Path, dtype: str) -> Path:
    """Return a copy whose matrices libllama has quantised, all to one type."""
    lib = library()
    params = lib.llama_model_quantize_default_params()
    params.ftype = {"Q4_K": lib.LLAMA_FTYPE_MOSTLY_Q4_K_S, "Q6_K": lib.LLAMA_FTYPE_MOSTLY_Q6_K}[dtype]
    params.pure, params.nthread = True, 1
    assert lib.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) == 0
    return target


# --- ropetool's side


def opened(path: Path, bake_dtype: str = "") -> GgufBakeable:
    return GgufBakeable.of(GgufCheckpoint.open(path), bake_dtype)


def carry_out(bake: Bake, source: Path, target: Path, **options: Any) -> Baked:
    """Write the baked model of one file."""
    files = weight_files(GgufCheckpoint.open(source), bake.edits)
    return write_weights(bake.tensors, files, [target], **options)


def bake_factor(source: Path, target: Path, side: str = "k", **options: Any) -> Baked:
    """Write the model with its attention factor baked."""
    return carry_out(bakes.attention_factor(opened(source, **options), side), source, target, **options)


def stored(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return every tensor of a model: type, shape, bytes, from all its files."""
    found = {}
    for header in read_shards(path):
        raw = header.path.read_bytes()
        for info in header.tensors:
            start = header.data_start + info.offset
            found[info.name] = (info.type_name, info.shape, raw[start : start + info.nbytes])
    return found


def changed(before: Path, after: Path) -> set[str]:
    """Return the names of the tensors that are not byte for byte the same."""
    old, new = stored(before), stored(after)
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


# --- llama.cpp


class Run:
    """A context of one sequence."""

    def __init__(self, path: Path, n_ctx: int = LENGTH) -> None:
        self.lib = lib = library()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp does not load {path.name}"
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = n_ctx, 256, 256
        settings.n_threads = settings.n_threads_batch = 1
        settings.type_k = settings.type_v = lib.GGML_TYPE_F32
        settings.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        settings.swa_full = True
        self.context = lib.llama_init_from_model(self.model, settings)

    def close(self) -> None:
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)

    def decode(self, tokens: Sequence[int], start: int) -> np.ndarray:
        """Return the logits of all these tokens, at positions from `start` on."""
        rows = []
        for first in range(0, len(tokens), 256):
            part = tokens[first : first + 256]
            batch = self.lib.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            for row, token in enumerate(part):
                batch.token[row], batch.pos[row] = token, start + first + row
                batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, 0, 1
            code = self.lib.llama_decode(self.context, batch)
            self.lib.llama_batch_free(batch)
            assert code == 0
            raw = self.lib.llama_get_logits(self.context)
            rows.append(np.ctypeslib.as_array(raw, (len(part), VOCABULARY)).astype(np.float64))
        return np.concatenate(rows)

    def shift(self, by: int) -> None:
        """Move all cells by the same number of positions."""
        self.lib.llama_memory_seq_add(self.lib.llama_get_memory(self.context), 0, -1, -1, by)


def logits(path: Path) -> np.ndarray:
    """Return the logits at places up to four times the trained length."""
    run = Run(path)
    try:
        return run.decode(TOKENS, 0)[list(PLACES)]
    finally:
        run.close()


def next_logits(path: Path, count: int, by: int) -> np.ndarray:
    """Return the logits of the token behind `count` others, all of which were moved by so many positions."""
    run = Run(path)
    try:
        run.decode(TOKENS[:count], 0)
        if by:
            run.shift(by)
        return run.decode(TOKENS[count : count + 1], count + by)
    finally:
        run.close()


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference, as a share of the largest logit."""
    return float(np.abs(a - b).max() / np.abs(a).max())
